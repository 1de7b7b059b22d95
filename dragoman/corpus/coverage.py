"""How well a vocabulary covers a corpus: by the length and the bytes of what it makes of a text."""

from dataclasses import dataclass

import numpy as np

from dragoman.corpus.store import CorpusStore
from dragoman.corpus.tokenizer import Tokenizer


@dataclass(frozen=True)
class SideCoverage:
    """What one side of some pairs came to."""

    characters: int
    subwords: int
    byte_subwords: int  # single bytes of characters that have no subword

    @property
    def length(self) -> float:
        """Subwords a character."""
        return self.subwords / max(self.characters, 1)

    @property
    def byte_share(self) -> float:
        """The share of the subwords that are single bytes."""
        return self.byte_subwords / max(self.subwords, 1)


@dataclass(frozen=True)
class CorpusCoverage:
    """Both sides."""

    source: SideCoverage
    target: SideCoverage


def measure_coverage(store: CorpusStore, tokenizer: Tokenizer, rows: int = 5000) -> CorpusCoverage:
    """The coverage of at most so many rows, evenly from all over the store.

    The characters are those of the masked text: a protected span is one of them and one subword.
    """
    chosen = np.unique(np.linspace(0, len(store) - 1, min(rows, len(store))).astype(np.int64))
    pairs = [store[int(row)] for row in chosen]
    sides = []
    for side in (0, 1):
        ids = [pair[side] for pair in pairs]
        joined = np.concatenate(ids) if ids else np.zeros(0, dtype=np.int64)
        characters = sum(len(tokenizer.decode(one.tolist())) for one in ids)
        in_bytes = int(np.isin(joined, tokenizer.byte_ids).sum())
        sides.append(SideCoverage(characters, len(joined), in_bytes))
    return CorpusCoverage(*sides)
