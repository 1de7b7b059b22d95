"""What a word attends to: the numbers are the model's, on the page as well."""

import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch

from dragoman.errors import UserError
from dragoman.inspection.pronouns import WordAttention, word_attention
from dragoman.inspection.pronouns_page import pronouns_page
from dragoman.inspection.self_contained import page_part
from dragoman.model.folder import LoadedModel, load_model

Dragoman = Callable[..., Any]
TEXT = "The cat sees the dog because it draws it."


@pytest.fixture(scope="module")
def loaded(model: Path) -> LoadedModel:
    return load_model(model)


class Rows(HTMLParser):
    """The weights of a page: a list for each line of words, under the headings they stand below."""

    def __init__(self, page: bytes) -> None:
        super().__init__()
        self.rows: dict[str, list[list[float]]] = {}
        self.text = ""
        self._heading = self._inside = ""
        self.feed(page.decode())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self._inside = tag
        if tag == "h3":
            self._heading = ""
        if values.get("class") == "line":
            self.rows.setdefault(self._heading, []).append([])
        if "data-weight" in values:
            self.rows[self._heading][-1].append(float(values["data-weight"] or ""))

    def handle_data(self, data: str) -> None:
        self.text += data
        if self._inside == "h3":
            self._heading += data


def views_of(*rows: tuple[tuple[str, ...], list[float]]) -> list[WordAttention]:
    """Views of a model of one head, from the word "it"."""
    return [
        WordAttention(" ".join(words), words, words.index("it"), np.array([[row]], np.float32))
        for words, row in rows
    ]


def test_the_weights_of_a_word_are_sums_over_its_subwords(loaded: LoadedModel) -> None:
    first, second = word_attention(loaded, TEXT, "IT")
    assert first.words == second.words == (*TEXT.split(), "</s>")
    assert (first.place, second.place) == (6, 8)
    ids = loaded.tokenizer.encode(TEXT)
    pieces = [*loaded.tokenizer.pieces(ids), "▁end"]
    words = np.cumsum([piece.startswith("▁") for piece in pieces]) - 1
    maps = loaded.model.attention_maps(torch.tensor([[*ids, 3]]), torch.tensor([[2]]))
    for view in (first, second):
        for head, weights in enumerate(maps.encoder[0][0].numpy()):
            rows = weights[words == view.place].mean(axis=0)
            wanted = [rows[words == word].sum() for word in range(len(view.words))]
            assert view.weights[0, head] == pytest.approx(wanted, abs=1e-6)
            assert view.weights[0, head].sum() == pytest.approx(1, abs=1e-5)
    assert (first.others[..., [6, -1]] == 0).all()


def test_a_word_that_is_not_there(loaded: LoadedModel) -> None:
    with pytest.raises(UserError) as caught:
        word_attention(loaded, "the cat sees " + "the dog " * 20, "it")
    assert caught.value.message.startswith("'it' is no word of this text: the cat sees the dog")
    assert caught.value.message.endswith(" …")
    with pytest.raises(UserError, match="blank"):
        word_attention(loaded, " ", "it")


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_page_shows_the_numbers_of_the_model(
    loaded: LoadedModel, language: Literal["en", "zh"]
) -> None:
    views = word_attention(loaded, TEXT, "it")
    page = Rows(pronouns_page(views, "it", "en", language))
    strings = json.loads(page_part(f"pronouns.{language}.json"))
    mean = page.rows[strings["layer"].format(layer=1)]
    for view, row in zip(views, mean, strict=True):
        assert row == pytest.approx(view.weights[0].mean(axis=0), abs=1e-4)
    for head in range(2):
        rows = page.rows[strings["head"].format(layer=1, head=head + 1)]
        for view, row in zip(views, rows, strict=True):
            assert row == pytest.approx(view.weights[0, head], abs=1e-4)


def test_the_clearest_head_comes_first() -> None:
    weights = np.zeros((2, 2, 4), np.float32)
    weights[:, :, 1:] = [[[0.1, 0.1, 0.8], [0.3, 0.7, 0]], [[0.6, 0.3, 0.1], [0.2, 0.2, 0.6]]]
    view = WordAttention("a b it", ("it", "a", "b", "</s>"), 0, weights)
    names = [name for name in Rows(pronouns_page([view], "it", "en", "en")).rows if "head" in name]
    order = [(1, 2), (2, 1), (2, 2), (1, 1)]  # by 0.7, 0.6, 0.2 and 0.1, without the end
    assert names == [f"Layer {layer}, head {head}" for layer, head in order]


@pytest.mark.parametrize(
    ("last", "weights", "moved"),
    [
        ("tall", [0.1, 0.6, 0.1, 0.1, 0.1], True),
        ("tall", [0.6, 0.1, 0.1, 0.1, 0.1], False),
        ("tall", [0.1, 0.1, 0.1, 0.7, 0.0], False),  # no word of both
    ],
)
def test_a_head_that_prefers_another_word_in_another_text_is_marked(
    last: str, weights: list[float], moved: bool
) -> None:
    first = (("cat", "tree", "it", "old", "</s>"), [0.5, 0.2, 0.1, 0.1, 0.1])
    page = pronouns_page(
        views_of(first, (("cat", "tree", "it", last, "</s>"), weights)), "it", "en", "en"
    )
    assert (b'class="moved"' in page) == moved


def test_nothing_of_the_text_is_taken_for_html_and_nothing_is_fetched(loaded: LoadedModel) -> None:
    hostile = "it <script>alert(1)</script> \"' & {word} </ul>"
    page = pronouns_page(word_attention(loaded, hostile, "it"), "it", "en", "en")
    shown = page.decode()
    assert "<script>alert" not in shown
    assert shown.count("</ul>") == 2
    assert not re.search(r'\ssrc=|href=|url\(|@import|\sstyle="', shown)
    assert "default-src 'none'" in shown


def test_both_languages_say_the_same() -> None:
    english, chinese = (json.loads(page_part(f"pronouns.{code}.json")) for code in ("en", "zh"))
    assert list(english) == list(chinese)
    for name, text in english.items():
        assert set(re.findall(r"{\w+}", text)) == set(re.findall(r"{\w+}", chinese[name])), name


def test_the_command_writes_a_page(dragoman: Dragoman, model: Path, tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    command = ("pronouns", "--model", model, "--out", out)
    result = dragoman(*command, TEXT, "it draws the cat", "--lang", "zh")
    assert (result.status, result.lines, result.err) == (0, [str(out)], "")
    rows = Rows(out.read_bytes()).rows
    assert all(len(row) == 3 for row in rows.values())
    wrong = dragoman(*command, "the cat")
    assert (wrong.status, wrong.out) == (2, b"")
    assert wrong.err.startswith("error: 'it' is no word of this text: the cat\nhint: ")
    other = dragoman(*command, "the cat", "--word", "cat")
    assert other.status == 0


def test_a_telephone_shows_all_of_it_in_both_palettes(
    loaded: LoadedModel, browser: Any, tmp_path: Path
) -> None:
    long = "it " + "the cat sees the old dog and draws the big bird " * 6 + "x" * 90
    views = [view for text in (TEXT, long) for view in word_attention(loaded, text, "it")]
    path = tmp_path / "page.html"
    path.write_bytes(pronouns_page(views, "it", "en", "en"))
    grounds = set()
    for scheme in ("light", "dark"):
        context = browser.new_context(
            viewport={"width": 360, "height": 700}, color_scheme=scheme, offline=True
        )
        page = context.new_page()
        said: list[str] = []
        page.on("console", lambda message, said=said: said.append(message.text))
        page.goto(path.as_uri())
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
        assert page.evaluate("document.querySelectorAll('#heads > li').length") == 2
        shades = "[...document.querySelectorAll('.line .s1, .line .s5')]"
        colors = page.evaluate(f"{shades}.map(word => getComputedStyle(word).backgroundColor)")
        assert colors
        assert "rgba(0, 0, 0, 0)" not in colors
        grounds.add(page.evaluate("getComputedStyle(document.body).backgroundColor"))
        context.close()
        assert said == []
    assert len(grounds) == 2
