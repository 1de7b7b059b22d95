"""Pieces of HTML and SVG for the explain page: numbers, subwords, strips, heat maps, tables.

Letters: Q rows, M columns.
"""

import math
import re
import tomllib
import unicodedata
from collections.abc import Sequence
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from dragoman.inspection.attention_maps import END, START
from dragoman.inspection.labels import shorten, token_labels
from dragoman.inspection.self_contained import escape, page_part

Language = Literal["en", "zh"]
LANGUAGES: tuple[Language, ...] = get_args(Language)
Matrix = Sequence[Sequence[float]] | npt.NDArray[np.float32]

# In a drawing: the least and the largest square, the width of a letter, the longest label.
_LEAST, _LARGEST, _LETTER, _COLUMNS = 20, 36, 7, 14
_LEVELS = 10
_WORD = "␣\u200a"
# A line end of the file that is no space: Chinese has none between its words.
_LINE_END = re.compile("(?<=[\u3000-\u9fff\uff00-\uffef”])\n(?=[\u3000-\u9fff\uff00-\uffef“<{])")


class Texts:
    """The texts of the page in one language, by section and key."""

    def __init__(self, language: Language) -> None:
        self._texts = tomllib.loads(_LINE_END.sub("", page_part(f"explain.{language}.toml")))

    def __call__(self, section: str, key: str, **values: object) -> str:
        """A text, which is HTML; so must the values be that fill its places in braces."""
        text: str = self._texts[section][key]
        return text.format_map(values) if values else text


def decimal(value: float, digits: int = 2) -> str:
    """A number with so many digits after the point."""
    text = f"{value:,.{digits}f}"
    return text[1:] if text.startswith("-") and not text.strip("-0.") else text.replace("-", "−")


def plain(value: float) -> str:
    """A number as short as it can be written, to four significant digits."""
    return f"{value:.4g}".replace("-", "−")


def percent(share: float, digits: int = 0) -> str:
    """A share of 1 as a percentage; what would round to 0 or 100 says so."""
    least = 10.0**-digits
    if 0 < 100 * share < least / 2:
        return f"&lt;{least:g}%"
    if 1 > share > 1 - least / 200:
        return f"&gt;{100 - least:g}%"
    return f"{100 * share:.{digits}f}%"


def piece_labels(pieces: Sequence[str], texts: Texts, unspaced: bool) -> list[str]:
    """Subwords as a person reads them: `·` before one that goes on with a word; marks by name."""
    labels, last = [], len(pieces) - 1
    for place, (piece, label) in enumerate(zip(pieces, token_labels(pieces), strict=True)):
        joined = place > 0 and piece[:1] != "▁" and pieces[place - 1] not in ("▁", START)
        if place == 0 and piece == START:
            labels.append(f"[{texts('ui', 'start')}]")
        elif place == last and piece == END:
            labels.append(f"[{texts('ui', 'end')}]")
        else:
            byte = piece.startswith("<0x") and label.startswith("x")
            dot = "·" if joined and not unspaced and not byte and label[0].isalnum() else ""
            labels.append(dot + label.removeprefix(_WORD))
    return labels


def chip(label: str) -> str:
    """A subword within a text."""
    return f'<b class="piece" dir="auto">{escape(label)}</b>'


def chips(labels: Sequence[str], below: Sequence[object] = ()) -> str:
    """A row of subwords, with something small below each."""
    notes = [f"<small>{note}</small>" for note in below] or [""] * len(labels)
    items = "".join(
        f"<li>{chip(label)}{note}</li>" for label, note in zip(labels, notes, strict=True)
    )
    return f'<ul class="pieces">{items}</ul>'


def strip(values: Sequence[float], name: str, largest: float | None = None) -> str:
    """Numbers as stripes, one a number; largest: what is drawn in full color."""
    top = largest or max(map(abs, values)) or 1.0
    marks: dict[str, list[str]] = {}
    for place, value in enumerate(values):
        level = min(_LEVELS, math.ceil(_LEVELS * abs(value) / top - 0.5))
        if level:
            marks.setdefault(f"{'plus' if value > 0 else 'minus'} v{level}", []).append(
                f"M{place} 0h1v1h-1z"
            )
    paths = "".join(f'<path class="{kind}" d="{"".join(d)}"/>' for kind, d in marks.items())
    return (
        f'<svg class="strip" role="img" aria-label="{escape(name)}" '
        f'viewBox="0 0 {len(values)} 1" preserveAspectRatio="none">{paths}</svg>'
    )


def strips(labels: Sequence[str], rows: Matrix, name: str) -> str:
    """Lists of numbers below each other, on one scale, each after its subword."""
    largest = float(np.abs(np.asarray(rows)).max())
    body = "".join(
        f"<tr><th scope=row>{chip(label)}</th><td>{strip(row, name, largest)}</td></tr>"
        for label, row in zip(labels, rows, strict=True)
    )
    return f'<table class="strips"><tbody>{body}</tbody></table>'


def bar(share: float, kind: str = "") -> str:
    """A share of 1 as a bar; numbers stand beside it."""
    return (
        f'<svg class="bar {kind}" viewBox="0 0 100 1" preserveAspectRatio="none" '
        f'aria-hidden="true"><rect width="{100 * share:.1f}" height="1"/></svg>'
    )


def cells(weights: Matrix) -> str:
    """Weights from 0 to 1 as squares of one unit, the more the darker: paths of an SVG."""
    marks: dict[int, list[str]] = {}
    for row, line in enumerate(weights):
        for column, weight in enumerate(line):
            level = min(_LEVELS, round(_LEVELS * math.sqrt(max(weight, 0.0))))
            if level:
                marks.setdefault(level, []).append(f"M{column} {row}h1v1h-1z")
    return "".join(
        f'<path class="v{level}" d="{"".join(squares)}"/>' for level, squares in marks.items()
    )


def heat_map(weights: Matrix, rows: Sequence[str], columns: Sequence[str], name: str) -> str:
    """A matrix of weights, (Q, M), between its words; without words where rows is empty."""
    height, width = len(weights), len(weights[0])
    if not rows:
        inside = f'<g class="cells">{cells(weights)}</g>'
        return (
            f'<svg class="heat small" role="img" aria-label="{escape(name)}" '
            f'viewBox="0 0 {width} {height}">{_frame(width, height)}{inside}</svg>'
        )
    cell = max(_LEAST, min(_LARGEST, 210 // width))
    left, top = _room(rows) + 6, 0.87 * _room(columns) + 8
    right = 0.5 * _room(columns[-1:])
    words = [
        f'<text x="{left - 6}" y="{top + cell * (place + 0.7):.0f}" text-anchor="end">'
        f"{escape(shorten(label, _COLUMNS))}</text>"
        for place, label in enumerate(rows)
    ]
    for place, label in enumerate(columns):
        x = left + cell * (place + 0.6)
        words.append(
            f'<text x="{x:.0f}" y="{top - 6:.0f}" transform="rotate(-60 {x:.0f} {top - 6:.0f})">'
            f"{escape(shorten(label, _COLUMNS))}</text>"
        )
    across, down = left + cell * width + right, top + cell * height + 2
    return (
        f'<div class="wide"><svg class="heat" role="img" aria-label="{escape(name)}" '
        f'viewBox="0 0 {across:.0f} {down:.0f}" width="{across:.0f}" height="{down:.0f}">'
        f'{"".join(words)}<g transform="translate({left:.0f} {top:.0f}) scale({cell})">'
        f'{_frame(width, height)}<g class="cells">{cells(weights)}</g></g></svg></div>'
    )


def _frame(width: int, height: int) -> str:
    return f'<rect class="frame" width="{width}" height="{height}"/>'


def _room(labels: Sequence[str]) -> float:
    """The width of the widest of some labels in a drawing."""
    return _LETTER * max(min(_COLUMNS, columns_of(label)) for label in labels)


def columns_of(text: str) -> int:
    """How wide a text is in columns; a CJK character fills two."""
    return sum(2 if unicodedata.east_asian_width(letter) in "WF" else 1 for letter in text)


def table(head: Sequence[str], rows: Sequence[Sequence[str]], kind: str = "") -> str:
    """A table of HTML cells; the first of a row names it."""
    top = "".join(f"<th scope=col>{name}</th>" for name in head)
    body = "".join(
        f"<tr><th scope=row>{first}</th>{''.join(f'<td>{cell}</td>' for cell in rest)}</tr>"
        for first, *rest in rows
    )
    return (
        f'<div class="wide"><table class="{kind}"><thead><tr>{top}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def strongest(
    weights: Sequence[float], labels: Sequence[str], count: int
) -> list[tuple[str, float]]:
    """The largest of some weights and the words they are on, largest first."""
    order = sorted(range(len(labels)), key=lambda place: -weights[place])[:count]
    return [(labels[place], weights[place]) for place in order]


def shares(found: Sequence[tuple[str, float]]) -> str:
    """Words, each with its share, as HTML."""
    return ", ".join(f"{chip(label)} {percent(weight)}" for label, weight in found)


def quoted(text: str) -> str:
    """A text of the person's, within one of the page's."""
    return f"<bdi>{escape(text)}</bdi>"


def options(names: Sequence[str], chosen: int, first: int = 0) -> str:
    """The options of a select element, valued from `first` on."""
    return "".join(
        f'<option value="{value}"{" selected" if value == chosen else ""}>{escape(name)}</option>'
        for value, name in enumerate(names, start=first)
    )


def stepper(panels: Sequence[str], start: int = 0) -> str:
    """Panels that the script shows one at a time; without it, all."""
    inside = "".join(f'<div class="panel">{panel}</div>' for panel in panels)
    return f'<div class="stepper" data-start="{start}">{inside}</div>'


def rounded(values: Any, digits: int = 6) -> Any:
    """Numbers nested in lists and dicts, to so many significant digits."""
    if isinstance(values, float):
        return float(f"{values:.{digits}g}")
    if isinstance(values, list):
        return [rounded(value, digits) for value in values]
    if isinstance(values, dict):
        return {name: rounded(value, digits) for name, value in values.items()}
    return values
