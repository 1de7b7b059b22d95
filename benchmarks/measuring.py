"""Runs a training for a while and reads its log as it comes; nothing here knows what it runs."""

import os
import signal
import subprocess
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from toolkits import Launch, Sample, read_samples

# Between two looks at a log; what a time that is read there may be late by.
_LOOK = 0.05
# How long a process may take to go once it is asked to.
_PATIENCE = 120.0


@dataclass(frozen=True)
class Window:
    """What was done between two lines of a log."""

    seconds: float
    updates: int
    tokens: float

    @property
    def rate(self) -> float:
        """Target tokens a second."""
        return self.tokens / self.seconds


def measure(name: str, launched: Launch, warmup_updates: int, seconds: float) -> Window:
    """Train until so many seconds of log lie behind the warm-up, then kill it.

    Raises SystemExit with the end of its output when it ends by itself before.
    """
    with started(launched) as process:
        lines = follow(launched.log, process)
        found = window(read_samples(name, lines), warmup_updates, seconds)
        if found is None:
            raise SystemExit(f"error: {name} ended too early:\n{output_of(launched)[-2000:]}")
        return found


def window(samples: Iterable[Sample], warmup_updates: int, seconds: float) -> Window | None:
    """From the first sample behind the warm-up to the first one so many seconds later."""
    first = None
    for sample in samples:
        if first is None:
            if sample.update >= warmup_updates:
                first = sample
        elif (passed := sample.seconds - first.seconds) >= seconds:
            return Window(passed, sample.update - first.update, sample.tokens - first.tokens)
    return None


@contextmanager
def started(launched: Launch) -> Iterator[subprocess.Popen[bytes]]:
    """A process in a group of its own, its output in `output` beside its log; killed at the end."""
    with output_path(launched).open("wb") as output:
        process = subprocess.Popen(
            launched.command,
            stdout=output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env=os.environ | launched.environment,
            start_new_session=True,
        )
        try:
            yield process
        finally:
            end(process, signal.SIGKILL)


def end(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """Send a signal to a process and all it started, and see that it is gone."""
    _signal(process, number)
    try:
        process.wait(_PATIENCE)
    except subprocess.TimeoutExpired:
        _signal(process, signal.SIGKILL)
        process.wait()


def follow(path: Path, process: subprocess.Popen[bytes]) -> Iterator[tuple[float, str]]:
    """Every whole line of a growing file, with the time of reading it, until the process ends."""
    rest, place = b"", 0
    while True:
        running = process.poll() is None
        if path.exists():
            with path.open("rb") as stream:
                stream.seek(place)
                content = stream.read()
            now, place = time.monotonic(), place + len(content)
            *whole, rest = (rest + content).split(b"\n")
            for line in whole:
                yield now, line.decode("utf-8", "replace")
        if not running:
            return
        time.sleep(_LOOK)


def output_path(launched: Launch) -> Path:
    """What the process printed."""
    return launched.log if launched.log.name == "output" else _home(launched.log) / "output"


def output_of(launched: Launch) -> str:
    """What the process has printed so far."""
    return output_path(launched).read_text("utf-8", "replace")


def accept_interrupts() -> None:
    """Let SIGINT, which a shell's `&` makes processes ignore, and SIGTERM end what was started."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.default_int_handler)


def keep_to_processors(count: int) -> list[int]:
    """Let this process, and what it starts, run on the first `count` of its processors only."""
    if not hasattr(os, "sched_setaffinity"):
        return []
    chosen = sorted(os.sched_getaffinity(0))[:count]
    os.sched_setaffinity(0, chosen)
    return chosen


def _home(log: Path) -> Path:
    # Dragoman's log is in WORK/model/training, a folder that it makes itself.
    return log.parents[2]


def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    if process.poll() is None:
        os.killpg(process.pid, number)
