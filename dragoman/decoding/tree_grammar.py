"""What may follow what in a linearized tree: a search that keeps to it finds nothing but trees.

Shapes: B sentences, N beams, T symbols so far, K symbols there are.
"""

from collections.abc import Sequence

import numpy as np

from dragoman.corpus.treebank import END, TreeSymbols
from dragoman.decoding.search import Flags, Integers
from dragoman.text.trees import DEEPEST


class TreeGrammar:
    """Which symbols may come next, for sentences of so many words each.

    A bracket closes what is open and not empty, the outermost one when every word is used; every
    word is used once, and then the sequence ends. A bracket opens only where a word is left for
    it, no more than `DEEPEST` are open, and what is still needed fits into the limit of the length:
    so whatever a search ends with is one tree over exactly the words.
    """

    def __init__(self, symbols: TreeSymbols, words: Sequence[int]) -> None:
        self._size = len(symbols.labels)
        self._opening = symbols.opening
        self._words = np.array(words, dtype=np.int64)
        self._deeper = np.zeros(len(symbols.texts), dtype=np.int64)  # what a symbol adds
        self._deeper[self._opening] = 1
        self._deeper[self._opening.stop :] = -1

    def allowed(self, sentences: Integers, tokens: Integers, left: Integers) -> Flags:
        """(B, N, K) of the sequences so far, (B, N, T).

        sentences: (B,), their numbers; left: (B,), how many symbols may come yet.
        """
        flags = np.zeros((*tokens.shape[:2], len(self._deeper)), dtype=bool)
        if not tokens.shape[2]:
            flags[:, :, self._opening] = True
            return flags
        deeper = self._deeper[tokens]  # (B, N, T)
        depths = deeper.cumsum(axis=2)
        depth = depths[:, :, -1]  # (B, N)
        words = self._words[sentences][:, None] - (deeper == 0).sum(axis=2)
        inside = depth > 0
        flags[:, :, END] = (depth == 0) & (words == 0)
        goes_on = inside & (words > 0)
        flags[:, :, END + 1 : self._opening.start] = goes_on[:, :, None]
        opens = goes_on & (depth < DEEPEST) & (left[:, None] >= words + depth + 2)
        flags[:, :, self._opening] = opens[:, :, None]
        closes = inside & (deeper[:, :, -1] < 1) & ((depth > 1) | (words == 0))
        # What is open innermost: the last bracket that opened at this depth.
        reached = (deeper == 1) & (depths == depth[:, :, None])
        place = tokens.shape[2] - 1 - reached[:, :, ::-1].argmax(axis=2)
        innermost = np.take_along_axis(tokens, place[:, :, None], axis=2)[:, :, 0]
        rows, beams = np.nonzero(closes)
        flags[rows, beams, innermost[rows, beams] + self._size] = True
        return flags
