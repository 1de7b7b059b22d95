"""dragoman distill"""

from pathlib import Path
from typing import Annotated

import typer

from dragoman.cli import options
from dragoman.cli.application import app
from dragoman.errors import UserError


@app.command(short_help="Train a small model on what a large one says.")
def distill(
    out: options.OutFolder,
    teacher: Annotated[
        list[Path] | None,
        typer.Option(metavar="DIR", help="A model folder; several of one tokenizer: an ensemble."),
    ] = None,
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
    preset: options.Preset = None,
    config: options.ConfigFile = None,
    assignments: options.Assignments = None,
    budget: Annotated[
        str | None,
        typer.Option(
            metavar="LENGTH", help="The student's training: 90s, 10m, 2h, 5000-steps, 100k-steps."
        ),
    ] = None,
    beam: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, max=1000, help="The teacher's beam. [default: its own]"),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on in --out; needs nothing else.")
    ] = False,
    device: options.Device = "auto",
    engine: options.Engine = options.EngineName.AUTO,
    errors: options.ErrorsOption = options.Errors.STRICT,
) -> None:
    """Train a student on a teacher's translations: a smaller and faster model, nearly as good.

    The teacher translates the source with its beam search; copies, repetitions, cut and otherwise
    suspicious translations are left out and counted. The student has the teacher's tokenizer and
    learns as with dragoman train. Any text in the source language will do, the more the better.

    Validation data are --valid-source and --valid-target, else references held out of --target,
    else a part of the teacher's translations. Stopped or killed, --resume goes on: what is
    translated is kept in DIR/training/distillation.

    \b
    dragoman distill --teacher models/large --source mono.en --preset small-fast --out models/fast
    dragoman distill --resume --out models/fast
    """
    from dragoman.cli import stages
    from dragoman.cli.distillation import DistillationOptions, distill_model, read_options

    if resume and not (teacher or source or preset):
        asked = (target, valid_source, valid_target, config, assignments, budget, beam)
        if any(asked):
            raise UserError(
                "--resume goes on with the options of the interrupted command",
                "give all of them again, or none",
            )
        if stages.is_finished(out) or (out / "training" / stages.SETTINGS).is_file():
            stages.resume_training(out, device)
            return
        distill_model(read_options(out), out, device, engine.value, resume)
        return
    if not teacher or not source or not preset:
        raise UserError(
            "a teacher, a source and a preset are needed",
            "give --teacher DIR --source FILE --preset small-fast",
        )
    if any(str(path) == "-" for path in (*source, *(target or []))):
        raise UserError("text is read more than once here", "write stdin to a file first")
    chosen = stages.Choices.of(preset, config, assignments)
    wanted = DistillationOptions(
        teachers=teacher,
        sources=source,
        preset=chosen.preset or preset,
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
