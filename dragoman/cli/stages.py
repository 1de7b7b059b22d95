"""The way from a command line to a training run: checks, corpus, settings, budget."""

import os
import shutil
import time
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dragoman.cli.options import UNKNOWN
from dragoman.cli.parent import PARENT, begin_with, check_corpus, identity
from dragoman.config import (
    Config,
    config_to_toml,
    read_config,
    read_settings,
    resolve_config,
)
from dragoman.errors import UserError
from dragoman.presets import preset_for
from dragoman.training.launch import ALONE, Launch

if TYPE_CHECKING:
    from dragoman.corpus.prepared import CorpusFiles, PreparedCorpus
    from dragoman.model.description import ModelDescription
    from dragoman.training.distributed import Ranks

# What is kept of a time budget for averaging, the last validation and the final evaluation.
_RESERVE_SHARE, _RESERVE_LEAST, _RESERVE_MOST = 0.05, 5.0, 120.0
# In a training's folder: its settings as they came out.
SETTINGS = "config.toml"


@dataclass(frozen=True)
class Choices:
    """The settings a person chose, weakest first: preset, file, flags, assignments."""

    preset: str | None = None
    file: dict[str, Any] = field(default_factory=dict)
    flags: dict[str, Any] = field(default_factory=dict)
    assignments: list[str] = field(default_factory=list)
    base: dict[str, Any] = field(default_factory=dict)  # weaker than the file: a model's own
    seconds: float | None = None  # of a time budget, which chooses the preset where none is named
    device: str = "auto"

    @classmethod
    def of(cls, preset: str | None, file: Path | None, assignments: list[str] | None) -> "Choices":
        """From the options --preset, --config and --set. Raises UserError."""
        values = read_settings(file) if file is not None else {}
        named = values.pop("preset", None)
        for name in ("preset", "task"):
            if any(text.partition("=")[0].strip() == name for text in assignments or []):
                raise UserError(f"the {name} is no setting for --set", f"give --{name} NAME")
        return cls(preset or named, values, {}, assignments or [])

    @property
    def task(self) -> str:
        """What the model is for."""
        return str(self.flags.get("task", "translation"))

    def for_task(self, task: str | None, likely: str | None) -> "Choices":
        """The same for a task: the one that is given, of the file, or the likely one."""
        found = task or self.file.get("task") or likely or "translation"
        return replace(self, flags=self.flags | {"task": found})

    def resolve(self, pairs: int, flags: dict[str, Any] | None = None) -> Config:
        """All settings for a corpus of so many pairs. Raises UserError."""
        joined = dict(self.flags)
        for name, value in (flags or {}).items():
            joined[name] = joined.get(name, {}) | value if isinstance(value, dict) else value
        file = self.base | self.file
        for name, value in self.base.items():
            if isinstance(value, dict) and isinstance(self.file.get(name, {}), dict):
                file[name] = value | self.file.get(name, {})
        return resolve_config(self._preset(pairs), file, joined, self.assignments)

    def _preset(self, pairs: int) -> str:
        if self.preset:
            return self.preset
        if self.seconds and pairs:
            return _preset_in_time(pairs, self.seconds, self.device, self.task)
        return preset_for(pairs)

    def after(self, parent: Config) -> "Choices":
        """The same for training that goes on from a model. Raises UserError for other sizes."""
        from dragoman.training.fine_tuning import check_sizes, initial_settings, parent_preset

        preset = parent_preset(parent)
        if self.preset not in (None, preset):
            raise UserError(
                f"--preset {self.preset}: the model to begin with has the preset {preset}",
                "leave it out; settings can be given with --set",
            )
        chosen = replace(self, preset=preset, base=initial_settings(parent, self.task))
        wanted = chosen.resolve(0)
        check_sizes(wanted, parent)
        adapters = wanted.training.lora_rank > 0
        return replace(chosen, base=initial_settings(parent, self.task, adapters))


@cache
def _preset_in_time(pairs: int, seconds: float, device: str, task: str) -> str:
    from dragoman.training.planning import plan_for_time
    from dragoman.training.precision import choose_device
    from dragoman.training.process import prepare_process
    from dragoman.training.progress import duration, say

    prepare_process()
    plan = plan_for_time(pairs, seconds, choose_device(device), task)
    say(
        f"in {duration(seconds)} this machine makes about {plan.updates:,} updates of preset "
        f"{plan.preset}, which is what it trains; --preset takes another"
    )
    return plan.preset


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
    parent: "ModelDescription | None" = None
    launch: Launch = ALONE


def prepare(
    files: "CorpusFiles",
    folder: Path,
    choices: Choices,
    workers: int | None = None,
    ray: str | None = None,
) -> "PreparedCorpus":
    """Prepare a corpus, or find it prepared, and show what cleaning did. Raises UserError.

    The work is done by so many processes, by default as many as there are cores, or on Ray.
    """
    from dragoman.corpus.preparation import prepare_corpus
    from dragoman.corpus.processes import Processes, available_cores
    from dragoman.scale.ray_data import RayData
    from dragoman.training.progress import say, stage

    with ExitStack() as stack:
        if files.task == "parsing":
            from dragoman.corpus.treebank import treebank_pairs

            trees = treebank_pairs(files, lambda odd: say(f"warning: {odd}"))
            files = stack.enter_context(trees)
        engine = RayData(ray) if ray else Processes(workers or available_cores())
        stack.enter_context(engine)
        corpus = prepare_corpus(
            files, folder, lambda pairs: choices.resolve(pairs).data, stage, engine.map
        )
    if corpus.reused:
        say(f"reused: corpus {folder}")
    unknown = files.source_language == UNKNOWN[0] or files.target_language == UNKNOWN[1]
    if unknown and files.task == "translation":
        say(
            "warning: the languages are not known, and BLEU depends on the target's; "
            "give --source-language and --target-language"
        )
    return corpus


def train_model(request: TrainingRequest) -> None:
    """Prepare and train, from nothing to a model folder. Raises UserError, typer.Exit."""
    from dragoman.training.distributed import process_group

    with process_group(request.launch, request.device) as ranks:
        _train_model(request, ranks)


def _train_model(request: TrainingRequest, ranks: "Ranks") -> None:
    from dragoman.corpus.prepared import load_prepared
    from dragoman.training.checkpoints import folder_lock
    from dragoman.training.tensorboard import require_tensorboard

    # Mistakes show before anything is written.
    choices = replace(request.choices, seconds=request.budget_seconds, device=request.device)
    request = replace(request, choices=choices)
    wanted = request.choices.resolve(0)
    if wanted.training.tensorboard:
        require_tensorboard()
    if wanted.training.lora_rank and request.parent is None:
        raise UserError("training.lora_rank: adapters belong to a model", "give --init-from DIR")
    if wanted.training.r_drop and wanted.task in ("mlm", "classification"):
        raise UserError("training.r_drop is for models that write text", "leave it out")
    if wanted.data.context_sentences and wanted.task != "translation":
        raise UserError("data.context_sentences is for translation", "leave it out")
    check_output(request.out)
    if request.files is not None:
        check_files(request.files)
    if request.prepared is not None:
        corpus = load_prepared(request.prepared)
        if corpus.task != wanted.task:
            raise UserError(
                f"{request.prepared}: prepared for --task {corpus.task}, not {wanted.task}",
                f"prepare it with: dragoman prepare --task {wanted.task}",
            )
        if request.parent is not None:
            check_corpus(request.parent, corpus)
    work = request.out / "training"
    with folder_lock(work):
        corpus = _obtain_corpus(request, work / "corpus")
        if request.parent is not None:
            begin_with(request.parent, corpus, work / PARENT)
        from dragoman.cli.run import Run, train_to_end

        config = _final_config(request, corpus)
        _write_settings(work / SETTINGS, config)
        ranks.decide(lambda: True)  # the others may begin
        train_to_end(Run(request.out, config, corpus, ranks))


def resume_training(out: Path, device: str, launch: Launch = ALONE) -> None:
    """Go on with the training in a folder. Raises UserError, typer.Exit."""
    from dragoman.training.distributed import process_group

    with process_group(launch, device) as ranks:
        _resume_training(out, ranks)


def _resume_training(out: Path, ranks: "Ranks") -> None:
    from dragoman.corpus.prepared import load_prepared
    from dragoman.model.description import KINDS
    from dragoman.training.checkpoints import folder_lock
    from dragoman.training.progress import say

    work = out / "training"
    if is_finished(out):
        use = KINDS[read_config(out / SETTINGS).task].use.replace("DIR", str(out))
        say(f"{out}: this training is finished; use it: {use}")
        ranks.decide(lambda: False)
        return
    if not (work / SETTINGS).is_file():
        raise UserError(
            f"{out}: no training to go on with",
            "nothing was trained there yet: run the command again without --resume",
        )
    with folder_lock(work):
        from dragoman.cli.run import Run, train_to_end

        config, corpus = read_config(work / SETTINGS), load_prepared(work / "corpus")
        ranks.decide(lambda: True)
        train_to_end(Run(out, config, corpus, ranks))


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
    from dragoman.corpus.prepared import COMPLETE, FILES, WORK
    from dragoman.training.checkpoints import LOCK

    if out.exists() and not out.is_dir():
        raise UserError(f"{out}: is not a folder", "name another --out")
    names = {path.name for path in out.iterdir()} if out.is_dir() else set()
    ours = not names or names & {COMPLETE, LOCK}  # else a name such as "work" says nothing
    if not ours or names - {*FILES, COMPLETE, WORK, LOCK}:
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
    (folder / COMPLETE).unlink(missing_ok=True)  # a kill must not leave it beside other files
    for name in (*FILES, COMPLETE):
        (folder / name).unlink(missing_ok=True)
        try:
            os.link(prepared / name, folder / name)
        except OSError:
            shutil.copyfile(prepared / name, folder / name)


def _final_config(request: TrainingRequest, corpus: "PreparedCorpus") -> Config:
    flags: dict[str, Any] = {"training": {}, **identity(request.parent, corpus)}
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
