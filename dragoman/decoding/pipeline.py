"""Lines in, answers out, in order and in constant memory, with reading and translating at once.

A thread reads ahead, a second one cuts what was read into windows and hands them to the workers,
and whoever iterates gets the answers window by window. All that waits is bounded: when the answers
are not taken, translating stops, and then reading.

    entries -> read ahead -> windows -> workers -> answers in the order of the entries
"""

import queue
import signal
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from types import TracebackType
from typing import NamedTuple, Protocol, Self

from dragoman.corpus.pairs import Context
from dragoman.decoding.answers import Answer

# Seconds: a line that comes alone is not kept waiting for more.
_PATIENCE = 0.05
_LONGEST_WAIT = 0.5
# Characters of a window: a few very long lines are one too.
_CHARACTERS = 1_000_000
# Lines of the first window: the first answers are to come soon; each next one is twice as long.
_FIRST_WINDOW = 128
# Answers that are kept for lines that come again.
_REMEMBERED = 100_000
_REMEMBERED_BYTES = 64 * 1024 * 1024
_ENTRY_BYTES = 300  # what an entry takes beside its text
_THREADS = "dragoman-"
# Seconds that threads have to end where they need not.
_MOMENT = 0.2

Key = tuple[str, str, Context]
"""A line, what its translation begins with, and its context: what its answer depends on."""


class Entry(NamedTuple):
    """A line of input: its text, what its translation begins with, its context, where it stood."""

    text: str
    prefix: str = ""
    context: Context = ()
    source: str = "line "
    number: int = 1

    @property
    def place(self) -> str:
        """Where it stood, for a person."""
        return f"{self.source}{self.number}"


class Work(Protocol):
    """Translates windows, several at a time."""

    window: int  # lines
    in_flight: int  # windows that are being translated or wait to be written

    def submit(self, keys: Sequence[Key], first: int) -> Future[list[Answer]]:
        """Begin with a window whose first line has this number."""

    def close(self, at_once: bool) -> None:
        """End the workers: when they are done with what they do, or without waiting for that."""


@dataclass(frozen=True)
class Pace:
    """How lines are gathered.

    prompt: answer what is there when nothing more comes for a moment; where it is False, windows
    depend on nothing but the text. repeats: whether a line that was seen has the same answer.
    first: number of the first line.
    """

    prompt: bool = False
    repeats: bool = True
    first: int = 1


class Pipeline:
    """Iterate over it, within `with`: lists of entries with their answers, in order.

    An error of the entries is raised after the answers to what was read before it; errors of the
    workers come in order, too. Left by an interrupt or because nobody reads the results any more,
    it waits for no worker.
    """

    def __init__(self, entries: Iterable[Entry], work: Work, pace: Pace) -> None:
        self._entries, self._work, self._pace = entries, work, pace
        self._ahead = ReadAhead(2 * work.window, 2 * _CHARACTERS)
        self._slots = threading.Semaphore(work.in_flight)
        self._windows: queue.SimpleQueue[_Window | BaseException | None] = queue.SimpleQueue()
        self._memory = _Memory()
        self._stopped = False
        self._reader = helper_thread(self._read, "reading")
        self._giver = helper_thread(self._give, "giving")

    def __enter__(self) -> Self:
        self._reader.start()
        self._giver.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        at_once = isinstance(error, KeyboardInterrupt | BrokenPipeError)
        self._stopped = True
        self._ahead.close()
        self._slots.release()
        self._work.close(at_once)
        self._giver.join(_MOMENT if at_once else None)
        self._reader.join(_MOMENT if at_once else 2)  # it may be waiting for somebody to type

    def __iter__(self) -> Iterator[list[tuple[Entry, Answer]]]:
        while (window := self._windows.get()) is not None:
            if isinstance(window, BaseException):
                raise window
            yield list(zip(window.entries, self._answers(window), strict=True))
            self._slots.release()

    def _answers(self, window: "_Window") -> list[Answer]:
        if window.future is not None:
            answers = window.future.result()
            if not self._pace.repeats:
                return answers
            found = dict(zip(window.asked, answers, strict=True))
            self._memory.add(found)
            window.known.update(found)
        return [window.known[entry[:3]] for entry in window.entries]

    def _read(self) -> None:
        try:
            for entry in self._entries:
                if not self._ahead.put(entry):
                    return
            self._ahead.finish(None)
        except BaseException as error:
            self._ahead.finish(error)

    def _give(self) -> None:
        # Workers that are started from here inherit it: Ctrl-C is for the main thread alone.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        first, lines = self._pace.first, min(_FIRST_WINDOW, self._work.window)
        prompt = self._pace.prompt
        try:
            while True:
                self._slots.acquire()
                entries = self._ahead.take(lines, prompt)
                if self._stopped or not entries:
                    break
                self._windows.put(self._begin(entries, first))
                first += len(entries)
                lines = min(2 * lines, self._work.window)
        except BaseException as error:
            self._windows.put(error)
        self._windows.put(None)

    def _begin(self, entries: list[Entry], first: int) -> "_Window":
        keys: list[Key] = [entry[:3] for entry in entries]
        known = dict[Key, Answer]()
        if self._pace.repeats:
            keys = list(dict.fromkeys(keys))
            known = self._memory.find(keys)
            keys = [key for key in keys if key not in known]
        future = self._work.submit(keys, first) if keys else None
        return _Window(entries, keys, known, future)


def at_work() -> bool:
    """Whether a thread of a pipeline that was left is still busy."""
    return any(thread.name.startswith(_THREADS) for thread in threading.enumerate())


@dataclass
class _Window:
    """Lines that are translated together, and what is known of them already."""

    entries: list[Entry]
    asked: list[Key]
    known: dict[Key, Answer]
    future: Future[list[Answer]] | None


class ReadAhead:
    """What was read and is not yet in work; bounded in lines and in characters."""

    def __init__(self, lines: int, characters: int) -> None:
        self._most, self._most_characters = lines, characters
        self._entries = deque[Entry]()
        self._characters = 0
        self._arrived = 0
        self._wanted = 1
        self._ended = self._closed = False
        self._error: BaseException | None = None
        lock = threading.Lock()
        self._filled, self._space = threading.Condition(lock), threading.Condition(lock)

    def put(self, entry: Entry) -> bool:
        """Add a line when there is room for it; False: no more are wanted."""
        with self._space:
            while self._full() and not self._closed:
                self._space.wait()
            if self._closed:
                return False
            self._entries.append(entry)
            self._characters += len(entry.text) + len(entry.prefix)
            self._arrived += 1
            if len(self._entries) >= self._wanted or self._full():
                self._filled.notify()
            return True

    def finish(self, error: BaseException | None) -> None:
        """No line comes any more; the error is raised to who takes what is not there."""
        with self._filled:
            self._ended, self._error = True, error
            self._filled.notify()

    def close(self) -> None:
        """Nobody takes any more."""
        with self._filled:
            self._ended = self._closed = True
            self._filled.notify_all()
            self._space.notify_all()

    def look(self, lines: int, prompt: bool) -> None:
        """Wait until so many lines are there, or all; prompt: or until no more come for a moment.

        At least one is waited for.
        """
        with self._filled:
            self._wait(1, None)
            deadline = time.monotonic() + _LONGEST_WAIT
            while not self._ended and not self._full() and len(self._entries) < lines:
                arrived = self._arrived
                self._wait(lines, _PATIENCE if prompt else None)
                if prompt and (arrived == self._arrived or time.monotonic() > deadline):
                    break

    def take(self, lines: int, prompt: bool) -> list[Entry]:
        """The next lines, in their order, see `look`; none at the end.

        Raises what reading raised.
        """
        self.look(lines, prompt)
        with self._filled:
            taken = self._cut(lines)
            self._space.notify()
            if not taken and self._error is not None:
                raise self._error
            return taken

    def _wait(self, lines: int, seconds: float | None) -> None:
        self._wanted = lines
        while not (self._ended or self._full() or len(self._entries) >= lines):
            if not self._filled.wait(seconds):
                return

    def _full(self) -> bool:
        too_long = self._characters >= self._most_characters
        return len(self._entries) >= self._most or too_long

    def _cut(self, lines: int) -> list[Entry]:
        taken, characters = list[Entry](), 0
        while self._entries and len(taken) < lines and characters < _CHARACTERS:
            entry = self._entries.popleft()
            characters += len(entry.text) + len(entry.prefix)
            taken.append(entry)
        self._characters -= characters
        return taken


class _Memory:
    """The answers to the lines seen last, of bounded size."""

    def __init__(self) -> None:
        self._answers = OrderedDict[Key, Answer]()
        self._bytes = 0
        self._lock = threading.Lock()

    def find(self, keys: Iterable[Key]) -> dict[Key, Answer]:
        with self._lock:
            found = {key: self._answers[key] for key in keys if key in self._answers}
            for key in found:
                self._answers.move_to_end(key)
            return found

    def add(self, answers: dict[Key, Answer]) -> None:
        with self._lock:
            for key, answer in answers.items():
                if key not in self._answers:
                    self._bytes += _size(key, answer)
                    self._answers[key] = answer
            while len(self._answers) > _REMEMBERED or self._bytes > _REMEMBERED_BYTES:
                self._bytes -= _size(*self._answers.popitem(last=False))


def _size(key: Key, answer: Answer) -> int:
    text, prefix, context = key
    return _ENTRY_BYTES + 2 * sum(map(len, (text, prefix, *context))) + answer.size


def helper_thread(target: Callable[[], None], name: str) -> threading.Thread:
    """A thread that `at_work` knows and that does not keep the process from ending."""
    return threading.Thread(target=target, name=f"{_THREADS}{name}", daemon=True)
