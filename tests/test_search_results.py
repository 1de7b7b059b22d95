"""What the settings of the search come to with a model: text, scores, attention, explanations."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.config import SearchConfig
from dragoman.corpus.tokenizer import Tokenizer
from dragoman.decoding.engine import Request
from dragoman.decoding.native import NativeEngine
from dragoman.decoding.prefix import prefix_symbols
from dragoman.decoding.rescoring import Forced
from dragoman.decoding.scorer import Scorer
from dragoman.decoding.translator import Translator
from dragoman.errors import UserError

LINES = ["the red cat sees the dog", "bird", "the old house"]
SHORT = {"max_extra_tokens": 3}


@pytest.fixture(scope="module")
def engine(model: Path) -> NativeEngine:
    return NativeEngine.load([model])


@pytest.fixture(scope="module")
def translator(engine: NativeEngine) -> Translator:
    return Translator(engine, SearchConfig(max_extra_tokens=3))


def sources_of(engine: NativeEngine, lines: list[str]) -> list[list[int]]:
    return [engine.tokenizer.encode(line) for line in lines]


BEGINNINGS = st.one_of(
    st.sampled_from(["rot", "ro", "Katze ", "  alt", "der {x} ", "{x", "\u2028x ", "größ", "日本"]),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
)


@settings(deadline=None, max_examples=8)
@given(beginnings=st.lists(BEGINNINGS, min_size=3, max_size=3))
def test_a_translation_begins_with_exactly_what_is_given(
    translator: Translator, beginnings: list[str]
) -> None:
    lines = ["the red {x} sees", "", "bird"]
    found = translator.translate(lines, 2, beginnings)
    for line, beginning, translation in zip(lines, beginnings, found, strict=True):
        for candidate in translation.candidates:
            if candidate.text != line:  # nothing found: the source is copied
                assert candidate.text.startswith(beginning)
    alone = [
        translator.translate([line], 2, [beginning])[0]
        for line, beginning in zip(lines, beginnings, strict=True)
    ]
    assert [one.text for one in alone] == [one.text for one in found]


def test_the_last_subword_of_a_prefix_may_grow(engine: NativeEngine) -> None:
    tokenizer = engine.tokenizer
    *first, last = prefix_symbols(tokenizer, "x", "rot")
    ids = tokenizer.encode("rot")
    assert [list(allowed) for allowed in first] == [[number] for number in ids[:-1]]
    for number in last:
        assert tokenizer.decode([*ids[:-1], number]).startswith("rot")
    assert ids[-1] in last
    after_space = prefix_symbols(tokenizer, "x", "rot ")[-1]
    assert tokenizer.encode("rot Hund")[len(ids)] in after_space
    assert prefix_symbols(tokenizer, "x", "") == ()
    assert Tokenizer.eos_id not in last


def test_a_prefix_longer_than_the_model_is_refused(translator: Translator) -> None:
    with pytest.raises(UserError, match="the prefix of line 2 has more than 1023 tokens"):
        translator.translate(["a", "b"], 1, ["", "日本" * 1000])


def test_prefixes_are_as_many_as_the_lines(translator: Translator) -> None:
    with pytest.raises(UserError, match="line 2 has no prefix"):
        list(translator.translate_stream(["a", "b"], 1, ["x"]))
    with pytest.raises(UserError, match="more prefixes than lines"):
        list(translator.translate_stream(["a"], 1, ["x", "y"]))


@pytest.mark.parametrize(
    "changes", [{}, {"sample": True, "epsilon": 0.0}, {"beam": 4, "groups": 2}]
)
def test_token_log_probs_and_attention_are_the_scorers(
    model: Path, engine: NativeEngine, changes: dict[str, Any]
) -> None:
    """What was searched is what a forced decoding finds, token by token."""
    search = SearchConfig(**SHORT, **changes)
    sources = sources_of(engine, LINES)
    found = engine.search(sources, Request(search, 2, details=True))
    for source, hypotheses in zip(sources, found, strict=True):
        for hypothesis in hypotheses[:2]:
            assert hypothesis.token_log_probs is not None and hypothesis.attention is not None
            assert math.fsum(hypothesis.token_log_probs) == pytest.approx(
                hypothesis.log_prob, abs=1e-3
            )
            places = len(hypothesis.tokens) + hypothesis.finished
            assert len(hypothesis.token_log_probs) == len(hypothesis.attention) == places
            assert {len(row) for row in hypothesis.attention} == {len(source) + 1}
            maps = engine.model.attention_maps(
                torch.tensor([[*source, Tokenizer.eos_id]]),
                torch.tensor([[Tokenizer.bos_id, *hypothesis.tokens]]),
            )
            expected = torch.stack(maps.cross).mean(dim=(0, 2))[0, :places]
            assert torch.allclose(torch.tensor(hypothesis.attention), expected, atol=1e-5)
    plain = engine.search(sources, Request(search, 2))
    assert [[h.tokens for h in one] for one in plain] == [[h.tokens for h in one] for one in found]


def test_the_coverage_penalty_by_its_formula(engine: NativeEngine) -> None:
    beta = 0.4
    sources = sources_of(engine, LINES)
    plain = engine.search(sources, Request(SearchConfig(**SHORT), 4, details=True))
    covered = engine.search(sources, Request(SearchConfig(**SHORT, coverage_penalty=beta), 1))
    for source, before, after in zip(sources, plain, covered, strict=True):
        expected = {}
        for hypothesis in before:
            assert hypothesis.attention is not None
            sums = [sum(row[i] for row in hypothesis.attention) for i in range(len(source))]
            penalty = sum(math.log(min(total, 1.0)) for total in sums)
            expected[tuple(hypothesis.tokens)] = hypothesis.score + beta * penalty
        assert [h.score for h in after] == pytest.approx(
            sorted(expected.values(), reverse=True), abs=1e-4
        )
        assert after[0].score == pytest.approx(expected[tuple(after[0].tokens)], abs=1e-4)


def test_the_coverage_of_a_batch_is_that_of_its_pairs(engine: NativeEngine) -> None:
    sources = sources_of(engine, LINES)
    targets = sources_of(engine, ["rot Katze sieht", "Vogel", "x"])
    together = Forced([engine.model], sources, targets).coverage()
    alone = [
        Forced([engine.model], [source], [target]).coverage()[0]
        for source, target in zip(sources, targets, strict=True)
    ]
    assert together == pytest.approx(alone, abs=1e-4)


def test_samples_do_not_depend_on_the_batch(engine: NativeEngine) -> None:
    def drawn(search: SearchConfig, lines: list[str]) -> list[list[str]]:
        found = Translator(engine, search).translate(lines, 3)
        return [[candidate.text for candidate in one.candidates] for one in found]

    search = SearchConfig(**SHORT, sample=True, seed=4)
    together = drawn(search, LINES)
    assert together == [drawn(search, [line])[0] for line in LINES]
    assert together == drawn(search.model_copy(update={"batch_tokens": 16}), LINES)[:3]
    assert together == drawn(search, LINES[::-1])[::-1]
    assert together != drawn(search.model_copy(update={"seed": 5}), LINES)
    assert [len(texts) for texts in together] == [3, 3, 3]


def test_a_length_ratio_is_kept(engine: NativeEngine) -> None:
    sources = sources_of(engine, LINES)
    search = SearchConfig(min_length_ratio=0.8, max_length_ratio=1.2)
    for source, found in zip(sources, engine.search(sources, Request(search)), strict=True):
        for hypothesis in found:
            assert math.ceil(0.8 * len(source)) <= len(hypothesis.tokens)
            assert len(hypothesis.tokens) <= math.ceil(1.2 * len(source))


def test_an_explanation_is_of_the_line(translator: Translator) -> None:
    found = translator.translate(LINES, explain=True)
    alone = translator.translate([LINES[1]], explain=True)[0]
    readable = [
        [[e.tokens for e in step.extensions if e.kept] for step in one.traces[0].steps]
        for one in (found[1], alone)
    ]
    assert readable[0] == readable[1]
    assert [one.text for one in found] == [one.text for one in translator.translate(LINES)]
    header, *rows = found[0].traces[0].render()
    assert header.split()[:3] == ["step", "log", "prob"]
    assert {row.split()[1] for row in rows} <= {"kept", "pruned", "finished", "dropped"}
    with pytest.raises(UserError, match="a sample has no search"):
        Translator(translator.engine, SearchConfig(sample=True)).translate(["a"], explain=True)


def test_translate_explains_and_begins(
    model: Path, tmp_path: Path, dragoman: Callable[..., Any]
) -> None:
    command = ["translate", "--model", model, "--engine", "native", "--text", "the red cat"]
    (tmp_path / "prefixes").write_text("rot\n", "utf-8")
    begun = dragoman(*command, "--prefix", tmp_path / "prefixes")
    assert begun.status == 0 and begun.lines[0].startswith("rot")
    table = dragoman(*command, "--explain-search")
    assert table.status == 0
    plain = dragoman(*command)
    assert table.lines[0] == plain.lines[0]
    assert any(" pruned " in line for line in table.lines)
    done = dragoman(*command, "--explain-search", "--json", "--n-best", "2")
    (record,) = map(json.loads, done.lines)
    assert record["search"][0][0]["step"] == 1
    best = record["candidates"][0]
    assert sum(best["token_log_probs"]) == pytest.approx(best["log_prob"], abs=1e-3)
    assert len(best["attention"][0]) == len(record["source_tokens"]) + 1
    for candidate in record["candidates"]:
        ends = candidate["tokens"].count("</s>")
        assert ends == (candidate["tokens"][-1] == "</s>")
        assert len(candidate["tokens"]) == len(candidate["token_log_probs"])
        assert len(candidate["tokens"]) == len(candidate["attention"])
    wrong = dragoman(*command, "--set", "search.top_q=1")
    assert wrong.status == 2 and "error: unknown setting 'search.top_q'" in wrong.err


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--explain-search"], "--explain-search"),
        (["--set", "search.sample=true"], "sample"),
        (["--mbr", "4"], "mbr_samples"),
    ],
)
def test_that_the_native_engine_takes_over_is_said_once(
    model: Path, dragoman: Callable[..., Any], options: list[str], reason: str
) -> None:
    command = ["translate", "--model", model, "--text", "the red cat", "--device", "cpu", *options]
    said = dragoman(*command).err
    assert said.count("the native engine is used") == 1
    assert f"the native engine is used: {reason}\n" in said
    assert "native engine" not in dragoman(*command, "--engine", "native").err


def test_several_models_and_a_prefix_say_so_too(
    model: Path, tmp_path: Path, dragoman: Callable[..., Any]
) -> None:
    (tmp_path / "prefixes").write_text("rot\n", "utf-8")
    command = ["translate", "--model", model, "--text", "the red cat"]
    begun = dragoman(*command, "--prefix", tmp_path / "prefixes").err
    assert begun.count("the native engine is used") == begun.count("used: --prefix\n") == 1
    both = dragoman(*command, "--model", model).err
    assert both.count("the native engine is used") == both.count("used: several models\n") == 1


def test_score_as_json(model: Path, tmp_path: Path, dragoman: Callable[..., Any]) -> None:
    for name, lines in (("en", LINES), ("de", ["rot Katze", "Vogel", ""])):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines), "utf-8")
    command = ["score", "--model", model, "--source", tmp_path / "en", "--target", tmp_path / "de"]
    done = dragoman(*command, "--json", "--attention")
    assert done.status == 0
    records = [json.loads(line) for line in done.lines]
    expected = Scorer.load(model).score(LINES[:2], ["rot Katze", "Vogel"], attention=True)
    for record, score in zip(records, expected, strict=False):
        assert record["tokens"] == score.tokens and record["tokens"][-1] == "</s>"
        assert record["token_log_probs"] == pytest.approx(score.token_log_probs, abs=1e-4)
        assert sum(record["token_log_probs"]) == pytest.approx(record["log_prob"], abs=1e-4)
        assert len(record["attention"]) == len(record["tokens"])
        assert all(len(row) == len(record["source_tokens"]) for row in record["attention"])
    plain = dragoman(*command)
    assert [line.split("\t")[1] for line in plain.lines] == [
        f"{record['log_prob']:.4f}" for record in records
    ]
    assert dragoman(*command, "--attention").status == 2
