"""Words hidden from a masked language model, which is to say what they were.

Devlin et al. 2019, "BERT" (arXiv 1810.04805), section 3.1 and appendix A.1, with whole words as
its authors' later models have them. Letters: B rows, T tokens, V vocabulary.
"""

import unicodedata

import numpy as np
import numpy.typing as npt

from dragoman.corpus.batches import Batch, IntArray, pad
from dragoman.corpus.store import CorpusStore
from dragoman.corpus.tokenizer import Tokenizer
from dragoman.errors import UserError
from dragoman.text.protect import SPACE_MARK

SHARE = 0.15
"""The share of words that are hidden."""
# Of the hidden words: as the mask, and, up to here, as other tokens; the rest stay as they are.
_AS_MASK, _AS_OTHERS = 0.8, 0.9
# How the Unicode names of characters begin whose scripts write words without spaces.
_UNSPACED = {"CJK", "HIRAGANA", "KATAKANA", "THAI", "LAO", "KHMER", "MYANMAR", "TIBETAN"}
_JOINED, _LETTER, _SIGN, _UNSPACED_LETTER = range(4)


class Masker:
    """Hides words, the same in every run: which ones depends on seed, epoch and row only.

    A word is what stands between spaces, without its punctuation, which is a word of its own; in
    scripts without spaces every subword is one. Of a row 15% of the words are hidden, at least
    one: 80% of them behind a mask for every subword, 10% behind other subwords, and 10% not at all.

    Args:
        tokenizer: one with a mask.
        seed: not negative.

    Raises:
        UserError: the tokenizer has no mask.
    """

    def __init__(self, tokenizer: Tokenizer, seed: int) -> None:
        if tokenizer.mask_id is None:
            raise UserError(
                "this tokenizer has no <mask>, which a masked language model needs",
                "leave it out: a tokenizer is trained on the text",
            )
        self._mask, self._seed = tokenizer.mask_id, seed
        pieces = tokenizer.pieces(range(tokenizer.vocabulary_size))
        self._spaced = np.array([piece.startswith(SPACE_MARK) for piece in pieces])
        self._kinds = np.array([_kinds(piece) for piece in pieces])  # (V, 2): first, last
        self._kinds[tokenizer.byte_ids] = _LETTER
        # What was learned from text comes after all symbols.
        self._ordinary = np.arange(max(tokenizer.byte_ids) + 1, tokenizer.vocabulary_size)

    def words(self, ids: npt.NDArray[np.integer]) -> IntArray:
        """The number of the word that each subword of a text belongs to: (T,) -> (T,)."""
        first, before = self._kinds[ids[1:], 0], self._kinds[ids[:-1], 1]
        apart = (first != before) & (first != _JOINED) & (before != _JOINED)
        begins = self._spaced[ids[1:]] | apart | (first == _UNSPACED_LETTER)
        return np.concatenate([[0], begins.cumsum()])[: len(ids)]

    def hide(self, ids: IntArray, epoch: int, row: int) -> tuple[IntArray, IntArray]:
        """What is read in place of a text, and the labels, 0 where nothing is hidden: (T,) each."""
        chance = np.random.default_rng([self._seed, epoch, row])
        words = self.words(ids)
        count = int(words.max(initial=-1)) + 1
        wanted = max(1, int(SHARE * count + chance.random()))
        hidden = np.zeros(count, dtype=bool)
        hidden[chance.permutation(count)[:wanted]] = True
        hidden, fate = hidden[words], chance.random(count)[words]  # (words,) -> (T,)
        read = np.where(hidden & (fate < _AS_MASK), self._mask, ids)
        replaced = hidden & (fate >= _AS_MASK) & (fate < _AS_OTHERS)
        read[replaced] = chance.choice(self._ordinary, int(replaced.sum()))
        return read, np.where(hidden, ids, Tokenizer.pad_id)

    def collate(self, store: CorpusStore, rows: IntArray, epoch: int) -> Batch:
        """Rows of a store of texts: target_in with words hidden and eos, target_out the labels.

        It begins without bos: as the source of a translation does, whose encoder may begin as this.
        """
        texts = [store[int(row)][1].astype(np.int64) for row in rows]
        texts = [ids[ids > Tokenizer.eos_id] for ids in texts]
        hidden = [self.hide(ids, epoch, int(row)) for ids, row in zip(texts, rows, strict=True)]
        read, ends = pad([ids for ids, _ in hidden])
        labels, _ = pad([ids for _, ids in hidden])
        read[np.arange(len(rows)), ends] = Tokenizer.eos_id
        source = np.full((len(rows), 1), Tokenizer.eos_id, dtype=np.int64)
        return Batch(source, read, labels, np.asarray(rows, dtype=np.int64))


def _kinds(piece: str) -> tuple[int, int]:
    """Of what kind the first and the last character of a piece are, the space before it apart."""
    found = [_kind(character) for character in piece.lstrip(SPACE_MARK)]
    whole = [kind for kind in found if kind != _JOINED] or [_JOINED]
    return (found or [_JOINED])[0], whole[-1]


def _kind(character: str) -> int:
    if unicodedata.category(character).startswith("M"):  # an accent, part of what it stands on
        return _JOINED
    if unicodedata.name(character, "").partition(" ")[0] in _UNSPACED:
        return _UNSPACED_LETTER
    return _LETTER if character.isalnum() else _SIGN
