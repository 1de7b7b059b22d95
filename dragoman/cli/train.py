"""dragoman train"""

import time

import typer

from dragoman.cli import options
from dragoman.cli.application import app
from dragoman.errors import UserError

# What may stand beside --resume: where, how, and what has no bearing on it.
_WITH_RESUME = {"out", "resume", "device", "errors"}


@app.command()
def train(
    context: typer.Context,
    out: options.OutFolder,
    source: options.SourceFile = None,
    target: options.TargetFile = None,
    data: options.TableFile = None,
    prepared: options.PreparedFolder = None,
    valid_source: options.ValidSource = None,
    valid_target: options.ValidTarget = None,
    source_language: options.SourceLanguage = None,
    target_language: options.TargetLanguage = None,
    preset: options.Preset = None,
    config: options.ConfigFile = None,
    assignments: options.Assignments = None,
    budget: options.Budget = None,
    resume: options.Resume = False,
    device: options.Device = "auto",
    errors: options.ErrorsOption = options.Errors.STRICT,
    tokenizer: options.TokenizerFile = None,
) -> None:
    """Train a model: raw parallel text in, a model folder out.

    Reads and cleans the pairs, sets validation data aside, trains the tokenizer, stores the
    corpus, trains with validation and early stopping, averages checkpoints and measures the
    result. Ctrl-C writes a checkpoint and leaves; --resume goes on from there.

    Settings, weakest first: preset, --config file, flags, --set. All of them, as they came out,
    are in DIR/training/config.toml.

    \b
    dragoman train --source train.en --target train.de --out models/en-de
    dragoman train --resume --out models/en-de
    """
    started = time.monotonic()
    from dragoman.cli import stages

    if resume:
        _refuse_other_options(context)
        stages.resume_training(out, device)
        return
    seconds, steps = options.parse_budget(budget)
    choices = stages.Choices.of(preset, config, assignments)
    files = None
    paths, validation = (source, target, data), (valid_source, valid_target)
    if prepared is None:
        languages = options.languages(source_language, target_language, choices.file, paths)
        files = options.corpus_files(languages, paths, validation, tokenizer, errors)
    elif any((*paths, *validation, source_language, target_language, tokenizer)):
        raise UserError("--prepared brings data, languages and tokenizer", "leave the others out")
    stages.train_model(
        stages.TrainingRequest(out, choices, files, prepared, seconds, steps, device, started)
    )


def _refuse_other_options(context: typer.Context) -> None:
    given = [
        parameter.opts[0]
        for parameter in context.command.params
        if parameter.name not in _WITH_RESUME and context.params.get(parameter.name or "")
    ]
    if given:
        raise UserError(
            f"--resume goes on with the settings of the interrupted run; {', '.join(given)} "
            "would change them",
            "leave it out, edit DIR/training/config.toml, or train into another --out",
        )
