"""A training run from a prepared corpus to a model folder, stopped and resumed at will."""

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import typer

from dragoman.cli.card import TrainingSummary, model_card
from dragoman.cli.signals import stop_on_signals
from dragoman.cli.validation import Validation, perplexity
from dragoman.config import Config
from dragoman.corpus.prepared import TOKENIZER, TRAIN, PreparedCorpus
from dragoman.corpus.store import CorpusStore
from dragoman.corpus.tokenizer import Tokenizer
from dragoman.errors import UserError
from dragoman.inspection.plots import curve_png
from dragoman.model.folder import save_model
from dragoman.model.transformer import Transformer, parameter_count
from dragoman.training.checkpoints import (
    average_checkpoints,
    disk_errors,
    list_checkpoints,
    load_checkpoint,
    step_name,
)
from dragoman.training.precision import choose_device
from dragoman.training.process import prepare_process
from dragoman.training.progress import EventLog, TrainingDisplay, duration, say, stage
from dragoman.training.trainer import StopRequestedError, Trainer

LOG, CURVE = "log.jsonl", "curve.png"


@dataclass(frozen=True)
class Run:
    """What a run needs; its work goes to `folder`/training, its model to `folder`."""

    folder: Path
    config: Config
    corpus: PreparedCorpus
    device: str

    @property
    def work(self) -> Path:
        """Where checkpoints, log and curve are."""
        return self.folder / "training"


def train_to_end(run: Run) -> None:
    """Train, from the newest checkpoint if there is one, and write the model folder.

    Raises typer.Exit with 130 or 143 when a signal stopped the run, UserError for what a person
    can mend.
    """
    prepare_process()
    tokenizer = Tokenizer.load(run.corpus.folder / TOKENIZER)
    validation = Validation(run.config, tokenizer, run.corpus.folder)
    torch.manual_seed(run.config.training.seed)
    model = Transformer(run.config.model, tokenizer.vocabulary_size)
    trainer = _train(run, model, validation)
    try:
        with disk_errors(run.folder):
            _finish(run, trainer, tokenizer, validation)
    except KeyboardInterrupt:
        say(f"stopped; go on with: dragoman train --resume --out {run.folder}")
        raise typer.Exit(130) from None


def _train(run: Run, model: Transformer, validation: Validation) -> Trainer:
    store = CorpusStore.open(run.corpus.folder / TRAIN)
    with ExitStack() as stack:
        request = stack.enter_context(stop_on_signals())
        display = TrainingDisplay()
        observers = [display.observe]

        def observe(event: dict[str, Any]) -> None:
            for observer in observers:
                observer(event)

        trainer = Trainer(
            run.config,
            model,
            store,
            run.work,
            choose_device(run.device),
            validation,
            observe,
            request.made,
        )
        if trainer.resume(lambda problem: say(f"warning: {problem}")):
            say(f"going on from step {trainer.state.step:,}")
        _describe(run, trainer)
        observers.append(stack.enter_context(EventLog(run.work / LOG, trainer.state.step)).observe)
        stack.enter_context(display)
        try:
            trainer.run()
        except StopRequestedError:
            stack.close()
            step = trainer.state.step
            say(f"stopped at step {step:,}; go on with: dragoman train --resume --out {run.folder}")
            raise typer.Exit(128 + request.number) from None
    return trainer


def _describe(run: Run, trainer: Trainer) -> None:
    settings = run.config.training
    precision = str(trainer.precision).removeprefix("torch.")
    length = f"{settings.epochs} epochs"
    if settings.max_steps:
        length = f"{settings.max_steps:,} steps"
    if settings.budget_seconds:
        length = duration(settings.budget_seconds)
    languages = f"{run.config.source_language} -> {run.config.target_language}"
    say(
        f"training {languages}: preset {run.config.preset}, "
        f"{parameter_count(trainer.model):,} parameters, {run.corpus.training_pairs:,} pairs, "
        f"{length}, on {trainer.device.type} in {precision}"
    )


def _finish(run: Run, trainer: Trainer, tokenizer: Tokenizer, validation: Validation) -> None:
    model, state = trainer.model, trainer.state
    model.eval()
    with stage("averaging checkpoints"):
        nll, kept = _keep_the_better(trainer, validation)
    say(f"kept: {kept}")
    model.embedding.compute_dtype = torch.float32
    summary = TrainingSummary(
        steps=state.step,
        epochs=state.epoch + 1,
        tokens=state.tokens,
        seconds=state.seconds,
        nll=nll,
        perplexity=perplexity(nll),
        kept=kept,
        vocabulary_size=tokenizer.vocabulary_size,
        parameters=parameter_count(model),
        scores=validation.final(model),
    )
    card = model_card(run.config, run.corpus, summary)
    config = with_longest(run.config, trainer.store)
    save_model(run.folder, config, tokenizer, dict(model.state_dict()), card)
    curve_png(run.work / LOG, run.work / CURVE)
    say(f"validation scores, beam {run.config.search.beam}:\n{summary.scores.render()}")
    if state.step < run.config.training.warmup_steps:
        say(
            f"warning: {state.step:,} updates are too few to learn from: give more time or more "
            "data, or take a smaller preset"
        )
    say(f"trained {state.step:,} steps in {duration(state.seconds)}; model: {run.folder}")


def with_longest(config: Config, store: CorpusStore) -> Config:
    """The configuration with the length that training really saw.

    A longer line is split at sentence ends: a model shortens what is longer than all it has read.
    """
    longest = max(int(store.source_lengths.max()), int(store.target_lengths.max()), 8)
    data = config.data.model_copy(update={"max_tokens": min(config.data.max_tokens, longest)})
    return config.model_copy(update={"data": data})


def _whole(paths: list[Path]) -> list[Path]:
    """Those that can be read; each damaged one is named."""
    whole = []
    for path in paths:
        try:
            load_checkpoint(path)
        except UserError as error:
            say(f"warning: {error.message}; averaging the others")
        else:
            whole.append(path)
    return whole


def _keep_the_better(trainer: Trainer, validation: Validation) -> tuple[float, str]:
    """Give the model the average of the last checkpoints or the best one; its nll and its name."""
    state = trainer.state
    paths = _whole(trainer.averaged_paths())
    best = _whole(
        [p for p in list_checkpoints(trainer.checkpoints) if p.name == step_name(state.best_step)]
    )
    if not paths and not best:
        raise UserError(f"{trainer.checkpoints}: no whole checkpoint is left", "train again")
    choices = []
    if paths:
        several = f"the average of the last {len(paths)} checkpoints"
        choices.append((several, average_checkpoints(paths)))
    if best and best != paths:
        single = f"the best checkpoint, step {state.best_step:,}"
        choices.append((single, load_checkpoint(best[0]).model))
    measured = []
    for name, weights in choices:
        trainer.model.load_state_dict(weights)
        measured.append((validation.nll(trainer.model), name, weights))
    measured.sort(key=lambda choice: choice[0])
    nll, name, weights = measured[0]
    trainer.model.load_state_dict(weights)
    others = "".join(f", {other} {value:.4f}" for value, other, _ in measured[1:])
    return nll, f"{name} (nll {nll:.4f}{others})"
