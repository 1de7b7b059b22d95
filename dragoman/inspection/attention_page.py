"""Attention maps as one interactive HTML file: every layer, head and kind of a sentence pair.

Letters: L layers, H heads, Q queries, M keys.
"""

import base64
import json
import re
import unicodedata
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

from dragoman.inspection.attention_maps import END, KINDS, START, Kind, SentenceAttention
from dragoman.inspection.head_summaries import FloatArray
from dragoman.inspection.labels import token_labels
from dragoman.inspection.self_contained import (
    PageContent,
    escape,
    language_attribute,
    page_part,
    self_contained,
)
from dragoman.text.languages import UNSPACED, base_code
from dragoman.text.lines import atomic_write

PageLanguage = Literal["en", "zh"]
MOST_BYTES: Final = 2_500_000
"""What the weights of a page take at most; of long texts only the largest of each row are kept."""
_LADDER: Final = (128, 64, 32, 16, 8, 4)
_LONG: Final = 60
_WORD = "␣\u200a"
_STRONG = ("L", "R", "AL")  # of a bidirectional text
_SHOWN_KINDS: Final[tuple[Kind, ...]] = ("encoder", "cross", "decoder")


@dataclass(frozen=True)
class OpeningView:
    """What a page shows first; layer from 0, the last without one; all heads without one."""

    kind: Kind = "cross"
    layer: int | None = None
    head: int | None = None


def write_attention_page(
    attention: SentenceAttention,
    languages: tuple[str, str],
    path: Path,
    opening: OpeningView | None = None,
    page_language: PageLanguage = "en",
) -> None:
    """Write the page, atomically. languages are those of source and translation."""
    content = attention_page(attention, languages, opening or OpeningView(), page_language)
    with atomic_write(path) as stream:
        stream.write(content)


def attention_page(
    attention: SentenceAttention,
    languages: tuple[str, str],
    opening: OpeningView,
    page_language: PageLanguage,
) -> bytes:
    """The page itself."""
    strings: dict[str, Any] = json.loads(page_part(f"attention.{page_language}.json"))
    kinds, keep, share = _kinds(attention)
    notes = [strings["stored"]]
    if keep is not None:
        notes.append(strings["cut"].format(keep=keep, share=f"{100 * share:.0f}%"))
    longest = max(len(attention.source), len(attention.target_in))
    layers, heads = attention.weights(opening.kind).shape[:2]
    chosen = range(heads) if opening.head is None else [opening.head]
    start = {
        "kind": opening.kind,
        "layer": layers - 1 if opening.layer is None else opening.layer,
        "heads": list(chosen),
        "view": "lines" if longest <= _LONG else "text",
    }
    data = {
        "strings": strings,
        "start": start,
        "directions": [_direction(attention.text), _direction(attention.translation)],
        "tokens": _tokens(attention, languages),
        "kinds": kinds,
    }
    return self_contained(
        PageContent(
            {"en": "en", "zh": "zh-Hans"}[page_language],
            f"{strings['title']}: {attention.text[:80]}",
            _body(attention, languages, strings, start, notes),
            page_part("base.css") + page_part("attention.css"),
            page_part("attention_views.js") + page_part("attention.js"),
            data,
        )
    )


def _tokens(
    attention: SentenceAttention, languages: tuple[str, str]
) -> dict[str, list[dict[str, Any]]]:
    source, target = (base_code(code) in UNSPACED for code in languages)
    return {
        "source": _described(attention.source, source),
        "target_in": _described(attention.target_in, target),
        "target_out": _described(attention.target_out, target),
    }


def _direction(text: str) -> str:
    """As `dir="auto"` finds it: that of the first letter."""
    kinds = (unicodedata.bidirectional(letter) for letter in text)
    return "rtl" if next((kind for kind in kinds if kind in _STRONG), "L") != "L" else "ltr"


def _described(pieces: tuple[str, ...], unspaced: bool) -> list[dict[str, Any]]:
    """Readable subwords. close: no space before it; joined: goes on with a word; mark: no word."""
    tokens: list[dict[str, Any]] = []
    last = len(pieces) - 1
    for place, (piece, label) in enumerate(zip(pieces, token_labels(pieces), strict=True)):
        token: dict[str, Any] = {"text": label.removeprefix(_WORD)}
        first = place == 0 or (place == 1 and "mark" in tokens[0])
        if (place == 0 and piece == START) or (place == last and piece == END):
            token["mark"] = True
        elif not (first or piece.startswith("▁") or pieces[place - 1] == "▁"):
            token["close"] = True
            if not unspaced and label[0].isalnum():
                token["joined"] = True
        tokens.append(token)
    return tokens


def _kinds(attention: SentenceAttention) -> tuple[dict[str, Any], int | None, float]:
    """What the script needs of each kind; how many of a row are kept, None for all; their share."""
    of_kind = {
        "encoder": ("source", "source", END),
        "decoder": ("target_in", "target_in", START),
        "cross": ("target_out", "source", END),
    }
    packed, keep, share = _within(attention)
    kinds: dict[str, Any] = {}
    for kind in KINDS:
        queries, keys, mark = of_kind[kind]
        _, heads, rows, columns = attention.weights(kind).shape
        summaries = attention.summaries(kind)
        kinds[kind] = {
            "queries": queries,
            "keys": keys,
            "mark": mark,
            "heads": heads,
            "rows": rows,
            "columns": columns,
            "summaries": {
                name: np.round(values, 4).astype(float).tolist()
                for name in summaries.__dataclass_fields__
                if (values := getattr(summaries, name)) is not None
            },
            "layers": packed[kind],
        }
    return kinds, keep, share


def _within(attention: SentenceAttention) -> tuple[dict[Kind, list[str]], int | None, float]:
    """The packed layers of every kind in at most `MOST_BYTES`, if need be without small weights."""
    cells = sum(attention.weights(kind).size for kind in KINDS)
    longest = max(attention.weights(kind).shape[-1] for kind in KINDS)
    # A kept weight takes about two bytes: what would be too much is not tried.
    steps = [step for step in _LADDER if step < longest and step * cells < MOST_BYTES * longest]
    for keep in (*([None] if cells < 2 * MOST_BYTES else []), *(steps or _LADDER[-1:])):
        packed: dict[Kind, list[str]] = {}
        kept = rows = 0.0
        for kind in KINDS:
            packed[kind] = []
            for layer in attention.weights(kind):
                largest = _largest(layer, keep)
                kept, rows = kept + float(largest.sum()), rows + float(layer.sum())
                packed[kind].append(pack(largest))
        if sum(len(layer) for layers in packed.values() for layer in layers) <= MOST_BYTES:
            break
    return packed, keep, kept / rows


def _largest(weights: FloatArray, keep: int | None) -> FloatArray:
    """The weights with all but the `keep` largest of a row zero."""
    if keep is None or keep >= weights.shape[-1]:
        return weights
    least = np.partition(weights, -keep, axis=-1)[..., -keep, None]
    return np.where(weights >= least, weights, np.float32(0.0))


def pack(weights: FloatArray) -> str:
    """(H, Q, M) -> base64 of a zlib stream: each row's largest weight, then every weight by it.

    The largest as little-endian uint16, 65535 for 1, all rows first; the weights as uint8, 255 for
    the largest of the row. So a weight is off by at most 1/510 of its row's largest, and a hundred
    thousandth.
    """
    peaks = np.rint(weights.max(axis=-1) * 65535).astype("<u2")
    step = np.maximum(peaks.astype(np.float32) / 65535, 1e-9)[..., None] / 255
    values: npt.NDArray[np.uint8] = np.clip(np.rint(weights / step), 0, 255).astype(np.uint8)
    return base64.b64encode(zlib.compress(peaks.tobytes() + values.tobytes())).decode()


def _body(
    attention: SentenceAttention,
    languages: tuple[str, str],
    strings: dict[str, Any],
    start: dict[str, Any],
    notes: list[str],
) -> str:
    def choices(name: str, labels: dict[str, str]) -> str:
        return "".join(
            f'<label><input type="radio" name="{name}" value="{value}"'
            f"{' checked' if value == start[name] else ''}>"
            f"<span>{escape(label)}</span></label>"
            for value, label in labels.items()
        )

    def text(term: str, content: str, language: str) -> str:
        shown = f'<dd dir="auto"{language_attribute(language)}>{escape(content)}</dd>'
        return f"<dt>{escape(term)}</dt>{shown}"

    slots = "".join(
        f"<p>{escape(strings['slots'])}: ⟨{number}⟩ <code><bdi>{escape(span)}</bdi></code></p>"
        for number, span in enumerate(attention.spans, start=1)
    )
    translation = strings["own" if attention.own else "given"]
    kinds: dict[str, str] = {kind: strings["kinds"][kind] for kind in _SHOWN_KINDS}
    notes = [strings["marks"].format(start=START, end=END), *notes]
    parts = {name: escape(value) for name, value in strings.items() if isinstance(value, str)} | {
        "notes": escape(" ".join(notes)),
        "kinds": choices("kind", kinds),
        "views": choices("view", strings["views"]),
        "texts": text(strings["source"], attention.text, languages[0])
        + text(translation, attention.translation, languages[1]),
        "slots": slots,
    }
    return re.sub(r"\[\[(\w+)\]\]", lambda place: parts[place[1]], page_part("attention.html"))
