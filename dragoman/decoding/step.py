"""The step function for the search: the Transformer with its cache.

Shapes: B sentences, N beams, R = B * N rows, S source, V vocabulary.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from dragoman.corpus.tokenizer import Tokenizer
from dragoman.decoding.search import State
from dragoman.model.cache import DecoderCache
from dragoman.model.transformer import Transformer

# Symbols that are no part of any translation.
FORBIDDEN = [Tokenizer.pad_id, Tokenizer.unk_id, Tokenizer.bos_id]


class TransformerStep:
    """step(ids (R,), cache) -> (log_probs (R, V), cache) for the search."""

    def __init__(self, model: Transformer) -> None:
        self.model = model

    def start(self, source: Tensor, beams: int) -> DecoderCache:
        """Encode (B, S) and make the cache of N beams a sentence."""
        return self.model.start(self.model.encode(source), source, beams)

    def __call__(self, ids: Tensor, state: State) -> tuple[Tensor, State]:
        """One step of all rows."""
        assert isinstance(state, DecoderCache)
        grouped = ids.to(self.model.embedding.weight.device).unflatten(0, (-1, state.beams))
        logits = self.model.step(grouped, state).flatten(0, 1)
        return translation_log_probs(logits), state


def pad_rows(rows: Sequence[Sequence[int]]) -> Tensor:
    """Ids of different lengths -> (B, longest), padded with 0 at the end."""
    padded = np.zeros((len(rows), max(map(len, rows), default=0)), dtype=np.int64)
    for number, row in enumerate(rows):
        padded[number, : len(row)] = row
    return torch.from_numpy(padded)


def translation_log_probs(logits: Tensor) -> Tensor:
    """Log-probabilities in float32 among the symbols a translation may hold: (..., V)."""
    logits[..., FORBIDDEN] = -torch.inf
    return logits.log_softmax(dim=-1, dtype=torch.float32)
