"""A training run from a prepared corpus to a model folder, stopped and resumed at will."""

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import typer

from dragoman.cli.card import TrainingSummary, model_card
from dragoman.cli.events import end_event, start_event
from dragoman.cli.parent import PARENT
from dragoman.cli.signals import stop_on_signals
from dragoman.cli.tasks import task_run
from dragoman.cli.validation import TaskRun
from dragoman.config import Config
from dragoman.corpus.prepared import TOKENIZER, TRAIN, PreparedCorpus
from dragoman.corpus.store import CorpusStore
from dragoman.corpus.tokenizer import Tokenizer
from dragoman.decoding.perplexity import perplexity
from dragoman.inspection.plots import curve_png
from dragoman.inspection.report import write_report
from dragoman.model.adapters import load_trained_weights
from dragoman.model.description import title
from dragoman.model.folder import save_model
from dragoman.model.sequence_model import SequenceModel, parameter_count
from dragoman.training.checkpoints import (
    CHECKPOINTS,
    checkpoint_step,
    disk_errors,
    list_checkpoints,
)
from dragoman.training.distributed import Ranks
from dragoman.training.fine_tuning import initial_model, keep_and_merge
from dragoman.training.process import prepare_process
from dragoman.training.progress import (
    EventLog,
    TrainingDisplay,
    duration,
    read_log,
    say,
    stage,
)
from dragoman.training.selection import Selection, select_weights
from dragoman.training.tensorboard import FOLDER, TensorBoard
from dragoman.training.trainer import StopRequestedError, Trainer
from dragoman.training.utilization import utilization

LOG, CURVE, ADAPTER_FOLDER = "log.jsonl", "curve.png", "adapter"


@dataclass(frozen=True)
class Run:
    """What a run needs; its work goes to `folder`/training, its model to `folder`."""

    folder: Path
    config: Config
    corpus: PreparedCorpus
    ranks: Ranks

    @property
    def work(self) -> Path:
        """Where checkpoints, log and curve are."""
        return self.folder / "training"


def train_to_end(run: Run) -> None:
    """Train, from the newest checkpoint if there is one, and write the model folder.

    Of several ranks the first one measures, shows and writes; the others end when all is trained.
    Raises typer.Exit with 130 or 143 when a signal stopped the run, UserError for what a person
    can mend.
    """
    prepare_process()
    ranks = run.ranks
    tokenizer = Tokenizer.load(run.corpus.folder / TOKENIZER)
    task = task_run(run.config, tokenizer, run.corpus.folder) if ranks.first else None
    torch.manual_seed(run.config.training.seed)
    model = initial_model(run.config, tokenizer.vocabulary_size, run.work / PARENT)
    trainer = _train(run, model, task)
    ranks.close()
    if task is None:
        return
    try:
        with disk_errors(run.folder):
            _finish(run, trainer, task)
    except KeyboardInterrupt:
        say(f"stopped; go on with: dragoman train --resume --out {run.folder}")
        raise typer.Exit(130) from None


def _train(run: Run, model: SequenceModel, task: TaskRun | None) -> Trainer:
    store, ranks = CorpusStore.open(run.corpus.folder / TRAIN), run.ranks
    announced = _announce(run) if ranks.first else 0  # what follows may take a while
    with ExitStack() as stack:
        request = stack.enter_context(stop_on_signals(ranks.rank, ranks.size))
        display = TrainingDisplay()
        observers = [display.observe] if ranks.first else []

        def observe(event: dict[str, Any]) -> None:
            for observer in observers:
                observer(event)

        trainer = Trainer(
            run.config,
            model,
            store,
            run.work,
            ranks,
            task or _only_on_rank_0,
            observe,
            request.made,
        )
        resumed = trainer.resume(lambda problem: say(f"warning: {problem}"))
        trainer.measure_peak()
        if ranks.first:
            if resumed and trainer.state.step != announced:  # the newest one was damaged
                say(_going_on(run, trainer.state.step))
            if trainer.compile_problem:
                say(f"warning: torch.compile does not work here: {trainer.compile_problem}")
            _describe(run, trainer, task.rows if task else "")
            log = stack.enter_context(EventLog(run.work / LOG, trainer.state.step))
            observers.append(log.observe)
            if run.config.training.tensorboard:
                board = TensorBoard(run.work / FOLDER, read_log(run.work / LOG))
                observers.append(stack.enter_context(board).observe)
            stack.enter_context(display)
            observe(start_event(trainer, run.corpus.training_pairs))
        try:
            trainer.run()
        except StopRequestedError:
            stack.close()
            number = max(ranks.gather(request.number))
            ranks.close()
            step, go_on = trainer.state.step, f"dragoman train --resume --out {run.folder}"
            if ranks.first:
                say(f"stopped at step {step:,}; go on with: {go_on}")
            raise typer.Exit(128 + number) from None
    return trainer


def _announce(run: Run) -> int:
    """Say where the run goes on, if it does; the step, 0 at a beginning."""
    paths = list_checkpoints(run.work / CHECKPOINTS)
    step = checkpoint_step(paths[-1]) if paths else 0
    if step:
        say(_going_on(run, step))
    return step


def _going_on(run: Run, step: int) -> str:
    last = run.config.training.max_steps
    return f"going on from step {step:,}" + (f" of {last:,}" if last else "")


def _only_on_rank_0(_: SequenceModel) -> dict[str, Any]:
    raise AssertionError("rank 0 validates")


def _describe(run: Run, trainer: Trainer, rows: str) -> None:
    settings = run.config.training
    precision = str(trainer.precision).removeprefix("torch.")
    length = f"{settings.epochs} epochs"
    if settings.max_steps:
        length = f"{settings.max_steps:,} steps"
    if settings.budget_seconds:
        length = duration(settings.budget_seconds)
    processes = f"{run.ranks.size} x " if run.ranks.size > 1 else ""
    say(
        f"training {title(run.config)}: preset {run.config.preset}, "
        f"{parameter_count(trainer.model):,} parameters, {run.corpus.training_pairs:,} {rows}, "
        f"{length}, on {processes}{trainer.device.type} in {precision}, matrix products at up to "
        f"{trainer.peak / 1e9:,.0f} GFLOP/s"
    )


def _finish(run: Run, trainer: Trainer, task: TaskRun) -> None:
    model, state = trainer.whole_model, trainer.state
    model.eval()
    with stage("averaging checkpoints"):
        chosen = _select(run, trainer, task)
    say(f"kept: {chosen.description}")
    model.embedding.compute_dtype = torch.float32
    summary = TrainingSummary(
        steps=state.step,
        epochs=state.epoch + 1,
        tokens=state.tokens,
        seconds=state.seconds,
        nll=chosen.nll,
        perplexity=perplexity(chosen.nll),
        kept=chosen.description,
        unit=task.tokens,
        vocabulary_size=task.tokenizer.vocabulary_size,
        parameters=parameter_count(model),
        results=task.results(model, chosen.nll),
        utilization=utilization(state.flops, state.seconds, trainer.peak),
    )
    card = model_card(run.config, run.corpus, summary, task)
    coverage = task.coverage()
    config = with_longest(run.config, trainer.store).model_copy(update={"coverage": coverage})
    task.save_parts(run.folder, model, trainer.store)
    save_model(run.folder, config, task.tokenizer, dict(model.state_dict()), card)
    task.convert(run.folder)
    with EventLog(run.work / LOG, state.step) as log:
        log.observe(end_event(summary))
    curve_png(run.work / LOG, run.work / CURVE)
    report = write_report(run.folder)
    say(summary.results.shown)
    if state.worse >= run.config.training.patience:
        say(f"stopped early: {state.worse} validations in a row were no better (training.patience)")
    if _too_few(run.config, state.step, summary.results.learned):
        smaller = "" if run.config.preset == "tiny" else ", or take a smaller preset"
        say(
            f"warning: {state.step:,} updates were too few to learn from: give more time or more "
            f"data{smaller}"
        )
    say(f"trained {state.step:,} steps in {duration(state.seconds)}: {summary.speed}")
    say(f"model: {run.folder}; report: {report}")


def _too_few(config: Config, steps: int, learned: bool) -> bool:
    return steps < config.training.warmup_steps and not learned


def with_longest(config: Config, store: CorpusStore) -> Config:
    """The configuration with the length that training really saw.

    A longer line is split at sentence ends: a model shortens what is longer than all it has read.
    """
    longest = max(int(store.source_lengths.max()), int(store.target_lengths.max()), 8)
    data = config.data.model_copy(update={"max_tokens": min(config.data.max_tokens, longest)})
    return config.model_copy(update={"data": data})


def _select(run: Run, trainer: Trainer, task: TaskRun) -> Selection:
    """Give the model the weights that validate best, whole: adapters are kept and merged."""
    model, state, settings = trainer.whole_model, trainer.state, run.config.training

    def measure(weights: dict[str, torch.Tensor]) -> float:
        load_trained_weights(model, weights)
        return task.nll(model)

    def warn(problem: str) -> None:
        say(f"warning: {problem}")

    paths = list_checkpoints(trainer.checkpoints)
    chosen = select_weights(paths, trainer.averaged_steps, state.best_step, measure, warn)
    load_trained_weights(model, chosen.weights)
    if settings.lora_rank:
        keep_and_merge(model, run.config, run.work / ADAPTER_FOLDER)
    return chosen
