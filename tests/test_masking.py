"""Hidden words: whole, 15% of them, 80/10/10, and the same in every run."""

import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.corpus.batches import IntArray
from dragoman.corpus.masking import Masker
from dragoman.corpus.store import CorpusStore, write_store
from dragoman.corpus.tokenizer import Tokenizer
from dragoman.errors import UserError

NOUNS = ["cat", "dog", "mat", "house", "tree", "bird"]
TEXTS = [f"The {a} sat on the ({b}), wasn't it?" for a, b in itertools.product(NOUNS, NOUNS)]
TEXTS += ["猫坐在垫子上。", "我是猫.", "Gdańsk, Łódź 1984!"] * 4
TOKENIZER = Tokenizer.train(TEXTS, 380, mask=True)
MASKER = Masker(TOKENIZER, seed=7)
TEXT = st.lists(st.sampled_from([*NOUNS, "unheard", "the", ",", "?", "1984"]), min_size=1)
LONG = np.array(TOKENIZER.encode(" ".join(NOUNS * 500)))


def ids_of(text: str) -> IntArray:
    return np.array(TOKENIZER.encode(text), dtype=np.int64)


def words_of(text: str) -> list[str]:
    ids = ids_of(text)
    numbers = MASKER.words(ids)
    groups = [ids[numbers == number].tolist() for number in range(numbers[-1] + 1)]
    assert list(itertools.chain.from_iterable(groups)) == ids.tolist()  # in one piece each
    return [TOKENIZER.decode(group) for group in groups]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("The bird sat.", ["The", "bird", "sat", "."]),
        ("wasn't it?", ["wasn", "'", "t", "it", "?"]),
        ("an unheardofword", ["an", "unheardofword"]),
        ("a (cat) - 1984, b", ["a", "(", "cat", ")", "-", "1984", ",", "b"]),
        ("étude e\u0301tude", ["étude", "e\u0301tude"]),
        ("日本 Gdańsk", ["日本", "Gdańsk"]),  # spelled in bytes: one word as far as one can tell
        ("我cat猫。", ["我", "cat", "猫", "。"]),
    ],
)
def test_a_word_stands_between_spaces_and_signs(text: str, words: list[str]) -> None:
    assert words_of(text) == words


def test_in_scripts_without_spaces_every_subword_is_a_word() -> None:
    text = "猫坐在垫子上"
    assert [*words_of(text)] == [TOKENIZER.decode([number]) for number in ids_of(text)]


@given(TEXT, st.integers(0, 1000), st.integers(0, 1000))
def test_whole_words_are_hidden_and_nothing_else_changes(
    words: list[str], epoch: int, row: int
) -> None:
    ids = ids_of(" ".join(words))
    read, labels = MASKER.hide(ids, epoch, row)
    numbers = MASKER.words(ids)
    hidden = labels != 0
    assert (labels[hidden] == ids[hidden]).all() and (read[~hidden] == ids[~hidden]).all()
    count = numbers[-1] + 1
    chosen = [number for number in range(count) if hidden[numbers == number].any()]
    assert all(hidden[numbers == number].all() for number in chosen)
    assert len(chosen) in {max(1, int(0.15 * count)), int(0.15 * count + 1)}
    for number in chosen:  # one fate for a whole word
        behind = read[numbers == number] == TOKENIZER.mask_id
        assert behind.all() or not behind.any()


def test_of_the_hidden_words_80_percent_are_masks_10_others_10_themselves() -> None:
    masks = others = same = total = 0
    for row in range(10):
        read, labels = MASKER.hide(LONG, 0, row)
        hidden = labels != 0
        total += int(hidden.sum())
        masks += int((read == TOKENIZER.mask_id).sum())
        same += int((read[hidden] == LONG[hidden]).sum())
        others += int((hidden & (read != LONG) & (read != TOKENIZER.mask_id)).sum())
    assert masks + others + same == total
    # Five standard deviations of a binomial share of some 4,500 words.
    assert abs(total / (10 * len(LONG)) - 0.15) < 0.02
    for share, wanted in ((masks / total, 0.8), (others / total, 0.1), (same / total, 0.1)):
        assert abs(share - wanted) < 5 * (wanted * (1 - wanted) / 4500) ** 0.5 + 0.003


def test_other_subwords_are_ordinary_ones() -> None:
    read, labels = MASKER.hide(np.tile(LONG, 20), 0, 0)
    others = read[(labels != 0) & (read != labels) & (read != TOKENIZER.mask_id)]
    ordinary = {*range(TOKENIZER.vocabulary_size)} - {0, 1, 2, 3, TOKENIZER.mask_id}
    assert {*others.tolist()} <= ordinary - {*TOKENIZER.byte_ids}
    assert len({*others.tolist()}) > 20


def test_masks_depend_on_seed_epoch_and_row_only(tmp_path: Path) -> None:
    texts = [TOKENIZER.encode(text) for text in TEXTS]
    rows = [([], [Tokenizer.bos_id, *ids, Tokenizer.eos_id]) for ids in texts]
    write_store(tmp_path / "texts.arrow", rows, TOKENIZER.vocabulary_size)
    store = CorpusStore.open(tmp_path / "texts.arrow")
    together = MASKER.collate(store, np.array([5, 0, 36]), epoch=3)
    alone = Masker(TOKENIZER, seed=7).collate(store, np.array([36]), epoch=3)
    width = alone.target_in.shape[1]
    assert (together.target_in[2, :width] == alone.target_in[0]).all()
    assert (together.target_out[2, :width] == alone.target_out[0]).all()
    assert (together.target_in[2, width:] == 0).all() and alone.target_in[0, -1] == Tokenizer.eos_id
    plain = np.where(together.target_out[0] != 0, together.target_out[0], together.target_in[0])
    assert plain[plain != 0].tolist() == [*texts[5], Tokenizer.eos_id]
    every = np.arange(len(texts))
    for other, epoch in ((MASKER, 4), (Masker(TOKENIZER, seed=8), 3)):
        changed = other.collate(store, every, epoch).target_out != 0
        assert (changed != (MASKER.collate(store, every, 3).target_out != 0)).any()


def test_the_mask_is_no_text() -> None:
    assert TOKENIZER.mask_id is not None
    assert TOKENIZER.mask_id not in TOKENIZER.encode("<mask> <mask>")
    assert TOKENIZER.decode(TOKENIZER.encode("a <mask>")) == "a <mask>"
    assert TOKENIZER.pieces([TOKENIZER.mask_id]) == ["<mask>"]


def test_a_tokenizer_without_a_mask_is_refused() -> None:
    plain = Tokenizer.train(TEXTS, 350)
    assert plain.mask_id is None
    with pytest.raises(UserError, match="no <mask>"):
        Masker(plain, seed=1)
