"""dragoman distill"""

from pathlib import Path
from typing import Annotated

import typer

from dragoman.cli import options
from dragoman.cli.application import app
from dragoman.errors import UserError

_Teachers = Annotated[
    list[Path] | None,
    typer.Option(metavar="DIR", help="A model folder; several of one tokenizer: an ensemble."),
]
_Sources = Annotated[
    list[Path] | None,
    typer.Option(metavar="FILE", help="Text to translate, one segment a line; may be repeated."),
]
_References = Annotated[
    list[Path] | None,
    typer.Option(
        metavar="FILE", help="References of each --source, to be learned beside the teacher's."
    ),
]
_Student = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="The student's: tiny, small-fast, medium-fast, ..."),
]
_Budget = Annotated[
    str | None,
    typer.Option(
        metavar="LENGTH", help="The student's training: 90s, 10m, 2h, 5000-steps, 100k-steps."
    ),
]
_Beam = Annotated[
    int | None,
    typer.Option(metavar="N", min=1, max=1000, help="The teacher's beam. [default: its own]"),
]
_HELP = """\
Train a student on a teacher's translations: a smaller and faster model, nearly as good.

The teacher translates the source with its beam search; copies, repetitions, cut and otherwise
suspicious translations are left out and counted. The student has the teacher's tokenizer and
learns as with dragoman train. Any text in the source language will do, the more the better.

Validation data are --valid-source and --valid-target, else references held out of --target,
else a part of the teacher's translations. Stopped or killed, --resume goes on: what is
translated is kept in DIR/training/distillation.

\b
dragoman distill --teacher DIR --source mono.en --preset small-fast --out NEW
dragoman distill --resume --out NEW
"""


@app.command(short_help="Train a small model on what a large one says.", help=_HELP)
def distill(
    out: options.OutFolder,
    teacher: _Teachers = None,
    source: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE", help="Text to translate, one segment a line; may be repeated."
        ),
    ] = None,
    target: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE", help="References of each --source, to be learned beside the teacher's."
        ),
    ] = None,
    valid_source: options.ValidSource = None,
    valid_target: options.ValidTarget = None,
    preset: _Student = None,
    config: options.ConfigFile = None,
    assignments: options.Assignments = None,
    budget: _Budget = None,
    beam: _Beam = None,
    resume: options.Resume = False,
    device: options.Device = "auto",
    engine: options.Engine = options.EngineName.AUTO,
    errors: options.ErrorsOption = options.Errors.STRICT,
) -> None:
    """Train a student on a teacher's translations."""
    from dragoman.cli import stages
    from dragoman.cli.distillation import DistillationOptions, distill_model

    if resume and not (teacher or source or preset):
        if any((target, valid_source, valid_target, config, assignments, budget, beam)):
            raise UserError(
                "--resume goes on with the options of the interrupted command",
                "give all of them again, or none",
            )
        _resume(out, device, engine)
        return
    if not teacher or not source:
        raise UserError("a teacher and a source are needed", "give --teacher DIR --source FILE")
    _refuse_pipes([*source, *(target or [])])
    chosen = stages.Choices.of(preset, config, assignments)
    if chosen.preset is None:
        raise UserError("the student has no preset", "give --preset, such as small-fast")
    wanted = DistillationOptions(
        teachers=teacher,
        sources=source,
        preset=chosen.preset,
        targets=target or [],
        valid_source=valid_source,
        valid_target=valid_target,
        settings=chosen.file,
        assignments=chosen.assignments,
        budget=budget,
        beam=beam,
        errors=errors.value,
    )
    distill_model(wanted, out, device, engine.value, resume)


def _refuse_pipes(paths: list[Path]) -> None:
    for path in paths:
        if str(path) == "-" or (path.exists() and not path.is_file() and not path.is_dir()):
            raise UserError(f"{path}: is read more than once here", "write it to a file first")


def _resume(out: Path, device: str, engine: options.EngineName) -> None:
    """Go on with the training, or where it has not begun with the translating."""
    from dragoman.cli import stages
    from dragoman.cli.distillation import distill_model, read_options

    if stages.is_finished(out) or (out / "training" / stages.SETTINGS).is_file():
        stages.resume_training(out, device)
    else:
        distill_model(read_options(out), out, device, engine.value, resume=True)
