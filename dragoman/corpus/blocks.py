"""Files of pairs cut into blocks of so many lines, as bytes: cheap to cut and to send elsewhere.

Whoever gets a block decodes and parses it; what is wrong in it is told with file and line.
"""

import io
import itertools
import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

import numpy as np

from dragoman.corpus.context import Preceding, with_contexts
from dragoman.corpus.pairs import (
    Context,
    Pair,
    join_texts,
    parse_table,
    table_suffix,
    unequal_lines,
)
from dragoman.errors import UserError
from dragoman.text.lines import (
    MAXIMUM_LINE_BYTES,
    ErrorPolicy,
    display_name,
    iterate_lines,
    open_bytes,
)

_READ_BYTES = 1 << 20
# Of one block: 16,384 lines of text have some megabytes, an archive made to fill a memory has more.
_MOST_BYTES = 512 * 1024 * 1024
_LINE_FEED = 10
TEXTS = ("lines", "paragraphs")
_BLANK = re.compile(rb"\n[ \t\r]*\n")


@dataclass(frozen=True, slots=True)
class Block:
    """Some lines of a corpus.

    `number` counts blocks from 0, `first` is the number of the first line, from 1. For two files
    `contents` and `names` have two entries; for one table one, and `suffix` tells its form; it is
    "lines" or "paragraphs" for a file of texts. Its pairs get so many sentences as `context`;
    `before` holds the last sources before it.
    """

    number: int
    first: int
    contents: tuple[bytes, ...]
    names: tuple[str, ...]
    suffix: str
    errors: ErrorPolicy
    context: int = 0
    before: Context = ()

    def pairs(self) -> Iterator[Pair]:
        """The pairs of its lines. Raises UserError for a line that is none."""
        if not self.context:
            return self._pairs()
        preceding = Preceding(self.context)
        for source in self.before:
            preceding.of(source)
        return with_contexts(self._pairs(), preceding)

    def last_sources(self) -> Context:
        """The sources of its last lines, as many as a context has at most."""
        lines = [
            content.removesuffix(b"\n").rsplit(b"\n", self.context) for content in self.contents
        ]
        count = min(self.context, self.line_count())
        last = tuple(b"\n".join([*each[-count:], b""]) for each in lines)
        block = replace(self, first=self.first + self.line_count() - count, contents=last)
        return tuple(pair.source for pair in block._pairs())

    def _pairs(self) -> Iterator[Pair]:
        lines = [
            iterate_lines(io.BytesIO(content), name, self.errors, self.first)
            for content, name in zip(self.contents, self.names, strict=True)
        ]
        if self.suffix in TEXTS:
            return (Pair("", text) for text in join_texts(lines[0], self.suffix))
        if self.suffix:
            return parse_table(lines[0], self.suffix, self.names[0], self.first)
        return map(Pair, *lines)

    def line_count(self) -> int:
        """How many lines it has of each file."""
        return _count(self.contents[0])


def cut_parallel(
    source: str | Path, target: str | Path, lines: int, errors: ErrorPolicy
) -> Iterator[Block]:
    """The blocks of two files aligned by line number.

    Raises UserError, after the whole blocks that both files have, when one has more lines.
    """
    if str(source) == "-" and str(target) == "-":
        raise UserError(
            "source and target cannot both be standard input",
            "give a file for one of them, or one .tsv or .jsonl file that holds both sides",
        )
    names = display_name(source), display_name(target)
    with open_bytes(source) as source_stream, open_bytes(target) as target_stream:
        blocks = itertools.zip_longest(
            _cut(source_stream, lines, names[0]),
            _cut(target_stream, lines, names[1]),
            fillvalue=b"",
        )
        for number, contents in enumerate(blocks):
            first = 1 + number * lines
            counts = [_count(content) for content in contents]
            if counts[0] != counts[1]:
                for left, right in blocks:
                    counts = [counts[0] + _count(left), counts[1] + _count(right)]
                raise unequal_lines(
                    names[0], first - 1 + counts[0], names[1], first - 1 + counts[1]
                )
            yield Block(number, first, contents, names, "", errors)


def with_before(blocks: Iterator[Block], context: int) -> Iterator[Block]:
    """The blocks of a file of documents, for contexts of so many sentences."""
    before: Context = ()
    for block in blocks:
        block = replace(block, context=context, before=before)
        yield block
        before = (*before, *block.last_sources())[-context:]


def cut_table(path: str | Path, lines: int, errors: ErrorPolicy) -> Iterator[Block]:
    """The blocks of one file that holds both sides. Raises UserError."""
    suffix, name = table_suffix(path), display_name(path)
    with open_bytes(path) as stream:
        for number, content in enumerate(_cut(stream, lines, name)):
            yield Block(number, 1 + number * lines, (content,), (name,), suffix, errors)


def cut_texts(path: str | Path, lines: int, errors: ErrorPolicy, texts: str) -> Iterator[Block]:
    """The blocks of a file of texts, none of which is cut. Raises UserError for an endless one."""
    name, number, first, rest = display_name(path), 0, 1, b""
    with open_bytes(path) as stream:
        for content in itertools.chain(_cut(stream, lines, name), [b""]):
            searched = max(0, len(rest) - 2)
            rest += content
            end = len(rest)
            if texts == "paragraphs" and content:
                end = max((blank.end() for blank in _BLANK.finditer(rest, searched)), default=0)
            if end:
                yield Block(number, first, (rest[:end],), (name,), texts, errors)
                number, first, rest = number + 1, first + _count(rest[:end]), rest[end:]
            if len(rest) > MAXIMUM_LINE_BYTES:
                raise UserError(
                    f"{name}:{first}: the text that begins here has more than "
                    f"{MAXIMUM_LINE_BYTES // 1024**2} MiB",
                    "a blank line ends a text; for a text a line set data.texts=lines",
                )


def _count(content: bytes) -> int:
    return content.count(b"\n") + (content[-1:] not in (b"", b"\n"))


def _cut(stream: BinaryIO, lines: int, name: str) -> Iterator[bytes]:
    """Blocks of so many lines; the last may have fewer.

    Raises UserError for an endless line, and for lines that are too long for a block.
    """
    first = 1
    pending: list[bytes] = []
    count = 0  # line feeds in pending
    tail = 0  # bytes after the last of them
    while data := stream.read(_READ_BYTES):
        ends = np.flatnonzero(np.frombuffer(data, dtype=np.uint8) == _LINE_FEED)
        start = used = 0
        while len(ends) - used >= lines - count:
            used += lines - count
            stop = int(ends[used - 1]) + 1
            yield b"".join([*pending, data[start:stop]])
            pending, count, start, first = [], 0, stop, first + lines
        pending.append(data[start:])
        count += len(ends) - used
        tail = len(data) - 1 - int(ends[-1]) if len(ends) else tail + len(data)
        if tail > MAXIMUM_LINE_BYTES:
            deque(iterate_lines(io.BytesIO(b"".join(pending)), name, "replace", first), maxlen=0)
        if sum(map(len, pending)) > _MOST_BYTES:
            raise UserError(
                f"{name}:{first}: the {count:,} lines from here on have more than "
                f"{_MOST_BYTES // 1024**2} MiB",
                "a corpus holds one sentence or paragraph a line; drop what is no text",
            )
    if rest := b"".join(pending):
        yield rest
