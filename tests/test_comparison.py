import html
import json
import random
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.errors import UserError
from dragoman.evaluation.comet import comet_scores
from dragoman.evaluation.comparison import Comparison, System, compare
from dragoman.evaluation.metrics import evaluate_corpus
from dragoman.evaluation.page import MOST_SENTENCES, differences, most_different, write_page
from dragoman.evaluation.placeholders import Survival
from dragoman.evaluation.table import render

WORDS = "der die das Hund Katze Haus sieht läuft klein groß alt neu und oder nicht heute".split()


def corpus(count: int, seed: int) -> tuple[list[str], list[str], list[str]]:
    """References, and two systems that get one word in 5 and one in 3 wrong."""
    chance = random.Random(seed)
    references = [" ".join(chance.choices(WORDS, k=chance.randint(3, 14))) for _ in range(count)]

    def worse(share: float) -> list[str]:
        return [
            " ".join("x" if chance.random() < share else word for word in line.split())
            for line in references
        ]

    return references, worse(0.2), worse(0.33)


REFERENCES, BETTER, WORSE = corpus(60, seed=1)
SYSTEMS = [System("worse", WORSE), System("better", BETTER)]


@pytest.fixture(scope="module")
def comparison() -> Comparison:
    return compare(SYSTEMS, [REFERENCES], "de", samples=200)


@pytest.mark.parametrize("language", ["de", "zh"])
@pytest.mark.parametrize("references", [[REFERENCES], [REFERENCES, BETTER[::-1]]])
def test_intervals_and_p_values_are_those_of_sacrebleu(
    references: list[list[str]], language: str
) -> None:
    from sacrebleu.metrics import BLEU, CHRF, TER
    from sacrebleu.significance import PairedTest

    chinese = language == "zh"
    metrics = {
        "BLEU": BLEU(tokenize="zh" if chinese else "13a", force=True),
        "chrF2": CHRF(),
        "TER": TER(normalized=chinese, asian_support=chinese),
    }
    named = [(system.name, list(system.translations)) for system in SYSTEMS]
    signatures, theirs = PairedTest(named, metrics, references, "bs", n_samples=200)()
    ours = compare(SYSTEMS, references, language, samples=200)
    for name in metrics:
        assert ours.signatures[name] == str(signatures[name])
        for system, result in zip(ours.systems, theirs[name], strict=True):
            score = system.scores[name]
            assert score.value == pytest.approx(result.score, abs=1e-4)
            assert score.mean == pytest.approx(result.mean, abs=1e-3)
            assert score.margin == pytest.approx(result.ci, abs=1e-3)
            assert score.p_value == (
                None if result.p_value is None else pytest.approx(result.p_value, abs=0.006)
            )


def test_one_system_scores_as_the_simple_function_says(comparison: Comparison) -> None:
    metrics = evaluate_corpus(BETTER, REFERENCES, "de")
    scores = comparison.systems[1].scores
    assert scores["BLEU"].value == pytest.approx(metrics.bleu)
    assert scores["chrF2"].value == pytest.approx(metrics.chrf)
    assert scores["BLEU"].low < scores["BLEU"].value < scores["BLEU"].high
    assert scores["TER"].value < comparison.baseline.scores["TER"].value
    assert scores["BLEU"].p_value < 0.05
    assert comparison.baseline.scores["BLEU"].p_value is None


def test_sentence_scores_are_those_of_sacrebleu(comparison: Comparison) -> None:
    from sacrebleu.metrics import CHRF

    metric = CHRF()
    for system, result in zip(SYSTEMS, comparison.systems, strict=True):
        expected = [
            metric.sentence_score(line, [reference]).score
            for line, reference in zip(system.translations, REFERENCES, strict=True)
        ]
        assert result.sentence_chrf == pytest.approx(expected)


def test_scores_by_length_are_scores_of_those_sentences(comparison: Comparison) -> None:
    assert comparison.unit == "reference words"
    assert sum(bucket.sentences for bucket in comparison.buckets) == 60
    assert [bucket.label for bucket in comparison.buckets] == ["0-5", "6-10", "11-20"]
    for rank, bucket in enumerate(comparison.buckets):
        rows = [
            number
            for number, line in enumerate(REFERENCES)
            if bucket.first <= len(line.split()) <= (bucket.last or 99)
        ]
        assert len(rows) == bucket.sentences
        alone = evaluate_corpus([WORSE[n] for n in rows], [REFERENCES[n] for n in rows], "de")
        assert comparison.baseline.by_length["BLEU"][rank] == pytest.approx(alone.bleu)
        assert comparison.baseline.by_length["chrF2"][rank] == pytest.approx(alone.chrf)


def test_lengths_are_characters_where_words_have_no_spaces() -> None:
    lines = ["猫看见狗。", "狗看见房子，" * 3, ""]
    found = compare([System("a", lines)], [lines], "en", (lines, "zh-Hans"), samples=0)
    assert found.unit == "source characters"
    assert [(b.label, b.sentences) for b in found.buckets] == [("0-10", 2), ("11-20", 1)]
    assert (
        compare([System("a", lines)], [lines], "zh", samples=0).signatures["TER"].find("asian:yes")
    )


def test_further_metrics_of_sentences_are_resampled_as_well() -> None:
    scores = {"COMET": [[0.5, 0.7], [0.9, 0.9]]}
    lines = ["a b", "c d"]
    systems = [System("one", lines), System("two", lines)]
    found = compare(systems, [lines], "de", samples=50, segment_scores=scores)
    first, second = (system.scores["COMET"] for system in found.systems)
    assert (first.value, second.value) == (pytest.approx(0.6), pytest.approx(0.9))
    assert 0.5 <= first.low <= first.high <= 0.7
    assert "COMET" not in found.signatures
    assert "0.6000 ± " in render(found, {})


@pytest.mark.parametrize(
    ("systems", "references", "message"),
    [
        ([], [["a"]], "nothing to score"),
        ([("a", [])], [[]], "nothing to score"),
        ([("a", ["x"])], [["x", "y"]], "a: 1 translations but 2 references"),
        ([("a", ["x"])], [["x"], []], "reference 2 has 0 lines, the first 1"),
        ([("a", ["x"]), ("a", ["y"])], [["x"]], "two systems are called 'a'"),
    ],
)
def test_what_cannot_be_compared_is_said(
    systems: list[tuple[str, list[str]]], references: list[list[str]], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        compare([System(*system) for system in systems], references, "de")


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.tuples(*[st.text(max_size=15)] * 3), min_size=1, max_size=4),
    st.sampled_from(["de", "zh", "th"]),
)
def test_any_text_goes_into_the_table_and_the_page(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str, str]], language: str
) -> None:
    references, first, second = (list(column) for column in zip(*rows, strict=True))
    systems = [System("one", first), System("two \x1b[2J<b>", second)]
    found = compare(systems, [references], language, samples=5)
    shown = render(found, {})
    assert "\x1b" not in shown
    json.dumps(found.to_json())
    path = tmp_path_factory.mktemp("pages") / "page.html"
    write_page(path, found, systems, [references], None, {})
    content = path.read_text("utf-8")
    assert content.count("<script>") == content.count("</script>") <= 1
    assert "<b>" not in content


def test_the_table_fits_a_terminal(comparison: Comparison) -> None:
    long_name = System("a system with a very long name that goes on and on and on", BETTER)
    found = compare([*SYSTEMS, long_name, System("猫" * 40, WORSE)], [REFERENCES], "de", samples=20)
    for table in (render(comparison, {}), render(found, {})):
        for line in table.splitlines():
            assert len(line) <= 80 or "version:" in line
    lines = render(comparison, {}).splitlines()
    assert lines[0] == "60 sentences, 1 reference; ± is half the 95% interval of 200 resamples"
    assert len({line.index("±") for line in lines[3:5] if "±" in line}) == 1
    assert "p = 0.005 *" in lines[5]


def test_the_most_different_sentences_come_first(comparison: Comparison) -> None:
    order = most_different(comparison)
    first, second = (system.sentence_chrf for system in comparison.systems)
    gaps = [abs(first[number] - second[number]) for number in order]
    assert gaps == sorted(gaps, reverse=True)
    assert gaps[-1] > 0
    alone = compare(SYSTEMS[:1], [REFERENCES], "de", samples=0)
    worst = most_different(alone)
    assert len(worst) == 60
    assert first[worst[0]] == min(first)


def test_words_that_differ_are_marked() -> None:
    assert differences("Der alte Hund", "Der junge Hund", False) == [
        ("Der ", False), ("alte", True), (" Hund", False),
    ]  # fmt: skip
    assert differences("猫看见狗", "猫看见人", True) == [("猫看见", False), ("狗", True)]
    assert differences("", "a", False) == []


def test_the_page_is_whole_and_asks_nothing_of_the_network(
    comparison: Comparison, tmp_path: Path
) -> None:
    sources = [f"<script>alert({n})</script> & \u202e {line}" for n, line in enumerate(REFERENCES)]
    path = tmp_path / "page.html"
    survivals = {"worse <b>": Survival(4, 3, 0.75), "without": Survival(0, 0, None)}
    write_page(path, comparison, SYSTEMS, [REFERENCES, BETTER], sources, survivals)
    content = path.read_text("utf-8")
    assert not re.search(r"(?:src|href)=|url\(|@import|https?://|fetch", content)
    assert "default-src 'none'" in content
    assert content.count("<script>") == 1
    assert "&lt;script&gt;alert(" in content
    assert "\u202e" not in content
    assert content.count("<svg") == content.count("</svg>") == 2
    shown = min(MOST_SENTENCES, len(most_different(comparison)))
    assert content.count("<article") == content.count("</article>") == shown
    assert f"{shown} of 60 differ in chrF2" in content
    assert html.escape(comparison.signatures["BLEU"]) in content
    kept = content.partition("Placeholders kept unchanged")[2].partition("</table>")[0]
    assert '<th scope="row">worse &lt;b&gt;</th><td>3 of 4 (75.0%)</td>' in kept
    assert "without" not in kept
    write_page(path, comparison, SYSTEMS, [REFERENCES], sources, {"a": Survival(0, 0, None)})
    assert "Placeholders kept" not in path.read_text("utf-8")


def test_a_page_of_long_texts_stays_small_and_says_what_it_shows(tmp_path: Path) -> None:
    lines = [f"{number} " + "<&猫 " * 2100 for number in range(210)]
    others = [line[: number + 5] for number, line in enumerate(lines)]
    systems = [System("a", lines), System("b", others)]
    scores = compare(
        [System("a", ["x y"] * 210), System("b", ["x z"] * 210)], [["x y"] * 210], "de", samples=0
    )
    path = tmp_path / "page.html"
    write_page(path, scores, systems, [lines], lines, {})
    assert path.stat().st_size < 3_000_000
    content = path.read_text("utf-8")
    assert 50 < content.count("<article") <= MOST_SENTENCES
    assert f'<span id="shown">{content.count("<article")}</span>' in content
    assert "210 of 210 differ" in content
    assert " … (cut)" in content


def test_comet_is_asked_once_it_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = tmp_path / "model.ckpt"
    with pytest.raises(UserError, match="no such file"):
        comet_scores(["s"], [["t"]], ["r"], checkpoint)
    checkpoint.write_bytes(b"")
    monkeypatch.setitem(sys.modules, "comet", None)
    with pytest.raises(UserError, match="COMET is not installed"):
        comet_scores(["s"], [["t"]], ["r"], checkpoint)
    asked: list[Any] = []

    def predict(rows: list[dict[str, str]], **_: Any) -> SimpleNamespace:
        asked.append(rows)
        return SimpleNamespace(scores=[0.5] * len(rows))

    module = ModuleType("comet")
    module.load_from_checkpoint = lambda path: SimpleNamespace(predict=predict)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "comet", module)
    assert comet_scores(["s"], [["t"], ["u"]], ["r"], checkpoint) == [[0.5], [0.5]]
    assert asked[1] == [{"src": "s", "mt": "u", "ref": "r"}]

    def refuse(path: str) -> None:
        raise OSError("offline")

    module.load_from_checkpoint = refuse  # type: ignore[attr-defined]
    with pytest.raises(UserError, match="cannot load it: offline"):
        comet_scores(["s"], [["t"]], ["r"], checkpoint)


Run = Callable[..., Any]


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    texts = {
        "ref.de": REFERENCES,
        "a.de": WORSE,
        "b.de": BETTER,
        "short.de": WORSE[:9],
        "none.de": [],
    }
    for name, lines in texts.items():
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines), "utf-8")
    return {name: tmp_path / name for name in texts}


def test_two_files_are_compared_by_the_command(
    dragoman: Run, files: dict[str, Path], tmp_path: Path
) -> None:
    page = tmp_path / "page.html"
    command = ["evaluate", "--hypotheses", f"old={files['a.de']}", "--hypotheses", files["b.de"],
               "--reference", files["ref.de"], "--bootstrap", "50"]  # fmt: skip
    result = dragoman(*command, "--html", page)
    assert (result.status, result.err) == (0, "")
    assert any(line.startswith("old ") for line in result.lines)
    assert "p: paired bootstrap against old; * is p < 0.05" in result.lines
    assert page.read_text("utf-8").count("<article") > 20
    record = json.loads(dragoman(*command, "--baseline", "b.de", "--json").out)
    assert [system["name"] for system in record["systems"]] == ["b.de", "old"]
    assert record["systems"][0]["scores"]["BLEU"]["p_value"] is None
    assert record["systems"][1]["scores"]["BLEU"]["p_value"] < 0.1
    assert len(record["systems"][1]["sentence_chrf"]) == record["sentences"] == 60
    assert (record["language"], record["samples"], record["seed"]) == ("de", 50, 12345)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--hypotheses {a} --hypotheses x={a}", "is given twice, as 'a.de' and 'x'"),
        ("--hypotheses x={a} --hypotheses x={b}", "two systems are called 'x'"),
        ("--hypotheses {short}", "short.de has 9 lines, the reference has 60"),
        ("--hypotheses {a} --reference {short}", "short.de has 9 lines, "),
        ("--hypotheses {a} --reference {ref}", "a reference given twice"),
        ("--hypotheses =x", "name or path is empty"),
        ("--hypotheses {a} --baseline y", "no system has that name"),
        ("--hypotheses {a} --hypotheses {b} --output x", "keeps one system's"),
        ("--hypotheses {a} --comet x", "reads the source as well"),
        ("--hypotheses none/x.de", "no such file"),
    ],
)
def test_a_mistake_is_named(
    dragoman: Run, files: dict[str, Path], arguments: str, message: str
) -> None:
    names = {name.partition(".")[0]: path for name, path in files.items()}
    words = [word.format_map(names) for word in arguments.split()]
    result = dragoman("evaluate", "--reference", files["ref.de"], *words)
    assert (result.status, result.out) == (2, b"")
    assert message in result.err.splitlines()[0]


def test_an_empty_reference_is_named(dragoman: Run, files: dict[str, Path]) -> None:
    none = files["none.de"]
    result = dragoman("evaluate", "--reference", none, "--hypotheses", none)
    assert (result.status, result.err.splitlines()[0]) == (2, f"error: {none}: is empty")


def test_a_line_too_long_for_ter_leaves_it_out_and_says_so() -> None:
    lines = ["a cat sleeps here", "word " * 2_000]
    comparison = compare([System("a", lines)], [lines], "en", samples=0)
    assert set(comparison.baseline.scores) == {"BLEU", "chrF2"}
    assert comparison.note == "TER is left out: a line has 10,000 characters"
    assert "note: TER is left out" in render(comparison, {})
