from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.corpus.batches import Batch, batches, collate, plan_batches
from dragoman.corpus.store import CorpusStore, write_store
from dragoman.corpus.tokenizer import Tokenizer

LENGTHS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), max_size=120)


def sized_pairs(count: int) -> list[tuple[list[int], list[int]]]:
    random = np.random.default_rng(0)
    sizes = random.integers(0, 12, (count, 2))
    return [
        (random.integers(4, 100, s).tolist(), random.integers(4, 100, t).tolist()) for s, t in sizes
    ]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> CorpusStore:
    path = tmp_path_factory.mktemp("batches") / "pairs.arrow"
    write_store(path, sized_pairs(700), 100)
    return CorpusStore.open(path)


def translation_lengths(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Lengths that spread like those of Multi30k in subwords: means 14.3 and 14.8."""
    random = np.random.default_rng(1)
    source = np.exp(random.normal(2.61, 0.318, count))
    target = source * np.exp(random.normal(0.023, 0.183, count))
    return source.round().astype(np.int32), target.round().astype(np.int32)


def lengths_of(pairs: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    both = np.array(pairs, dtype=np.int32).reshape(-1, 2)
    return both[:, 0], both[:, 1]


# Planning


@given(
    pairs=LENGTHS,
    max_tokens=st.integers(1, 200),
    seed=st.integers(0, 2**63),
    epoch=st.integers(0, 100),
    pool=st.integers(1, 200),
)
def test_every_row_once_within_the_budget(
    pairs: list[tuple[int, int]], max_tokens: int, seed: int, epoch: int, pool: int
) -> None:
    source, target = lengths_of(pairs)
    plan = plan_batches(source, target, max_tokens, seed, epoch, pool)
    assert sorted(row for rows in plan for row in rows.tolist()) == list(range(len(pairs)))
    for rows in plan:
        longest = 1 + max(source[rows].max(), target[rows].max())
        assert len(rows) == 1 or len(rows) * longest <= max_tokens


@pytest.mark.parametrize("max_tokens", [512, 2048, 4096])
def test_padding_stays_small(max_tokens: int) -> None:
    source, target = translation_lengths(29_000)
    plan = plan_batches(source, target, max_tokens, seed=1, epoch=0)
    padded = sum(len(rows) * int(source[rows].max() + target[rows].max() + 2) for rows in plan)
    real = int((source + target + 2).sum())
    assert 1 - real / padded < 0.06


def test_batches_are_filled() -> None:
    source, target = translation_lengths(29_000)
    plan = plan_batches(source, target, 2048, seed=1, epoch=0)
    filled = [len(rows) * int(max(source[rows].max(), target[rows].max()) + 1) for rows in plan]
    assert sorted(filled)[1] > 0.9 * 2048  # all but the last one cut


def test_a_plan_repeats_itself_and_every_epoch_is_another() -> None:
    source, target = translation_lengths(2000)

    def order(seed: int, epoch: int) -> list[list[int]]:
        return [rows.tolist() for rows in plan_batches(source, target, 500, seed, epoch)]

    assert order(3, 0) == order(3, 0)
    others = [order(3, 1), order(4, 0), order(0, 3)]
    assert all(order(3, 0) != other for other in others)
    composition = {frozenset(rows) for rows in order(3, 0)}
    assert len(composition & {frozenset(rows) for rows in order(3, 1)}) < len(composition) / 2


def test_the_order_of_batches_does_not_follow_length() -> None:
    source, target = translation_lengths(5000)
    means = [source[rows].mean() for rows in plan_batches(source, target, 500, 0, 0)]
    assert abs(np.corrcoef(means, np.arange(len(means)))[0, 1]) < 0.3


def test_a_row_longer_than_the_budget_is_a_batch_of_its_own() -> None:
    source, target = lengths_of([(3, 3), (500, 3), (3, 4), (3, 900), (4, 3)])
    plan = plan_batches(source, target, 100, seed=0, epoch=0)
    assert sorted(sorted(rows.tolist()) for rows in plan) == [[0, 2, 4], [1], [3]]


def test_nothing_to_plan() -> None:
    assert list(plan_batches(*lengths_of([]), 100, seed=0, epoch=0)) == []


@pytest.mark.parametrize(("max_tokens", "pool"), [(0, 10), (10, 0)])
def test_no_budget_is_an_error(max_tokens: int, pool: int) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        plan_batches(*lengths_of([(1, 1)]), max_tokens, 0, 0, pool)


# Content


def padded(sequences: list[list[int]]) -> list[list[int]]:
    longest = max(map(len, sequences))
    return [ids + [Tokenizer.pad_id] * (longest - len(ids)) for ids in sequences]


def assert_holds(batch: Batch, pairs: list[tuple[list[int], list[int]]]) -> None:
    chosen = [pairs[row] for row in batch.rows]
    assert batch.source.tolist() == padded([[*source, 3] for source, _ in chosen])
    assert batch.target_in.tolist() == padded([[2, *target] for _, target in chosen])
    assert batch.target_out.tolist() == padded([[*target, 3] for _, target in chosen])
    assert batch.target_tokens == sum(len(target) + 1 for _, target in chosen)
    assert {array.dtype for array in (batch.source, batch.target_in, batch.target_out)} == {
        np.dtype(np.int64)
    }


@given(rows=st.lists(st.integers(0, 699), min_size=1, max_size=40))
def test_a_batch_holds_its_rows(store: CorpusStore, rows: list[int]) -> None:
    batch = collate(store, np.array(rows))
    assert batch.rows.tolist() == rows
    assert_holds(batch, sized_pairs(700))


def test_an_epoch_holds_the_whole_store(store: CorpusStore) -> None:
    pairs = sized_pairs(700)
    epoch = list(batches(store, 200, seed=5, epoch=2))
    assert sorted(int(row) for batch in epoch for row in batch.rows) == list(range(700))
    assert sum(batch.target_tokens for batch in epoch) == int(store.target_lengths.sum()) + 700
    for batch in epoch:
        assert_holds(batch, pairs)


def test_resuming_goes_on_where_it_stopped(store: CorpusStore) -> None:
    whole = list(batches(store, 200, seed=5, epoch=2))
    for start in (0, 1, len(whole) - 1, len(whole), len(whole) + 5):
        rest = list(batches(store, 200, seed=5, epoch=2, start=start))
        assert len(rest) == max(0, len(whole) - start)
        for resumed, uninterrupted in zip(rest, whole[start:], strict=True):
            assert resumed.rows.tolist() == uninterrupted.rows.tolist()
            assert resumed.target_out.tolist() == uninterrupted.target_out.tolist()


def test_a_negative_start_is_an_error(store: CorpusStore) -> None:
    with pytest.raises(ValueError, match="start"):
        next(batches(store, 200, 0, 0, start=-1))


def test_an_empty_store_has_no_batches(tmp_path: Path) -> None:
    write_store(tmp_path / "pairs.arrow", [], 100)
    assert list(batches(CorpusStore.open(tmp_path / "pairs.arrow"), 100, 0, 0)) == []
