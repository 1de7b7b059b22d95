"""Beam search (section 6.1) that knows no model; greedy search is beam 1.

Shapes: B sentences, N beams, R = B * N rows (the beams of a sentence are neighbors), V vocabulary,
G groups of N / G beams each, K continuations of a row that are looked at.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from dragoman.decoding.constraints import constrain, forbid_repeats
from dragoman.decoding.explanation import Ending, Extension, Recorder, SearchStep
from dragoman.decoding.hypothesis import Hypothesis, Prefix, length_penalty


class State(Protocol):
    """What a step function carries from step to step."""

    def reorder(self, rows: Tensor) -> None:
        """Row i of the next step continues row rows[i] (R',) of the last one."""


Step = Callable[[Tensor, State], tuple[Tensor, State]]


@dataclass(frozen=True)
class Limits:
    """What a search keeps to; lengths in tokens, end-of-sentence not counted.

    prefixes, where given, holds one a sentence. groups and diversity are those of diverse beam
    search (Vijayakumar et al. 2016, arXiv 1610.02424): the beam is cut into equal groups, and a
    symbol that d hypotheses of earlier groups take at a step costs a later one diversity * d when
    it competes for its place there. Log-probabilities and scores stay the model's own.
    """

    beam: int
    length_penalty: float
    max_lengths: Sequence[int]  # one a sentence
    bos: int
    eos: int
    n_best: int = 1  # how many of the results must be the best there are
    min_lengths: Sequence[int] = ()  # one a sentence; else 0
    prefixes: Sequence[Prefix] = ()
    groups: int = 1
    diversity: float = 0.0
    no_repeat_ngram: int = 0  # so many tokens never stand twice in a row's tokens; 0: they may

    @property
    def group_beams(self) -> int:
        """The beams of one group. Raises ValueError when the groups are not equal."""
        if self.beam % self.groups:
            raise ValueError(f"a beam of {self.beam} cannot be cut into {self.groups} groups")
        return self.beam // self.groups


@dataclass
class _Sentence:
    number: int
    limit: int
    minimum: int
    prefix: Prefix
    finished: list[list[Hypothesis]]  # of each group, best first
    ended: list[int]  # how many have ended in each group, those not kept too

    def allowed(self, step: int) -> Sequence[int] | None:
        """The symbols that may come at the step, counted from 1; None: all."""
        return self.prefix[step - 1] if step <= len(self.prefix) else None


def _sentences(limits: Limits) -> list[_Sentence]:
    return [
        _Sentence(
            number,
            limit,
            limits.min_lengths[number] if limits.min_lengths else 0,
            limits.prefixes[number] if limits.prefixes else (),
            [[] for _ in range(limits.groups)],
            [0] * limits.groups,
        )
        for number, limit in enumerate(limits.max_lengths)
    ]


def beam_search(
    step: Step, state: State, limits: Limits, recorder: Recorder | None = None
) -> list[list[Hypothesis]]:
    """The best hypotheses of every sentence, best first, at most `beam` of each.

    step(ids (R,), state) -> (log_probs (R, V), state); a forbidden symbol has -inf. A hypothesis
    ends where its end is among the N best of the step's continuations, ends included (in a beam of
    1, greedy search: where the end is likeliest), and wherever it is as long as it may be. A
    sentence leaves the batch when N have ended, or when none of its open hypotheses can still come
    among its n_best: so the first result does not depend on n_best, and no result on the other
    sentences.

    With groups the best of each group come first, best first, then the second of each, and so on.
    recorder is told of every step of every sentence.
    """
    beam = limits.beam
    active = _sentences(limits)
    results: list[list[Hypothesis]] = [[] for _ in active]
    ids = torch.full((len(active) * beam,), limits.bos)
    totals = torch.full((len(active), beam), -math.inf)
    # One open hypothesis a group at first: equal ones would be found several times.
    totals[:, :: limits.group_beams] = 0.0
    tokens = torch.zeros(len(active), beam, 0, dtype=torch.long)
    length = 0
    while active:
        log_probs, state = step(ids, state)
        length += 1
        allowed = [sentence.allowed(length) for sentence in active]
        log_probs = constrain(log_probs, allowed, beam)
        if limits.no_repeat_ngram:
            lines = tokens.flatten(0, 1).tolist()
            log_probs = forbid_repeats(log_probs, lines, limits.no_repeat_ngram, allowed)
        open_tokens, open_totals = tokens, totals
        found = _Continuations(log_probs, totals, limits)
        totals, parents, symbols = found.best()
        tokens = torch.cat([_gather_beams(tokens, parents), symbols[..., None]], dim=2)
        going = totals.tolist()
        endings = None if recorder is None else [list[Ending]() for _ in active]
        _finish(active, open_tokens, found.ended.tolist(), going, limits, endings)
        if recorder is not None and endings is not None:
            for row, sentence in enumerate(active):
                extensions = found.explained(row, open_tokens, (tokens, totals))
                recorder(SearchStep(sentence.number, length, extensions, endings[row]))
        kept = [
            row
            for row, sentence in enumerate(active)
            if _is_open(sentence, going[row], length, limits)
        ]
        if len(kept) < len(active):
            for row in set(range(len(active))).difference(kept):
                results[active[row].number] = _ranked(
                    active[row], open_tokens[row], open_totals[row], limits
                )
            active = [active[row] for row in kept]
        rows = torch.tensor(kept, dtype=torch.long)
        tokens, totals, parents, symbols = tokens[rows], totals[rows], parents[rows], symbols[rows]
        if active:
            state.reorder((rows[:, None] * beam + parents).flatten().to(log_probs.device))
            ids = symbols.flatten()
    return results


class _Continuations:
    """The likeliest continuations of every open hypothesis by one symbol, and their ends.

    Of each row only the N + 1 likeliest symbols: one of them may be the end, and the others are
    enough even if one row were to give all N new hypotheses, or all but one had a penalty.
    """

    def __init__(self, log_probs: Tensor, totals: Tensor, limits: Limits) -> None:
        self.limits = limits
        sentences, beam = totals.shape
        values, symbols = _top(log_probs, min(beam + 1, log_probs.shape[1]))
        ends = log_probs[:, limits.eos, None]
        if log_probs.device.type != "cpu":  # one transfer; float32 holds ids below 2^24 exactly
            packed = torch.cat([values, symbols.to(values.dtype), ends], dim=1).cpu()
            values, symbols, ends = packed.split([values.shape[1], values.shape[1], 1], dim=1)
            symbols = symbols.long()
        self.ended = totals + ends.unflatten(0, (sentences, beam))[..., 0]  # (B, N)
        self.symbols = symbols.unflatten(0, (sentences, beam))  # (B, N, K)
        self.joint = values.unflatten(0, (sentences, beam)) + totals[..., None]
        self.joint.masked_fill_(self.symbols == limits.eos, -math.inf)

    def best(self) -> tuple[Tensor, Tensor, Tensor]:
        """The N best of the continuations other than the end: totals, parents, symbols, (B, N)."""
        size = self.limits.group_beams
        parts = []
        taken = self.symbols[:, :0, 0]  # (B, chosen so far)
        for group in range(self.limits.groups):
            rows = slice(group * size, (group + 1) * size)
            joint, symbols = self.joint[:, rows].flatten(1), self.symbols[:, rows].flatten(1)
            penalized = joint
            if group and self.limits.diversity:
                counts = (symbols[..., None] == taken[:, None]).sum(2)
                penalized = joint - self.limits.diversity * counts
            index = penalized.topk(size, dim=1).indices
            chosen = symbols.gather(1, index)
            taken = torch.cat([taken, chosen], dim=1)
            parents = index // self.joint.shape[2] + group * size
            parts.append((joint.gather(1, index), parents, chosen))
        totals, parents, symbols = (torch.cat(part, dim=1) for part in zip(*parts, strict=True))
        return totals, parents, symbols

    def explained(self, row: int, tokens: Tensor, chosen: tuple[Tensor, Tensor]) -> list[Extension]:
        """What was kept of a sentence's continuations, and as many of those that were pruned."""
        size = self.limits.group_beams
        kept = [
            Extension(line, total, True, number // size)
            for number, (line, total) in enumerate(
                zip(chosen[0][row].tolist(), chosen[1][row].tolist(), strict=True)
            )
            if total > -math.inf
        ]
        known = {(tuple(extension.tokens), extension.group) for extension in kept}
        width = self.joint.shape[2]
        order = self.joint[row].flatten().sort(descending=True, stable=True)
        pruned: list[Extension] = []
        for total, place in zip(order.values.tolist(), order.indices.tolist(), strict=True):
            if total == -math.inf or len(pruned) == self.limits.beam:
                break
            parent, group = place // width, place // width // size
            symbol = int(self.symbols[row, parent, place % width])
            line = [*tokens[row, parent].tolist(), symbol]
            if (tuple(line), group) not in known:
                pruned.append(Extension(line, total, False, group))
        return sorted(kept + pruned, key=lambda extension: -extension.log_prob)


# Symbols whose largest value is looked at first; on a CPU that beats a selection among them all.
_CHUNK = 64


def _top(values: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` largest of every row, largest first, and where they stand: (R, V) -> (R, K).

    The largest K values lie in the K chunks of the largest maxima, or in the rest of the row.
    """
    chunks = values.shape[1] // _CHUNK
    if values.device.type != "cpu" or chunks <= 4 * count:
        best = values.topk(count, dim=1)
        return best.values, best.indices
    chunked = values[:, : chunks * _CHUNK].unflatten(1, (chunks, _CHUNK))
    chosen = chunked.amax(2).topk(count, dim=1).indices  # (R, K)
    candidates = chunked.gather(1, chosen[..., None].expand(-1, -1, _CHUNK)).flatten(1)
    rest = values[:, chunks * _CHUNK :]
    best = torch.cat([candidates, rest], dim=1).topk(count, dim=1)
    inside = chosen.gather(1, (best.indices // _CHUNK).clamp_(max=count - 1)) * _CHUNK
    inside += best.indices % _CHUNK
    outside = best.indices + (chunks - count) * _CHUNK
    return best.values, torch.where(best.indices < count * _CHUNK, inside, outside)


def _gather_beams(values: Tensor, parents: Tensor) -> Tensor:
    return values.gather(1, parents[..., None].expand(-1, -1, values.shape[2]))


def _finish(
    active: list[_Sentence],
    tokens: Tensor,
    ended: list[list[float]],
    totals: list[list[float]],
    limits: Limits,
    endings: list[list[Ending]] | None,
) -> None:
    """Let the open hypotheses end that may; each group keeps its best finished ones.

    ended and totals: log-probabilities of what ends here and of what goes on, (B, N). endings,
    where it is a list, gets what ended, of every sentence.
    """
    length, size = tokens.shape[2], limits.group_beams
    penalty = length_penalty(length + 1, limits.length_penalty)
    for row, sentence in enumerate(active):
        if length < sentence.minimum:
            continue
        for group in range(limits.groups):
            beams = range(group * size, (group + 1) * size)
            if sentence.ended[group] >= size:
                continue
            least = -math.inf
            if length < sentence.limit:
                rivals = (
                    ended[row][beams.start : beams.stop] + totals[row][beams.start : beams.stop]
                )
                least = sorted(rivals, reverse=True)[size - 1]
            for beam in beams:
                log_prob = ended[row][beam]
                counts = log_prob > -math.inf and log_prob >= least
                if not counts and (endings is None or log_prob == -math.inf):
                    continue
                hypothesis = Hypothesis(tokens[row, beam].tolist(), log_prob, log_prob / penalty)
                if endings is not None:
                    endings[row].append(Ending(hypothesis, counts, group))
                if counts:
                    sentence.ended[group] += 1
                    sentence.finished[group].append(hypothesis)
            sentence.finished[group].sort(key=lambda hypothesis: -hypothesis.score)
            del sentence.finished[group][size:]


def _is_open(sentence: _Sentence, totals: list[float], length: int, limits: Limits) -> bool:
    """Whether an open hypothesis, of so many tokens, may still end among its group's n_best."""
    if length > sentence.limit:
        return False
    size = limits.group_beams
    wanted = min(limits.n_best, size)
    # Log-probabilities only fall, and the penalty of the longest allowed length is the kindest.
    kindest = length_penalty(sentence.limit + 1, limits.length_penalty)
    for group, finished in enumerate(sentence.finished):
        likeliest = max(totals[group * size : (group + 1) * size])
        if likeliest == -math.inf or sentence.ended[group] >= size:
            continue
        if len(finished) < wanted or likeliest / kindest > finished[wanted - 1].score:
            return True
    return False


def _ranked(
    sentence: _Sentence, tokens: Tensor, totals: Tensor, limits: Limits
) -> list[Hypothesis]:
    """The finished hypotheses, best first; when none could end, the best open one, cut."""
    if not any(sentence.finished):
        best = int(totals.argmax())
        log_prob = float(totals[best])
        score = log_prob / length_penalty(tokens.shape[1], limits.length_penalty)
        return [Hypothesis(tokens[best].tolist(), log_prob, score, finished=False)]
    if limits.groups == 1:
        return sentence.finished[0]
    ranked: dict[tuple[int, ...], Hypothesis] = {}
    while any(sentence.finished):
        heads = []
        for finished in sentence.finished:
            while finished and tuple(finished[0].tokens) in ranked:
                del finished[0]
            if finished:
                heads.append(finished.pop(0))
                ranked[tuple(heads[-1].tokens)] = heads[-1]
        for hypothesis in sorted(heads, key=lambda hypothesis: -hypothesis.score):
            ranked[tuple(hypothesis.tokens)] = ranked.pop(tuple(hypothesis.tokens))
    return list(ranked.values())
