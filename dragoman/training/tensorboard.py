"""A copy of the log for TensorBoard, written by tensorboardX (the extra `tensorboard`).

``log.jsonl`` is what a run remembers. The event file is written anew from it at every start, so
that a resumed run has every step once and a kill loses nothing.
"""

import importlib.util
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import Any, Self

from dragoman.errors import UserError
from dragoman.text.display import printable
from dragoman.training.progress import SCORES

Event = dict[str, Any]
FOLDER = "tensorboard"
_SCALARS = {
    "train": (
        "loss",
        "nll",
        "learning_rate",
        "gradient_norm",
        "tokens_per_second",
        "utilization",
    ),
    "validation": ("nll", "perplexity", *SCORES),
}
_FLUSH_SECONDS = 10


def require_tensorboard() -> None:
    """Raises UserError where event files cannot be written."""
    if importlib.util.find_spec("tensorboardX") is None:
        raise UserError(
            "training.tensorboard needs tensorboardX, which is not installed",
            "install it with: pip install 'dragoman[tensorboard]', or set it to false",
        )


class TensorBoard:
    """Event files in a folder: scalars of every event, sample translations as text."""

    def __init__(self, folder: Path, events: Iterable[Event]) -> None:
        """Write the events of a log so far in place of the event files there are.

        Raises UserError without tensorboardX.
        """
        require_tensorboard()
        from tensorboardX import SummaryWriter

        folder.mkdir(parents=True, exist_ok=True)
        for path in folder.glob("events.out.tfevents.*"):
            path.unlink()
        self._writer = SummaryWriter(str(folder), flush_secs=_FLUSH_SECONDS)
        self._origin = 0.0  # when the training's clock was at zero, in seconds since 1970
        for event in events:
            self.observe(event)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._writer.close()

    def observe(self, event: Event) -> None:
        """Add one event."""
        kind, step = event["event"], event["step"]
        if kind == "start":
            self._origin = datetime.fromisoformat(event["time"]).timestamp() - event["seconds"]
        when = self._origin + event.get("seconds", 0.0)
        for name in _SCALARS.get(kind, ()):
            if event.get(name) is not None:
                self._writer.add_scalar(f"{kind}/{name}", event[name], step, walltime=when)
        for number, sample in enumerate(event.get("samples", ()), start=1):
            # Indented: TensorBoard reads Markdown, and a translation is none.
            lines = [f"    {name:<11}  {printable(text)}" for name, text in sample.items()]
            self._writer.add_text(f"sample {number}", "\n".join(lines), step, walltime=when)
