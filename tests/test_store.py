import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.ipc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.corpus import store as store_module
from dragoman.corpus.store import CorpusStore, write_store
from dragoman.errors import UserError

IdPair = tuple[list[int], list[int]]


def numbered_pairs(count: int) -> list[IdPair]:
    return [([1 + row % 90] * (row % 5), [2 + row % 70] * (row % 7 + 1)) for row in range(count)]


def contents(store: CorpusStore) -> list[IdPair]:
    rows = (store[row] for row in range(len(store)))
    return [(source.tolist(), target.tolist()) for source, target in rows]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("store")


@pytest.mark.parametrize("vocabulary_size", [100, 2**16, 2**16 + 1, 2**20])
@given(data=st.data())
def test_what_is_written_is_read(folder: Path, vocabulary_size: int, data: st.DataObject) -> None:
    ids = st.lists(st.integers(1, vocabulary_size - 1), max_size=12)
    pairs = data.draw(st.lists(st.tuples(ids, ids), max_size=20))
    path = folder / "pairs.arrow"
    assert write_store(path, iter(pairs), vocabulary_size) == len(pairs)
    store = CorpusStore.open(path)
    assert contents(store) == pairs
    assert store.source_lengths.tolist() == [len(source) for source, _ in pairs]
    assert store.target_lengths.tolist() == [len(target) for _, target in pairs]


@pytest.mark.parametrize("count", [0, 1, 3, 4, 5, 8, 13])
def test_rows_are_found_across_record_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    path = tmp_path / "pairs.arrow"
    with monkeypatch.context() as patch:
        patch.setattr(store_module, "_ROWS_PER_BATCH", 4)
        write_store(path, numbered_pairs(count), 100)
    # Opened by a version with another number of rows a batch: the file says its own.
    store = CorpusStore.open(path)
    assert len(store) == count
    assert contents(store) == numbered_pairs(count)
    assert len(store.source_lengths) == len(store.target_lengths) == count


def test_rows_are_found_across_full_record_batches(tmp_path: Path) -> None:
    path = tmp_path / "pairs.arrow"
    pairs = numbered_pairs(20_000)
    assert write_store(path, pairs, 100) == 20_000
    assert contents(CorpusStore.open(path)) == pairs


def test_two_bytes_an_id_where_they_are_enough(tmp_path: Path) -> None:
    path = tmp_path / "pairs.arrow"
    for size, kind in ((65_536, np.uint16), (65_537, np.int32)):
        write_store(path, [([size - 1], [1])], size)
        source, target = CorpusStore.open(path)[0]
        assert source.dtype == target.dtype == kind
        assert source[0] == size - 1


def test_reading_copies_nothing(tmp_path: Path) -> None:
    path = tmp_path / "pairs.arrow"
    write_store(path, numbered_pairs(20_000), 100)
    before = pa.total_allocated_bytes()
    store = CorpusStore.open(path)
    arrays = [array for row in range(len(store)) for array in store[row]]
    assert pa.total_allocated_bytes() == before
    assert not any(array.flags.owndata or array.flags.writeable for array in arrays)


def test_writing_takes_no_more_memory_for_more_rows(tmp_path: Path) -> None:
    def peak(count: int) -> int:
        tracemalloc.start()
        try:
            pairs = (([1 + row % 90] * 3, [5] * 3) for row in range(count))
            write_store(tmp_path / "pairs.arrow", pairs, 100)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    assert peak(10 * 8192) < 1.5 * peak(2 * 8192)


@pytest.mark.parametrize("row", [-1, 3, 10**9])
def test_a_row_outside_is_refused(tmp_path: Path, row: int) -> None:
    path = tmp_path / "pairs.arrow"
    write_store(path, numbered_pairs(3), 100)
    with pytest.raises(IndexError):
        CorpusStore.open(path)[row]


@pytest.mark.parametrize("number", [-1, 0, 100, 2**16, 2**40])
def test_an_id_outside_of_the_vocabulary_is_refused(tmp_path: Path, number: int) -> None:
    path = tmp_path / "pairs.arrow"
    with pytest.raises(ValueError, match="between 1 and 99"):
        write_store(path, [([1], [2, number])], 100)
    assert list(tmp_path.iterdir()) == []


def test_a_failure_leaves_the_store_that_was_there(tmp_path: Path) -> None:
    path = tmp_path / "pairs.arrow"
    write_store(path, numbered_pairs(3), 100)

    def failing() -> Iterator[IdPair]:
        yield from numbered_pairs(10_000)
        raise UserError("line 10,001 is damaged")

    with pytest.raises(UserError, match="damaged"):
        write_store(path, failing(), 100)
    assert contents(CorpusStore.open(path)) == numbered_pairs(3)
    assert list(tmp_path.iterdir()) == [path]


def test_a_truncated_store_is_an_error(tmp_path: Path) -> None:
    whole = tmp_path / "whole.arrow"
    write_store(whole, numbered_pairs(50), 100)
    data = whole.read_bytes()
    path = tmp_path / "pairs.arrow"
    for length in range(0, len(data), 5):
        path.write_bytes(data[:length])
        with pytest.raises(UserError, match=r"pairs\.arrow"):
            CorpusStore.open(path)


def test_a_foreign_file_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "pairs.arrow"
    for data in (b"text\n" * 100, b"ARROW1\0\0" + bytes(100) + b"ARROW1"):
        path.write_bytes(data)
        with pytest.raises(UserError, match="not a corpus store"):
            CorpusStore.open(path)
    table = pa.table({"source": ["a"], "target": ["b"]})
    with pa.ipc.new_file(path, table.schema) as writer:
        writer.write_table(table)
    with pytest.raises(UserError, match="not a corpus store"):
        CorpusStore.open(path)


def test_an_unreadable_file_is_an_error(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "missing.arrow"):
        with pytest.raises(UserError, match=path.name):
            CorpusStore.open(path)
