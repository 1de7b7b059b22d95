"""Results in the order of the lines, whether they are there or come one by one."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterator, Sequence

import pytest

from dragoman.decoding.streaming import stream

CHUNKS: list[int] = []


def shout(lines: Sequence[str]) -> list[str]:
    CHUNKS.append(len(lines))
    if "bad" in lines:
        raise ValueError("bad line")
    return [line.upper() for line in lines]


async def arriving(lines: Sequence[str], pause: float = 0.0) -> AsyncIterator[str]:
    for line in lines:
        await asyncio.sleep(pause)
        if line == "broken":
            raise OSError("the source broke")
        yield line


@pytest.mark.parametrize("count", [0, 1, 4, 5, 23])
def test_all_lines_in_order(count: int) -> None:
    lines = [f"line {number}" for number in range(count)]

    async def run() -> None:
        for given in (lines, iter(lines), arriving(lines)):
            assert [line async for line in stream(shout, given, 5)] == list(map(str.upper, lines))

    CHUNKS.clear()
    asyncio.run(run())
    assert max(CHUNKS, default=0) <= 5


def test_a_line_that_comes_alone_is_answered_alone() -> None:
    async def run() -> None:
        lines: asyncio.Queue[str] = asyncio.Queue()

        async def asked() -> AsyncIterator[str]:
            while (line := await lines.get()) != "end":
                yield line

        answers = stream(shout, asked(), 100)
        for word in ("one", "two"):
            await lines.put(word)
            assert await asyncio.wait_for(anext(answers), 60) == word.upper()
        await lines.put("end")
        assert [line async for line in answers] == []

    asyncio.run(run())


def test_only_what_is_needed_is_read() -> None:
    read = 0

    def endless() -> Iterator[str]:
        nonlocal read
        for number in itertools.count():
            read += 1
            yield str(number)

    async def run() -> list[str]:
        found = []
        async for line in stream(shout, endless(), 5):
            found.append(line)
            if len(found) == 7:
                return found
        return found

    assert asyncio.run(run()) == list(map(str, range(7)))
    assert read <= 15


def test_errors_come_out() -> None:
    async def collect(lines: Sequence[str]) -> list[str]:
        return [line async for line in stream(shout, arriving(lines), 3)]

    with pytest.raises(ValueError, match="bad line"):
        asyncio.run(collect(["good", "bad"]))
    with pytest.raises(OSError, match="the source broke"):
        asyncio.run(collect(["good", "broken", "never"]))
