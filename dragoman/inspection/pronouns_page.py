"""The page of a word's attention: a row for every head, for several texts side by side."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np

from dragoman.inspection.attention_maps import END
from dragoman.inspection.attention_page import PageLanguage
from dragoman.inspection.head_summaries import FloatArray
from dragoman.inspection.pronouns import WordAttention
from dragoman.inspection.self_contained import (
    PageContent,
    escape,
    language_attribute,
    page_part,
    self_contained,
)
from dragoman.text.lines import atomic_write

_SHADES: Final = 10
_LEAST: Final = 0.01  # of a weight that is written beside its word

Strings = dict[str, str]


def write_pronouns_page(
    views: Sequence[WordAttention],
    word: str,
    language: str,
    path: Path,
    page_language: PageLanguage = "en",
) -> None:
    """Write the page, atomically. language is that of the texts."""
    content = pronouns_page(views, word, language, page_language)
    with atomic_write(path) as stream:
        stream.write(content)


def pronouns_page(
    views: Sequence[WordAttention], word: str, language: str, page_language: PageLanguage
) -> bytes:
    """The page itself; the heads that prefer one other word most clearly come first."""
    strings: Strings = json.loads(page_part(f"pronouns.{page_language}.json"))
    layers, heads = views[0].weights.shape[:2]
    means = [
        _row(
            strings["layer"].format(layer=layer + 1),
            views,
            [view.weights[layer].mean(axis=0) for view in views],
            (strings, language),
        )
        for layer in range(layers)
    ]
    clearness = sum(view.others.max(axis=-1) for view in views)
    order = np.argsort(-np.asarray(clearness), axis=None, kind="stable")
    rows = []
    for place in order:
        layer, head = divmod(int(place), heads)
        name = strings["head"].format(layer=layer + 1, head=head + 1)
        weights = [view.weights[layer, head] for view in views]
        rows.append(_row(name, views, weights, (strings, language)))
    title = strings["title"].format(word=word)
    several = len(views) > 1
    body = (
        f"<main><h1>{escape(title)}</h1>\n<p>{escape(strings['intro'].format(word=word))}"
        f"{' ' + escape(strings['compare']) if several else ''}</p>\n"
        f'<p class="soft small">{escape(strings["figure"])} '
        f"{escape(strings['end'].format(end=END))}</p>\n"
        f'<h2>{escape(strings["layers"])}</h2>\n<ul class="rows">{"".join(means)}</ul>\n'
        f"<h2>{escape(strings['heads'])}</h2>\n"
        f'<p class="soft small">{escape(strings["heads_hint"])}</p>\n'
        f'<ul class="rows" id="heads">{"".join(rows)}</ul></main>\n'
    )
    return self_contained(
        PageContent(
            {"en": "en", "zh": "zh-Hans"}[page_language],
            title,
            body,
            page_part("base.css") + page_part("pronouns.css"),
            "",
            {},
        )
    )


def _row(
    name: str,
    views: Sequence[WordAttention],
    weights: Sequence[FloatArray],
    shown_in: tuple[Strings, str],
) -> str:
    """One head, or the mean of some, in every view."""
    strings, language = shown_in
    preferred = [_preferred(*both) for both in zip(views, weights, strict=True)]
    chosen = {view.words[place] for view, place in zip(views, preferred, strict=True)}
    differ = len(chosen) > 1 and all(chosen <= set(view.words) for view in views)
    moved = f'<span class="moved">{escape(strings["moved"])}</span>' if differ else ""
    parts = []
    for number, (view, row, place) in enumerate(zip(views, weights, preferred, strict=True), 1):
        most = strings["nothing"]
        if row[place] >= _LEAST and place not in (view.place, len(view.words) - 1):
            most = strings["most"].format(share=_percent(row[place]), other=view.words[place])
        label = f"{strings['text'].format(number=number)}: " if len(views) > 1 else ""
        parts.append(
            f'<div><p class="soft small">{escape(label + most)}</p>'
            f'<p class="line" dir="auto"{language_attribute(language)}>{_line(view, row)}</p></div>'
        )
    several = " several" if len(views) > 1 else ""
    views_html = f'<div class="views{several}">{"".join(parts)}</div>'
    return f"<li><h3>{escape(name)}{moved}</h3>{views_html}</li>\n"


def _preferred(view: WordAttention, weights: FloatArray) -> int:
    """The place of the other word with the largest weight; the end does not count."""
    others = weights.copy()
    others[[view.place, -1]] = 0
    return int(others.argmax())


def _line(view: WordAttention, weights: FloatArray) -> str:
    parts = []
    for place, (word, weight) in enumerate(zip(view.words, weights.tolist(), strict=True)):
        text = f"<bdi>{escape(word)}</bdi>"
        if place == len(view.words) - 1:
            text = f"<i>{text}</i>"
        shade = min(_SHADES, int(weight * _SHADES + 0.5)) or (1 if weight >= 0.03 else 0)
        share = f"<small>{_percent(weight)}</small>" if weight >= _LEAST else ""
        tag = "b" if place == view.place else "span"
        kind = f' class="s{shade}"' if shade else ""
        parts.append(f'<{tag}{kind} data-weight="{weight:.4f}">{text}{share}</{tag}>')
    return " ".join(parts)


def _percent(weight: float) -> str:
    return f"{100 * weight:.0f}%"
