"""Beam search (section 6.1) that knows no model; greedy search is beam 1.

Shapes: B sentences, N beams, R = B * N rows (the beams of a sentence are neighbors), V vocabulary,
G groups of N / G beams each, K continuations of a row that are looked at, T tokens so far.

Step functions compute with tensors, wherever their model is; the search keeps its books in NumPy,
whose small operations cost a tenth.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dragoman.decoding.constraints import constrain, forbid_repeats
from dragoman.decoding.explanation import Ending, Extension, Recorder, SearchStep
from dragoman.decoding.hypothesis import Hypothesis, Prefix, length_penalty
from dragoman.decoding.log_probs import LogProbs


class State(Protocol):
    """What a step function carries from step to step."""

    def reorder(self, rows: Tensor) -> None:
        """Row i of the next step continues row rows[i] (R',) of the last one."""


Step = Callable[[Tensor, State], tuple[LogProbs, State]]

Floats = NDArray[np.float32]
Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]


class Grammar(Protocol):
    """What may follow what, in sequences that are more than text."""

    def allowed(self, sentences: Integers, tokens: Integers, left: Integers) -> Flags:
        """(B, N, V), the symbols that may come after the tokens (B, N, T).

        sentences: (B,), their numbers; left: (B,), how many tokens may come yet.
        """


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
    grammar: Grammar | None = None

    @property
    def group_beams(self) -> int:
        """The beams of one group. Raises ValueError when the groups are not equal."""
        if self.beam % self.groups:
            raise ValueError(f"a beam of {self.beam} cannot be cut into {self.groups} groups")
        return self.beam // self.groups


class _Open:
    """The sentences that are searched on, and what has ended of each."""

    def __init__(self, limits: Limits) -> None:
        count, groups = len(limits.max_lengths), limits.groups
        self.limits = limits
        self.numbers = np.arange(count)  # (B,), places in the results
        self.most = np.array(limits.max_lengths, dtype=np.int64)  # (B,)
        self.least = np.array(limits.min_lengths or [0] * count, dtype=np.int64)
        # Log-probabilities only fall, and the penalty of the longest allowed length is the kindest.
        kindest = [length_penalty(most + 1, limits.length_penalty) for most in limits.max_lengths]
        self.kindest = np.array(kindest)
        self.finished = [[list[Hypothesis]() for _ in range(groups)] for _ in range(count)]
        self.ended = np.zeros((count, groups), dtype=np.int64)  # those not kept too
        # The score that is to be beaten: the last of the group's n_best.
        self.wanted = np.full((count, groups), -math.inf)

    def allowed(self, step: int) -> list[Sequence[int] | None]:
        """The symbols that may come at the step, counted from 1, in each sentence; None: all."""
        if not self.limits.prefixes:
            return [None] * len(self.numbers)
        prefixes = [self.limits.prefixes[number] for number in self.numbers.tolist()]
        return [prefix[step - 1] if step <= len(prefix) else None for prefix in prefixes]

    def finish(
        self, tokens: Integers, ended: Floats, going: Floats, endings: list[list[Ending]] | None
    ) -> None:
        """Let the open hypotheses (B, N, T) end that may; each group keeps its best finished ones.

        ended and going: log-probabilities of what ends here and of what goes on, (B, N). endings,
        where it is a list, gets what could end, of every sentence.
        """
        limits, length = self.limits, tokens.shape[2]
        shape = len(tokens), limits.groups, limits.group_beams
        rivals = np.concatenate([ended.reshape(shape), going.reshape(shape)], axis=2)
        least = np.sort(rivals, axis=2)[:, :, limits.group_beams]
        least[length >= self.most] = -math.inf
        may = (ended > -math.inf) & (length >= self.least)[:, None]
        may &= np.repeat(self.ended < limits.group_beams, limits.group_beams, axis=1)
        counts = may & (ended >= np.repeat(least, limits.group_beams, axis=1))
        penalty = length_penalty(length + 1, limits.length_penalty)
        for row, beam in np.argwhere(counts if endings is None else may).tolist():
            log_prob, group = float(ended[row, beam]), beam // limits.group_beams
            hypothesis = Hypothesis(tokens[row, beam].tolist(), log_prob, log_prob / penalty)
            if endings is not None:
                endings[row].append(Ending(hypothesis, bool(counts[row, beam]), group))
            if counts[row, beam]:
                self._keep(row, group, hypothesis)

    def _keep(self, row: int, group: int, hypothesis: Hypothesis) -> None:
        size = self.limits.group_beams
        wanted = min(self.limits.n_best, size)
        finished = self.finished[row][group]
        finished.append(hypothesis)
        finished.sort(key=lambda one: -one.score)
        del finished[size:]
        self.ended[row, group] += 1
        if len(finished) >= wanted:
            self.wanted[row, group] = finished[wanted - 1].score

    def hopeful(self, going: Floats, length: int) -> Flags:
        """Whether hypotheses of so many tokens may still end among a group's n_best: (B,)."""
        size = self.limits.group_beams
        likeliest = going.reshape(len(going), -1, size).max(axis=2).astype(np.float64)
        better = likeliest / self.kindest[:, None] > self.wanted
        open_groups = better & (likeliest > -math.inf) & (self.ended < size)
        hopeful: Flags = (length <= self.most) & open_groups.any(axis=1)
        return hopeful

    def keep(self, kept: Integers) -> None:
        """Go on with these rows only."""
        self.finished = [self.finished[row] for row in kept.tolist()]
        for name in ("numbers", "most", "least", "kindest", "ended", "wanted"):
            setattr(self, name, getattr(self, name)[kept])


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
    beam, active = limits.beam, _Open(limits)
    results: list[list[Hypothesis]] = [[] for _ in limits.max_lengths]
    ids = torch.full((len(results) * beam,), limits.bos)
    totals = np.full((len(results), beam), -math.inf, dtype=np.float32)
    # One open hypothesis a group at first: equal ones would be found several times.
    totals[:, :: limits.group_beams] = 0.0
    tokens = np.zeros((len(results), beam, 0), dtype=np.int64)
    while len(active.numbers):
        log_probs, state = step(ids, state)
        length = tokens.shape[2] + 1
        found = _Continuations(_permitted(log_probs, tokens, active, length), totals, limits)
        open_tokens, open_totals = tokens, totals
        totals, parents, symbols = found.best()
        tokens = np.take_along_axis(tokens, parents[..., None], axis=1)
        tokens = np.concatenate([tokens, symbols[..., None]], axis=2)
        endings = None if recorder is None else [list[Ending]() for _ in totals]
        active.finish(open_tokens, found.ended, totals, endings)
        if recorder is not None and endings is not None:
            for row, number in enumerate(active.numbers.tolist()):
                extensions = found.explained(row, open_tokens, (tokens, totals))
                recorder(SearchStep(number, length, extensions, endings[row]))
        hopeful = active.hopeful(totals, length)
        for row in np.flatnonzero(~hopeful).tolist():
            results[active.numbers[row]] = _ranked(
                active.finished[row], open_tokens[row], open_totals[row], limits
            )
        kept = np.flatnonzero(hopeful)
        active.keep(kept)
        tokens, totals, parents, symbols = tokens[kept], totals[kept], parents[kept], symbols[kept]
        if len(kept):
            rows = torch.from_numpy((kept[:, None] * beam + parents).ravel())
            state.reorder(rows.to(log_probs.logits.device))
            ids = torch.from_numpy(symbols.ravel())
    return results


def _permitted(log_probs: LogProbs, tokens: Integers, active: _Open, length: int) -> LogProbs:
    """-inf for what a grammar or a prefix does not allow now, and for what would repeat itself."""
    limits = active.limits
    if limits.grammar is not None:
        flags = limits.grammar.allowed(active.numbers, tokens, active.most - (length - 1))
        allowed_now = torch.from_numpy(flags).flatten(0, 1).to(log_probs.logits.device)
        log_probs = LogProbs(
            log_probs.logits.masked_fill(~allowed_now, -math.inf), log_probs.log_sums
        )
    if not limits.prefixes and not limits.no_repeat_ngram:
        return log_probs
    allowed = active.allowed(length)
    logits = constrain(log_probs.logits, allowed, limits.beam)
    if limits.no_repeat_ngram:
        lines = tokens.reshape(len(tokens) * limits.beam, length - 1).tolist()
        logits = forbid_repeats(logits, lines, limits.no_repeat_ngram, allowed)
    return LogProbs(logits, log_probs.log_sums)


class _Continuations:
    """The likeliest continuations of every open hypothesis by one symbol, and their ends.

    Of each row only the N + 1 likeliest symbols: one of them may be the end, and the others are
    enough even if one row were to give all N new hypotheses, or all but one had a penalty.
    """

    def __init__(self, log_probs: LogProbs, totals: Floats, limits: Limits) -> None:
        self.limits = limits
        count = min(limits.beam + 1, log_probs.logits.shape[1])
        values, symbols = log_probs.top(count)
        ends = log_probs.of_symbol(limits.eos)[:, None]
        if values.device.type != "cpu":  # one transfer; float32 holds ids below 2^24 exactly
            packed = torch.cat([values.float(), symbols.float(), ends], dim=1).cpu()
            values, symbols, ends = packed.split([count, count, 1], dim=1)
            symbols = symbols.long()
        shape = *totals.shape, count
        self.ended: Floats = totals + ends.float().numpy().reshape(totals.shape)  # (B, N)
        self.symbols: Integers = symbols.numpy().reshape(shape)  # (B, N, K)
        self.joint: Floats = values.float().numpy().reshape(shape) + totals[..., None]
        self.joint[self.symbols == limits.eos] = -math.inf

    def best(self) -> tuple[Floats, Integers, Integers]:
        """The N best of the continuations other than the end: totals, parents, symbols, (B, N)."""
        size = self.limits.group_beams
        parts = []
        taken = self.symbols[:, :0, 0]  # (B, chosen so far)
        for group in range(self.limits.groups):
            rows = slice(group * size, (group + 1) * size)
            joint = self.joint[:, rows].reshape(len(taken), -1)
            symbols = self.symbols[:, rows].reshape(len(taken), -1)
            penalized = joint
            if group and self.limits.diversity:
                counts = (symbols[..., None] == taken[:, None]).sum(axis=2)
                penalized = joint - np.float32(self.limits.diversity) * counts
            index = np.argsort(-penalized, axis=1, kind="stable")[:, :size]
            chosen = np.take_along_axis(symbols, index, axis=1)
            taken = np.concatenate([taken, chosen], axis=1)
            parents = index // self.joint.shape[2] + group * size
            parts.append((np.take_along_axis(joint, index, axis=1), parents, chosen))
        totals, parents, symbols = (
            np.concatenate(part, axis=1) for part in zip(*parts, strict=True)
        )
        return totals, parents, symbols

    def explained(
        self, row: int, tokens: Integers, chosen: tuple[Integers, Floats]
    ) -> list[Extension]:
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
        joint = self.joint[row].ravel()
        order = np.argsort(-joint, kind="stable")
        pruned: list[Extension] = []
        for total, place in zip(joint[order].tolist(), order.tolist(), strict=True):
            if total == -math.inf or len(pruned) == self.limits.beam:
                break
            parent, group = place // width, place // width // size
            symbol = int(self.symbols[row, parent, place % width])
            line = [*tokens[row, parent].tolist(), symbol]
            if (tuple(line), group) not in known:
                pruned.append(Extension(line, total, False, group))
        return sorted(kept + pruned, key=lambda extension: -extension.log_prob)


def _ranked(
    groups: list[list[Hypothesis]], tokens: Integers, totals: Floats, limits: Limits
) -> list[Hypothesis]:
    """The finished hypotheses, best first; when none could end, the best open one, cut."""
    if not any(groups):
        best = int(totals.argmax())
        log_prob = float(totals[best])
        score = log_prob / length_penalty(tokens.shape[1], limits.length_penalty)
        return [Hypothesis(tokens[best].tolist(), log_prob, score, finished=False)]
    if limits.groups == 1:
        return groups[0]
    ranked: dict[tuple[int, ...], Hypothesis] = {}
    while any(groups):
        heads = []
        for finished in groups:
            while finished and tuple(finished[0].tokens) in ranked:
                del finished[0]
            if finished:
                heads.append(finished.pop(0))
                ranked[tuple(heads[-1].tokens)] = heads[-1]
        for hypothesis in sorted(heads, key=lambda hypothesis: -hypothesis.score):
            ranked[tuple(hypothesis.tokens)] = ranked.pop(tuple(hypothesis.tokens))
    return list(ranked.values())
