"""Translations drawn from the model's own distribution, as the settings narrow it.

Shapes: B sentences, N samples of each, R = B * N rows (those of a sentence are neighbors),
V vocabulary.
"""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

import torch
from torch import Tensor

from dragoman.decoding.constraints import constrain, forbid_repeats
from dragoman.decoding.hypothesis import Hypothesis, length_penalty
from dragoman.decoding.search import Limits, State, Step


@dataclass(frozen=True)
class Narrowing:
    """What a symbol is drawn from, in this order; what is left is drawn in proportion.

    temperature T: softmax(log p / T). top_k: only the k likeliest symbols, all where k is 0 (Fan et
    al. 2018, arXiv 1805.04833). top_p: only the fewest likeliest symbols whose probabilities reach
    p (Holtzman et al. 2020, arXiv 1904.09751). epsilon: no symbol of a probability below it but the
    likeliest (Hewitt et al. 2022, arXiv 2210.15191).
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    epsilon: float = 0.0


def sample(
    step: Step, state: State, limits: Limits, narrowing: Narrowing, seeds: Sequence[int]
) -> list[list[Hypothesis]]:
    """`limits.beam` translations of every sentence, in the order drawn; some may be equal.

    step is that of `beam_search`. Sentence b draws with seeds[b] alone: its samples do not depend
    on the others. log_prob and score are the model's, whatever the narrowing; a sample that reaches
    the length limit is cut there.
    """
    beam = limits.beam
    open_ = list(range(len(limits.max_lengths)))
    chances = [[random.Random(f"{seed} {number}") for number in range(beam)] for seed in seeds]
    drawn: list[list[list[int]]] = [[[] for _ in range(beam)] for _ in open_]
    totals = [[0.0] * beam for _ in open_]
    finished = [[False] * beam for _ in open_]
    ids = torch.full((len(open_) * beam,), limits.bos)
    length = 0
    while open_:
        found, state = step(ids, state)
        length += 1
        allowed = [_allowed(limits, b, length) for b in open_]
        log_probs = constrain(found.dense(), allowed, beam)
        if limits.no_repeat_ngram:
            lines = [drawn[b][n] for b in open_ for n in range(beam)]
            log_probs = forbid_repeats(log_probs, lines, limits.no_repeat_ngram, allowed)
        early = [row for row, b in enumerate(open_) if length <= _minimum(limits, b)]
        uniform = [chances[b][n].random() for b in open_ for n in range(beam)]
        symbols, chosen = draw(log_probs, narrowing, uniform, (early, beam, limits.eos))
        for row, (symbol, log_prob) in enumerate(zip(symbols, chosen, strict=True)):
            b, n = open_[row // beam], row % beam
            if finished[b][n] or (length > limits.max_lengths[b] and symbol != limits.eos):
                continue
            totals[b][n] += log_prob
            finished[b][n] = symbol == limits.eos
            if symbol != limits.eos:
                drawn[b][n].append(symbol)
        kept = [
            row
            for row, b in enumerate(open_)
            if length <= limits.max_lengths[b] and not all(finished[b])
        ]
        open_ = [open_[row] for row in kept]
        if open_:
            rows = (torch.tensor(kept)[:, None] * beam + torch.arange(beam)).flatten()
            state.reorder(rows.to(log_probs.device))
            ids = torch.tensor(symbols)[rows]
    return [
        [
            _hypothesis(*parts, limits.length_penalty)
            for parts in zip(drawn[b], totals[b], finished[b], strict=True)
        ]
        for b in range(len(drawn))
    ]


def seed_of(seed: int, source: Sequence[int]) -> int:
    """The seed of a sentence: of the setting and its source, whatever stands before it."""
    content = f"{seed} {' '.join(map(str, source))}".encode()
    return int.from_bytes(blake2b(content, digest_size=8).digest())


def _allowed(limits: Limits, sentence: int, step: int) -> Sequence[int] | None:
    prefix = limits.prefixes[sentence] if limits.prefixes else ()
    return prefix[step - 1] if step <= len(prefix) else None


def _minimum(limits: Limits, sentence: int) -> int:
    return limits.min_lengths[sentence] if limits.min_lengths else 0


def _hypothesis(tokens: list[int], log_prob: float, finished: bool, alpha: float) -> Hypothesis:
    penalty = length_penalty(len(tokens) + finished, alpha)
    return Hypothesis(tokens, log_prob, log_prob / penalty, finished)


def draw(
    log_probs: Tensor,
    narrowing: Narrowing,
    uniform: list[float],
    endless: tuple[list[int], int, int] = ([], 1, 0),
) -> tuple[list[int], list[float]]:
    """A symbol for each row of (R, V) by inversion of its distribution, and its log-probability.

    endless: the sentences that may not end yet, the rows of each, and the symbol of the end.
    """
    allowed = log_probs
    early, beam, eos = endless
    if early:
        allowed = log_probs.clone()
        for row in early:
            allowed[row * beam : (row + 1) * beam, eos] = -math.inf
    weights = narrow(allowed, narrowing).double()
    cumulative = weights.cumsum(dim=1)
    whole = cumulative[:, -1:].contiguous()
    targets = torch.tensor(uniform, dtype=torch.float64, device=weights.device)[:, None] * whole
    # The first place whose cumulative weight is above the target has a weight of its own; where
    # rounding leaves none, the last that has one.
    place = torch.searchsorted(cumulative, targets, right=True)
    last = torch.searchsorted(cumulative, whole)
    symbols = torch.minimum(place, last)
    return symbols[:, 0].tolist(), log_probs.gather(1, symbols)[:, 0].double().tolist()


def narrow(log_probs: Tensor, narrowing: Narrowing) -> Tensor:
    """Weights to draw with, not normalized, 0 for what is not drawn: (R, V) -> (R, V)."""
    probabilities = (log_probs / narrowing.temperature).softmax(dim=1)
    likeliest = probabilities.amax(dim=1, keepdim=True)
    kept = probabilities
    if 0 < narrowing.top_k < probabilities.shape[1]:
        least = probabilities.topk(narrowing.top_k, dim=1).values[:, -1:]
        kept = kept.where(probabilities >= least, 0.0)
    if narrowing.top_p < 1:
        ordered = kept.sort(dim=1, descending=True).values
        before = ordered.double().cumsum(dim=1) - ordered
        share = narrowing.top_p * ordered.double().sum(dim=1, keepdim=True)
        count = (before < share).sum(dim=1, keepdim=True)  # 1 at least
        kept = kept.where(kept >= ordered.gather(1, count - 1), 0.0)
    if narrowing.epsilon > 0:
        kept = kept.where((kept >= narrowing.epsilon) | (kept >= likeliest), 0.0)
    return kept
