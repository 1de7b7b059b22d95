"""The training loop: updates, validation, checkpoints, early stopping, exact resume."""

import gc
import math
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from dragoman.config import Config
from dragoman.corpus.store import CorpusStore
from dragoman.errors import UserError
from dragoman.model.adapters import load_trained_weights, trained_weights
from dragoman.model.assembly import build_model
from dragoman.model.description import model_settings, stacks
from dragoman.model.sequence_model import SequenceModel
from dragoman.training.checkpoints import (
    CHECKPOINTS,
    Checkpoint,
    load_latest,
    prune_checkpoints,
    write_checkpoint,
)
from dragoman.training.compilation import compile_layers
from dragoman.training.distributed import (
    EveryRankError,
    Ranks,
    gather_tensors,
    parallelize,
    shard_like,
)
from dragoman.training.feed import Feed, make_collate, make_resampler
from dragoman.training.meter import Event, Meter
from dragoman.training.moving_average import averaged_weights
from dragoman.training.objective import Objective
from dragoman.training.optimizer import make_optimizer, optimizer_tensors, restore_optimizer
from dragoman.training.precision import choose_precision
from dragoman.training.state import TrainingState, random_state, restore_random
from dragoman.training.update import Updater
from dragoman.training.utilization import TrainingCost, matrix_product_peak

# What the first validation of a run by the clock is expected to take.
_FIRST_VALIDATION_SECONDS = 2.0


class StopRequestedError(Exception):
    """Training was asked to stop (Ctrl-C, SIGTERM) and has written its checkpoint."""


class Trainer:
    """Trains a model on a store, alone or as one of several ranks that all do the same.

    validate(model) -> event with at least "nll" (nats a token) is called at even intervals, on rank
    0; observe(event) gets every event of the log; should_stop() is asked after every update, and
    one rank that is to stop stops all.
    """

    def __init__(
        self,
        config: Config,
        model: SequenceModel,
        store: CorpusStore,
        folder: Path,
        ranks: Ranks,
        validate: Callable[[SequenceModel], Event],
        observe: Callable[[Event], None],
        should_stop: Callable[[], bool] = lambda: False,
    ) -> None:
        self.config, self.settings = config, config.training
        self.ranks, self.device = ranks, ranks.device
        self.model = model.to(ranks.device)
        self.store, self.folder = store, folder
        self.validate, self.observe, self.should_stop = validate, observe, should_stop
        self.state = TrainingState()
        self.precision = self._choose_precision()
        self.compile_problem = ""  # why a GPU has to do without torch.compile
        if ranks.device.type == "cuda" and self.settings.compile == "auto":
            self.compile_problem = compile_layers(self.model, self.precision)
        objective = Objective(self.model, self.settings)
        parallel = parallelize(objective, ranks, self.settings.parallel)
        self._shared_out = ranks.size > 1 and self.settings.parallel == "fsdp"
        if self._shared_out and self.settings.lora_rank:
            raise EveryRankError(
                "training.parallel = fsdp: adapters (training.lora_rank) are too small to share",
                "set training.parallel=ddp",
            )
        self._whole: SequenceModel | None = None
        self.optimizer = make_optimizer(model, self.settings)
        resampler = make_resampler(config, folder)
        collate = make_collate(config, folder / "corpus")
        feeding = store, self.settings, model.vocabulary_size, folder, ranks
        self.feed = Feed(*feeding, collate, resampler)
        passes = 2 if self.settings.r_drop else 1
        cost = TrainingCost.of(config.model, model.vocabulary_size, passes, stacks(config))
        self.updater = Updater(config, parallel, self.optimizer, ranks, cost)
        self.peak = 0.0
        self._updates_planned = self._count_updates()
        self._started = time.monotonic()
        self._saved = time.monotonic()
        self._saved_step = 0
        self._validated_at = 0.0
        self._validation_seconds = _FIRST_VALIDATION_SECONDS

    @property
    def checkpoints(self) -> Path:
        """Where the checkpoints are."""
        return self.folder / CHECKPOINTS

    def resume(self, warn: Callable[[str], None]) -> bool:
        """Go back to the newest whole checkpoint; False when there is none."""
        checkpoint: Checkpoint | None = None

        def load() -> dict[str, Any] | None:
            nonlocal checkpoint
            checkpoint = load_latest(self.checkpoints, warn)
            if checkpoint is None:
                return None
            self._check(checkpoint.state, warn)
            return checkpoint.state

        try:
            saved = self.ranks.decide(load)
            if saved is None:
                return False
            self._restore(saved, checkpoint)
        except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
            raise UserError(
                f"{self.checkpoints}: the checkpoint does not fit this training: {error}",
                "its corpus or its files were changed: train into another --out",
            ) from None
        return True

    def measure_peak(self) -> None:
        """Find what all ranks together can do, so that events tell the share that is used."""
        (self.peak,) = self.ranks.sum(matrix_product_peak(self.device, self.precision))

    def _check(self, saved: dict[str, Any], warn: Callable[[str], None]) -> None:
        for name, value in self._identity().items():
            if saved["identity"].get(name, value) != value:  # older ones know of no corpus
                raise UserError(
                    f"{self.folder}: {name} differs from the interrupted training",
                    "put back what was there (settings are in training/config.toml), or train "
                    "into another --out",
                )
        if saved["batch_tokens"] != self.settings.batch_tokens:
            warn("batch_tokens differs from the interrupted run: its epoch starts again")
            saved["counters"]["batch"] = 0

    def _restore(self, saved: dict[str, Any], checkpoint: Checkpoint | None) -> None:
        """Go to a checkpoint, which only rank 0 has read."""
        parameters = dict(self.model.named_parameters())
        weights = self.ranks.broadcast(checkpoint.model if checkpoint else None)
        load_trained_weights(
            self.model,
            {n: shard_like(t, parameters[n]) if n in parameters else t for n, t in weights.items()},
        )
        moments = self.ranks.broadcast(checkpoint.optimizer if checkpoint else None)
        restore_optimizer(
            self.optimizer,
            self.model,
            {n: shard_like(t, parameters[n.rpartition("/")[0]]) for n, t in moments.items()},
        )
        self.state = TrainingState(**saved["counters"])
        if self.settings.precision == "auto":  # what was measured then; a setting is a wish of now
            self.precision = getattr(torch, saved["precision"])
        states = [saved["random"], *saved.get("random_of_others", [])]
        if len(states) == self.ranks.size:
            restore_random(states[self.ranks.rank], self.device)
        else:
            self.ranks.seed(self.settings.seed, self.state.step)
        self.feed.plan_epoch(self.state.epoch)

    def _identity(self) -> dict[str, Any]:
        """What a checkpoint cannot do without: some settings, and the corpus it counts in."""
        return {
            "model": model_settings(self.config),
            "training.seed": self.settings.seed,
            "the corpus": self.feed.fingerprint,
        }

    def run(self) -> None:
        """Train to the end. Raises StopRequestedError, and UserError on a non-finite loss."""
        if self.state.step == 0:
            self.ranks.seed(self.settings.seed)
        self._started = time.monotonic() - self.state.seconds
        meter = Meter(self.state, self.peak)
        self.model.embedding.compute_dtype = self.precision
        self.model.train()
        gc.freeze()  # what exists now will stay: the collector need not walk it every few updates
        while not self._finished():
            batches = self.feed.take(self.state)
            loss, norm = self.updater.update(batches, self.state, self.progress)
            save, stop = self._agree()
            meter.add(loss)
            if meter.due(self.state.seconds):
                rate = self.optimizer.param_groups[0]["lr"]
                self.observe(meter.event(self.state, self.progress, rate, norm))
            if self._validation_due():
                self._validate()
                meter.restart(self.state, time.monotonic() - self._started)
                stop = self.ranks.sum(self.should_stop()) != [0.0]
            elif save:
                self.save()
                meter.restart(self.state, time.monotonic() - self._started)
            if stop:
                if self._saved_step != self.state.step:
                    self.save()
                raise StopRequestedError

    def _agree(self) -> tuple[bool, bool]:
        """Take rank 0's time, and find whether a checkpoint is due and whether any rank stops."""
        now, wanted = time.monotonic(), self.should_stop()
        due = now - self._saved > 60 * self.settings.checkpoint_minutes
        own = (now - self._started, due) if self.ranks.first else (0.0, False)
        self.state.seconds, save, stop = self.ranks.sum(*own, wanted)
        return save > 0, stop > 0

    @property
    def progress(self) -> float:
        """The share of the run that is done, by time when it has a budget, else by updates."""
        if self.settings.budget_seconds:
            by_time = self.state.seconds / self.settings.budget_seconds
            limit = self.settings.max_steps
            return min(1.0, max(by_time, self.state.step / limit if limit else 0.0))
        return min(1.0, self.state.step / self._updates_planned)

    def _finished(self) -> bool:
        return self.progress >= 1.0 or self.state.worse >= self.settings.patience

    def _count_updates(self) -> int:
        if self.settings.max_steps:
            return self.settings.max_steps
        return math.ceil(len(self.feed) * self.settings.epochs / self.settings.accumulation)

    def _validation_due(self) -> bool:
        if self._finished():
            return True
        if self.progress < (self.state.validations + 1) / self.settings.validations:
            return False
        # By the clock, validation may take a twentieth of the time; by updates it is where it is.
        since = self.state.seconds - self._validated_at
        return not self.settings.budget_seconds or since > 20 * self._validation_seconds

    def _validate(self) -> None:
        state = self.state
        moving = bool(self.settings.ema_decay)
        with averaged_weights(self.model, self.optimizer) if moving else nullcontext():
            model = self._gather_model()
            event, state.seconds, self._validation_seconds = self.ranks.decide(
                lambda: self._measure(model)
            )
        self._validated_at = state.seconds
        if not math.isfinite(event["nll"]):
            raise EveryRankError(
                f"step {state.step}: the validation loss is {event['nll']}",
                "lower training.learning_rate in training/config.toml; then go on with --resume",
            )
        state.validations = max(
            state.validations + 1, math.floor(self.progress * self.settings.validations)
        )
        better = event["nll"] < state.best_nll
        state.worse = 0 if better else state.worse + 1
        if better:
            state.best_nll, state.best_step = event["nll"], state.step
        state.validated_steps.append(state.step)
        self.observe(
            {
                "event": "validation",
                "step": state.step,
                "epoch": state.epoch,
                "seconds": round(state.seconds, 2),
                "validation_seconds": round(self._validation_seconds, 2),
                "best": better,
                **event,
            }
        )
        self.save()

    def _measure(self, model: SequenceModel) -> tuple[Event, float, float]:
        """The event of a validation, the time of training after it, and how long it took."""
        model.eval()
        random, begun = torch.get_rng_state(), time.monotonic()
        event = self.validate(model)
        torch.set_rng_state(random)
        model.embedding.compute_dtype = self.precision
        model.train()
        now = time.monotonic()
        return event, now - self._started, now - begun

    @property
    def whole_model(self) -> SequenceModel:
        """A model that is in one piece on this rank: the trained one, or one of the same sizes."""
        if not self._shared_out:
            return self.model
        if self._whole is None:
            with torch.random.fork_rng(devices=[]):  # what it begins with is of no use
                whole = build_model(self.config, self.model.vocabulary_size)
            self._whole = whole.to(self.device)
            self._whole.embedding.compute_dtype = self.precision
        return self._whole

    def _gather_model(self) -> SequenceModel:
        """`whole_model` with the weights of now; complete on rank 0 only."""
        if self._shared_out:
            weights = gather_tensors(self.model.state_dict(), self.ranks)
            if self.ranks.first:
                self.whole_model.load_state_dict(weights)
        return self.whole_model if self.ranks.first else self.model

    def _choose_precision(self) -> torch.dtype:
        """What rank 0 measures to be worth it."""
        name = self.ranks.decide(
            lambda: str(choose_precision(self.settings.precision, self.device))
        )
        precision: torch.dtype = getattr(torch, name.removeprefix("torch."))
        return precision

    def save(self) -> None:
        """Write a checkpoint and drop those that nothing needs any more."""
        random, *others = self.ranks.gather(random_state(self.device))
        state = {
            "counters": asdict(self.state),
            "identity": self._identity(),
            "batch_tokens": self.settings.batch_tokens,
            "precision": str(self.precision).removeprefix("torch."),
            "random": random,
            "random_of_others": others,
        }
        weights = gather_tensors(trained_weights(self.model), self.ranks)
        moments = gather_tensors(optimizer_tensors(self.optimizer, self.model), self.ranks)
        checkpoint = Checkpoint(weights, moments, state)
        self.ranks.decide(lambda: self._write(checkpoint))
        self._saved, self._saved_step = time.monotonic(), self.state.step

    def _write(self, checkpoint: Checkpoint) -> None:
        write_checkpoint(self.checkpoints, self.state.step, checkpoint)
        kept = {*self.averaged_steps, self.state.best_step, self.state.step}
        prune_checkpoints(self.checkpoints, kept)

    @property
    def averaged_steps(self) -> set[int]:
        """Steps of the checkpoints that the final model may be the average of (section 6.1)."""
        return set(self.state.validated_steps[-self.settings.average_checkpoints :])
