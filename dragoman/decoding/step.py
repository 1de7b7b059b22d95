"""The step function for the search: a model with its cache.

Shapes: B sentences, N beams, R = B * N rows, S source, V vocabulary, D d_model.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from dragoman.corpus.tokenizer import Tokenizer
from dragoman.decoding.log_probs import LogProbs
from dragoman.decoding.search import State
from dragoman.model import stepping
from dragoman.model.cache import DecoderCache, RowStates
from dragoman.model.encoder_decoder import EncoderDecoder
from dragoman.model.stepping import RowCache
from dragoman.model.transformer import Transformer

# Symbols that are no part of any translation.
FORBIDDEN = [Tokenizer.pad_id, Tokenizer.unk_id, Tokenizer.bos_id]


Cache = DecoderCache | RowCache | RowStates


def start(model: EncoderDecoder, source: Tensor, beams: int) -> Cache:
    """Encode (B, S) and make the cache of N beams a sentence, of the kind that is fast here."""
    source = source.to(model.embedding.weight.device)
    if isinstance(model, Transformer) and stepping.possible(model):
        return stepping.start(model, source, beams)
    cache: DecoderCache | RowStates = model.start(model.encode(source), source, beams)
    return cache


def states(model: EncoderDecoder, ids: Tensor, cache: Cache) -> Tensor:
    """What the output layer reads of a step of all rows: ids (R,) -> (R or more, D)."""
    if isinstance(cache, RowCache):
        assert isinstance(model, Transformer)
        return stepping.step_states(model, ids, cache)
    grouped = ids.to(model.embedding.weight.device).unflatten(0, (-1, cache.beams))
    return model.step_states(grouped, cache).flatten(0, 1)


class ModelStep:
    """step(ids (R,), cache) -> (log_probs (R, V), cache) for the search."""

    def __init__(self, model: EncoderDecoder) -> None:
        self.model = model

    def start(self, source: Tensor, beams: int) -> Cache:
        """Encode (B, S) and make the cache of N beams a sentence."""
        return start(self.model, source, beams)

    def __call__(self, ids: Tensor, state: State) -> tuple[LogProbs, State]:
        """One step of all rows."""
        assert isinstance(state, Cache)
        logits = self.model.logits(states(self.model, ids, state))[: len(ids)]
        logits[:, FORBIDDEN] = -torch.inf
        return LogProbs.of(logits), state


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
