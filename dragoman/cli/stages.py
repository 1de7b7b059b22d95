"""The way from a command line to a training run: checks, corpus, settings, budget."""

import os
import shutil
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dragoman.cli.options import UNKNOWN
from dragoman.config import (
    Config,
    config_to_toml,
    preset_for,
    read_config,
    read_settings,
    resolve_config,
)
from dragoman.errors import UserError

if TYPE_CHECKING:
    from dragoman.corpus.prepared import CorpusFiles, PreparedCorpus

# What is kept of a time budget for averaging, the last validation and the final evaluation.
_RESERVE_SHARE, _RESERVE_LEAST, _RESERVE_MOST = 0.05, 5.0, 120.0
_SETTINGS = "config.toml"


@dataclass(frozen=True)
class Choices:
    """The settings a person chose, weakest first: preset, file, flags, assignments."""

    preset: str | None = None
    file: dict[str, Any] = field(default_factory=dict)
    flags: dict[str, Any] = field(default_factory=dict)
    assignments: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, preset: str | None, file: Path | None, assignments: list[str] | None) -> "Choices":
        """From the options --preset, --config and --set. Raises UserError."""
        values = read_settings(file) if file is not None else {}
        named = values.pop("preset", None)
        if any(text.partition("=")[0].strip() == "preset" for text in assignments or []):
            raise UserError("the preset is no setting for --set", "give --preset NAME")
        return cls(preset or named, values, {}, assignments or [])

    def resolve(self, pairs: int, flags: dict[str, Any] | None = None) -> Config:
        """All settings for a corpus of so many pairs. Raises UserError."""
        joined = {name: dict(value) for name, value in self.flags.items()}
        for name, value in (flags or {}).items():
            joined[name] = joined.get(name, {}) | value if isinstance(value, dict) else value
        return resolve_config(self.preset or preset_for(pairs), self.file, joined, self.assignments)


@dataclass(frozen=True)
class TrainingRequest:
    """What `dragoman train` was asked for; `started` is a time of time.monotonic()."""

    out: Path
    choices: Choices
    files: "CorpusFiles | None" = None
    prepared: Path | None = None
    budget_seconds: float | None = None
    budget_steps: int | None = None
    device: str = "auto"
    started: float = field(default_factory=time.monotonic)


def prepare(files: "CorpusFiles", folder: Path, choices: Choices) -> "PreparedCorpus":
    """Prepare a corpus, or find it prepared, and show what cleaning did. Raises UserError."""
    from dragoman.corpus.preparation import prepare_corpus
    from dragoman.training.progress import say, stage

    corpus = prepare_corpus(files, folder, lambda pairs: choices.resolve(pairs).data, stage)
    if corpus.reused:
        say(f"reused: corpus {folder}")
    if files.source_language == UNKNOWN[0] or files.target_language == UNKNOWN[1]:
        say(
            "warning: the languages are not known, and BLEU depends on the target's; "
            "give --source-language and --target-language"
        )
    return corpus


def train_model(request: TrainingRequest) -> None:
    """Prepare and train, from nothing to a model folder. Raises UserError, typer.Exit."""
    from dragoman.corpus.prepared import load_prepared
    from dragoman.training.checkpoints import folder_lock
    from dragoman.training.precision import choose_device

    # Mistakes show before anything is written.
    choose_device(request.device)
    request.choices.resolve(0)
    check_output(request.out)
    if request.files is not None:
        check_files(request.files)
    if request.prepared is not None:
        load_prepared(request.prepared)
    work = request.out / "training"
    with folder_lock(work):
        corpus = _obtain_corpus(request, work / "corpus")
        from dragoman.cli.run import Run, train_to_end

        config = _final_config(request, corpus)
        _write_settings(work / _SETTINGS, config)
        train_to_end(Run(request.out, config, corpus, request.device))


def resume_training(out: Path, device: str) -> None:
    """Go on with the training in a folder. Raises UserError, typer.Exit."""
    from dragoman.corpus.prepared import load_prepared
    from dragoman.training.checkpoints import folder_lock
    from dragoman.training.progress import say

    work = out / "training"
    if is_finished(out):
        say(f"{out}: this training is finished; use it: dragoman translate --model {out}")
        return
    if not (work / _SETTINGS).is_file():
        raise UserError(
            f"{out}: no training to go on with",
            "nothing was trained there yet: run the command again without --resume",
        )
    with folder_lock(work):
        from dragoman.cli.run import Run, train_to_end

        config = read_config(work / _SETTINGS)
        train_to_end(Run(out, config, load_prepared(work / "corpus"), device))


def is_finished(out: Path) -> bool:
    """Whether a folder holds a model: its weights are written last."""
    return (out / "model.safetensors").is_file()


def has_checkpoints(out: Path) -> bool:
    """Whether a training was begun in a folder."""
    folder = out / "training" / "checkpoints"
    return folder.is_dir() and any(folder.glob("step-*"))


def check_output(out: Path) -> None:
    """Refuse to write over a model, a training or anybody's files. Raises UserError."""
    if out.exists() and not out.is_dir():
        raise UserError(f"{out}: is not a folder", "name another --out")
    if is_finished(out):
        raise UserError(
            f"{out}: there is a model in this folder", "name another --out, or delete it"
        )
    if has_checkpoints(out):
        raise UserError(
            f"{out}: there is an unfinished training in this folder",
            "--resume to go on or another --out",
        )
    names = {path.name for path in out.iterdir()} if out.is_dir() else set()
    if names - {"training"}:
        raise UserError(f"{out}: this folder is not empty", "name another --out")


def check_prepared_output(out: Path) -> None:
    """Refuse to write a corpus over anything but one. Raises UserError."""
    from dragoman.corpus.prepared import COMPLETE, FILES

    if out.exists() and not out.is_dir():
        raise UserError(f"{out}: is not a folder", "name another --out")
    names = {path.name for path in out.iterdir()} if out.is_dir() else set()
    if names - {*FILES, COMPLETE, "lock"}:
        raise UserError(f"{out}: this folder holds something else", "name another --out")


def check_files(files: "CorpusFiles") -> None:
    """Missing files show before a folder is made. Raises UserError."""
    from dragoman.text.lines import open_bytes

    for path in files.paths().values():
        if str(path) != "-" and not path.exists():
            open_bytes(path).close()


def _obtain_corpus(request: TrainingRequest, folder: Path) -> "PreparedCorpus":
    from dragoman.corpus.prepared import load_prepared
    from dragoman.training.progress import say

    if request.prepared is None:
        assert request.files is not None
        corpus = prepare(request.files, folder, request.choices)
        say(corpus.report)
        return corpus
    if request.prepared.resolve() != folder.resolve():
        _adopt(request.prepared, folder)
    corpus = load_prepared(folder)
    say(f"reused: corpus {request.prepared}\n{corpus.report}")
    return corpus


def _adopt(prepared: Path, folder: Path) -> None:
    """Bring a prepared folder in, by links where the disk has them: the training needs no other."""
    from dragoman.corpus.prepared import COMPLETE, FILES

    folder.mkdir(parents=True, exist_ok=True)
    for name in (*FILES, COMPLETE):
        (folder / name).unlink(missing_ok=True)
        try:
            os.link(prepared / name, folder / name)
        except OSError:
            shutil.copyfile(prepared / name, folder / name)


def _final_config(request: TrainingRequest, corpus: "PreparedCorpus") -> Config:
    flags: dict[str, Any] = {
        "source_language": corpus.source_language,
        "target_language": corpus.target_language,
        "training": {},
    }
    if request.prepared is not None:
        _refuse_data_settings(request, corpus)
        flags["data"] = corpus.data.model_dump()
    if request.budget_steps:
        flags["training"]["max_steps"] = request.budget_steps
    if request.budget_seconds:
        flags["training"]["budget_seconds"] = _training_seconds(request)
    config = request.choices.resolve(corpus.pairs, flags)
    if config.data.max_tokens >= config.model.max_positions:
        raise UserError(
            f"data.max_tokens {config.data.max_tokens} is too long for model.max_positions "
            f"{config.model.max_positions}",
            "a position is needed for the end of the sentence: set one of the two",
        )
    return config


def _refuse_data_settings(request: TrainingRequest, corpus: "PreparedCorpus") -> None:
    """Settings that a prepared corpus cannot follow any more; equal ones pass."""
    wanted = request.choices.resolve(corpus.pairs).data.model_dump()
    given = set(request.choices.file.get("data", {}))
    given |= {
        text.partition("=")[0].strip().removeprefix("data.")
        for text in request.choices.assignments
        if text.strip().startswith("data.")
    }
    used = corpus.data.model_dump()
    different = sorted(name for name in given if wanted[name] != used[name])
    if different:
        name = different[0]
        raise UserError(
            f"data.{name} = {wanted[name]!r}, but this corpus was prepared with {used[name]!r}",
            "leave it out, or prepare the corpus anew",
        )


def _training_seconds(request: TrainingRequest) -> float:
    """What preparation and the end of the run leave of the budget of the whole command."""
    total = request.budget_seconds or 0.0
    reserve = min(max(_RESERVE_SHARE * total, _RESERVE_LEAST), _RESERVE_MOST)
    used = time.monotonic() - request.started
    left = total - used - reserve
    if left < 1:
        raise UserError(
            f"--budget of {total:.0f} seconds: {used:.0f} are used up by preparation and "
            f"{reserve:.0f} needed for the end",
            "give more",
        )
    return round(left, 1)


def _write_settings(path: Path, config: Config) -> None:
    from dragoman.text.lines import atomic_write

    with atomic_write(path) as stream:
        stream.write(config_to_toml(config).encode())
