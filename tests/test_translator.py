"""Text in, text out: with a small model that has learned an invented language of twenty words."""

import asyncio
import itertools
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.config import Config, DataConfig, ModelConfig, SearchConfig, TrainingConfig
from dragoman.corpus.batches import Batch
from dragoman.corpus.tokenizer import Tokenizer
from dragoman.decoding import translator as translator_module
from dragoman.decoding.hypothesis import Hypothesis, length_penalty
from dragoman.decoding.native import NativeEngine
from dragoman.decoding.scorer import Scorer
from dragoman.decoding.step import pad_rows
from dragoman.decoding.translator import Translator
from dragoman.errors import UserError
from dragoman.model.folder import LoadedModel
from dragoman.model.transformer import Transformer
from dragoman.training.objective import batch_loss
from dragoman.training.optimizer import make_optimizer

WORDS = [a + b for a in ("ba", "ke", "mi", "no", "tu") for b in ("ra", "so", "li", "pe")]
MAX_TOKENS = 24


def translate_word(word: str) -> str:
    return word[2:] + word[:2]


def sentences(count: int, seed: int) -> list[str]:
    chance = random.Random(seed)
    made = []
    for _ in range(count):
        words = [chance.choice(WORDS) for _ in range(chance.randint(1, 6))]
        if chance.random() < 0.3:
            words.insert(chance.randint(0, len(words)), chance.choice(["{name}", "%s", "{count}"]))
        made.append(" ".join(words))
    return made


def make_batch(tokenizer: Tokenizer, lines: list[str]) -> Batch:
    target = [" ".join(w if w[0] in "{%" else translate_word(w) for w in x.split()) for x in lines]
    pairs = [tokenizer.encode_pair(*pair) for pair in zip(lines, target, strict=True)]
    bos, eos = Tokenizer.bos_id, Tokenizer.eos_id
    rows = (
        [[*s, eos] for s, _ in pairs],
        [[bos, *t] for _, t in pairs],
        [[*t, eos] for _, t in pairs],
    )
    source, target_in, target_out = (pad_rows(part).numpy() for part in rows)
    return Batch(source, target_in, target_out, np.arange(len(lines)))


@pytest.fixture(scope="module")
def loaded() -> LoadedModel:
    """Trained for a few seconds: mostly right, and never sure of itself."""
    torch.manual_seed(1)
    lines = sentences(1000, seed=1)
    texts = itertools.chain(lines, map(translate_word, WORDS * 20))
    tokenizer = Tokenizer.train(texts, 340)
    sizes: dict[str, Any] = {"d_model": 48, "d_ff": 96, "heads": 4, "max_positions": 48}
    config = Config(
        source_language="en",
        target_language="de",
        model=ModelConfig(**sizes, encoder_layers=1, decoder_layers=1, dropout=0.0),
        data=DataConfig(max_tokens=MAX_TOKENS),
        training=TrainingConfig(),
    )
    model = Transformer(config.model, tokenizer.vocabulary_size)
    optimizer = make_optimizer(model, config.training)
    for step in range(120):
        batch = make_batch(tokenizer, lines[step % 20 * 50 : step % 20 * 50 + 50])
        for group in optimizer.param_groups:
            group["lr"] = 5e-3 * min(1, (step + 1) / 20)
        loss = batch_loss(model, batch, 0.1)
        (loss.smoothed / loss.tokens).backward()
        optimizer.step()
        optimizer.zero_grad()
    return LoadedModel(config, tokenizer, model.eval())


@pytest.fixture(scope="module")
def translator(loaded: LoadedModel) -> Translator:
    return Translator(NativeEngine(loaded))


LINES = sentences(64, seed=2)


def texts_of(translator: Translator, lines: list[str]) -> list[str]:
    return [translation.text for translation in translator.translate(lines)]


def test_the_search_reports_what_the_scorer_finds(
    loaded: LoadedModel, translator: Translator
) -> None:
    """For every candidate whose text is cut into the subwords that the search chose."""
    scorer = Scorer(loaded)
    pairs = [
        (line, candidate)
        for line, translation in zip(LINES, translator.translate(LINES, n_best=4), strict=True)
        for candidate in translation.candidates
    ]
    scores = scorer.score([line for line, _ in pairs], [c.text for _, c in pairs])
    compared = 0
    for (_, candidate), score in zip(pairs, scores, strict=True):
        assert score.log_prob == pytest.approx(sum(score.token_log_probs))
        assert score.score == pytest.approx(
            score.log_prob / length_penalty(len(score.token_log_probs), 0.6)
        )
        assert len(score.tokens) == len(score.token_log_probs)
        if [*candidate.tokens, "</s>"] == score.tokens:
            assert candidate.log_prob == pytest.approx(score.log_prob, abs=1e-3)
            assert candidate.score == pytest.approx(score.score, abs=1e-3)
            compared += 1
    assert compared > 0.5 * len(pairs)


def test_scores_do_not_depend_on_the_batch(loaded: LoadedModel) -> None:
    scorer = Scorer(loaded)
    targets = [" ".join(map(translate_word, WORDS[n % 20 : n % 20 + 3])) for n in range(len(LINES))]
    together = scorer.score(LINES, targets)
    for line, target, score in zip(LINES, targets, together, strict=True):
        (alone,) = scorer.score([line], [target])
        assert alone.tokens == score.tokens
        assert alone.log_prob == pytest.approx(score.log_prob, abs=1e-3)


def test_scoring_the_odd_and_the_too_long(loaded: LoadedModel) -> None:
    scorer = Scorer(loaded)
    for score in scorer.score(["", "bara", "  "], ["", "", "\u2028 z\u0000"]):
        assert score.log_prob < 0 and score.log_prob > -1000
    assert scorer.score([], []) == []
    with pytest.raises(UserError, match="pair 2,049 has more than 47 tokens"):
        scorer.score(["x", "bara " * 60], ["y", "arab"], first=2048)
    with pytest.raises(UserError, match="pair 2 has more than 47 tokens"):
        scorer.score(["bara", "bara"], ["raba", "raba " * 60])


@pytest.mark.parametrize("beam", [1, 4])
@pytest.mark.parametrize("size", [1, 7, 64])
def test_the_text_does_not_depend_on_the_batch(loaded: LoadedModel, size: int, beam: int) -> None:
    """In float32 the same text, whatever else is translated at once."""
    translator = Translator(NativeEngine(loaded), SearchConfig(beam=beam))
    expected = translator.translate(LINES)
    chunks = (LINES[start : start + size] for start in range(0, len(LINES), size))
    found = [one for chunk in chunks for one in translator.translate(chunk)]
    assert [one.text for one in found] == [one.text for one in expected]
    assert [one.score for one in found] == pytest.approx([o.score for o in expected], abs=1e-4)


def test_the_token_budget_changes_no_text(loaded: LoadedModel, translator: Translator) -> None:
    tight = Translator(NativeEngine(loaded), SearchConfig(batch_tokens=16))
    assert texts_of(tight, LINES) == texts_of(translator, LINES)


def test_the_order_of_the_lines_does_not_matter(translator: Translator) -> None:
    order = list(range(len(LINES)))
    random.Random(3).shuffle(order)
    shuffled = texts_of(translator, [LINES[place] for place in order])
    expected = texts_of(translator, LINES)
    assert shuffled == [expected[place] for place in order]


def test_the_same_again_gives_the_same(translator: Translator) -> None:
    assert translator.translate(LINES, n_best=3) == translator.translate(LINES, n_best=3)
    twice = translator.translate([LINES[0], LINES[1], LINES[0]])
    assert twice[0] == twice[2]


def test_it_has_learned_something(translator: Translator) -> None:
    expected = [
        " ".join(w if w[0] in "{%" else translate_word(w) for w in line.split()) for line in LINES
    ]
    found = texts_of(translator, LINES)
    right = sum(a == b for a, b in zip(found, expected, strict=True))
    assert right > len(LINES) / 3


BLANK = ["", " ", "\t \u00a0", "\u2028", "\u0085\u000b\u000c", "\r", "\u3000"]


@pytest.mark.parametrize("blank", BLANK)
def test_blank_lines_stay_as_they_are(translator: Translator, blank: str) -> None:
    found = translator.translate(["bara", blank, "keso"])
    assert found[1].text == blank and found[1].warnings == []
    assert [found[0].text, found[2].text] == texts_of(translator, ["bara", "keso"])
    assert translator.translate([blank])[0].text == blank


@settings(deadline=None, max_examples=15)
@given(
    before=st.text(st.sampled_from(" \t\u00a0\u2028\u3000\r"), max_size=4),
    after=st.text(st.sampled_from(" \t\u00a0\u2028\u3000\r"), max_size=4),
)
def test_white_space_around_a_line_is_kept(translator: Translator, before: str, after: str) -> None:
    (bare, dressed) = texts_of(translator, ["bara keso", f"{before}bara keso{after}"])
    assert dressed == before + bare + after


@settings(deadline=None, max_examples=30)
@given(lines=st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=30), max_size=4))
def test_a_line_in_is_a_line_out(translator: Translator, lines: list[str]) -> None:
    assert len(translator.translate(lines)) == len(lines)


def test_a_long_line_is_split_and_says_so(loaded: LoadedModel, translator: Translator) -> None:
    sentence = " ".join(WORDS[:5]).capitalize() + "."
    parts = [sentence] * 6
    (found,) = translator.translate([" ".join(parts)])
    (split_warning,) = [warning for warning in found.warnings if "split into" in warning]
    assert f"longer than {MAX_TOKENS} tokens" in split_warning
    # Each piece is translated as it would be alone.
    pieces = int(split_warning.split()[2])
    assert pieces > 1 and 6 % pieces == 0
    piece = " ".join(parts[: 6 // pieces])
    alone = texts_of(translator, [piece])[0]
    assert found.text == " ".join([alone.strip()] * pieces)
    assert found.score == pytest.approx(
        pieces * translator.translate([piece])[0].score, rel=1e-3, abs=1e-3
    )
    chinese = loaded.config.model_copy(update={"target_language": "zh-Hans"})
    (joined,) = Translator(
        NativeEngine(LoadedModel(chinese, loaded.tokenizer, loaded.model))
    ).translate([" ".join(parts)])
    assert joined.text == alone.strip() * pieces


def test_a_word_longer_than_the_model_is_cut_not_refused(translator: Translator) -> None:
    for line in ("x" * 500, "\u0e01" * 300, "{name}x" * 100, "\U0001f600" * 99 + "x"):
        (found,) = translator.translate([line])
        assert any("split into" in warning for warning in found.warnings)


def test_the_longest_line_that_fits_is_not_split(translator: Translator) -> None:
    words = list(itertools.takewhile(lambda n: count_tokens(translator, n), range(1, 30)))
    (found,) = translator.translate([" ".join(["bara"] * words[-1])])
    assert not any("split into" in warning for warning in found.warnings)
    (found,) = translator.translate([" ".join(["bara"] * (words[-1] + 1))])
    assert any("split into" in warning for warning in found.warnings)


def count_tokens(translator: Translator, words: int) -> bool:
    ids, _ = translator.tokenizer.encode_source(" ".join(["bara"] * words))
    return len(ids) <= MAX_TOKENS  # as in training: end-of-sentence is not counted


def test_n_best_lists(translator: Translator) -> None:
    single = translator.translate(LINES)
    several = translator.translate(LINES, n_best=4)
    many = translator.translate(LINES[:5], n_best=20)
    for one, four in zip(single, several, strict=True):
        assert len(one.candidates) == 1 and 1 <= len(four.candidates) <= 4
        assert four.text == four.candidates[0].text == one.text
        assert four.score == pytest.approx(one.score, abs=1e-4)
    for translation in [*several, *many]:
        scores = [candidate.score for candidate in translation.candidates]
        assert scores == sorted(scores, reverse=True) and len(scores) <= 20
        tokens = [tuple(candidate.tokens) for candidate in translation.candidates]
        assert len(set(tokens)) == len(tokens)


def test_more_results_than_there_are(loaded: LoadedModel) -> None:
    """With room for one token there are no more translations than symbols."""
    tight = Translator(NativeEngine(loaded), SearchConfig(max_extra_tokens=0))
    (found,) = tight.translate(["\u0000"], n_best=1000)
    assert 1 <= len(found.candidates) <= 1000
    assert max(len(candidate.tokens) for candidate in found.candidates) <= 3


@pytest.mark.parametrize("extra", [0, 3, 10_000])
def test_output_that_never_ends_is_stopped(loaded: LoadedModel, extra: int) -> None:
    """An untrained model that hardly ever chooses to end, against the limit and the positions."""
    torch.manual_seed(4)
    config = loaded.config
    model = Transformer(config.model, loaded.tokenizer.vocabulary_size).eval()
    with torch.no_grad():
        model.decoder_norm.bias[0] = 30.0
        model.embedding.weight[Tokenizer.eos_id, 0] = -1.0
    search = SearchConfig(max_extra_tokens=extra, length_penalty=10.0)
    translator = Translator(NativeEngine(LoadedModel(config, loaded.tokenizer, model)), search)
    lines = ["bara", "bara keso mili"]
    for line, found in zip(lines, translator.translate(lines), strict=True):
        ids, _ = loaded.tokenizer.encode_source(line)
        tokens = len(found.candidates[0].tokens)
        assert tokens <= min(len(ids) + 1 + extra, config.model.max_positions - 1)


def test_a_stream_is_translated_as_it_comes(
    translator: Translator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(translator_module, "_WINDOW", 5)
    read = 0

    def endless() -> Iterator[str]:
        nonlocal read
        for line in itertools.cycle(LINES):
            read += 1
            yield line

    found = list(itertools.islice(translator.translate_stream(endless()), 12))
    assert read <= 15
    assert [translation.text for translation in found] == texts_of(translator, LINES[:12])
    assert list(translator.translate_stream([])) == []


def test_a_lost_placeholder_is_said(translator: Translator) -> None:
    lines = [line for line in LINES if "{" in line or "%" in line]
    assert len(lines) > 10
    for line, translation in zip(lines, translator.translate(lines), strict=True):
        (span,) = [word for word in line.split() if word[0] in "{%"]
        lost = any(warning.startswith("lost") for warning in translation.warnings)
        assert lost == (span not in translation.text)


def test_a_candidate_that_keeps_the_placeholder_comes_first(
    translator: Translator, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids, spans = translator.tokenizer.encode_source("kera {name}")
    assert spans == ["{name}"]
    without = Hypothesis(translator.tokenizer.encode("rake"), -1.0, -0.5)
    kept = Hypothesis(ids, -2.0, -1.0)
    found_by_search = [without, kept]
    monkeypatch.setattr(
        translator.engine,
        "search_each",
        lambda sources, _: ((number, found_by_search) for number in range(len(sources))),
    )
    (found,) = translator.translate(["kera {name}"])
    assert "{name}" in found.text
    assert found.warnings == []
    found_by_search = [without]
    (found,) = translator.translate(["kera {name}"])
    assert found.warnings == ["lost: {name}"]


def test_a_stream_of_an_event_loop(translator: Translator) -> None:
    async def run() -> list[str]:
        return [translation.text async for translation in translator.stream(LINES[:6])]

    assert asyncio.run(run()) == texts_of(translator, LINES[:6])


def test_details_link_the_words(translator: Translator) -> None:
    (plain,) = translator.translate(["bara keso mili"])
    (found,) = translator.translate(["bara keso mili"], details=True)
    assert plain.alignment is None and found.text == plain.text
    assert found.tokens == plain.tokens
    assert found.alignment is not None
    assert [link.target for link in found.alignment] == found.text.split()
    assert {link.source for link in found.alignment} <= {"bara", "keso", "mili"}
    assert [link.target_place for link in found.alignment] == list(range(len(found.text.split())))
