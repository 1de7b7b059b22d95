"""Ctrl-C and SIGTERM as requests: the first ends in a checkpoint, the second ends at once."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType


@dataclass
class StopRequest:
    """Which signal asked the run to stop; 0: none so far."""

    number: int = 0

    def made(self) -> bool:
        """Whether the run is to stop."""
        return self.number != 0


@contextmanager
def stop_on_signals(rank: int = 0, ranks: int = 1) -> Iterator[StopRequest]:
    """Catch SIGINT and SIGTERM while the block runs; of several ranks the first one says so.

    With several ranks a second signal does nothing: a scheduler and torchrun send one each.
    """
    request = StopRequest()

    def handle(number: int, _: FrameType | None) -> None:
        if request.made() and ranks == 1:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        request.number = number
        again = b" (once more: stop at once, without)" if ranks == 1 else b""
        if rank == 0:  # not print: the signal may have come in the middle of one
            os.write(2, b"\nstopping with a checkpoint ..." + again + b"\n")

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
