import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.errors import UserError
from dragoman.evaluation.metrics import evaluate_corpus
from dragoman.evaluation.placeholders import Survival, placeholder_survival

REFERENCES = [
    "Das Gerät konnte nicht erreicht werden.",
    "Bitte gib das Passwort für {host} ein.",
    "Das Licht im Wohnzimmer ist eingeschaltet.",
]
HYPOTHESES = [
    "Das Gerät kann nicht erreicht werden.",
    "Bitte gib das Passwort von {host} ein.",
    "Das Licht im Wohnzimmer ist aus.",
]


def test_perfect_translations_score_100() -> None:
    metrics = evaluate_corpus(REFERENCES, REFERENCES, "de")
    assert metrics.bleu == pytest.approx(100)
    assert metrics.chrf == pytest.approx(100)
    assert metrics.sentences == 3
    assert metrics.note == ""


def test_scores_are_those_of_sacrebleu() -> None:
    import sacrebleu

    metrics = evaluate_corpus(HYPOTHESES, REFERENCES, "de")
    assert metrics.bleu == sacrebleu.corpus_bleu(HYPOTHESES, [REFERENCES]).score
    assert metrics.chrf == sacrebleu.corpus_chrf(HYPOTHESES, [REFERENCES]).score
    assert 0 < metrics.bleu < 100
    assert "nc:6|nw:0" in metrics.chrf_signature
    assert f"version:{sacrebleu.__version__}" in metrics.bleu_signature


@pytest.mark.parametrize(
    ("language", "tokenizer"),
    [
        ("de", "13a"),
        ("pt_BR", "13a"),
        ("zh", "zh"),
        ("zh-Hans", "zh"),
        ("zh_CN", "zh"),
        ("ZH-hant", "zh"),
    ],
)
def test_the_language_picks_the_tokenizer(language: str, tokenizer: str) -> None:
    metrics = evaluate_corpus(["你好，世界！"], ["你好，世界！"], language)
    assert f"|tok:{tokenizer}|" in metrics.bleu_signature
    assert metrics.note == ""


def test_chinese_is_not_scored_as_one_word() -> None:
    reference, hypothesis = ["请输入密码然后按下提交按钮"], ["请输入密码然后按下确认按钮"]
    assert evaluate_corpus(hypothesis, reference, "zh-Hans").bleu > 40
    assert evaluate_corpus(hypothesis, reference, "de").bleu == 0


@pytest.mark.parametrize(("language", "module"), [("ja", "MeCab"), ("ko_KR", "mecab_ko")])
def test_without_its_library_characters_are_compared_and_that_is_said(
    language: str, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = language[:2]
    tokenizer = pytest.importorskip(f"sacrebleu.tokenizers.tokenizer_{code}_mecab")
    monkeypatch.setattr(tokenizer, "MeCab", None)
    metrics = evaluate_corpus(["ab cd ef"], ["ab cd ef"], language)
    assert "|tok:char|" in metrics.bleu_signature
    assert f"sacrebleu[{code}]" in metrics.note
    assert metrics.note in metrics.render()


def test_a_language_without_spaces_gets_a_note() -> None:
    assert "chrF" in evaluate_corpus(["สวัสดี"], ["สวัสดี"], "th").note


@pytest.mark.parametrize("language", ["de", "zh", "ja", "th"])
def test_a_line_break_counts_as_a_space(language: str) -> None:
    broken = [text.replace(" ", "\n", 2).replace("ein", "e-\r\nin") for text in HYPOTHESES]
    joined = [text.replace("ein", "e- in") for text in HYPOTHESES]
    assert evaluate_corpus(broken, REFERENCES, language) == evaluate_corpus(
        joined, REFERENCES, language
    )


def test_different_counts_are_an_error_that_names_both() -> None:
    with pytest.raises(UserError, match=r"2 translations but 3 references"):
        evaluate_corpus(HYPOTHESES[:2], REFERENCES, "de")


def test_nothing_to_score_is_an_error() -> None:
    with pytest.raises(UserError, match="nothing to score"):
        evaluate_corpus([], [], "de")


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.text(max_size=12), st.text(max_size=12)), min_size=1, max_size=4))
def test_any_text_can_be_scored(pairs: list[tuple[str, str]]) -> None:
    hypotheses, references = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    for language in ("de", "zh"):
        metrics = evaluate_corpus(hypotheses, references, language)
        assert 0 <= metrics.bleu <= 100.0001
        assert 0 <= metrics.chrf <= 100.0001


def test_metrics_go_through_json_and_to_the_terminal() -> None:
    metrics = evaluate_corpus(HYPOTHESES, REFERENCES, "de")
    assert json.loads(json.dumps(metrics.to_json()))["bleu"] == metrics.bleu
    shown = metrics.render()
    assert f"{metrics.bleu:.2f}" in shown
    assert metrics.chrf_signature in shown
    assert "3 sentences" in shown


def test_placeholders_are_counted_exactly() -> None:
    sources = ["{name} at {host}", "%s of %s", "no placeholder", "{a} and {b}"]
    references = ["{name} bei {host}", "%s von %s", "keiner", "{a} und {b}"]
    hypotheses = ["{name} bei {Host}", "%s", "{new}", "{b} und {a}"]
    assert placeholder_survival(sources, references, hypotheses) == Survival(6, 4, 4 / 6)


def test_a_placeholder_that_the_reference_drops_is_not_asked_for() -> None:
    sources, references, hypotheses = ["{count} of {total}"], ["{count}"], ["alles"]
    assert placeholder_survival(sources, references, hypotheses) == Survival(1, 0, 0.0)
    assert placeholder_survival(sources, None, hypotheses).total == 2


def test_tags_and_addresses_are_no_placeholders() -> None:
    text = ['<a href="x">{link}</a> https://example.org a@example.org &amp;']
    assert placeholder_survival(text, text, text) == Survival(1, 1, 1.0)


def test_without_placeholders_there_is_no_share() -> None:
    assert placeholder_survival(["a"], ["b"], ["{c}"]) == Survival(0, 0, None)


def test_placeholder_counts_of_segments_must_agree() -> None:
    with pytest.raises(UserError, match="2 source segments, 2 references and 1 translations"):
        placeholder_survival(["a", "b"], ["a", "b"], ["a"])


NAMES = st.lists(st.sampled_from(["{a}", "{b_c}", "%s", "%1$d", "${x}"]), max_size=6)


@given(NAMES, st.permutations(range(6)))
def test_order_does_not_matter_and_copies_do(spans: list[str], order: list[int]) -> None:
    source = [" and ".join(spans)]
    shuffled = [" und ".join(spans[index] for index in order if index < len(spans))]
    assert placeholder_survival(source, source, shuffled).kept == len(spans)
    if spans:
        shorter = [" und ".join(spans[1:])]
        assert placeholder_survival(source, source, shorter).kept == len(spans) - 1
