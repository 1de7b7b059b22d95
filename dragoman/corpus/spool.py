"""Pairs on disk that are used like a list: the corpus never lies in memory as a whole."""

import os
import tempfile
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO, Self, overload

from dragoman.corpus.pairs import Pair


class PairSpool(Sequence[Pair]):
    """Pairs in a temporary file that vanishes with the process; 8 bytes of memory each."""

    def __init__(self, folder: Path) -> None:
        self._stream: BinaryIO = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 (own context)
        self._starts = array("Q", [0])
        self._written = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()

    def append(self, pair: Pair) -> None:
        """Add one pair; its texts must not hold NUL, which no cleaned text does."""
        content = f"{pair.source}\0{pair.target}".encode()
        self._stream.write(content)
        self._starts.append(self._starts[-1] + len(content))

    def __len__(self) -> int:
        return len(self._starts) - 1

    @overload
    def __getitem__(self, row: int) -> Pair: ...
    @overload
    def __getitem__(self, row: slice) -> list[Pair]: ...
    def __getitem__(self, row: int | slice) -> Pair | list[Pair]:
        if isinstance(row, slice):
            return [self[number] for number in range(*row.indices(len(self)))]
        if not 0 <= row < len(self):
            raise IndexError(row)
        if self._written < len(self):
            self._stream.flush()
            self._written = len(self)
        start, end = self._starts[row], self._starts[row + 1]
        content = os.pread(self._stream.fileno(), end - start, start).decode()
        source, _, target = content.partition("\0")
        return Pair(source, target)


class PairRows(Sequence[Pair]):
    """Some rows of a spool."""

    def __init__(self, spool: PairSpool, rows: list[int]) -> None:
        self._spool, self._rows = spool, array("Q", rows)

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, row: int) -> Pair: ...
    @overload
    def __getitem__(self, row: slice) -> list[Pair]: ...
    def __getitem__(self, row: int | slice) -> Pair | list[Pair]:
        if isinstance(row, slice):
            return [self[number] for number in range(*row.indices(len(self)))]
        return self._spool[self._rows[row]]
