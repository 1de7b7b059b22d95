"""Minimum Bayes risk: the utility is sacreBLEU's chrF, and the choice is that of the definition."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sacrebleu.metrics.chrf import CHRF

from dragoman.config import SearchConfig
from dragoman.decoding.engine import Request
from dragoman.decoding.minimum_bayes_risk import expected_utilities, sentence_chrf
from dragoman.decoding.native import NativeEngine

WORDS = st.lists(
    st.sampled_from(["der", "rote", "Hund", "ein", "Haus.", "sieht", " ", "é", "日本"]), max_size=8
).map(" ".join)
TEXTS = st.one_of(WORDS, st.text(max_size=12))


@settings(deadline=None, max_examples=150)
@given(candidate=TEXTS, reference=TEXTS)
def test_the_utility_is_sacrebleus_sentence_chrf(candidate: str, reference: str) -> None:
    expected = CHRF().sentence_score(candidate, [reference]).score
    assert sentence_chrf(candidate, reference) == pytest.approx(expected, abs=1e-9)


@settings(deadline=None, max_examples=30)
@given(
    candidates=st.lists(WORDS, min_size=1, max_size=5),
    samples=st.lists(WORDS, min_size=1, max_size=6),
)
def test_expected_utilities_by_their_definition(candidates: list[str], samples: list[str]) -> None:
    chrf = CHRF()
    expected = [
        sum(chrf.sentence_score(candidate, [one]).score for one in samples) / len(samples)
        for candidate in candidates
    ]
    assert expected_utilities(candidates, samples) == pytest.approx(expected, abs=1e-9)


def test_the_best_candidate_of_samples_and_beam_comes_first(model: Path) -> None:
    engine = NativeEngine.load([model])
    search = SearchConfig(beam=3, mbr_samples=7, max_extra_tokens=3, epsilon=0.0, seed=5)
    lines = ["the red cat sees the dog", "bird"]
    sources = [engine.tokenizer.encode(line) for line in lines]
    found = engine.search(sources, Request(search))
    plain = {"max_extra_tokens": 3, "epsilon": 0.0, "seed": 5}
    samples = engine.search(sources, Request(SearchConfig(sample=True, **plain), 7))
    beams = engine.search(sources, Request(SearchConfig(beam=3, **plain), 3))
    decode = engine.tokenizer.decode
    for ranked, drawn, searched in zip(found, samples, beams, strict=True):
        assert len(drawn) == 7
        candidates = {tuple(h.tokens) for h in [*drawn, *searched]}
        assert {tuple(h.tokens) for h in ranked} >= {tuple(h.tokens) for h in drawn}
        assert {tuple(h.tokens) for h in ranked} <= candidates
        references = [decode(h.tokens) for h in drawn]
        utilities = expected_utilities([decode(h.tokens) for h in ranked], references)
        assert [h.utility for h in ranked] == pytest.approx(utilities)
        assert utilities == sorted(utilities, reverse=True)
        assert utilities[0] == pytest.approx(
            max(expected_utilities([decode(t) for t in candidates], references)), abs=1e-9
        )


def test_it_does_not_depend_on_the_neighbors(model: Path) -> None:
    engine = NativeEngine.load([model])
    request = Request(SearchConfig(mbr_samples=5, max_extra_tokens=3))
    sources = [engine.tokenizer.encode(line) for line in ("the red cat", "bird", "the old dog")]
    together = engine.search(sources, request)
    for source, found in zip(sources, together, strict=True):
        assert [h.tokens for h in engine.search([source], request)[0]] == [h.tokens for h in found]


def test_on_the_command_line(model: Path, dragoman: Callable[..., Any]) -> None:
    done = dragoman("translate", "--model", model, "--mbr", "6", "--text", "cat", "--json")
    assert done.status == 0
    (record,) = map(json.loads, done.lines)
    assert 0 <= record["candidates"][0]["utility"] <= 100
    both = dragoman(
        "translate", "--model", model, "--mbr", "6", "--set", "search.sample=true", "--text", "cat"
    )
    assert both.status == 2
    assert "error: setting search: give either sample or mbr_samples" in both.err
