"""A made-up language model of five symbols, small enough to try every translation."""

import itertools
import math
import random
from functools import cache

import torch
from torch import Tensor

from dragoman.decoding.hypothesis import Hypothesis
from dragoman.decoding.log_probs import LogProbs
from dragoman.decoding.search import Limits, State, beam_search

VOCABULARY, BOS, EOS = 5, 0, 1
ORDINARY = [0, 2, 3, 4]
Prefix = tuple[int, ...]


@cache
def log_probs_after(table: int, prefix: Prefix, forbidden: frozenset[int]) -> list[float]:
    """Made up, but always the same for a table and a prefix; forbidden symbols have -inf."""
    chance = random.Random(f"{table} {prefix}")
    logits = [2 * chance.gauss(0, 1) for _ in range(VOCABULARY)]
    allowed = [logit for symbol, logit in enumerate(logits) if symbol not in forbidden]
    total = math.log(sum(map(math.exp, allowed)))
    return [-math.inf if s in forbidden else logit - total for s, logit in enumerate(logits)]


class Invented(State):
    """Each row knows its table (its sentence) and its prefix; what it is asked is kept."""

    def __init__(self, tables: list[int], beam: int, forbidden: frozenset[int] = frozenset()):
        self.rows: list[tuple[int, Prefix]] = [(t, ()) for t in tables for _ in range(beam)]
        self.forbidden = forbidden
        self.started = False

    def reorder(self, rows: Tensor) -> None:
        self.rows = [self.rows[row] for row in rows.tolist()]


def step(ids: Tensor, state: State) -> tuple[LogProbs, State]:
    assert isinstance(state, Invented)
    if state.started:
        grown = zip(state.rows, ids.tolist(), strict=True)
        state.rows = [(table, (*prefix, symbol)) for (table, prefix), symbol in grown]
    else:
        assert ids.tolist() == [BOS] * len(state.rows)
    state.started = True
    found = [log_probs_after(*row, state.forbidden) for row in state.rows]
    return LogProbs(torch.tensor(found)), state


def search(
    tables: list[int], lengths: list[int], beam: int, alpha: float = 0.6,
    forbidden: frozenset[int] = frozenset(), n_best: int = 1, min_length: int = 0,
) -> list[list[Hypothesis]]:  # fmt: skip
    limits = Limits(beam, alpha, lengths, BOS, EOS, n_best, [min_length] * len(lengths))
    return beam_search(step, Invented(tables, beam, forbidden), limits)


def log_prob_of(table: int, sequence: Prefix, forbidden: frozenset[int] = frozenset()) -> float:
    return sum(
        log_probs_after(table, sequence[:place], forbidden)[symbol]
        for place, symbol in enumerate(sequence)
    )


def every_translation(
    table: int, limit: int, alpha: float, forbidden: frozenset[int], min_length: int
) -> dict[Prefix, tuple[float, float]]:
    """Tokens -> (score, log-probability) of all there are, by definition."""
    found = {}
    for length in range(min_length, limit + 1):
        for tokens in itertools.product(ORDINARY, repeat=length):
            log_prob = log_prob_of(table, (*tokens, EOS), forbidden)
            if log_prob > -math.inf:
                found[tokens] = (log_prob / ((5 + length + 1) / 6) ** alpha, log_prob)
    return found
