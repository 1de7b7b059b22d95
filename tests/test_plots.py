import itertools
import json
import math
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dragoman.errors import UserError
from dragoman.inspection import plots
from dragoman.inspection.labels import choose_lettering, token_labels
from dragoman.inspection.plots import attention_png, curve_png
from dragoman.inspection.training_log import read_training_log
from dragoman.text.protect import SLOTS

pytest.importorskip("matplotlib")


@pytest.fixture(autouse=True)
def _warnings_are_errors() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    drawn: list[Any] = []
    save = plots._save

    def keep(figure: Any, path: Path) -> None:
        drawn.append(figure)
        save(figure, path)

    monkeypatch.setattr(plots, "_save", keep)
    return drawn


@pytest.fixture
def only_bundled_fonts(monkeypatch: pytest.MonkeyPatch) -> None:
    from matplotlib import font_manager

    bundled = [
        font for font in font_manager.fontManager.ttflist if font.name.startswith("DejaVu Sans")
    ]
    monkeypatch.setattr(font_manager.fontManager, "ttflist", bundled)
    monkeypatch.setattr(font_manager, "findSystemFonts", lambda: [])


def test_a_font_installed_since_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    from matplotlib import font_manager

    path = font_manager.findfont("DejaVu Sans")
    monkeypatch.setattr(font_manager.fontManager, "ttflist", [])
    monkeypatch.setattr(font_manager, "findSystemFonts", lambda: [__file__, path])
    lettering = choose_lettering(["Ünïcödé"])
    assert (lettering.families, lettering.missing) == (("DejaVu Sans",), frozenset())


def some_weights(heads: int, rows: int, columns: int) -> np.ndarray:
    weights = np.random.default_rng(0).random((heads, rows, columns)) ** 4
    return weights / weights.sum(axis=-1, keepdims=True)


def is_png(path: Path) -> bool:
    return path.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")


@pytest.mark.parametrize(
    ("pieces", "labels"),
    [
        (["▁The", "re", "▁"], ["␣\u200aThe", "re", "␣"]),
        (["\n", "a\nb", "\t"], ["⏎", "a⏎b", "⇥"]),
        ([SLOTS[0], f"▁{SLOTS[15]}"], ["⟨1⟩", "␣\u200a⟨16⟩"]),
        (["<0xC3>", "<0x9F>", "x"], ["ß 1/2", "ß 2/2", "x"]),
        (["<0x0A>", "<0x41>"], ["⏎", "A"]),
        (["\\n", "\\n\\n", "\\new"], ["⏎", "⏎⏎", "\\new"]),
        (["<0xE4>", "<0xC3>", "<0x9F>", "<0xE9>"], ["xE4", "ß 1/2", "ß 2/2", "xE9"]),
        (["\u00a0", "\u200d", "\x00", "\u0301"], ["U+00A0", "U+200D", "␀", "◌\u0301"]),
        (["", "</s>", "$x$", "{n}"], ["∅", "</s>", "$x$", "{n}"]),
        (["中" * 30], ["中" * 9 + "…"]),
    ],
)
def test_labels_are_readable(pieces: list[str], labels: list[str]) -> None:
    assert token_labels(pieces) == labels


def test_the_bytes_of_a_slot_or_space_mark_are_neither() -> None:
    pieces = [f"<0x{byte:02X}>" for byte in SLOTS[0].encode()]
    assert token_labels(pieces) == [f"U+F0000 {part}/4" for part in (1, 2, 3, 4)]
    pieces = [f"<0x{byte:02X}>" for byte in "▁".encode()]
    assert token_labels(pieces) == ["U+2581 1/3", "U+2581 2/3", "U+2581 3/3"]


def test_one_panel_a_head_and_the_mean(tmp_path: Path, figures: list[Any]) -> None:
    weights = some_weights(5, 3, 4)
    source, target = ["▁a", "▁b", "c", "</s>"], ["▁x", "$y$", "</s>"]
    assert attention_png(weights, source, target, tmp_path / "a.png", "cost $5 or $6") == ""
    assert is_png(tmp_path / "a.png")
    mean, *heads, _scale = figures[0].axes
    assert len(heads) == 5
    for axes, expected in zip([mean, *heads], [weights.mean(axis=0), *weights], strict=True):
        np.testing.assert_allclose(axes.images[0].get_array(), expected)
    assert [label.get_text() for label in mean.get_yticklabels()] == token_labels(target)
    assert [label.get_text() for label in mean.get_xticklabels()] == token_labels(source)
    assert figures[0].texts[0].get_text() == "cost $5 or $6"
    values = {text.get_text() for text in mean.texts}
    assert f"{weights.mean(axis=0).max():.2f}".removeprefix("0") in values


@pytest.mark.parametrize(
    ("heads", "rows", "columns"),
    [(8, 1, 1), (1, 5, 5), (8, 60, 60), (2, 300, 200), (3, 2, 90), (3, 90, 2)],
)
def test_panels_lie_on_the_page_apart_and_labels_do_not_crowd(
    heads: int, rows: int, columns: int, tmp_path: Path, figures: list[Any]
) -> None:
    source = [f"▁word{number}" for number in range(columns)]
    target = [f"▁Wort{number}" for number in range(rows)]
    attention_png(some_weights(heads, rows, columns), source, target, tmp_path / "a.png", "long")
    figure = figures[0]
    panels = figure.axes[:-1]
    boxes = [axes.get_window_extent() for axes in panels]
    for index, box in enumerate(boxes):
        assert 0 <= box.x0 < box.x1 <= figure.bbox.width
        assert 0 <= box.y0 < box.y1 <= figure.bbox.height
        assert not any(box.overlaps(other) for other in boxes[index + 1 :])
    assert figure.bbox.width < 6000
    for axes in panels:
        labels = [label for label in axes.get_yticklabels() if label.get_text()]
        heights = [label.get_window_extent() for label in labels]
        for upper, lower in itertools.pairwise(heights):
            assert lower.y1 <= upper.y1 - 0.6 * upper.height
        for label in [*labels, *axes.get_xticklabels()]:
            extent = label.get_window_extent()
            assert extent.x0 >= 0
            assert extent.y0 >= 0


def test_one_map_without_heads_is_one_panel(tmp_path: Path, figures: list[Any]) -> None:
    attention_png(some_weights(1, 2, 3)[0], list("abc"), list("xy"), tmp_path / "a.png")
    assert len(figures[0].axes) == 2


def test_weights_of_another_shape_are_refused(tmp_path: Path) -> None:
    for shape in [(2, 3, 4), (4, 3), (0, 3, 2), (3,)]:
        with pytest.raises(ValueError, match="weights"):
            attention_png(np.ones(shape), ["a", "b"], ["x", "y", "z"], tmp_path / "a.png")
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("only_bundled_fonts")
def test_characters_that_no_font_draws_are_named(tmp_path: Path, figures: list[Any]) -> None:
    note = attention_png(
        some_weights(2, 2, 2), ["你好", "</s>"], ["▁x", "</s>"], tmp_path / "a.png", "你 a"
    )
    assert "你" in note and "好" in note and "font" in note
    labels = [label.get_text() for label in figures[0].axes[0].get_xticklabels()]
    assert labels == ["[4F60 597D]", "</s>"]
    assert figures[0].texts[0].get_text() == "[4F60] a"


def test_a_font_is_chosen_that_covers_the_text() -> None:
    from matplotlib import font_manager

    if not any("CJK" in font.name for font in font_manager.fontManager.ttflist):
        pytest.skip("no CJK font on this machine")
    for text, ending in [("你好", " SC"), ("こんにちは世界", " JP"), ("안녕", " KR")]:
        lettering = choose_lettering([text, "abc"])
        assert lettering.missing == frozenset()
        assert lettering.note == ""
        assert lettering.families[0] == "DejaVu Sans"
        assert any(name.endswith(ending) for name in lettering.families)


def test_text_that_cannot_be_shaped_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    from matplotlib import ft2font

    monkeypatch.delattr(ft2font, "__libraqm_version__", raising=False)
    assert "right-to-left" in choose_lettering(["أطفئ"]).note
    assert choose_lettering(["über"]).note == ""


def test_arabic_is_drawn_without_a_note_where_it_can_be_shaped(tmp_path: Path) -> None:
    from matplotlib import ft2font

    if not hasattr(ft2font, "__libraqm_version__"):
        pytest.skip("this matplotlib does not shape text")
    pieces = ["▁أطفئ", "▁الأ", "ضواء", "</s>"]
    assert attention_png(some_weights(2, 4, 4), pieces, pieces, tmp_path / "a.png", "أطفئ") == ""


def test_threads_draw_the_same_picture(tmp_path: Path) -> None:
    weights, pieces = some_weights(2, 4, 4), ["▁a", "▁b", "é", "</s>"]

    def draw(number: int) -> bytes:
        path = tmp_path / f"{number}.png"
        attention_png(weights, pieces, pieces, path, "same")
        return path.read_bytes()

    with ThreadPoolExecutor(3) as pool:
        assert len(set(pool.map(draw, range(3)))) == 1


def write_log(path: Path, *records: object, end: str = "") -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records) + end)
    return path


def train(step: int, loss: float = 3.0) -> dict[str, Any]:
    return {
        "event": "train",
        "step": step,
        "seconds": step / 2,
        "loss": loss,
        "learning_rate": 1e-3,
    }


def validation(step: int, nll: float, **scores: float) -> dict[str, Any]:
    return {"event": "validation", "step": step, "seconds": step / 2 + 1, "nll": nll, **scores}


RUN = [
    {"event": "start", "device": "cpu"},
    *(train(step, 9.0 * math.exp(-step / 300)) for step in range(10, 400, 10)),
    validation(400, 2.5, perplexity=12.2, bleu=20.0, chrf=40.0),
    *(train(step) for step in range(410, 800, 10)),
    validation(800, 2.0, perplexity=7.4, bleu=30.0, chrf=50.0),
    validation(900, 2.25, perplexity=9.5, bleu=29.0, chrf=51.0),
]


def test_the_curve_shows_the_log_and_marks_the_best(tmp_path: Path, figures: list[Any]) -> None:
    log = write_log(tmp_path / "log.jsonl", *RUN)
    assert curve_png(log, tmp_path / "curve.png", "a run at $5") == ""
    assert is_png(tmp_path / "curve.png")
    loss, scores, rate = figures[0].axes[:3]
    legend = " ".join(text.get_text() for text in loss.get_legend().get_texts())
    assert "best: step 800, nll 2.000, perplexity 7.39" in legend
    assert {text.get_text() for text in scores.texts} == {"BLEU 30.0", "chrF 51.0"}
    assert max(rate.lines[0].get_ydata()) == 1e-3
    top = next(axes for axes in loss.child_axes if axes.get_xlabel())
    assert top.get_xlabel() == "minutes"
    steps_a_minute = 120
    for tick, label in zip(top.get_xticks(), top.get_xticklabels(), strict=True):
        assert tick == pytest.approx(float(label.get_text()) * steps_a_minute, abs=2)


def test_a_narrow_range_and_a_diverged_run_still_have_a_scale(
    tmp_path: Path, figures: list[Any]
) -> None:
    narrow = write_log(tmp_path / "a", *(validation(step, 2.0 + step / 1e3) for step in (1, 50)))
    diverged = write_log(tmp_path / "b", train(1, 1e4), validation(1, 2e3))
    for log in (narrow, diverged):
        curve_png(log, tmp_path / "curve.png", "")
    right = next(axes for axes in figures[0].axes[0].child_axes if axes.get_ylabel())
    assert len(right.get_yticks()) >= 3


def test_a_curve_without_scores_or_validation(tmp_path: Path, figures: list[Any]) -> None:
    curve_png(write_log(tmp_path / "a", train(1)), tmp_path / "a.png", "")
    curve_png(write_log(tmp_path / "b", validation(1, 3.0)), tmp_path / "b.png", "")
    curve_png(write_log(tmp_path / "c", train(0), train(9, math.nan)), tmp_path / "c.png", "")
    assert [len(figure.axes) for figure in figures] == [2, 2, 2]
    assert all(is_png(tmp_path / f"{name}.png") for name in "abc")


def test_a_last_line_cut_short_is_left_out(tmp_path: Path, figures: list[Any]) -> None:
    whole = write_log(tmp_path / "whole", *RUN)
    cut = write_log(tmp_path / "cut", *RUN, end='{"event":"train","step":91')
    curve_png(whole, tmp_path / "a.png", "same")
    curve_png(cut, tmp_path / "b.png", "same")
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()


@pytest.mark.parametrize("line", ['{"event":"tra', "[]", "7", '{"event":"train"}', "\x00" * 9])
def test_a_broken_line_before_the_last_is_named(line: str, tmp_path: Path) -> None:
    log = write_log(tmp_path / "log.jsonl", train(1), end=line + "\n" + json.dumps(train(2)))
    with pytest.raises(UserError, match=r"log\.jsonl:2: ") as caught:
        curve_png(log, tmp_path / "curve.png", "")
    assert caught.value.hint
    assert not (tmp_path / "curve.png").exists()


def test_a_log_without_steps_or_no_log_is_an_error(tmp_path: Path) -> None:
    log = write_log(tmp_path / "log.jsonl", {"event": "start"})
    with pytest.raises(UserError, match=r"log\.jsonl: no training step"):
        curve_png(log, tmp_path / "curve.png", "")
    with pytest.raises(UserError, match=r"missing\.jsonl"):
        curve_png(tmp_path / "missing.jsonl", tmp_path / "curve.png", "")


def test_what_a_resumed_run_repeats_replaces_what_it_did(tmp_path: Path) -> None:
    before = [train(10, 5.0), train(20, 4.0), validation(20, 4.0), train(30, 3.5)]
    after = [train(20, 4.1), validation(20, 4.2), train(30, 3.6), validation(30, 3.7)]
    resumed = write_log(tmp_path / "a", *before, *after)
    straight = write_log(tmp_path / "b", before[0], *after)
    assert read_training_log(resumed).records == read_training_log(straight).records
