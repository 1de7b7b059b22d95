"""BPE-dropout gives other subwords of the same text, and the same ones again on resume."""

import numpy as np
import pytest

from dragoman.corpus.batches import collate
from dragoman.corpus.resampling import Resampler
from dragoman.corpus.store import CorpusStore, write_store
from dragoman.corpus.tokenizer import Tokenizer

PAIRS = [
    (
        f"the {noun} number {number} opens {{door}} \ue000\U000f0003 quickly",
        f"die {noun} {number} ▁",
    )
    for number in range(6)
    for noun in ("lantern", "cupboard", "telescope", "umbrella")
]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train((text for pair in PAIRS for text in pair), 400)


@pytest.fixture(scope="module")
def store(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> CorpusStore:
    path = tmp_path_factory.mktemp("resampling") / "pairs.arrow"
    write_store(path, tokenizer.encode_pairs([*PAIRS, ("", "x" * 40)]), tokenizer.vocabulary_size)
    return CorpusStore.open(path)


def test_the_text_stays_and_the_subwords_change(tokenizer: Tokenizer, store: CorpusStore) -> None:
    resampler = Resampler(tokenizer, 0.3, seed=1, longest=100)
    changed = 0
    for row in range(len(store)):
        plain, cut = store[row], resampler.in_epoch(0)(row, *store[row])
        for before, after in zip(plain, cut, strict=True):
            assert tokenizer.decode(before.tolist()) == tokenizer.decode(after.tolist())
            assert before.dtype == after.dtype
            assert Tokenizer.unk_id not in after
            changed += before.tolist() != after.tolist()
    assert changed > len(store)


def test_it_depends_on_seed_epoch_and_row_only(tokenizer: Tokenizer, store: CorpusStore) -> None:
    def read(seed: int, epoch: int, rows: list[int]) -> list[list[int]]:
        resample = Resampler(tokenizer, 0.3, seed, longest=100).in_epoch(epoch)
        batch = collate(store, np.array(rows), resample)
        return [batch.source[place][batch.source[place] > 0].tolist() for place in range(len(rows))]

    first = read(1, 0, [0, 1, 2, 3])
    tokenizer.encode("something else in between", 0.5)
    assert read(1, 0, [3, 2, 1, 0])[::-1] == first == read(1, 0, [0]) + read(1, 0, [1, 2, 3])
    assert read(1, 1, [0, 1, 2, 3]) != first != read(2, 0, [0, 1, 2, 3])


def test_a_pair_that_would_become_too_long_stays_as_it_was(
    tokenizer: Tokenizer, store: CorpusStore
) -> None:
    row = 0
    longest = max(map(len, store[row]))
    kept = Resampler(tokenizer, 0.5, seed=1, longest=longest).in_epoch(0)(row, *store[row])
    assert [side.tolist() for side in kept] == [side.tolist() for side in store[row]]
    longer = Resampler(tokenizer, 0.5, seed=1, longest=1000).in_epoch(0)(row, *store[row])
    assert len(longer[0]) > longest


def test_growth_is_what_the_rows_grow_by(tokenizer: Tokenizer, store: CorpusStore) -> None:
    light, heavy = (
        Resampler(tokenizer, rate, seed=1, longest=1000).growth(store) for rate in (0.05, 0.5)
    )
    assert 1 < light < heavy
    resample = Resampler(tokenizer, 0.5, seed=1, longest=1000).in_epoch(3)
    rows = np.arange(len(store))
    plain = [len(side) for row in rows for side in store[int(row)]]
    cut = [len(side) for row in rows for side in resample(int(row), *store[int(row)])]
    assert sum(cut) / sum(plain) == pytest.approx(heavy, rel=0.2)


@pytest.mark.parametrize("rate", [0.0, 0.6, -1.0])
def test_a_rate_out_of_range_is_an_error(tokenizer: Tokenizer, rate: float) -> None:
    with pytest.raises(ValueError, match="rate"):
        Resampler(tokenizer, rate, seed=1, longest=100)
