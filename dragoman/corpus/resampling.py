"""BPE-dropout: the same text cut into other subwords whenever training reads it.

Provilkov, Emelianenko and Voita 2020, "BPE-Dropout: Simple and Effective Subword Regularization"
(arXiv 1910.13267). The store holds the best segmentation only; its ids are decoded, which loses
nothing, and encoded again with each merge left out at a given rate.
"""

from functools import partial
from hashlib import blake2b

import numpy as np

from dragoman.corpus.batches import Resample
from dragoman.corpus.context import own_start
from dragoman.corpus.store import CorpusStore, Ids
from dragoman.corpus.tokenizer import Tokenizer


class Resampler:
    """Cuts pairs anew, the same in every run: what comes out depends on seed, epoch and row only.

    Args:
        tokenizer: the one that the store was made with.
        rate: the share of merges left out, above 0 and at most 0.5; the paper has 0.1.
        seed: not negative.
        longest: a pair with a side of more subwords than this keeps its best segmentation.
    """

    def __init__(self, tokenizer: Tokenizer, rate: float, seed: int, longest: int) -> None:
        if not 0 < rate <= 0.5:
            raise ValueError("the rate must be above 0 and at most 0.5")
        self._tokenizer, self._rate, self._seed, self._longest = tokenizer, rate, seed, longest

    def in_epoch(self, epoch: int) -> Resample:
        """What `collate` takes to read the rows of that epoch."""
        return partial(self._resample, epoch)

    def growth(self, store: CorpusStore, rows: int = 1000) -> float:
        """By what factor the rows of a store become longer, measured on some of them.

        Batches are planned by the lengths in the store: for about `max_tokens` in a batch as it is
        read, plan with `max_tokens / growth`.
        """
        before = after = 0
        for row in np.unique(np.linspace(0, len(store) - 1, min(rows, len(store))).astype(int)):
            pair = store[int(row)]
            before += sum(map(len, pair)) + 2
            after += sum(map(len, self._resample(0, int(row), *pair))) + 2
        return after / before if before else 1.0

    def _resample(self, epoch: int, row: int, source: Ids, target: Ids) -> tuple[Ids, Ids]:
        start = own_start(source.tolist())  # what stands before is a context, cut as it was
        texts = [self._tokenizer.decode(ids.tolist()) for ids in (source[start:], target)]
        name = f"{self._seed} {epoch} {row}".encode()
        seed = int.from_bytes(blake2b(name, digest_size=4).digest(), "little") & 0x7FFFFFFF
        first, second = self._tokenizer.encode_batch(texts, self._rate, seed)
        if max(start + len(first), len(second)) > self._longest:
            return source, target
        return _like(source, [*source[:start], *first]), _like(target, second)


def _like(plain: Ids, ids: list[int]) -> Ids:
    return np.array(ids, np.uint16) if plain.dtype == np.uint16 else np.array(ids, np.int32)
