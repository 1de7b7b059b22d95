"""What a person sees of a long run, and the log that is kept of it.

On a terminal: bars with rate and time left. Elsewhere: plain lines, few. All of it on stderr.
"""

import json
import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TextIO

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from dragoman.errors import UserError
from dragoman.text.display import excerpt
from dragoman.text.lines import atomic_write

Event = dict[str, Any]
SCORES = {
    "bleu": "BLEU",
    "chrf": "chrF",
    "accuracy": "accuracy",
    "macro_f1": "macro-F1",
    "f1": "F1",
}
"""What validation events and ends may tell beside the nll, 0 to 100: fields and their names."""
# Seconds between two training lines where there is no terminal.
_QUIET = 30.0
# Columns of the bar of a training run.
_BAR = 12


def console() -> Console:
    """The terminal that progress is shown on, which is never where results go."""
    return Console(stderr=True, highlight=False, soft_wrap=True)


def say(line: str) -> None:
    """Print a line on stderr as it is, whatever brackets it holds."""
    print(line, file=sys.stderr, flush=True)


@contextmanager
def stage(name: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
    """Show a long step: a bar with rate and time left, or one line where there is no terminal.

    Yields advance(count), to be called with what was done. Without a total only the count shows.
    """
    shown = console()
    if not shown.is_terminal:
        say(f"{name} ..." if total is None else f"{name} ({total:,}) ...")
        yield lambda count: None
        return
    columns: list[ProgressColumn] = [SpinnerColumn(), TextColumn("{task.description}")]
    if total is not None:
        columns += [BarColumn(), MofNCompleteColumn(), _Rate(), TimeRemainingColumn()]
    else:
        columns += [_Count(), _Rate(), TimeElapsedColumn()]
    with Progress(*columns, console=shown, transient=True) as progress:
        task = progress.add_task(name, total=total)
        yield lambda count: progress.advance(task, count)


class _Count(ProgressColumn):
    def render(self, task: Any) -> Text:
        return Text(f"{int(task.completed):,}" if task.completed else "")


class _Rate(ProgressColumn):
    def render(self, task: Any) -> Text:
        speed = task.finished_speed or task.speed
        return Text(f"{speed:,.0f}/s" if speed else "")


class TrainingDisplay:
    """Shows the events of a training run (see `dragoman.training.trainer`) as they come."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._console = console() if stream is None else Console(file=stream, highlight=False)
        self._progress: Progress | None = None
        self._task = TaskID(0)
        self._last_line = -math.inf

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            columns = (BarColumn(bar_width=_BAR), TextColumn("{task.description}"))
            self._progress = Progress(
                *columns, console=self._console, transient=True, refresh_per_second=2
            )
            self._task = self._progress.add_task("starting ...", total=1.0)
            self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._progress is not None:
            self._progress.stop()

    def observe(self, event: Event) -> None:
        """Show one event, where it is of a kind to look at."""
        width = self._console.width if self._progress is not None else None
        if event["event"] == "validation":
            self._print(validation_lines(event, width))
        elif event["event"] != "train":
            return
        elif self._progress is not None and width is not None:
            line = training_line(event, width - _BAR - 1)
            self._progress.update(self._task, completed=event["progress"], description=line)
        elif time.monotonic() - self._last_line >= _QUIET:
            self._last_line = time.monotonic()
            self._print([training_line(event)])

    def _print(self, lines: list[str]) -> None:
        texts = [Text(line) for line in lines]
        if self._progress is not None:  # a line longer than the terminal would move the bar
            for text in texts:
                text.truncate(self._console.width, overflow="ellipsis")
        # At once: the bar below is drawn anew after each print.
        self._console.print(Text("\n").join(texts), soft_wrap=True)


def training_line(event: Event, width: int | None = None) -> str:
    """One line for a person from an event "train", of the parts that fit the width if one is given.

    The percentage in brackets is the share of the machine's matrix-product peak.
    """
    done, seconds = event["progress"], event["seconds"]
    speed = f"{event['tokens_per_second']:,.0f} tokens/s"
    if event.get("utilization") is not None:
        speed += f" ({event['utilization']:.0f}% of peak)"
    parts = {
        "done": f"{100 * done:5.1f}%",
        "step": f"step {event['step']:,}",
        "epoch": f"epoch {event['epoch'] + 1}",
        "loss": f"loss {event['loss']:.3f}",
        "speed": speed,
    }
    if done > 0:
        parts["left"] = f"{duration(seconds * (1 - done) / done)} left"
    return _fit(parts, ("epoch", "step", "loss", "speed"), width)


def _fit(parts: dict[str, str], spare: tuple[str, ...], width: int | None) -> str:
    """The parts in one line, less those that can be spared, in that order, until it fits."""
    for name in spare:
        if width is None or len("  ".join(parts.values())) <= width:
            break
        parts.pop(name, None)
    return "  ".join(parts.values())


def validation_lines(event: Event, width: int | None = None) -> list[str]:
    """Lines for a person from an event "validation", the first of its samples with them.

    width: that of the terminal, which leaves parts of the first line out.
    """
    at = f"validation at step {event['step']:,}"
    parts = {
        "step": f"{at} ({duration(event['seconds'])}):",
        "nll": f"nll {event['nll']:.3f}",
        "perplexity": f"perplexity {event['perplexity']:.2f}",
        **{name: f"{SCORES[name]} {event[name]:.1f}" for name in SCORES if name in event},
    }
    if event.get("best"):
        parts["best"] = "(best)"
    if width is not None and len("  ".join(parts.values())) > width:
        parts["step"] = f"{at}:"
    lines = [_fit(parts, ("best", "chrf"), width)]
    for sample in event.get("samples", ())[:1]:
        lines += [f"    {name:<11}  {excerpt(text)}" for name, text in sample.items()]
    return lines


def duration(seconds: float) -> str:
    """Seconds as m:ss or h:mm:ss."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


class EventLog:
    """``log.jsonl``: one event a line, on disk as soon as it has happened."""

    def __init__(self, path: Path, last_step: int) -> None:
        """Open the log, keeping what it holds up to a step: 0 for a fresh run.

        A line that a kill cut short is dropped, as is what comes after the checkpoint that a
        resumed run goes on from, and an end that was none.
        """
        kept = [e for e in read_log(path) if e["step"] <= last_step and e.get("event") != "end"]
        with atomic_write(path) as stream:
            stream.writelines(_line(event).encode() for event in kept if last_step)
        self._stream = path.open("a", encoding="utf-8")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()

    def observe(self, event: Event) -> None:
        """Append one event."""
        try:
            self._stream.write(_line(event))
            self._stream.flush()
        except OSError as error:
            raise UserError(
                f"{self._stream.name}: cannot be written: {error.strerror}",
                "free some space, then go on with --resume",
            ) from None


def _line(event: Event) -> str:
    return json.dumps(event, ensure_ascii=False) + "\n"


def read_log(path: Path) -> Iterator[Event]:
    """The events of a log, up to the first line that is not whole; none where there is no file."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return
    for line in content.split(b"\n"):
        try:
            event = json.loads(line)
            if not isinstance(event["step"], int):
                return
        except (ValueError, TypeError, KeyError, RecursionError):
            return
        yield event
