"""The interactive page: what it holds, how large it is, and that it is harmless."""

import base64
import json
import re
import zlib
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dragoman.inspection import attention_page as pages
from dragoman.inspection.attention_maps import KINDS, SentenceAttention
from dragoman.inspection.attention_page import OpeningView, attention_page, write_attention_page
from dragoman.inspection.self_contained import page_part

LANGUAGES = ("en", "de")


class Elements(HTMLParser):
    """The tags of a page, and the text of its scripts."""

    def __init__(self, page: bytes) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.feed(page.decode())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1][0] == "script":
            self.scripts[-1] += data


def made_up(*sizes: int, layers: int = 2, heads: int = 3, **texts: Any) -> SentenceAttention:
    """Random weights for so many tokens of the source and of the translation."""
    chance = np.random.default_rng(0)

    def rows(queries: int, keys: int) -> Any:
        weights = chance.random((layers, heads, queries, keys), dtype=np.float32) ** 8 + 1e-6
        return weights / weights.sum(axis=-1, keepdims=True)

    past = np.tril(rows(sizes[1], sizes[1]))
    words = [f"▁w{number}" for number in range(max(sizes) - 1)]
    values: dict[str, Any] = {
        "text": "a text",
        "translation": "ein Text",
        "own": True,
        "source": (*words[: sizes[0] - 1], "</s>"),
        "target_in": ("<s>", *words[: sizes[1] - 1]),
        "target_out": (*words[: sizes[1] - 1], "</s>"),
        "spans": (),
        "encoder": rows(sizes[0], sizes[0]),
        "decoder": past / past.sum(axis=-1, keepdims=True),
        "cross": rows(sizes[1], sizes[0]),
    }
    return SentenceAttention(**values | texts)


def page_of(attention: SentenceAttention, language: Any = "en") -> bytes:
    return attention_page(attention, LANGUAGES, OpeningView(), language)


def data_of(page: bytes) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Elements(page).scripts[0])
    return found


def unpacked(packed: str, heads: int, rows: int, columns: int) -> np.ndarray:
    """As the script does it."""
    content = zlib.decompress(base64.b64decode(packed))
    peaks = np.frombuffer(content[: 2 * heads * rows], "<u2").reshape(heads, rows, 1) / 65535
    return peaks * np.frombuffer(content[2 * heads * rows :], np.uint8).reshape(
        heads, rows, columns
    ) / 255  # fmt: skip


def test_the_page_holds_the_model_s_numbers() -> None:
    attention = made_up(9, 7)
    data = data_of(page_of(attention))
    for kind in KINDS:
        held, weights = data["kinds"][kind], attention.weights(kind)
        assert (held["heads"], held["rows"], held["columns"]) == weights.shape[1:]
        assert len(data["tokens"][held["queries"]]) == held["rows"]
        assert len(data["tokens"][held["keys"]]) == held["columns"]
        for layer, packed in enumerate(held["layers"]):
            found = unpacked(packed, *weights.shape[1:])
            allowed = weights[layer].max(axis=-1, keepdims=True) / 510 + 1e-4
            assert (np.abs(found - weights[layer]) <= allowed).all()
        summaries = attention.summaries(kind)
        for name, values in held["summaries"].items():
            np.testing.assert_allclose(values, getattr(summaries, name), atol=1e-4)


def test_a_page_of_the_paper_s_size_is_small() -> None:
    page = page_of(made_up(30, 30, layers=6, heads=8))
    assert len(page) < 600_000


def test_of_a_long_text_the_largest_weights_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "MOST_BYTES", 60_000)
    attention = made_up(150, 140)
    page = page_of(attention)
    assert len(page) < 60_000 + 60_000  # weights, and all else
    held = data_of(page)["kinds"]["cross"]
    weights = attention.cross[1]
    found = unpacked(held["layers"][1], *weights.shape)
    kept = (found > 0).sum(axis=-1)
    assert kept.max() < 150
    np.testing.assert_allclose(found.max(axis=-1), weights.max(axis=-1), atol=1e-5)
    hidden = np.where(found > 0, 0, weights)
    assert (hidden.max(axis=-1) <= np.where(found > 0, weights, 2).min(axis=-1)).all()
    said = re.search(r"Of each row only the (\d+) largest are: (\d+)% of the weight", page.decode())
    assert said
    assert int(said[1]) == kept.max()
    assert 0 < int(said[2]) < 100


@pytest.mark.parametrize("scale", [1e-7, 0.4, 1.0])
def test_packing_keeps_what_is_large(scale: float) -> None:
    weights = np.array([[[scale, scale / 3, 0.0]]], np.float32)
    found = unpacked(pages.pack(weights), 1, 1, 3)
    np.testing.assert_allclose(found, weights, atol=scale / 510 + 1e-5)


def test_what_a_person_wrote_stays_text() -> None:
    hostile = "</script><script>alert(1)</script><!--<b onclick='x'>\"[[kinds]]\u202e"
    attention = made_up(
        2,
        2,
        text=hostile,
        translation=hostile,
        source=(hostile, "</s>"),
        target_in=("<s>", hostile),
        target_out=(hostile, "</s>"),
        spans=(hostile,),
    )
    plain, page = Elements(page_of(made_up(2, 2, spans=("x",)))), Elements(page_of(attention))
    assert [tag for tag, _ in page.tags] == [tag for tag, _ in plain.tags]
    assert [attributes.keys() for _, attributes in page.tags] == [
        attributes.keys() for _, attributes in plain.tags
    ]
    assert len(page.scripts) == 2
    assert "\u202e" not in page_of(attention).decode().partition("<script")[0]
    assert json.loads(page.scripts[0])["tokens"]["source"][1]["mark"]


def test_nothing_is_fetched_and_nothing_runs_but_its_own_script() -> None:
    page = page_of(made_up(3, 3))
    tags = Elements(page).tags
    policy = next(a["content"] for t, a in tags if a.get("http-equiv") and t == "meta")
    assert policy
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy
    assert "http" not in re.sub("http-equiv", "", page.decode())
    forbidden = {"src", "href", "style"} | {name for _, a in tags for name in a if name[:2] == "on"}
    assert not [a for _, a in tags if forbidden & a.keys()]


@pytest.mark.parametrize(("language", "code"), [("en", "en"), ("zh", "zh-Hans")])
def test_a_page_in_each_language(language: str, code: str) -> None:
    page = page_of(made_up(3, 3), language)
    assert ("html", {"lang": code}) in Elements(page).tags
    assert "[[" not in page.decode().partition("<script")[0].partition("<body")[2]
    langs = [a.get("lang") for tag, a in Elements(page).tags if tag == "dd"]
    assert langs == list(LANGUAGES)


def test_both_languages_say_the_same_things() -> None:
    def shape(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: shape(part) for name, part in value.items()}
        return set(re.findall(r"\{\w+\}", value))

    english, chinese = (json.loads(page_part(f"attention.{code}.json")) for code in ("en", "zh"))
    assert shape(english) == shape(chinese)
    names = ("attention.js", "attention.html")
    script = "".join(map(page_part, names)) + Path(pages.__file__).read_text("utf-8")
    unused = [name for name in english if not re.search(rf"\b{name}\b", script)]
    assert unused == []


def test_tokens_say_how_they_join() -> None:
    pieces = ("▁Eis", "creme", ".", "▁", "⟨1⟩", "▁so", "</s>", "</s>")
    tokens = pages._described(pieces, unspaced=False)
    assert [token["text"] for token in tokens[:4]] == ["Eis", "creme", ".", "␣"]
    kinds = [name for token in tokens for name in token if name != "text"]
    assert kinds == ["close", "joined", "close", "close", "mark"]
    unspaced = pages._described(("<s>", "红", "猫"), unspaced=True)
    assert unspaced == [
        {"text": "<s>", "mark": True},
        {"text": "红"},
        {"text": "猫", "close": True},
    ]


def test_the_direction_is_the_first_letter_s() -> None:
    assert pages._direction("«قطة» the cat") == "rtl"
    assert pages._direction("1. the قطة") == "ltr"
    assert pages._direction("...") == "ltr"


def test_the_opening_view(tmp_path: Path) -> None:
    write_attention_page(
        made_up(3, 3), LANGUAGES, tmp_path / "a.html", OpeningView("encoder", 0, 2)
    )
    start = data_of((tmp_path / "a.html").read_bytes())["start"]
    assert start == {"kind": "encoder", "layer": 0, "heads": [2], "view": "lines"}
    start = data_of(page_of(made_up(90, 3)))["start"]
    assert start == {"kind": "cross", "layer": 1, "heads": [0, 1, 2], "view": "text"}
