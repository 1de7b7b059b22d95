"""The step function of a search among the candidates of a shortlist.

Shapes: B sentences, N beams, R = B * N rows, C candidates of the batch, V vocabulary, D d_model.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from dragoman.corpus.shortlist import Ids, Shortlist
from dragoman.decoding.hypothesis import Prefix
from dragoman.decoding.log_probs import LogProbs
from dragoman.decoding.search import State
from dragoman.decoding.step import Cache, start, states, translation_log_probs
from dragoman.model.encoder_decoder import EncoderDecoder


class ShortlistedState:
    """The cache of a model, and the sentence of every row."""

    def __init__(self, cache: Cache, sentences: Tensor) -> None:
        self.cache, self.sentences = cache, sentences

    def reorder(self, rows: Tensor) -> None:
        """Row i of the next step continues row rows[i] (R',) of the last one."""
        self.cache.reorder(rows)
        self.sentences = self.sentences[rows]


class ShortlistedStep:
    """step(ids (R,), state) -> (log_probs (R, V), state), -inf for all but a row's candidates.

    The output layer computes the candidates of the whole batch, whose weights are gathered once. A
    row is given its own sentence's only: no result depends on the other sentences.
    """

    def __init__(self, model: EncoderDecoder, candidates: Sequence[Ids]) -> None:
        weight = model.embedding.weight
        together = np.unique(np.concatenate(candidates))
        own = np.full((len(candidates), len(together)), -np.inf, dtype=np.float32)
        for sentence, ids in enumerate(candidates):
            own[sentence, np.searchsorted(together, ids)] = 0.0
        self.model = model
        self._candidates = torch.from_numpy(together.astype(np.int64)).to(weight.device)  # (C,)
        self._own = torch.from_numpy(own).to(weight.device)  # (B, C)
        self._weight = weight[self._candidates]  # (C, D)

    def start(self, source: Tensor, beams: int) -> ShortlistedState:
        """Encode (B, S) and make the cache of N beams a sentence."""
        cache = start(self.model, source, beams)
        sentences = torch.arange(len(source), device=source.device).repeat_interleave(beams)
        return ShortlistedState(cache, sentences)

    def __call__(self, ids: Tensor, state: State) -> tuple[LogProbs, State]:
        """One step of all rows."""
        assert isinstance(state, ShortlistedState)
        hidden = states(self.model, ids, state.cache)
        logits = functional.linear(hidden, self._weight.to(hidden.dtype))[: len(ids)].float()
        logits += self._own[state.sentences]
        # The special symbols come first in every shortlist: their places are their ids.
        found = translation_log_probs(logits)
        log_probs = found.new_full((len(found), self.model.vocabulary_size), -torch.inf)
        log_probs[:, self._candidates] = found
        return LogProbs(log_probs), state


def candidates_of(
    shortlist: Shortlist, sources: Sequence[Sequence[int]], prefixes: Sequence[Prefix]
) -> list[Ids]:
    """The candidates of every sentence, sorted, with all that its prefix asks for."""
    found = [shortlist.union([source]) for source in sources]
    for number, prefix in enumerate(prefixes):
        wanted = [symbol for symbols in prefix for symbol in symbols]
        if wanted:
            found[number] = np.union1d(found[number], np.array(wanted, dtype=np.int32))
    return found
