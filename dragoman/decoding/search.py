"""Beam search (section 6.1) that knows no model; greedy search is beam 1.

Shapes: B sentences, N beams, R = B * N rows (the beams of a sentence are neighbors), V vocabulary.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor


class State(Protocol):
    """What a step function carries from step to step."""

    def reorder(self, rows: Tensor) -> None:
        """Row i of the next step continues row rows[i] (R',) of the last one."""


Step = Callable[[Tensor, State], tuple[Tensor, State]]


@dataclass(frozen=True)
class Hypothesis:
    """A candidate translation: tokens without end-of-sentence, log-probability with it.

    score = log_prob / length_penalty(tokens + end).
    """

    tokens: list[int]
    log_prob: float
    score: float
    finished: bool = True


@dataclass(frozen=True)
class Limits:
    """What a search keeps to; lengths in tokens, end-of-sentence not counted."""

    beam: int
    length_penalty: float
    max_lengths: Sequence[int]  # one a sentence
    bos: int
    eos: int
    n_best: int = 1  # how many of the results must be the best there are
    min_length: int = 0


def length_penalty(length: int, alpha: float) -> float:
    """((5 + length) / 6)^alpha, Wu et al. 2016 (arXiv 1609.08144), Equation 14."""
    return float(((5 + length) / 6) ** alpha)


@dataclass
class _Sentence:
    number: int
    limit: int
    finished: list[Hypothesis] = field(default_factory=list)


def beam_search(step: Step, state: State, limits: Limits) -> list[list[Hypothesis]]:
    """The best hypotheses of every sentence, best first, at most `beam` of each.

    step(ids (R,), state) -> (log_probs (R, V), state); a forbidden symbol has -inf. Every open
    hypothesis may end at every step; in a beam of 1, greedy search, only where that is likeliest. A
    sentence leaves the batch when none of its open hypotheses can still come among its n_best: so
    the first result does not depend on n_best, and no result on the other sentences.
    """
    beam = limits.beam
    active = [_Sentence(number, limit) for number, limit in enumerate(limits.max_lengths)]
    results: list[list[Hypothesis]] = [[] for _ in active]
    ids = torch.full((len(active) * beam,), limits.bos)
    totals = torch.full((len(active), beam), -math.inf)
    totals[:, 0] = 0.0  # one open hypothesis at first: N equal ones would be found N times
    tokens = torch.zeros(len(active), beam, 0, dtype=torch.long)
    length = 0
    while active:
        log_probs, state = step(ids, state)
        device = log_probs.device
        length += 1
        open_tokens, open_totals = tokens, totals
        totals, parents, symbols = _best_continuations(log_probs, totals.to(device), limits.eos)
        tokens = torch.cat([_gather_beams(tokens, parents), symbols[..., None]], dim=2)
        best = totals[:, 0].tolist()
        if length > limits.min_length:
            ended = open_totals + log_probs[:, limits.eos].cpu().unflatten(0, (-1, beam))
            _finish(active, open_tokens, ended.tolist(), best, limits)
        kept = [
            row
            for row, sentence in enumerate(active)
            if _is_open(sentence, best[row], length, limits)
        ]
        if len(kept) < len(active):
            for row in set(range(len(active))).difference(kept):
                results[active[row].number] = _ranked(
                    active[row], open_tokens[row, 0], float(open_totals[row, 0]), limits
                )
            active = [active[row] for row in kept]
        rows = torch.tensor(kept, dtype=torch.long)
        tokens, totals, parents, symbols = tokens[rows], totals[rows], parents[rows], symbols[rows]
        if active:
            state.reorder((rows[:, None] * beam + parents).flatten().to(device))
            ids = symbols.flatten()
    return results


def _best_continuations(
    log_probs: Tensor, totals: Tensor, eos: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The N best of the continuations other than eos: totals, parents, symbols, (B, N) each."""
    sentences, beam = totals.shape
    joint = log_probs.unflatten(0, (sentences, beam)) + totals[..., None]
    joint[..., eos] = -math.inf  # here, since log_probs belongs to the step function
    best, index = joint.flatten(1).topk(beam, dim=1)
    best, index = best.cpu(), index.cpu()
    return best, index // log_probs.shape[1], index % log_probs.shape[1]


def _gather_beams(values: Tensor, parents: Tensor) -> Tensor:
    return values.gather(1, parents[..., None].expand(-1, -1, values.shape[2]))


def _finish(
    active: list[_Sentence],
    tokens: Tensor,
    ended: list[list[float]],
    best: list[float],
    limits: Limits,
) -> None:
    """Let every open hypothesis end here; each sentence keeps its N best finished ones."""
    penalty = length_penalty(tokens.shape[2] + 1, limits.length_penalty)
    for row, sentence in enumerate(active):
        kept = sentence.finished
        for beam, log_prob in enumerate(ended[row]):
            score = log_prob / penalty
            full = len(kept) == limits.beam
            if score == -math.inf or (full and score <= kept[-1].score):
                continue
            more = tokens.shape[2] < sentence.limit
            if limits.beam == 1 and more and log_prob < best[row]:
                continue  # greedy: the likeliest symbol only
            kept.append(Hypothesis(tokens[row, beam].tolist(), log_prob, score))
            kept.sort(key=lambda hypothesis: -hypothesis.score)
            del kept[limits.beam :]


def _is_open(sentence: _Sentence, best: float, length: int, limits: Limits) -> bool:
    """Whether the best open hypothesis, of so many tokens, may still end among the n_best."""
    if length > sentence.limit or best == -math.inf:
        return False
    if limits.beam == 1 and sentence.finished:
        return False
    if len(sentence.finished) < limits.n_best:
        return True
    # Log-probabilities only fall, and the penalty of the longest allowed length is the kindest.
    bound = best / length_penalty(sentence.limit + 1, limits.length_penalty)
    return bound > sentence.finished[limits.n_best - 1].score


def _ranked(
    sentence: _Sentence, tokens: Tensor, log_prob: float, limits: Limits
) -> list[Hypothesis]:
    """The finished hypotheses, best first; when none could end, the best open one, cut."""
    if sentence.finished:
        return sentence.finished
    score = log_prob / length_penalty(tokens.shape[0], limits.length_penalty)
    return [Hypothesis(tokens.tolist(), log_prob, score, finished=False)]
