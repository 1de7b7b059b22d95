"""The corpus as ids in one Arrow file that is mapped into memory, not read.

Two columns of lists, `source` and `target`, without bos and eos. Every record batch but the last
holds the same number of rows, so that a row's place is arithmetic.
"""

import itertools
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

Ids = npt.NDArray[np.uint16] | npt.NDArray[np.int32]


class CorpusStore:
    """Pairs of ids, read in place from a file that `write_store` made.

    The arrays it gives are read-only views of the file. Memory is what the lengths take (8 bytes a
    pair, once asked for) and whatever the operating system keeps of the file.
    """

    def __init__(self, reader: pyarrow.ipc.RecordBatchFileReader, rows_per_batch: int) -> None:
        self._reader = reader
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
            reader = pa.ipc.open_file(pa.memory_map(str(path), "r"))
            metadata = reader.schema.metadata or {}
            rows = int(metadata.get(_ROWS, b"0"))
            known = [_schema(np.dtype(kind), rows) for kind in (np.uint16, np.int32)]
            if rows < 1 or not any(reader.schema.equals(schema, True) for schema in known):
                raise UserError(f"{path}: not a corpus store that this version can read", hint)
            return cls(reader, rows)
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
        batch, place = divmod(int(row), self._rows_per_batch)
        sources, source_offsets, targets, target_offsets = self._batch(batch)
        return (
            sources[source_offsets[place] : source_offsets[place + 1]],
            targets[target_offsets[place] : target_offsets[place + 1]],
        )

    @cached_property
    def source_lengths(self) -> npt.NDArray[np.int32]:
        """(rows,) number of source ids of each row."""
        return self._lengths(1)

    @cached_property
    def target_lengths(self) -> npt.NDArray[np.int32]:
        """(rows,) number of target ids of each row."""
        return self._lengths(3)

    def _lengths(self, column: int) -> npt.NDArray[np.int32]:
        lengths = np.empty(self._length, dtype=np.int32)
        for batch in range(len(self._columns)):
            start = batch * self._rows_per_batch
            offsets = self._batch(batch)[column]
            lengths[start : start + len(offsets) - 1] = np.diff(offsets)
        return lengths

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
    kind: np.dtype[Any] = np.dtype(np.uint16 if vocabulary_size <= 2**16 else np.int32)
    schema = _schema(kind, _ROWS_PER_BATCH)
    rows = 0
    supply = iter(pairs)
    with atomic_write(path) as stream, pa.ipc.new_file(stream, schema) as writer:
        while chunk := list(itertools.islice(supply, _ROWS_PER_BATCH)):
            columns = [
                _list_array((pair[side] for pair in chunk), kind, vocabulary_size)
                for side in (0, 1)
            ]
            writer.write_batch(pa.record_batch(columns, schema=schema))
            rows += len(chunk)
    return rows


def _schema(kind: np.dtype[Any], rows_per_batch: int) -> pa.Schema:
    ids = pa.list_(pa.from_numpy_dtype(kind))
    return pa.schema(
        [("source", ids), ("target", ids)],
        metadata={_FORMAT: _VERSION, _ROWS: str(rows_per_batch).encode()},
    )


def _list_array(
    lists: Iterator[list[int]], kind: np.dtype[Any], vocabulary_size: int
) -> pa.ListArray:
    kept = list(lists)
    offsets = np.zeros(len(kept) + 1, dtype=np.int32)
    np.cumsum([len(ids) for ids in kept], out=offsets[1:])
    values = np.fromiter(itertools.chain.from_iterable(kept), np.int64, count=int(offsets[-1]))
    if values.size and not 0 < values.min() <= values.max() < vocabulary_size:
        raise ValueError(f"ids must be between 1 and {vocabulary_size - 1}")
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(values.astype(kind)))
