"""Beam search (section 6.1) on invented step functions, against searching through everything."""

import math
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from invented_model import (
    BOS,
    EOS,
    ORDINARY,
    VOCABULARY,
    Invented,
    Prefix,
    every_translation,
    log_prob_of,
    log_probs_after,
    search,
    step,
)
from torch import Tensor

from dragoman.decoding.hypothesis import length_penalty
from dragoman.decoding.log_probs import LogProbs
from dragoman.decoding.search import Limits, State, beam_search


@settings(deadline=None, max_examples=40)
@given(
    table=st.integers(0, 10**6),
    limit=st.integers(0, 4),
    alpha=st.sampled_from([0.0, 0.6, 1.0, 3.0]),
    forbidden=st.frozensets(st.sampled_from(ORDINARY), max_size=3),
    min_length=st.integers(0, 1),
)
def test_a_beam_that_prunes_nothing_finds_what_there_is(
    table: int, limit: int, alpha: float, forbidden: frozenset[int], min_length: int
) -> None:
    limit = max(limit, min_length)
    everything = every_translation(table, limit, alpha, forbidden, min_length)
    beam = sum(4**length for length in range(limit + 1))
    (all_found,) = search([table], [limit], beam, alpha, forbidden, beam, min_length)
    assert {tuple(h.tokens) for h in all_found} == everything.keys()
    scores = [hypothesis.score for hypothesis in all_found]
    assert scores == sorted(scores, reverse=True)
    for hypothesis in all_found:
        score, log_prob = everything[tuple(hypothesis.tokens)]
        assert hypothesis.finished
        assert hypothesis.score == pytest.approx(score, abs=1e-5)
        assert hypothesis.log_prob == pytest.approx(log_prob, abs=1e-5)
    # Asked for one result the search stops early, which must not cost it the best one.
    (best_found,) = search([table], [limit], beam, alpha, forbidden, 1, min_length)
    best = max(score for score, _ in everything.values())
    assert best_found[0].score == pytest.approx(best, abs=1e-5)
    assert everything[tuple(best_found[0].tokens)][0] == pytest.approx(best, abs=1e-5)


def test_length_five() -> None:
    everything = every_translation(7, 5, 0.6, frozenset(), 0)
    (found,) = search([7], [5], beam=4**5, n_best=10)
    expected = sorted(everything, key=lambda tokens: -everything[tokens][0])[:10]
    assert [tuple(hypothesis.tokens) for hypothesis in found[:10]] == expected


def test_the_search_waits_for_what_the_length_penalty_may_still_favor() -> None:
    """At once the end has half the probability; after one symbol the rest is certain, and long."""

    def patient_step(ids: Tensor, state: State) -> tuple[LogProbs, State]:
        assert isinstance(state, Invented)
        _, state = step(ids, state)
        rows = torch.full((len(state.rows), VOCABULARY), 1e-9)
        for row, (_, prefix) in enumerate(state.rows):
            rows[row, [EOS, 2]] = torch.tensor([0.5, 0.4] if not prefix else [1e-9, 1.0])
            if len(prefix) == 9:
                rows[row, EOS] = 1.0
        return LogProbs(rows.log()), state

    for beam in (2, 3):
        state = Invented([0], beam)
        (found,) = beam_search(patient_step, state, Limits(beam, 1.0, [9], BOS, EOS))
        assert found[0].tokens == [2] * 9
        assert found[0].score == pytest.approx(math.log(0.4) / (15 / 6), abs=1e-5)


@settings(deadline=None, max_examples=60)
@given(table=st.integers(0, 10**6), limit=st.integers(1, 8), alpha=st.sampled_from([0.0, 0.6, 2.0]))
def test_beam_1_is_greedy_search(table: int, limit: int, alpha: float) -> None:
    """The likeliest symbol at every step, to the first step where that is the end."""
    path: Prefix = ()
    finished = False
    while not finished:
        after = log_probs_after(table, path, frozenset())
        symbols = [EOS, *ORDINARY] if len(path) < limit else [EOS]
        likeliest = max(symbols, key=lambda symbol: after[symbol])
        finished = likeliest == EOS
        path = path if finished else (*path, likeliest)
    ((found, *others),) = search([table], [limit], beam=1, alpha=alpha)
    assert others == []
    assert found.finished
    assert tuple(found.tokens) == path
    expected = log_prob_of(table, (*path, EOS)) / length_penalty(len(path) + 1, alpha)
    assert found.score == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("seed", range(5))
def test_beam_1_is_greedy_search_where_the_model_is_sure(seed: int) -> None:
    """Where every step has one symbol of probability 0.9, all of argmax, to the end, is found."""
    chance = random.Random(seed)
    wanted = [chance.choice(ORDINARY) for _ in range(seed)] + [EOS]

    def sure_step(ids: Tensor, state: State) -> tuple[LogProbs, State]:
        assert isinstance(state, Invented)
        _, state = step(ids, state)
        probabilities = torch.full((len(state.rows), VOCABULARY), 0.025)
        for row, (_, prefix) in enumerate(state.rows):
            probabilities[row, wanted[len(prefix)] if len(prefix) < len(wanted) else EOS] = 0.9
        return LogProbs(probabilities.log()), state

    ((found,),) = beam_search(sure_step, Invented([0], 1), Limits(1, 0.6, [10], BOS, EOS))
    assert [*found.tokens, EOS] == wanted
    assert found.log_prob == pytest.approx(len(wanted) * math.log(0.9), abs=1e-5)


@settings(deadline=None, max_examples=60)
@given(
    table=st.integers(0, 10**6),
    limit=st.integers(1, 9),
    beam=st.integers(1, 6),
    alpha=st.sampled_from([0.0, 0.6, 1.5]),
)
def test_asking_for_more_results_leaves_the_first_as_it_is(
    table: int, limit: int, beam: int, alpha: float
) -> None:
    lists = [search([table], [limit], beam, alpha, n_best=n)[0] for n in range(1, beam + 1)]
    for n, hypotheses in enumerate(lists, 1):
        assert len(hypotheses) <= beam
        assert hypotheses[:n] == lists[-1][:n]
        assert len({tuple(hypothesis.tokens) for hypothesis in hypotheses}) == len(hypotheses)


@settings(deadline=None, max_examples=40)
@given(
    sentences=st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 8)), min_size=1, max_size=6),
    beam=st.integers(1, 5),
    n_best=st.integers(1, 5),
)
def test_sentences_do_not_depend_on_their_batch(
    sentences: list[tuple[int, int]], beam: int, n_best: int
) -> None:
    n_best = min(n_best, beam)
    tables, lengths = [table for table, _ in sentences], [length for _, length in sentences]
    together = search(tables, lengths, beam, n_best=n_best)
    alone = [search([t], [n], beam, n_best=n_best)[0] for t, n in sentences]
    assert together == alone


@settings(deadline=None, max_examples=60)
@given(
    table=st.integers(0, 10**6),
    limit=st.integers(0, 8),
    beam=st.integers(1, 6),
    forbidden=st.frozensets(st.sampled_from(ORDINARY), max_size=4),
    min_length=st.integers(0, 3),
)
def test_limits_are_kept_and_forbidden_symbols_never_appear(
    table: int, limit: int, beam: int, forbidden: frozenset[int], min_length: int
) -> None:
    (found,) = search([table], [limit], beam, 0.6, forbidden, beam, min_length)
    assert found
    for hypothesis in found:
        tokens = tuple(hypothesis.tokens)
        assert EOS not in tokens and not forbidden & set(tokens)
        assert len(tokens) <= limit
        assert hypothesis.finished == (min_length <= len(tokens))
        whole = (*tokens, EOS) if hypothesis.finished else tokens
        assert hypothesis.log_prob == pytest.approx(log_prob_of(table, whole, forbidden), abs=1e-4)
        penalty = length_penalty(len(whole), 0.6)
        assert hypothesis.score == pytest.approx(hypothesis.log_prob / penalty)


@pytest.mark.parametrize("beam", [1, 3])
def test_what_may_not_end_is_cut_and_says_so(beam: int) -> None:
    never_ends = frozenset({EOS})
    ((found,), (other,)) = search([3, 4], [6, 2], beam, forbidden=never_ends)
    assert not found.finished and not other.finished
    assert (len(found.tokens), len(other.tokens)) == (6, 2)
    expected = log_prob_of(3, tuple(found.tokens), never_ends)
    assert found.log_prob == pytest.approx(expected, abs=1e-5)
    assert found.score == pytest.approx(expected / length_penalty(6, 0.6), abs=1e-5)


def test_the_step_functions_tensor_is_left_alone() -> None:
    row = torch.tensor([0.1, 0.4, 0.2, 0.2, 0.1]).log()
    table = row.repeat(6, 1)

    class Nothing(State):
        def reorder(self, rows: Tensor) -> None:
            assert rows.numel() in (3, 6)

    def same_step(ids: Tensor, state: State) -> tuple[LogProbs, State]:
        return LogProbs(table[: len(ids)]), state

    found = beam_search(same_step, Nothing(), Limits(3, 0.0, [3, 5], BOS, EOS))
    assert [hypotheses[0].tokens for hypotheses in found] == [[], []]
    assert torch.equal(table, row.repeat(6, 1))


def test_no_sentences_need_no_step() -> None:
    def no_step(ids: Tensor, state: State) -> tuple[LogProbs, State]:
        raise AssertionError

    assert beam_search(no_step, Invented([], 4), Limits(4, 0.6, [], BOS, EOS)) == []


def test_the_length_penalty_by_hand() -> None:
    assert length_penalty(1, 0.6) == 1.0
    assert length_penalty(7, 0.6) == pytest.approx(2**0.6)
    assert length_penalty(13, 1.0) == pytest.approx(3.0)
    assert length_penalty(99, 0.0) == 1.0
