"""Means over the updates since the last training event, one every few seconds."""

from typing import Any

from dragoman.training.loss import Loss
from dragoman.training.state import TrainingState
from dragoman.training.utilization import utilization

Event = dict[str, Any]


class Meter:
    """Gathers updates and makes an event "train" of them."""

    SECONDS = 2.0

    def __init__(self, state: TrainingState, peak: float) -> None:
        """Begin at a state; peak: the machine's matrix products a second, 0 where not measured."""
        self._peak = peak
        self._begin(state, state.seconds)

    def _begin(self, state: TrainingState, seconds: float) -> None:
        self._last, self._flops = seconds, state.flops
        self.smoothed = self.nll = 0.0
        self.tokens = 0

    def restart(self, state: TrainingState, seconds: float) -> None:
        """Leave out the time since the last update: it was not spent on training."""
        self._begin(state, seconds)

    def add(self, loss: Loss) -> None:
        """Count one update."""
        self.smoothed += float(loss.smoothed)
        self.nll += float(loss.nll)
        self.tokens += loss.tokens

    def due(self, seconds: float) -> bool:
        """Whether it is time for an event."""
        return seconds - self._last >= self.SECONDS

    def event(self, state: TrainingState, progress: float, rate: float, norm: float) -> Event:
        """The event for log and display; starts the next interval."""
        spent = state.seconds - self._last
        event = {
            "event": "train",
            "step": state.step,
            "epoch": state.epoch,
            "seconds": round(state.seconds, 2),
            "progress": round(progress, 5),
            "loss": self.smoothed / self.tokens,
            "nll": self.nll / self.tokens,
            "learning_rate": rate,
            "gradient_norm": norm,
            "tokens_per_second": round(self.tokens / spent),
        }
        if self._peak:
            event["utilization"] = utilization(state.flops - self._flops, spent, self._peak)
        self._begin(state, state.seconds)
        return event
