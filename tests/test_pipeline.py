"""The pipe of `dragoman translate`: in order, bounded, prompt; with workers the test decides on."""

import itertools
import random
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.decoding import pipeline
from dragoman.decoding.answers import Answer
from dragoman.decoding.pipeline import Entry, Key, Pace, Pipeline, ReadAhead
from dragoman.errors import UserError

WAIT = 60  # seconds after which a test that hangs fails


class Upper:
    """Answers in capitals, each window in a thread, in whatever order the threads end."""

    def __init__(self, window: int = 8, in_flight: int = 3, work: Callable[[], None] = int) -> None:
        self.window, self.in_flight = window, in_flight
        self.asked: list[Key] = []
        self.firsts: list[int] = []
        self._work = work
        self._pool = ThreadPoolExecutor(in_flight)

    def submit(self, keys: Sequence[Key], first: int) -> Future[list[Answer]]:
        self.asked += keys
        self.firsts.append(first)
        return self._pool.submit(self._answer, keys)

    def _answer(self, keys: Sequence[Key]) -> list[Answer]:
        self._work()
        return [answer(text + prefix) for text, prefix, _ in keys]

    def close(self, at_once: bool) -> None:
        self._pool.shutdown(wait=not at_once)


def answer(text: str) -> Answer:
    return Answer((b"", f" {text.upper()}\n".encode()))


def entries(lines: Sequence[str]) -> list[Entry]:
    return [Entry(line, "", (), "line ", number) for number, line in enumerate(lines, start=1)]


def written(pipe: Pipeline) -> list[str]:
    found = itertools.chain.from_iterable(pipe)
    return [answer.written(number).decode() for number, (_, answer) in enumerate(found, start=1)]


@pytest.mark.parametrize("repeats", [True, False])
@pytest.mark.parametrize("prompt", [True, False])
@settings(max_examples=25, deadline=None)
@given(lines=st.lists(st.sampled_from("abcdefgh"), max_size=60), seed=st.integers(0, 99))
def test_answers_come_in_the_order_of_the_lines(
    prompt: bool, repeats: bool, lines: list[str], seed: int
) -> None:
    chance = random.Random(seed)
    work = Upper(
        chance.randint(1, 9), chance.randint(1, 4), lambda: time.sleep(chance.random() / 500)
    )
    with Pipeline(entries(lines), work, Pace(prompt, repeats)) as pipe:
        found = written(pipe)
    assert found == [f"{number} {line.upper()}\n" for number, line in enumerate(lines, start=1)]
    assert not pipeline.at_work()


def test_a_line_that_comes_again_is_translated_once_and_numbered_anew() -> None:
    lines = ["one", "two", "one"] * 200
    work = Upper(window=4, in_flight=1)
    with Pipeline(entries(lines), work, Pace()) as pipe:
        found = written(pipe)
    assert sorted(work.asked) == [("one", "", ()), ("two", "", ())]
    assert found[-1] == "600 ONE\n"
    work = Upper(window=4)
    with Pipeline(entries(lines), work, Pace(repeats=False, first=11)) as pipe:
        assert len(written(pipe)) == 600
    assert len(work.asked) == 600
    assert work.firsts == list(range(11, 611, 4))


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "_REMEMBERED", 3)
    lines = ["a", "b", "c", "a", "d", "a", "b"]
    work = Upper(window=1, in_flight=1)
    with Pipeline(entries(lines), work, Pace()) as pipe:
        written(pipe)
    assert [text for text, *_ in work.asked] == ["a", "b", "c", "d", "b"]  # b: not seen for longest
    monkeypatch.setattr(pipeline, "_REMEMBERED_BYTES", 10)
    work = Upper(window=1, in_flight=1)
    with Pipeline(entries(lines), work, Pace()) as pipe:
        assert len(written(pipe)) == len(work.asked) == len(lines)


def test_reading_stops_where_nobody_takes_the_answers() -> None:
    read = 0

    def endless() -> Iterator[Entry]:
        nonlocal read
        for read in itertools.count(1):
            yield Entry(str(read))

    work = Upper(window=10, in_flight=2)
    with Pipeline(endless(), work, Pace()) as pipe:
        windows = iter(pipe)
        for count in range(1, 4):
            next(windows)
            # What was taken, windows in flight, what is read ahead, and the line that waits.
            assert read <= 10 * (count + 2) + 20 + 1
    assert not pipeline.at_work()


def test_a_line_that_comes_alone_is_answered_before_the_next_comes() -> None:
    answered = threading.Event()

    def talk() -> Iterator[Entry]:
        for number in range(5):
            yield Entry(f"line {number}")
            assert answered.wait(WAIT), "no answer while the next line is waited for"
            answered.clear()

    with Pipeline(talk(), Upper(window=1000), Pace(prompt=True)) as pipe:
        found = []
        for window in pipe:
            found.append(len(window))
            answered.set()
    assert found == [1] * 5


def test_windows_of_a_stored_text_depend_on_nothing_but_the_text() -> None:
    def slow() -> Iterator[Entry]:
        for number in range(25):
            time.sleep(0.12 if number == 4 else 0)  # longer than a prompt pipeline waits
            yield Entry(str(number))

    work = Upper(window=10)
    with Pipeline(slow(), work, Pace(prompt=False)) as pipe:
        assert [len(window) for window in pipe] == [10, 10, 5]


def test_very_long_lines_make_small_windows() -> None:
    ahead = ReadAhead(100, 2_000_000)
    for text in ("a" * 900_000, "b" * 900_000, "c" * 900_000):
        assert ahead.put(Entry(text))
    ahead.finish(None)
    sizes = []
    while taken := ahead.take(100, prompt=False):
        sizes.append(len(taken))
    assert sizes == [2, 1]


def test_an_error_of_reading_comes_after_the_answers_to_what_was_read() -> None:
    def broken() -> Iterator[Entry]:
        yield from entries(["a", "b", "c"])
        raise UserError("text:4: invalid UTF-8", "convert it")

    found = []
    with (
        pytest.raises(UserError, match="text:4"),
        Pipeline(broken(), Upper(window=2), Pace()) as pipe,
    ):
        for window in pipe:
            found += [entry.text for entry, _ in window]
    assert found == ["a", "b", "c"]
    assert not pipeline.at_work()


def test_an_error_of_a_worker_comes_after_the_answers_before_it() -> None:
    turns = itertools.count()

    def work() -> None:
        if next(turns) == 2:
            raise MemoryError

    found = []
    with (
        pytest.raises(MemoryError),
        Pipeline(entries(list("abcdefgh")), Upper(2, 1, work), Pace()) as pipe,
    ):
        for window in pipe:
            found += [entry.text for entry, _ in window]
    assert found == list("abcd")
    assert not pipeline.at_work()


def test_who_interrupts_waits_for_nobody() -> None:
    stuck = threading.Event()

    def talk() -> Iterator[Entry]:
        yield Entry("a")
        stuck.wait(WAIT)  # somebody who types no more

    with pytest.raises(KeyboardInterrupt), Pipeline(talk(), Upper(), Pace(prompt=True)) as pipe:
        for _ in pipe:
            raise KeyboardInterrupt
    assert pipeline.at_work()
    stuck.set()
    deadline = time.monotonic() + WAIT
    while pipeline.at_work():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def peak(lines: int) -> int:
    """The most bytes that Python held while so many lines, all different, went through."""
    tracemalloc.start()
    count, work = 0, Upper(256)
    with Pipeline((Entry(f"line number {n}") for n in range(lines)), work, Pace()) as pipe:
        for window in pipe:
            count += len(window)
            work.asked.clear()
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == lines
    return most


@pytest.mark.slow
def test_memory_does_not_grow_with_the_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "_REMEMBERED", 1000)
    assert peak(100_000) < peak(10_000) + 1_000_000
