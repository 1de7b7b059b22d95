"""Translating what comes in bit by bit, beside everything else an event loop does."""

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import TypeVar

Result = TypeVar("Result")


async def stream(
    translate: Callable[[Sequence[str]], list[Result]],
    lines: AsyncIterable[str] | Iterable[str],
    window: int,
) -> AsyncIterator[Result]:
    """Yield the results in the order of the lines; no more than two windows are in memory.

    translate runs in a thread. From an async iterable it gets what has come while it was at work,
    at most `window` lines: one that comes alone is answered alone. Raises what either raises.
    """
    chunks = (
        _arrived(lines, window) if isinstance(lines, AsyncIterable) else _read(iter(lines), window)
    )
    async for chunk in chunks:
        for result in await asyncio.to_thread(translate, chunk):
            yield result


async def _read(lines: Iterator[str], window: int) -> AsyncIterator[list[str]]:
    # Reading may block: in a thread too.
    while chunk := await asyncio.to_thread(lambda: list(islice(lines, window))):
        yield chunk


async def _arrived(lines: AsyncIterable[str], window: int) -> AsyncIterator[list[str]]:
    queue: asyncio.Queue[str | None] = asyncio.Queue(window)

    async def fill() -> None:
        try:
            async for line in lines:
                await queue.put(line)
        finally:
            await queue.put(None)

    filling = asyncio.create_task(fill())
    try:
        open_ = True
        while open_:
            chunk = [await queue.get()]
            while len(chunk) < window and not queue.empty():
                chunk.append(queue.get_nowait())
            found = [line for line in chunk if line is not None]
            open_ = len(found) == len(chunk)
            if found:
                yield found
        await filling  # raises what the iterable raised
    finally:
        filling.cancel()
