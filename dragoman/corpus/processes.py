"""Work on the parts of a corpus in several processes, with the results in order."""

import contextlib
import itertools
import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Protocol, Self, TypeVar

from dragoman.errors import UserError

Item = TypeVar("Item")
Result = TypeVar("Result")

LEAST_ITEMS = 4
"""With fewer parts than this, starting processes takes longer than they save."""


class OrderedMap(Protocol):
    """`map`, wherever the function runs: it and the items must be sendable."""

    def __call__(
        self, function: Callable[[Item], Result], items: Iterable[Item], /
    ) -> Iterator[Result]:
        """The results, in the order of the items."""
        ...


class Processes:
    """So many worker processes, started when there is work for them.

    They end with this process, whatever ends it. Nothing that is sent is large: a few items for
    each worker wait at a time.
    """

    def __init__(self, count: int) -> None:
        if count < 1:
            raise ValueError("at least one process")
        self._count = count
        self._pool: ProcessPoolExecutor | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def map(self, function: Callable[[Item], Result], items: Iterable[Item], /) -> Iterator[Result]:
        """The results in the order of the items; few items are worked on right here.

        Raises UserError when a worker dies, and whatever the function raises.
        """
        supply = iter(items)
        head = list(itertools.islice(supply, LEAST_ITEMS)) if self._count > 1 else []
        if len(head) < LEAST_ITEMS:
            yield from map(function, itertools.chain(head, supply))
            return
        if self._pool is None:
            context = multiprocessing.get_context("spawn")
            self._pool = ProcessPoolExecutor(self._count, context, initializer=follow_parent)
        waiting: deque[Future[Result]] = deque()
        try:
            for item in itertools.chain(head, supply):
                waiting.append(self._pool.submit(function, item))
                if len(waiting) > self._count + 2:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        except BrokenProcessPool:
            raise UserError(
                "a worker process was ended from outside, often for want of memory",
                "run the command again, with fewer --workers: what was done is kept",
            ) from None
        finally:
            for future in waiting:
                future.cancel()


def follow_parent() -> None:
    """Make this worker process deaf to Ctrl-C and let it end when its parent does."""
    # Ctrl-C goes to every process of the terminal; the parent ends its workers in good order.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: multiprocessing.process.BaseProcess) -> None:
    parent.join()
    os._exit(1)


def available_cores() -> int:
    """The cores that this process may use."""
    with contextlib.suppress(AttributeError):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
