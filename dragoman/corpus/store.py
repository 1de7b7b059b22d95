"""The corpus as ids in one Arrow file that is mapped into memory, not read.

Two columns of lists, `source` and `target`, without bos and eos. Every record batch but the last
holds the same number of rows, so that a row's place is arithmetic.
"""

import itertools
import mmap
from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.ipc

from dragoman.errors import UserError
from dragoman.text.lines import atomic_write

_FORMAT = b"dragoman.store"
_VERSION = b"1"
_ROWS = b"dragoman.rows_per_batch"
_ROWS_PER_BATCH = 8192

# A row taken at random brings in a page or two, or 64 KiB where the system maps pages around it.
_ROWS_MAPPED = 8192

Ids = npt.NDArray[np.uint16] | npt.NDArray[np.int32]
Lengths = npt.NDArray[np.uint16] | npt.NDArray[np.int32]


class CorpusStore:
    """Pairs of ids, read in place from a file that `write_store` made.

    The arrays it gives are read-only views of the file. Memory is what the lengths take (4 bytes a
    pair, once asked for) and a bounded part of the file: every so many rows it is mapped anew, so
    that its pages count as the system's cache and not as the process's own.
    """

    def __init__(
        self, mapped: mmap.mmap, reader: pyarrow.ipc.RecordBatchFileReader, rows_per_batch: int
    ) -> None:
        self._mapped = mapped
        self._reader = reader
        self._until_release = _ROWS_MAPPED
        self._rows_per_batch = rows_per_batch
        count = reader.num_record_batches
        self._columns: list[tuple[Ids, Ids, Ids, Ids] | None] = [None] * count
        last: int = reader.get_batch(count - 1).num_rows if count else 0
        self._length: int = max(count - 1, 0) * rows_per_batch + last

    @classmethod
    def open(cls, path: Path) -> "CorpusStore":
        """Maps a store into memory; `UserError` if it is missing, cut short or another's file."""
        hint = "prepare the corpus again"
        try:
            with path.open("rb") as stream:
                mapped = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
            reader = pa.ipc.open_file(pa.py_buffer(mapped))
            metadata = reader.schema.metadata or {}
            rows = int(metadata.get(_ROWS, b"0"))
            known = [_schema(np.dtype(kind), rows) for kind in (np.uint16, np.int32)]
            if rows < 1 or not any(reader.schema.equals(schema, True) for schema in known):
                raise UserError(f"{path}: not a corpus store that this version can read", hint)
            return cls(mapped, reader, rows)
        except (pa.ArrowException, ValueError) as error:
            raise UserError(f"{path}: not a corpus store, or one cut short", hint) from error
        except OSError as error:
            reason = error.strerror or "not a corpus store, or one cut short"
            raise UserError(f"{path}: cannot read: {reason}", hint) from error

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, row: int) -> tuple[Ids, Ids]:
        """Source and target ids of a row; `IndexError` outside of 0..len-1."""
        if not 0 <= row < self._length:
            raise IndexError(f"row {row} of {self._length}")
        self._release_pages(1)
        batch, place = divmod(int(row), self._rows_per_batch)
        sources, source_offsets, targets, target_offsets = self._batch(batch)
        return (
            sources[source_offsets[place] : source_offsets[place + 1]],
            targets[target_offsets[place] : target_offsets[place + 1]],
        )

    @cached_property
    def source_lengths(self) -> Lengths:
        """(rows,) number of source ids of each row."""
        return self._lengths(1)

    @cached_property
    def target_lengths(self) -> Lengths:
        """(rows,) number of target ids of each row."""
        return self._lengths(3)

    def _lengths(self, column: int) -> Lengths:
        lengths: Lengths = np.empty(self._length, dtype=np.uint16)
        for batch in range(len(self._columns)):
            start = batch * self._rows_per_batch
            found = np.diff(self._batch(batch)[column])
            if lengths.dtype == np.uint16 and found.max(initial=0) >= 2**16:
                lengths = lengths.astype(np.int32)
            lengths[start : start + len(found)] = found
            self._release_pages(len(found))
        return lengths

    def _release_pages(self, rows: int) -> None:
        self._until_release -= rows
        if self._until_release <= 0:
            self._until_release = _ROWS_MAPPED
            if hasattr(mmap, "MADV_DONTNEED"):  # of a file that is only read: nothing gets lost
                self._mapped.madvise(mmap.MADV_DONTNEED)

    def _batch(self, number: int) -> tuple[Ids, Ids, Ids, Ids]:
        columns = self._columns[number]
        if columns is None:
            record = self._reader.get_batch(number)
            source, target = record.column(0), record.column(1)
            columns = (
                source.values.to_numpy(),
                source.offsets.to_numpy(),
                target.values.to_numpy(),
                target.offsets.to_numpy(),
            )
            self._columns[number] = columns
        return columns


Columns = tuple[pa.ListArray, pa.ListArray]
"""Source and target ids of some rows."""


def write_store(
    path: Path, pairs: Iterable[tuple[list[int], list[int]]], vocabulary_size: int
) -> int:
    """Writes pairs of ids to a store, whole or not at all, in memory that does not grow.

    Args:
        pairs: source and target ids without bos and eos.
        vocabulary_size: ids are below it; two bytes an id are enough up to 65,536, else four.

    Returns:
        The number of rows written.

    Raises:
        ValueError: an id that is 0 (padding) or outside of the vocabulary.
    """
    kind = id_type(vocabulary_size)
    supply = iter(pairs)
    chunks = iter(lambda: list(itertools.islice(supply, _ROWS_PER_BATCH)), [])
    return write_columns(
        path,
        (
            (
                list_column([pair[0] for pair in chunk], kind, vocabulary_size),
                list_column([pair[1] for pair in chunk], kind, vocabulary_size),
            )
            for chunk in chunks
        ),
        vocabulary_size,
    )


def write_columns(path: Path, parts: Iterable[Columns], vocabulary_size: int) -> int:
    """`write_store` for ids that `list_column` made, in parts of any number of rows."""
    schema = _schema(id_type(vocabulary_size), _ROWS_PER_BATCH)
    rows = 0
    with atomic_write(path) as stream, pa.ipc.new_file(stream, schema) as writer:
        for columns in _even(parts):
            writer.write_batch(pa.record_batch(list(columns), schema=schema))
            rows += len(columns[0])
    return rows


def _even(parts: Iterable[Columns]) -> Iterator[Columns]:
    """The same rows in parts of the number that the store has, the last one apart."""
    rest: list[Columns] = []
    for part in parts:
        rest.append(part)
        if sum(len(columns[0]) for columns in rest) >= _ROWS_PER_BATCH:
            joined = _joined(rest)
            whole = len(joined[0]) // _ROWS_PER_BATCH * _ROWS_PER_BATCH
            for start in range(0, whole, _ROWS_PER_BATCH):
                yield _sliced(joined, start, start + _ROWS_PER_BATCH)
            rest = [_sliced(joined, whole, len(joined[0]))] if whole < len(joined[0]) else []
    if any(len(columns[0]) for columns in rest):
        joined = _joined(rest)
        yield _sliced(joined, 0, len(joined[0]))


def _joined(parts: list[Columns]) -> Columns:
    return (
        pa.concat_arrays([columns[0] for columns in parts]),
        pa.concat_arrays([columns[1] for columns in parts]),
    )


def _sliced(columns: Columns, start: int, stop: int) -> Columns:
    """Rows as arrays of their own that begin at 0, so that the file is the same however they came.

    A slice would carry the offsets of what it was cut from.
    """
    cut = []
    for column in columns:
        offsets = column.offsets.to_numpy()[start : stop + 1]
        values = column.values.to_numpy()[offsets[0] : offsets[-1]]
        cut.append(pa.ListArray.from_arrays(pa.array(offsets - offsets[0]), pa.array(values)))
    return cut[0], cut[1]


def id_type(vocabulary_size: int) -> np.dtype[Any]:
    """What holds an id of a vocabulary of that size."""
    return np.dtype(np.uint16 if vocabulary_size <= 2**16 else np.int32)


def _schema(kind: np.dtype[Any], rows_per_batch: int) -> pa.Schema:
    ids = pa.list_(pa.from_numpy_dtype(kind))
    return pa.schema(
        [("source", ids), ("target", ids)],
        metadata={_FORMAT: _VERSION, _ROWS: str(rows_per_batch).encode()},
    )


def list_column(lists: list[list[int]], kind: np.dtype[Any], vocabulary_size: int) -> pa.ListArray:
    """Lists of ids as one column. Raises ValueError for an id outside of the vocabulary."""
    offsets = np.zeros(len(lists) + 1, dtype=np.int32)
    np.cumsum([len(ids) for ids in lists], out=offsets[1:])
    values = np.fromiter(itertools.chain.from_iterable(lists), np.int64, count=int(offsets[-1]))
    if values.size and not 0 < values.min() <= values.max() < vocabulary_size:
        raise ValueError(f"ids must be between 1 and {vocabulary_size - 1}")
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(values.astype(kind)))
