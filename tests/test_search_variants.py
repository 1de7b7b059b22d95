"""Diverse groups, prefixes and recorders of the beam search, on invented step functions."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from invented_model import (
    BOS,
    EOS,
    ORDINARY,
    Invented,
    Prefix,
    every_translation,
    log_prob_of,
    log_probs_after,
    search,
    step,
)

from dragoman.decoding.explanation import Recorder, SearchStep
from dragoman.decoding.hypothesis import Hypothesis, length_penalty
from dragoman.decoding.log_probs import largest
from dragoman.decoding.search import Limits, beam_search


def begun(
    limits: Limits, tables: list[int], recorder: Recorder | None = None
) -> list[list[Hypothesis]]:
    return beam_search(step, Invented(tables, limits.beam), limits, recorder)


@settings(deadline=None, max_examples=40)
@given(
    table=st.integers(0, 10**6),
    prefix=st.lists(
        st.lists(st.sampled_from(ORDINARY), min_size=1, max_size=2, unique=True), max_size=3
    ),
    alpha=st.sampled_from([0.0, 0.6]),
)
def test_a_prefix_finds_what_filtering_everything_finds(
    table: int, prefix: list[list[int]], alpha: float
) -> None:
    limit = 4
    beam = sum(4**length for length in range(limit + 1))
    limits = Limits(beam, alpha, [limit], BOS, EOS, beam, prefixes=[prefix])
    (found,) = begun(limits, [table])
    everything = every_translation(table, limit, alpha, frozenset(), 0)
    wanted = {
        tokens: score
        for tokens, (score, _) in everything.items()
        if len(tokens) >= len(prefix)
        and all(token in allowed for token, allowed in zip(tokens, prefix, strict=False))
    }
    assert {tuple(h.tokens) for h in found} == wanted.keys()
    for hypothesis in found:
        assert hypothesis.score == pytest.approx(wanted[tuple(hypothesis.tokens)], abs=1e-5)


@settings(deadline=None, max_examples=30)
@given(
    sentences=st.lists(
        st.tuples(st.integers(0, 10**6), st.lists(st.sampled_from(ORDINARY), max_size=4)),
        min_size=1,
        max_size=5,
    ),
    beam=st.sampled_from([1, 2, 4]),
    groups=st.sampled_from([1, 2]),
)
def test_prefixes_and_groups_do_not_depend_on_the_batch(
    sentences: list[tuple[int, list[int]]], beam: int, groups: int
) -> None:
    groups = min(groups, beam)
    prefixes = [[[symbol] for symbol in prefix] for _, prefix in sentences]
    lengths = [len(prefix) + 3 for prefix in prefixes]
    tables = [table for table, _ in sentences]

    def limits(which: slice) -> Limits:
        return Limits(
            beam, 0.6, lengths[which], BOS, EOS, beam, prefixes=prefixes[which],
            groups=groups, diversity=0.7,
        )  # fmt: skip

    together = begun(limits(slice(None)), tables)
    alone = [begun(limits(slice(n, n + 1)), [table])[0] for n, table in enumerate(tables)]
    assert together == alone
    for found, (_, prefix) in zip(together, sentences, strict=True):
        assert all(h.tokens[: len(prefix)] == prefix for h in found)


@settings(deadline=None, max_examples=30)
@given(
    table=st.integers(0, 10**6),
    size=st.integers(1, 3),
    beam=st.integers(1, 4),
    begin=st.lists(st.sampled_from(ORDINARY), max_size=4),
)
def test_so_many_tokens_do_not_stand_twice(
    table: int, size: int, beam: int, begin: list[int]
) -> None:
    prefix = [[symbol] for symbol in begin]
    limits = Limits(
        beam, 0.6, [9], BOS, EOS, beam, prefixes=[prefix], no_repeat_ngram=size
    )  # fmt: skip
    (found,) = begun(limits, [table])
    for hypothesis in found:
        tokens = hypothesis.tokens
        assert tokens[: len(begin)] == begin
        places = range(max(0, len(begin) - size + 1), len(tokens) - size + 1)
        seen = [tuple(tokens[place : place + size]) for place in range(len(begin) - size + 1)]
        for place in places:
            assert tuple(tokens[place : place + size]) not in seen
            seen.append(tuple(tokens[place : place + size]))


def test_sentences_have_their_own_shortest_length() -> None:
    short, long = begun(Limits(3, 0.0, [6, 6], BOS, EOS, 3, min_lengths=[0, 4]), [11, 11])
    assert min(len(h.tokens) for h in short) < 4
    assert min(len(h.tokens) for h in long) >= 4


def diverse_by_hand(
    table: int, limit: int, beam: int, groups: int, diversity: float
) -> list[list[tuple[Prefix, float]]]:
    """Of each group what has ended, best first, by the definition."""
    size = beam // groups
    open_: list[list[tuple[Prefix, float]]] = [[((), 0.0)] for _ in range(groups)]
    ended: list[dict[Prefix, float]] = [{} for _ in range(groups)]
    for length in range(limit + 1):
        taken: list[int] = []
        for group, hypotheses in enumerate(open_):
            grown, ends = [], {}
            for tokens, total in hypotheses:
                after = log_probs_after(table, tokens, frozenset())
                ends[tokens] = total + after[EOS]
                for symbol in ORDINARY:
                    pure = total + after[symbol]
                    grown.append((pure - diversity * taken.count(symbol), pure, (*tokens, symbol)))
            best = sorted(grown, reverse=True)[:size]
            open_[group] = [(tokens, pure) for _, pure, tokens in best]
            taken += [tokens[-1] for tokens, _ in open_[group]]
            rivals = sorted([*ends.values(), *(total for _, total in open_[group])], reverse=True)
            if len(ended[group]) < size:
                ended[group] |= {
                    tokens: total
                    for tokens, total in ends.items()
                    if length == limit or total >= rivals[size - 1]
                }
    return [
        sorted(found.items(), key=lambda item: -item[1] / length_penalty(len(item[0]) + 1, 0.6))
        for found in ended
    ]


@settings(deadline=None, max_examples=40)
@given(
    table=st.integers(0, 10**6),
    shape=st.sampled_from([(4, 2), (4, 4), (6, 3), (2, 2), (4, 1)]),
    diversity=st.sampled_from([0.0, 0.4, 2.0, 50.0]),
)
def test_diverse_beam_search_by_its_definition(
    table: int, shape: tuple[int, int], diversity: float
) -> None:
    (beam, groups), limit = shape, 4
    limits = Limits(beam, 0.6, [limit], BOS, EOS, beam, groups=groups, diversity=diversity)
    (found,) = begun(limits, [table])
    by_group = diverse_by_hand(table, limit, beam, groups, diversity)
    kept = {tokens for group in by_group for tokens, _ in group[: beam // groups]}
    assert {tuple(h.tokens) for h in found} == kept
    best = max(group[0][1] / length_penalty(len(group[0][0]) + 1, 0.6) for group in by_group)
    assert found[0].score == pytest.approx(best, abs=1e-5)


@settings(deadline=None, max_examples=30)
@given(table=st.integers(0, 10**6), beam=st.integers(1, 5), n_best=st.integers(1, 5))
def test_one_group_is_the_plain_search(table: int, beam: int, n_best: int) -> None:
    n_best = min(n_best, beam)
    limits = Limits(beam, 0.6, [7], BOS, EOS, n_best, groups=1, diversity=9.0)
    assert begun(limits, [table]) == search([table], [7], beam, n_best=n_best)


@settings(deadline=None, max_examples=30)
@given(table=st.integers(0, 10**6), groups=st.sampled_from([2, 4]), n_best=st.integers(1, 4))
def test_the_first_of_a_diverse_search_does_not_depend_on_how_many_are_asked_for(
    table: int, groups: int, n_best: int
) -> None:
    one, several = (
        begun(Limits(4, 0.6, [6], BOS, EOS, count, groups=groups, diversity=1.0), [table])[0]
        for count in (1, n_best)
    )
    assert one[0] == several[0]
    assert len({tuple(h.tokens) for h in several}) == len(several)


def test_groups_that_are_not_equal_are_refused() -> None:
    with pytest.raises(ValueError, match="cannot be cut into 3 groups"):
        begun(Limits(4, 0.6, [3], BOS, EOS, groups=3), [1])


@pytest.mark.parametrize("groups", [1, 2])
def test_what_a_recorder_is_told(groups: int) -> None:
    """Kept and pruned together are the likeliest continuations; the results are among the ends."""
    steps: list[SearchStep] = []
    limits = Limits(4, 0.6, [5, 3], BOS, EOS, 4, groups=groups, diversity=0.5)
    found = begun(limits, [5, 6], steps.append)
    assert found == begun(limits, [5, 6])
    for number, hypotheses in enumerate(found):
        own = [step for step in steps if step.sentence == number]
        assert [step.step for step in own] == list(range(1, len(own) + 1))
        ended = [e.hypothesis for step in own for e in step.endings if e.kept]
        assert all(hypothesis in ended for hypothesis in hypotheses)
        for before, step_ in itertools.pairwise(own):
            open_ = [tuple(e.tokens) for e in before.extensions if e.kept]
            for extension in step_.extensions:
                assert tuple(extension.tokens[:-1]) in open_
                expected = log_prob_of((5, 6)[number], tuple(extension.tokens))
                assert extension.log_prob == pytest.approx(expected, abs=1e-5)
            kept = [e.log_prob for e in step_.extensions if e.kept]
            pruned = [e.log_prob for e in step_.extensions if not e.kept]
            assert len(kept) == 4
            if groups == 1 and pruned:
                assert min(kept) >= max(pruned)


@settings(deadline=None, max_examples=25)
@given(
    seed=st.integers(0, 10**6),
    width=st.integers(200, 900),
    count=st.integers(1, 3),
    levels=st.sampled_from([3, 10**6]),
)
def test_the_largest_values_are_found_chunk_by_chunk(
    seed: int, width: int, count: int, levels: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    values = torch.randint(levels, (5, width), generator=generator).float()
    values[:, :2] = -math.inf
    best, places = largest(values, count)
    assert torch.equal(best, values.topk(count, dim=1).values)
    assert torch.equal(values.gather(1, places), best)
    assert all(len(set(row)) == count for row in places.tolist())
