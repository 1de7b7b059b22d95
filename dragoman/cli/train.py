"""dragoman train"""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dragoman.cli import options
from dragoman.cli.application import app
from dragoman.errors import UserError
from dragoman.training.launch import Launch

if TYPE_CHECKING:
    from dragoman.cli.stages import TrainingRequest
    from dragoman.model.description import ModelDescription

# What may stand beside --resume: where, how, and what has no bearing on it.
_WITH_RESUME = {"out", "resume", "device"}

_NAMES = {"assignments": "set"}  # of options, where they are not those of parameters

_HELP = """\
Train a model: raw text in, a model folder out.

Reads and cleans the pairs, sets validation data aside, trains the tokenizer, stores the
corpus, trains with validation and early stopping, averages checkpoints and measures the
result. Ctrl-C writes a checkpoint and leaves; --resume goes on from there.

With --init-from it goes on from a finished model: its tokenizer, sizes and weights, a tenth of
its preset's learning rate, at most 10 epochs. One line says how well its vocabulary covers the
new data. With --set training.lora_rank=8 only small adapters are trained: they are kept in
DIR/training/adapter and merged into the model.

--resume beside the whole command begins where there is nothing to go on with: a scheduler can
run that again and again. Under torchrun several processes train one model, each on a GPU of its
own: see docs/distributed.md.

Settings, weakest first: preset, --config file, flags, --set. All of them, as they came out,
are in DIR/training/config.toml.

\b
dragoman train --source train.en --target train.de --out models/en-de
dragoman train --resume --out models/en-de
dragoman train --task lm --text train.en --out models/lm
dragoman train --task classification --data labeled.tsv --out models/topics
dragoman train --init-from models/en-de --data new.tsv --out models/new
"""


@app.command(help=_HELP)
def train(
    out: options.OutFolder,
    source: options.SourceFile = None,
    target: options.TargetFile = None,
    data: options.TableFile = None,
    text: options.TextFile = None,
    task: options.Task = None,
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
    tokenizer: options.TokenizerFile = None,
    init_from: options.InitialModel = None,
    init_encoder_from: options.InitialEncoder = None,
) -> None:
    """Train a model: raw parallel text in, a model folder out."""
    given, started = dict(locals()), time.monotonic()
    from dragoman.cli import stages

    launch = Launch.of_environment()
    if launch.rank:
        from dragoman.cli.ranks import follow_training

        follow_training(out, device, launch)
        return
    if resume and not any((source, target, data, text, prepared)):
        _refuse_other_options(given)
        stages.resume_training(out, device, launch)
        return
    seconds, steps = options.parse_budget(budget)
    files, parent = None, _parent(init_from, init_encoder_from)
    likely = _likely_task(parent if init_from else None, prepared, text)
    choices = stages.Choices.of(preset, config, assignments).for_task(task, likely)
    if parent is not None:
        choices = choices.after(parent.config)
    paths, validation = (source, target, data), (valid_source, valid_target)
    if prepared is None:
        languages = options.languages(source_language, target_language, choices.file, paths, text)
        if parent is not None:
            from dragoman.cli.parent import files_of_parent

            languages, tokenizer = files_of_parent(parent, languages, tokenizer, choices.task)
        given_files = languages, paths, validation, tokenizer
        files = options.corpus_files(*given_files, task=choices.task, text=text)
    elif any((*paths, text, *validation, source_language, target_language, tokenizer)):
        raise UserError("--prepared brings data, languages and tokenizer", "leave the others out")
    request = stages.TrainingRequest(
        out, choices, files, prepared, seconds, steps, device, started, parent, launch
    )
    if resume and _is_begun(request):
        stages.resume_training(out, device, launch)
    else:
        stages.train_model(request)


def _parent(init_from: Path | None, encoder: Path | None) -> "ModelDescription | None":
    from dragoman.cli.parent import parent_of_options

    return parent_of_options(init_from, encoder)


def _likely_task(
    parent: "ModelDescription | None", prepared: Path | None, text: Path | None
) -> str | None:
    """The task of a model to go on from or of a corpus; of text a language model."""
    if parent is not None:
        return parent.config.task
    if prepared is not None:
        from dragoman.corpus.prepared import read_record

        record = read_record(prepared)  # what is wrong with it is said after what the options lack
        return record.get("task", "translation") if record else None
    return "lm" if text is not None else None


def _is_begun(request: "TrainingRequest") -> bool:
    from dragoman.cli.resumption import is_begun

    return is_begun(request)


def _refuse_other_options(given: dict[str, Any]) -> None:
    names = [name for name, value in given.items() if value and name not in _WITH_RESUME]
    if names:
        others = ", ".join(f"--{_NAMES.get(name, name.replace('_', '-'))}" for name in names)
        raise UserError(
            f"--resume goes on with the settings of the interrupted run; {others} "
            "would change them",
            "leave it out, edit DIR/training/config.toml, or train into another --out",
        )
