"""Sampling on invented step functions: what is drawn, how often, and what it depends on."""

import math
import random
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from dragoman.decoding.log_probs import LogProbs
from dragoman.decoding.sampling import Narrowing, narrow, sample, seed_of
from dragoman.decoding.search import Limits, State

VOCABULARY, BOS, EOS, FORBIDDEN = 6, 0, 1, 2


class Rows(State):
    """Each row knows its sentence and its prefix."""

    def __init__(self, sentences: list[int], beam: int) -> None:
        self.rows: list[tuple[int, tuple[int, ...]]] = [
            (sentence, ()) for sentence in sentences for _ in range(beam)
        ]
        self.started = False

    def reorder(self, rows: Tensor) -> None:
        self.rows = [self.rows[row] for row in rows.tolist()]


def log_probs_of(sentence: int, prefix: tuple[int, ...]) -> Tensor:
    chance = random.Random(f"{sentence} {prefix}")
    logits = torch.tensor([chance.gauss(0, 1.5) for _ in range(VOCABULARY)])
    logits[[BOS, FORBIDDEN]] = -math.inf
    return logits.log_softmax(0)


def step(ids: Tensor, state: State) -> tuple[LogProbs, State]:
    assert isinstance(state, Rows)
    assert 0 <= int(ids.min()) <= int(ids.max()) < VOCABULARY
    if state.started:
        grown = zip(state.rows, ids.tolist(), strict=True)
        state.rows = [(sentence, (*prefix, symbol)) for (sentence, prefix), symbol in grown]
    state.started = True
    return LogProbs(torch.stack([log_probs_of(*row) for row in state.rows])), state


def limits_for(sentences: list[int], count: int, length: int = 6) -> Limits:
    size = len(sentences)
    return Limits(count, 0.6, [length] * size, BOS, EOS, count, [1] * size)


@settings(deadline=None, max_examples=40)
@given(
    seed=st.integers(0, 2**40),
    sentences=st.lists(st.integers(0, 50), min_size=1, max_size=5),
    count=st.integers(1, 4),
    narrowing=st.builds(
        Narrowing,
        temperature=st.sampled_from([0.05, 1.0, 30.0]),
        top_k=st.integers(0, 7),
        top_p=st.sampled_from([0.01, 0.5, 1.0]),
        epsilon=st.sampled_from([0.0, 0.02, 0.5]),
    ),
)
def test_samples_depend_on_their_own_seed_only(
    seed: int, sentences: list[int], count: int, narrowing: Narrowing
) -> None:
    """The same alone and in a batch, no forbidden symbol, and the model's own log-probability."""
    seeds = [seed + number for number in range(len(sentences))]
    limits = limits_for(sentences, count)
    together = sample(step, Rows(sentences, count), limits, narrowing, seeds)
    for found, sentence, own in zip(together, sentences, seeds, strict=True):
        one = limits_for([sentence], count)
        assert sample(step, Rows([sentence], count), one, narrowing, [own])[0] == found
        few = sample(step, Rows([sentence], 1), limits_for([sentence], 1), narrowing, [own])
        assert few[0] == found[:1]
        for hypothesis in found:
            tokens = tuple(hypothesis.tokens)
            assert not {BOS, EOS, FORBIDDEN} & set(tokens) and 1 <= len(tokens) <= 6
            whole = (*tokens, EOS) if hypothesis.finished else tokens
            assert hypothesis.finished or len(tokens) == 6
            expected = sum(
                float(log_probs_of(sentence, whole[:place])[symbol])
                for place, symbol in enumerate(whole)
            )
            assert hypothesis.log_prob == pytest.approx(expected, abs=1e-5)


def test_symbols_are_drawn_as_often_as_they_are_probable() -> None:
    count = 1000
    sentences = [3] * 4
    found = sample(
        step, Rows(sentences, count), limits_for(sentences, count, 1), Narrowing(), [1, 2, 3, 4]
    )
    drawn = Counter(h.tokens[0] for hypotheses in found for h in hypotheses)
    probabilities = log_probs_of(3, ()).exp()
    probabilities[EOS] = 0  # not before one symbol has come
    probabilities /= probabilities.sum()
    for symbol in range(VOCABULARY):
        expected, deviation = float(probabilities[symbol]), 4000**-0.5 / 2
        assert drawn[symbol] / 4000 == pytest.approx(expected, abs=5 * deviation)


def test_a_low_temperature_and_one_symbol_to_draw_from_are_greedy() -> None:
    greedy = sample(step, Rows([8], 3), limits_for([8], 3), Narrowing(top_k=1), [5])
    cold = sample(step, Rows([8], 3), limits_for([8], 3), Narrowing(temperature=1e-3), [6])
    assert greedy == cold
    assert greedy[0][0] == greedy[0][1] == greedy[0][2]


def test_a_prefix_is_drawn_as_it_is_given() -> None:
    limits = Limits(2, 0.6, [6, 6], BOS, EOS, 2, prefixes=[[[3], [4, 5]], []])
    found = sample(step, Rows([1, 1], 2), limits, Narrowing(), [1, 2])
    assert all(h.tokens[0] == 3 and h.tokens[1] in (4, 5) for h in found[0])


def test_what_the_settings_leave_to_draw_from() -> None:
    log_probs = torch.tensor([[0.5, 0.3, 0.15, 0.05, 0.0]]).log()

    def left(narrowing: Narrowing) -> list[float]:
        weights = narrow(log_probs, narrowing)[0]
        return [round(float(weight), 4) for weight in weights]

    assert left(Narrowing()) == [0.5, 0.3, 0.15, 0.05, 0.0]
    assert left(Narrowing(top_k=2)) == [0.5, 0.3, 0.0, 0.0, 0.0]
    assert left(Narrowing(top_p=0.75)) == [0.5, 0.3, 0.0, 0.0, 0.0]
    assert left(Narrowing(top_p=0.81)) == [0.5, 0.3, 0.15, 0.0, 0.0]
    assert left(Narrowing(top_p=1e-6)) == [0.5, 0.0, 0.0, 0.0, 0.0]
    assert left(Narrowing(epsilon=0.1)) == [0.5, 0.3, 0.15, 0.0, 0.0]
    assert left(Narrowing(epsilon=0.9)) == [0.5, 0.0, 0.0, 0.0, 0.0]
    assert left(Narrowing(top_k=3, top_p=0.6)) == [0.5, 0.3, 0.0, 0.0, 0.0]
    cold = narrow(log_probs, Narrowing(temperature=0.5))[0]
    assert float(cold[0] / cold[1]) == pytest.approx((0.5 / 0.3) ** 2)


def test_the_seed_is_that_of_the_setting_and_the_source() -> None:
    assert seed_of(1, [5, 6]) == seed_of(1, (5, 6))
    assert len({seed_of(1, [5, 6]), seed_of(2, [5, 6]), seed_of(1, [56]), seed_of(1, [5])}) == 4
