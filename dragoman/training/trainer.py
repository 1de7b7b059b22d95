"""The training loop: updates, validation, checkpoints, early stopping, exact resume.

Shapes: B batch, S source, T target, D d_model.
"""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dragoman.config import Config
from dragoman.corpus.batches import Batch, collate, plan_batches
from dragoman.corpus.store import CorpusStore
from dragoman.errors import UserError
from dragoman.model.transformer import PAD, Transformer
from dragoman.training.checkpoints import (
    Checkpoint,
    list_checkpoints,
    load_latest,
    prune_checkpoints,
    write_checkpoint,
)
from dragoman.training.loss import Loss, cross_entropy
from dragoman.training.optimizer import make_optimizer, optimizer_tensors, restore_optimizer
from dragoman.training.precision import choose_precision
from dragoman.training.schedule import learning_rate

Event = dict[str, Any]
# What the first validation of a run by the clock is expected to take.
_FIRST_VALIDATION_SECONDS = 2.0


@dataclass
class TrainingState:
    """Counters of a run; with weights, optimizer and random state it is all of it."""

    step: int = 0
    epoch: int = 0
    batch: int = 0  # batches of this epoch that are done
    tokens: int = 0  # target tokens trained on
    seconds: float = 0.0  # spent training, over all interruptions
    validations: int = 0
    best_nll: float = math.inf
    best_step: int = 0
    worse: int = 0  # validations since the best
    validated_steps: list[int] = field(default_factory=list)


class StopRequestedError(Exception):
    """Training was asked to stop (Ctrl-C, SIGTERM) and has written its checkpoint."""


class Trainer:
    """Trains a model on a store.

    validate(model) -> event with at least "nll" (nats a token) is called at even intervals;
    observe(event) gets every event of the log; should_stop() is asked after every update.
    """

    def __init__(
        self,
        config: Config,
        model: Transformer,
        store: CorpusStore,
        folder: Path,
        device: torch.device,
        validate: Callable[[Transformer], Event],
        observe: Callable[[Event], None],
        should_stop: Callable[[], bool] = lambda: False,
    ) -> None:
        self.config, self.settings = config, config.training
        self.model = model.to(device)
        self.store, self.folder, self.device = store, folder, device
        self.validate, self.observe, self.should_stop = validate, observe, should_stop
        self.optimizer = make_optimizer(model, self.settings)
        self.state = TrainingState()
        self.precision = choose_precision(self.settings.precision, device)
        self._plan = self._plan_epoch()
        self._updates_planned = self._count_updates()
        self._started = time.monotonic()
        self._saved = time.monotonic()
        self._saved_step = 0
        self._validated_at = 0.0
        self._validation_seconds = _FIRST_VALIDATION_SECONDS

    @property
    def checkpoints(self) -> Path:
        """Where the checkpoints are."""
        return self.folder / "checkpoints"

    def resume(self, warn: Callable[[str], None]) -> bool:
        """Go back to the newest whole checkpoint; False when there is none."""
        checkpoint = load_latest(self.checkpoints, warn)
        if checkpoint is None:
            return False
        try:
            self._restore(checkpoint, warn)
        except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
            raise UserError(
                f"{self.checkpoints}: the checkpoint does not fit this training: {error}",
                "its corpus or its files were changed: train into another --out",
            ) from None
        return True

    def _restore(self, checkpoint: Checkpoint, warn: Callable[[str], None]) -> None:
        saved = checkpoint.state
        for name, value in self._identity().items():
            if saved["identity"][name] != value:
                raise UserError(
                    f"{self.folder}: {name} differs from the interrupted training",
                    "set it back in training/config.toml, or train into another --out",
                )
        if saved["batch_tokens"] != self.settings.batch_tokens:
            warn("batch_tokens differs from the interrupted run: its epoch starts again")
            saved["counters"]["batch"] = 0
        self.model.load_state_dict(checkpoint.model)
        restore_optimizer(self.optimizer, self.model, checkpoint.optimizer)
        self.state = TrainingState(**saved["counters"])
        if self.settings.precision == "auto":  # what was measured then; a setting is a wish of now
            self.precision = getattr(torch, saved["precision"])
        _restore_random(saved["random"], self.device)
        self._plan = self._plan_epoch()

    def _identity(self) -> dict[str, Any]:
        """The settings that a checkpoint cannot do without."""
        return {"model": self.config.model.model_dump(), "training.seed": self.settings.seed}

    def run(self) -> None:
        """Train to the end. Raises StopRequestedError, and UserError on a non-finite loss."""
        if self.state.step == 0:
            torch.manual_seed(self.settings.seed)
        self._started = time.monotonic() - self.state.seconds
        meter = _Meter(self.state.seconds)
        self.model.embedding.compute_dtype = self.precision
        self.model.train()
        while not self._finished():
            batches = self._next_batches()
            loss, norm = self._update(batches)
            self.state.seconds = time.monotonic() - self._started
            meter.add(loss)
            if meter.due(self.state.seconds):
                self.observe(meter.event(self, norm))
            if self._validation_due():
                self._validate()
                meter.restart(self.state.seconds)
            elif time.monotonic() - self._saved > 60 * self.settings.checkpoint_minutes:
                self.save()
            if self.should_stop():
                if self._saved_step != self.state.step:
                    self.save()
                raise StopRequestedError

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
        return math.ceil(len(self._plan) * self.settings.epochs / self.settings.accumulation)

    def _plan_epoch(self) -> list[np.ndarray[Any, np.dtype[np.int64]]]:
        lengths = self.store.source_lengths, self.store.target_lengths
        return plan_batches(
            *lengths, self.settings.batch_tokens, self.settings.seed, self.state.epoch
        )

    def _next_batches(self) -> list[Batch]:
        chosen = []
        for _ in range(self.settings.accumulation):
            if self.state.batch >= len(self._plan):
                self.state.epoch, self.state.batch = self.state.epoch + 1, 0
                self._plan = self._plan_epoch()
            batch = collate(self.store, self._plan[self.state.batch])
            self._check_ids(batch)
            chosen.append(batch)
            self.state.batch += 1
        return chosen

    def _check_ids(self, batch: Batch) -> None:
        if max(batch.source.max(), batch.target_out.max()) >= self.model.vocabulary_size:
            raise UserError(
                f"{self.folder}: the corpus holds tokens that the vocabulary does not have",
                "its train.arrow is damaged: prepare it anew in another --out",
            )

    def _update(self, batches: list[Batch]) -> tuple[Loss, float]:
        state, settings = self.state, self.settings
        rate = learning_rate(settings, self.config.model.d_model, state.step + 1, self.progress)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        tokens = sum(batch.target_tokens for batch in batches)
        smoothed = nll = torch.zeros(())
        for batch in batches:
            loss = batch_loss(self.model, batch, settings.label_smoothing)
            (loss.smoothed / tokens).backward()
            smoothed = smoothed + loss.smoothed.detach().cpu()
            nll = nll + loss.nll.cpu()
        limit = settings.gradient_clip or math.inf
        norm = float(torch.nn.utils.clip_grad_norm_(self.model.parameters(), limit))
        if not (math.isfinite(norm) and math.isfinite(float(smoothed))):
            self._refuse_non_finite(batches, float(smoothed), norm)
        self.optimizer.step()
        self.optimizer.zero_grad()
        state.step += 1
        state.tokens += tokens
        return Loss(smoothed, nll, tokens), norm

    def _refuse_non_finite(self, batches: list[Batch], loss: float, norm: float) -> None:
        rows = [int(row) for batch in batches for row in batch.rows]
        shown = ", ".join(str(row) for row in rows[:8]) + (", ..." if len(rows) > 8 else "")
        raise UserError(
            f"step {self.state.step + 1}, epoch {self.state.epoch}, batch {self.state.batch - 1}: "
            f"the loss is {loss} and the gradient norm {norm} (corpus rows {shown})",
            "lower training.learning_rate, raise training.warmup_steps, or set "
            "training.precision=float32 in training/config.toml; then go on with --resume",
        )

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
        self.model.eval()
        random, begun = torch.get_rng_state(), time.monotonic()
        event = self.validate(self.model)
        torch.set_rng_state(random)
        self.model.embedding.compute_dtype = self.precision
        self.model.train()
        if not math.isfinite(event["nll"]):
            raise UserError(
                f"step {state.step}: the validation loss is {event['nll']}",
                "lower training.learning_rate in training/config.toml; then go on with --resume",
            )
        state.validations = max(
            state.validations + 1, math.floor(self.progress * self.settings.validations)
        )
        state.seconds = self._validated_at = time.monotonic() - self._started
        self._validation_seconds = time.monotonic() - begun
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
                "best": better,
                **event,
            }
        )
        self.save()

    def save(self) -> None:
        """Write a checkpoint and drop those that nothing needs any more."""
        state = {
            "counters": asdict(self.state),
            "identity": self._identity(),
            "batch_tokens": self.settings.batch_tokens,
            "precision": str(self.precision).removeprefix("torch."),
            "random": _random_state(self.device),
        }
        weights = dict(self.model.state_dict())
        moments = optimizer_tensors(self.optimizer, self.model)
        write_checkpoint(self.checkpoints, self.state.step, Checkpoint(weights, moments, state))
        recent = self.state.validated_steps[-self.settings.average_checkpoints :]
        prune_checkpoints(self.checkpoints, {*recent, self.state.best_step, self.state.step})
        self._saved, self._saved_step = time.monotonic(), self.state.step

    def averaged_paths(self) -> list[Path]:
        """The checkpoints that the final model is the average of (section 6.1)."""
        recent = set(self.state.validated_steps[-self.settings.average_checkpoints :])
        return [
            path
            for path in list_checkpoints(self.checkpoints)
            if int(path.name.removeprefix("step-")) in recent
        ]


def batch_loss(model: Transformer, batch: Batch, smoothing: float) -> Loss:
    """Loss of a batch, over its real tokens."""
    device = model.embedding.weight.device
    source, target_in, target_out = (
        torch.from_numpy(ids).to(device, non_blocking=True)
        for ids in (batch.source, batch.target_in, batch.target_out)
    )
    if device.type == "cpu":
        rows, packed = model.packed_hidden(source, target_in)
        labels = packed.pack(target_out)
    else:
        rows = model.hidden(source, target_in).flatten(0, 1)
        labels = target_out.flatten()
    return cross_entropy(rows, model.embedding.weight, labels, smoothing, PAD)


@torch.no_grad()
def validation_nll(model: Transformer, batches: Iterator[Batch]) -> float:
    """Unsmoothed loss in nats a token; perplexity is its exponential."""
    total, tokens = 0.0, 0
    for batch in batches:
        loss = batch_loss(model, batch, 0.0)
        total, tokens = total + float(loss.nll), tokens + loss.tokens
    return total / max(tokens, 1)


class _Meter:
    """Means over the updates since the last training event, one every few seconds."""

    SECONDS = 2.0

    def __init__(self, seconds: float) -> None:
        self._last = seconds
        self._clear()

    def _clear(self) -> None:
        self.smoothed = self.nll = 0.0
        self.tokens = 0

    def restart(self, seconds: float) -> None:
        """Leave out the time since the last update: it was not spent on training."""
        self._last = seconds
        self._clear()

    def add(self, loss: Loss) -> None:
        """Count one update."""
        self.smoothed += float(loss.smoothed)
        self.nll += float(loss.nll)
        self.tokens += loss.tokens

    def due(self, seconds: float) -> bool:
        """Whether it is time for an event."""
        return seconds - self._last >= self.SECONDS

    def event(self, trainer: Trainer, norm: float) -> Event:
        """The event for log and display; starts the next interval."""
        state = trainer.state
        event = {
            "event": "train",
            "step": state.step,
            "epoch": state.epoch,
            "seconds": round(state.seconds, 2),
            "progress": round(trainer.progress, 5),
            "loss": self.smoothed / self.tokens,
            "nll": self.nll / self.tokens,
            "learning_rate": trainer.optimizer.param_groups[0]["lr"],
            "gradient_norm": norm,
            "tokens_per_second": round(self.tokens / (state.seconds - self._last)),
        }
        self._last = state.seconds
        self._clear()
        return event


def _random_state(device: torch.device) -> dict[str, str]:
    states = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    return {name: _to_hex(state) for name, state in states.items()}


def _restore_random(saved: dict[str, str], device: torch.device) -> None:
    torch.set_rng_state(_from_hex(saved["cpu"]))
    if device.type == "cuda" and "cuda" in saved:
        torch.cuda.set_rng_state(_from_hex(saved["cuda"]), device)


def _to_hex(state: Tensor) -> str:
    return bytes(state.numpy()).hex()


def _from_hex(text: str) -> Tensor:
    return torch.frombuffer(bytearray.fromhex(text), dtype=torch.uint8)
