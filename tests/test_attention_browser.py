"""The attention page in a browser: what a person points at, presses and reads."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from dragoman.config import config_from_toml
from dragoman.corpus.tokenizer import Tokenizer
from dragoman.inspection.attention_maps import Kind, SentenceAttention, sentence_attention
from dragoman.inspection.attention_page import write_attention_page
from dragoman.inspection.labels import token_labels
from dragoman.model.folder import LoadedModel
from dragoman.model.transformer import Transformer

pytestmark = pytest.mark.slow

SETTINGS = """
source_language = "en"
target_language = "{language}"
[model]
d_model = 16
d_ff = 16
heads = 4
encoder_layers = 3
decoder_layers = 2
"""
SOURCE = "the old dog sees </script><b>the</b> red cat because it is tired"
TARGET = {"de": "der alte Hund sieht die rote Katze", "ar": "الكلب العجوز يرى القطة الحمراء"}


def attention_of(source: str, target: str, language: str) -> SentenceAttention:
    """That of a model with random weights, which are large enough for heads to differ."""
    tokenizer = Tokenizer.train([source, target] * 5, 420)
    config = config_from_toml(SETTINGS.format(language=language), "settings")
    torch.manual_seed(1)
    network = Transformer(config.model, tokenizer.vocabulary_size)
    for name, weight in network.state_dict().items():
        if "in_projection" in name:
            weight *= 3
    return sentence_attention(LoadedModel(config, tokenizer, network.eval()), source, target)


@pytest.fixture(scope="module")
def attention() -> SentenceAttention:
    return attention_of(SOURCE, TARGET["de"], "de")


class Visitor:
    """Somebody who looks at a page; fails when the page does, or asks for anything."""

    def __init__(self, page: Any, path: Path) -> None:
        self.page = page
        self.asked: list[str] = []
        self.failures: list[str] = []
        page.on("request", lambda request: self.asked.append(request.url))
        page.on("pageerror", lambda error: self.failures.append(str(error)))
        page.on("console", lambda message: self.failures.append(message.text))
        page.set_default_timeout(120_000)
        page.goto(path.as_uri())
        page.wait_for_selector("html[data-ready]")
        self.address = path.as_uri()

    def choose(self, name: str, value: object) -> None:
        self.page.locator(f"input[name={name}][value='{value}']").set_checked(True, force=True)
        self.page.wait_for_timeout(50)

    def read(self) -> list[tuple[str, float]]:
        """The words and weights of the line that says what is shown."""
        entries = self.page.locator("#readout p").first.locator(".entry")
        return [
            (entry.locator("bdi").inner_text(), float(entry.locator("data").get_attribute("value")))
            for entry in entries.all()
        ]


@pytest.fixture
def visitor(browser: Any, attention: SentenceAttention, tmp_path: Path) -> Iterator[Visitor]:
    write_attention_page(attention, ("en", "de"), tmp_path / "a.html")
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    found = Visitor(page, tmp_path / "a.html")
    yield found
    page.close()
    assert found.failures == []
    assert found.asked == [found.address]


def check_weights(
    found: list[tuple[str, float]], row: Any, pieces: tuple[str, ...], most: float | None = None
) -> None:
    """What is read is the largest of the model's own numbers, with their words.

    They are stored in steps of the largest of their rows: most, or without it that of this row.
    """
    allowed = float(row.max() if most is None else most) / 510 + 2e-4
    labels = [label.removeprefix("␣\u200a") for label in token_labels(pieces)]
    order = sorted(range(len(row)), key=lambda place: -row[place])[: len(found)]
    assert len(found) >= min(3, int((row > 0.1 * row.max()).sum()))
    for (word, weight), place in zip(found, order, strict=True):
        assert weight == pytest.approx(row[place], abs=allowed)
        candidates = {labels[p] for p in range(len(row)) if abs(row[p] - weight) < 5e-3}
        assert word.removeprefix("·") in candidates


@pytest.mark.parametrize("kind", ["encoder", "decoder", "cross"])
def test_pointing_at_a_word_reads_the_model_s_numbers(
    visitor: Visitor, attention: SentenceAttention, kind: Kind
) -> None:
    weights = attention.weights(kind)
    visitor.choose("kind", kind)
    for layer in range(len(weights)):
        visitor.choose("layer", layer)
        for place in (1, 4):
            visitor.page.hover(f"#queries li[data-place='{place}']")
            row = weights[layer, :, place].mean(axis=0)
            check_weights(visitor.read(), row, attention.keys(kind))


def test_heads_are_chosen_and_left_out(visitor: Visitor, attention: SentenceAttention) -> None:
    page, weights = visitor.page, attention.cross[-1]
    page.locator("#heads input").nth(1).set_checked(False, force=True)
    page.locator("#heads input").nth(3).set_checked(False, force=True)
    page.hover("#keys li[data-place='2']")
    received = weights[[0, 2], :, 2].mean(axis=0)
    check_weights(visitor.read(), received, attention.target_out, most=1.0)
    page.click("#summaries button >> nth=3")
    assert page.locator("#heads input:checked").count() == 1
    page.hover("#queries li[data-place='0']")
    check_weights(visitor.read(), weights[3, 0], attention.source)
    page.click("#all")
    assert page.locator("#heads input:checked").count() == 4
    page.locator("#heads input").nth(0).set_checked(True, force=True)
    page.click("#overview button[data-layer='0'][data-head='2']")
    assert page.locator("#layers input:checked").get_attribute("value") == "0"
    page.hover("#queries li[data-place='0']")
    check_weights(visitor.read(), attention.cross[0, 2, 0], attention.source)


def test_the_table_holds_the_summaries(visitor: Visitor, attention: SentenceAttention) -> None:
    visitor.choose("kind", "encoder")
    visitor.choose("layer", 1)
    summaries = attention.summaries("encoder")
    for head in range(4):
        cells = visitor.page.locator(f"#summaries tbody tr >> nth={head}").locator("td")
        shown = {c.get_attribute("data-name"): c.inner_text() for c in cells.all()}
        assert set(shown) == set(summaries.__dataclass_fields__)
        for name, text in shown.items():
            value = float(getattr(summaries, name)[1, head])
            if text == "<1%":
                assert value < 0.005
            else:
                shown_value = float(text.rstrip("%")) / (100 if text.endswith("%") else 1)
                assert shown_value == pytest.approx(value, abs=0.0051)


def test_the_keyboard_is_enough(visitor: Visitor, attention: SentenceAttention) -> None:
    page = visitor.page
    page.locator("#queries li").first.focus()
    for key in ("ArrowDown", "ArrowDown", "ArrowUp"):
        page.keyboard.press(key)
    row = attention.cross[-1, :, 1].mean(axis=0)
    check_weights(visitor.read(), row, attention.source)
    assert page.locator("#queries li.active").get_attribute("data-place") == "1"
    page.keyboard.press("ArrowRight")
    assert page.locator("#keys li.active").get_attribute("data-place") == "1"
    page.keyboard.press("End")
    last = len(attention.source) - 1
    assert page.locator("li:focus").get_attribute("data-place") == str(last)
    page.keyboard.press("Enter")
    page.mouse.move(1, 1)
    assert page.locator("#keys li.active").count() == 1
    page.keyboard.press("Escape")
    assert page.locator("li.active").count() == 0
    assert page.locator(".words li[tabindex='0']").count() == 2  # one stop of Tab for each list
    page.locator("input[name=kind]:checked").focus()
    page.keyboard.press("ArrowRight")
    page.wait_for_timeout(50)
    assert page.locator("#queries li").first.inner_text() == "<s>"


def test_the_matrix_names_its_cells(visitor: Visitor, attention: SentenceAttention) -> None:
    page, weights = visitor.page, attention.cross[-1]
    visitor.choose("view", "matrix")
    page.locator("#matrix").focus()
    for key in ("ArrowDown", "ArrowRight", "ArrowRight", "ArrowUp"):
        page.keyboard.press(key)
    shown = float(page.locator("#readout data").get_attribute("value"))
    assert shown == pytest.approx(float(weights[:, 0, 2].mean()), abs=0.003)
    box = page.locator("#matrix").bounding_box()
    page.keyboard.press("Escape")
    page.hover("#matrix", position={"x": box["width"] - 3, "y": box["height"] / 2})
    place = int(page.locator("#queries li.active").get_attribute("data-place"))
    shown = float(page.locator("#readout data").get_attribute("value"))
    assert shown == pytest.approx(float(weights[:, place, -1].mean()), abs=0.003)


def test_a_tap_holds_a_word_on_a_telephone(
    browser: Any, attention: SentenceAttention, tmp_path: Path
) -> None:
    write_attention_page(attention, ("en", "de"), tmp_path / "a.html", page_language="zh")
    context = browser.new_context(
        viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True, color_scheme="dark"
    )
    visitor = Visitor(context.new_page(), tmp_path / "a.html")
    page = visitor.page
    for view in ("lines", "text", "matrix"):
        visitor.choose("view", view)
        assert page.evaluate("document.documentElement.scrollWidth") == 390
    visitor.choose("view", "text")
    page.tap("#queries li[data-place='2']")
    check_weights(visitor.read(), attention.cross[-1, :, 2].mean(axis=0), attention.source)
    page.tap("h1")
    assert page.locator("li.active").count() == 0
    context.close()
    assert visitor.failures == []


def test_right_to_left_text_runs_right_to_left(browser: Any, tmp_path: Path) -> None:
    attention = attention_of("the old dog sees the red cat", TARGET["ar"], "ar")
    write_attention_page(attention, ("en", "ar"), tmp_path / "a.html")
    page = browser.new_page()
    visitor = Visitor(page, tmp_path / "a.html")
    visitor.choose("view", "text")
    boxes = [page.locator(f"#queries li[data-place='{n}']").bounding_box() for n in (0, 1)]
    assert boxes[0]["y"] != boxes[1]["y"] or boxes[0]["x"] > boxes[1]["x"]
    assert page.locator("#queries").get_attribute("lang") == "ar"
    page.close()
    assert visitor.failures == []


def test_a_text_of_three_hundred_tokens_is_usable(browser: Any, tmp_path: Path) -> None:
    words = re.findall(r"\w+", SOURCE)
    long = " ".join(words[n * n % len(words)] for n in range(290))
    attention = attention_of(long, long, "de")
    assert len(attention.source) >= 290
    write_attention_page(attention, ("en", "de"), tmp_path / "a.html")
    assert (tmp_path / "a.html").stat().st_size < 3_000_000
    page = browser.new_page()
    visitor = Visitor(page, tmp_path / "a.html")
    assert page.locator("input[name=view]:checked").get_attribute("value") == "text"
    page.hover("#queries li[data-place='50']")
    check_weights(visitor.read(), attention.cross[-1, :, 50].mean(axis=0), attention.source)
    for view in ("lines", "matrix"):
        visitor.choose("view", view)
    page.close()
    assert visitor.failures == []
