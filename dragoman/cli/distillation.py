"""Distillation from teachers to a student: its options kept on disk, its stages, its checks."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import typer
from pydantic import BaseModel, ConfigDict, ValidationError

from dragoman.cli import stages
from dragoman.cli.options import parse_budget
from dragoman.config import Config, ModelConfig
from dragoman.errors import UserError

if TYPE_CHECKING:
    from dragoman.corpus.prepared import CorpusFiles
    from dragoman.decoding.teaching import Sources
    from dragoman.model.description import ModelDescription

FOLDER, OPTIONS = "distillation", "options.json"
"""In a training's folder: what the teacher said, and what the command was asked for."""


class DistillationOptions(BaseModel):
    """What `dragoman distill` was asked for, as it is kept for --resume."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    teachers: list[Path]
    sources: list[Path]
    preset: str
    targets: list[Path] = []
    valid_source: Path | None = None
    valid_target: Path | None = None
    settings: dict[str, Any] = {}  # of a file
    assignments: list[str] = []
    budget: str | None = None
    beam: int | None = None
    errors: Literal["strict", "replace"] = "strict"

    def absolute(self) -> "DistillationOptions":
        """The same, to be read from any folder."""
        paths = {
            name: [path.resolve() for path in getattr(self, name)]
            for name in ("teachers", "sources", "targets")
        }
        single = {
            name: path.resolve()
            for name in ("valid_source", "valid_target")
            if (path := getattr(self, name)) is not None
        }
        return self.model_copy(update=paths | single)


def read_options(out: Path) -> DistillationOptions:
    """The options of the distillation begun in a folder. Raises UserError."""
    path = out / "training" / FOLDER / OPTIONS
    try:
        return DistillationOptions.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        what = "damaged" if isinstance(error, ValidationError) else "no distillation to go on with"
        raise UserError(
            f"{path if what == 'damaged' else out}: {what}",
            "run the whole command again: what is translated is kept",
        ) from None


def distill_model(
    options: DistillationOptions, out: Path, device: str, engine: str, resume: bool
) -> None:
    """Translate with the teachers what is not translated yet, then train the student on it.

    Raises UserError, and typer.Exit when a signal stopped it.
    """
    from dragoman.cli.resumption import is_begun
    from dragoman.decoding.teaching import Sources

    teachers = _describe(options.teachers)
    request = _request(options, teachers, out, device)
    if resume and is_begun(request):
        stages.resume_training(out, device)
        return
    stages.check_output(out)
    _check_student(request, teachers)
    sources = Sources(options.sources, options.targets, options.errors)
    files = _translate(options, sources, request, teachers, engine)
    seconds, _ = parse_budget(options.budget)
    # Its time is the student's: how long the teacher takes is for nobody to know.
    fresh = stages.TrainingRequest(out, request.choices, files, None, seconds)
    stages.train_model(replace(fresh, budget_steps=request.budget_steps, device=device))


def _describe(folders: list[Path]) -> "list[ModelDescription]":
    from dragoman.model.description import describe

    teachers = [describe(folder, "translation") for folder in folders]
    tokenizer = teachers[0].tokenizer.to_bytes()
    for other in teachers[1:]:
        if other.tokenizer.to_bytes() != tokenizer:
            raise UserError(
                f"{folders[0]} and {other.folder} have different tokenizers",
                "models translate together only when they were trained with one "
                "(dragoman train --tokenizer)",
            )
    return teachers


def _request(
    options: DistillationOptions, teachers: "list[ModelDescription]", out: Path, device: str
) -> stages.TrainingRequest:
    """The student's training, but for its files; its settings tell of the teachers."""
    seconds, steps = parse_budget(options.budget)
    flags = {
        "distillation": {
            "teachers": [teacher.folder.resolve().name for teacher in teachers],
            "weights": [teacher.weights_digest() for teacher in teachers],
        }
    }
    base = {"data": {"vocabulary_size": teachers[0].tokenizer.vocabulary_size}}
    choices = stages.Choices(options.preset, options.settings, flags, options.assignments, base)
    return stages.TrainingRequest(
        out, choices, budget_seconds=seconds, budget_steps=steps, device=device
    )


def decoder_weights(model: ModelConfig) -> int:
    """The weights of the decoder's matrices: what runs for every token of every hypothesis."""
    import torch

    from dragoman.model.assembly import build_model

    with torch.device("meta"):
        parameters = list(build_model(Config(model=model), 1).named_parameters())
    return sum(p.numel() for name, p in parameters if name.startswith("decoder") and p.dim() > 1)


def _check_student(request: stages.TrainingRequest, teachers: "list[ModelDescription]") -> None:
    """Refuse a student that decodes more slowly than its teachers. Raises UserError."""
    student = request.choices.resolve(0).model
    own, others = decoder_weights(student), sum(decoder_weights(t.config.model) for t in teachers)
    if own > others:
        raise UserError(
            f"preset {request.choices.preset}: the student's decoder has {own:,} weights, more "
            f"than the teacher's {others:,}",
            "a student is there to be faster: take a smaller preset or small-fast",
        )


def _translate(
    options: DistillationOptions,
    sources: "Sources",
    request: stages.TrainingRequest,
    teachers: "list[ModelDescription]",
    engine: str,
) -> "CorpusFiles":
    """What the student learns from: the files, translated as far as they are not."""
    from dragoman.cli.loading import load_translator
    from dragoman.decoding.teaching import (
        check_identity,
        translate_sources,
        write_lesson,
    )
    from dragoman.decoding.translator import Translator
    from dragoman.text.lines import atomic_write
    from dragoman.training.checkpoints import disk_errors, folder_lock
    from dragoman.training.progress import say, stage

    def teacher() -> Translator:
        return load_translator(options.teachers, options.beam, None, request.device, engine=engine)

    config = request.choices.resolve(0)
    work = request.out / "training"
    folder = work / FOLDER
    total = sum(1 for _ in sources.lines())
    if not total:
        raise UserError(f"{options.sources[0]}: nothing to translate", "give files with text")
    identity = _identity(options, request)
    with disk_errors(request.out), folder_lock(work):
        folder.mkdir(exist_ok=True)
        check_identity(folder, identity)
        with atomic_write(folder / OPTIONS) as stream:
            stream.write(options.absolute().model_dump_json(indent=1).encode() + b"\n")
        try:
            with stage("translating with the teacher", total) as advance:
                translate_sources(teacher, sources, folder, advance)
        except KeyboardInterrupt:
            say(f"stopped; go on with: dragoman distill --resume --out {request.out}")
            raise typer.Exit(130) from None
        held_out = 0 if options.valid_source else config.data.validation_size
        report = write_lesson(folder, sources, held_out, config.data.seed)
    say(report.render())
    return _files(options, folder, teachers[0], report.held_out > 0)


def _identity(options: DistillationOptions, request: stages.TrainingRequest) -> dict[str, Any]:
    from dragoman.model.description import file_digest

    teachers = request.choices.flags["distillation"]["weights"]
    return {
        "teachers": teachers,
        "sources": [file_digest(path) for path in options.sources],
        "beam": options.beam,
        "errors": options.errors,
    }


def _files(
    options: DistillationOptions, folder: Path, teacher: "ModelDescription", held_out: bool
) -> "CorpusFiles":
    from dragoman.corpus.prepared import CorpusFiles
    from dragoman.decoding.teaching import PAIRS, VALID_SOURCE, VALID_TARGET
    from dragoman.model.description import TOKENIZER

    valid = options.valid_source, options.valid_target
    if held_out:
        valid = folder / VALID_SOURCE, folder / VALID_TARGET
    return CorpusFiles(
        teacher.config.source_language,
        teacher.config.target_language,
        table=folder / PAIRS,
        valid_source=valid[0],
        valid_target=valid[1],
        tokenizer=teacher.folder / TOKENIZER,
        errors=options.errors,
    )
