"""A comparison as one HTML page: scores, scores by length, the sentences that differ most."""

import difflib
import html
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dragoman.evaluation.comparison import Comparison, System
from dragoman.evaluation.page_parts import SCRIPT, STYLE
from dragoman.evaluation.placeholders import Survival
from dragoman.evaluation.table import show_p_value, show_score
from dragoman.text.languages import UNSPACED, base_code
from dragoman.text.lines import atomic_write

MOST_SENTENCES: Final = 200
_MOST_BYTES: Final = 2_500_000
_LONGEST_TEXT: Final = 1_500
_MOST_REFERENCES: Final = 4
_MOST_COMPARISONS: Final = 50_000
_COLORS: Final = 6
_SPACED: Final = re.compile(r"\s+|\w+|[^\w\s]")
# What turns or hides the text around it; a page shows the code of it instead.
_UNSEEN: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"


@dataclass(frozen=True, slots=True)
class _Texts:
    """Everything that a sentence of the page shows."""

    systems: Sequence[System]
    references: Sequence[Sequence[str]]
    sources: Sequence[str] | None
    unspaced: bool


def write_page(
    path: str | Path,
    comparison: Comparison,
    systems: Sequence[System],
    references: Sequence[Sequence[str]],
    sources: Sequence[str] | None,
    survivals: Mapping[str, Survival],
) -> None:
    """Write the page, atomically; under 3 MB, however long the texts. survivals: by system name."""
    texts = _Texts(systems, references, sources, base_code(comparison.language) in UNSPACED)
    content = "".join(_page(comparison, texts, survivals)).encode("utf-8", "backslashreplace")
    with atomic_write(path) as stream:
        stream.write(content)


def most_different(comparison: Comparison) -> list[int]:
    """Sentence numbers, first the one on whose chrF the systems differ most.

    Of one system alone, first the one with the lowest chrF.
    """
    scores = [system.sentence_chrf for system in comparison.systems]
    if len(scores) == 1:
        return sorted(range(comparison.sentences), key=lambda number: scores[0][number])
    spread = [max(column) - min(column) for column in zip(*scores, strict=True)]
    order = sorted(range(comparison.sentences), key=lambda number: -spread[number])
    return [number for number in order if spread[number] > 0]


def differences(first: str, second: str, unspaced: bool) -> list[tuple[str, bool]]:
    """The first text in runs, each with whether it is missing from the second.

    Words are compared, of languages without spaces characters.
    """
    units, others = (list(t) if unspaced else _SPACED.findall(t) for t in (first, second))
    # Without its shortcut for frequent units, the time of long texts grows with their square.
    long = len(units) * len(others) > _MOST_COMPARISONS
    matcher = difflib.SequenceMatcher(None, units, others, autojunk=long)
    runs = []
    for kind, start, end, _, _ in matcher.get_opcodes():
        if start < end:
            runs.append(("".join(units[start:end]), kind != "equal"))
    return runs


def _page(
    comparison: Comparison, texts: _Texts, survivals: Mapping[str, Survival]
) -> Iterator[str]:
    names = " · ".join(system.name for system in comparison.systems)
    yield '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
    yield f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield f"<title>{_escape(names[:100])}: translation scores</title>"
    yield f"<style>{STYLE}</style></head><body><main><h1>Translation scores</h1>"
    yield f'<p class="grey">{comparison.sentences:,} sentences, {comparison.references:,} '
    yield f"reference{'' if comparison.references == 1 else 's'}, "
    yield f"into {_escape(comparison.language)}</p>"
    yield from _table(comparison)
    yield from _placeholders(survivals)
    yield from _charts(comparison)
    yield from _sentences(comparison, texts)
    yield "</main></body></html>\n"


def _table(comparison: Comparison) -> Iterator[str]:
    yield '<div class="wide"><table>'
    if comparison.samples:
        yield f"<caption>± half the 95% interval of {comparison.samples:,} bootstrap resamples"
        if len(comparison.systems) > 1:
            yield f"; p: paired bootstrap against {_escape(comparison.baseline.name)}"
            yield ", * p &lt; 0.05"
        yield "</caption>"
    heads = "".join(f'<th scope="col">{_escape(name)}</th>' for name in comparison.baseline.scores)
    yield f'<tr><th scope="col">System</th>{heads}</tr>'
    for system in comparison.systems:
        yield f'<tr><th scope="row">{_escape(system.name)}</th>'
        for name, score in system.scores.items():
            p_value = show_p_value(score)
            more = f'<br><span class="grey">{p_value}</span>' if p_value else ""
            yield f"<td>{show_score(name, score)}{more}</td>"
        yield "</tr>"
    yield "</table></div>"
    for name, signature in comparison.signatures.items():
        yield f'<p class="grey">{_escape(name)}: <code>{_escape(signature)}</code></p>'
    if comparison.note:
        yield f"<p>Note: {_escape(comparison.note)}</p>"


def _placeholders(survivals: Mapping[str, Survival]) -> Iterator[str]:
    """How many placeholders each system kept; nothing where the source has none."""
    counted = {name: kept for name, kept in survivals.items() if kept.share is not None}
    if not counted:
        return
    yield '<h2>Placeholders kept unchanged</h2><div class="wide"><table>'
    yield '<tr><th scope="col">System</th><th scope="col">Kept</th></tr>'
    for name, survival in counted.items():
        share = 100 * (survival.share or 0.0)
        yield f'<tr><th scope="row">{_escape(name)}</th>'
        yield f"<td>{survival.kept:,} of {survival.total:,} ({share:.1f}%)</td></tr>"
    yield "</table></div>"


def _charts(comparison: Comparison) -> Iterator[str]:
    yield f'<h2>By {_escape(comparison.unit)}</h2><div class="charts">'
    for metric in ("BLEU", "chrF2"):
        yield f"<figure><figcaption>{metric}</figcaption>{_chart(comparison, metric)}</figure>"
    yield '</div><ul class="key">'
    for number, system in enumerate(comparison.systems):
        color = f"var(--s{number % _COLORS})"
        yield f'<li><span style="background:{color}"></span>{_escape(system.name)}</li>'
    yield '</ul><div class="wide"><table><tr><th scope="col">Length</th>'
    for bucket in comparison.buckets:
        yield f'<th scope="col">{bucket.label}</th>'
    yield '</tr><tr><th scope="row">Sentences</th>'
    for bucket in comparison.buckets:
        yield f"<td>{bucket.sentences:,}</td>"
    yield "</tr>"
    for metric in ("BLEU", "chrF2"):
        for system in comparison.systems:
            yield f'<tr><th scope="row">{metric} {_escape(system.name)}</th>'
            yield "".join(f"<td>{value:.1f}</td>" for value in system.by_length[metric])
            yield "</tr>"
    yield "</table></div>"


def _chart(comparison: Comparison, metric: str) -> str:
    """Lines over the buckets from 0 to the next ten above the highest score; units are pixels."""
    width, height, left, top, bottom = 340, 190, 30, 10, 24
    values = [system.by_length[metric] for system in comparison.systems]
    # A perfect score is a little more than 100 in floating point.
    highest = min(100, max(10, -(-max(max(row) for row in values) // 10) * 10))
    columns = len(comparison.buckets)

    def across(column: int) -> float:
        return left + (column + 0.5) * (width - left) / columns

    def down(value: float) -> float:
        return top + (height - top - bottom) * (1 - min(value, highest) / highest)

    parts = [
        f'<svg viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="{metric} by {_escape(comparison.unit)}; the figures are in the table below">'
    ]
    for value in (0.0, highest / 2, highest):
        y = down(value)
        parts.append(
            f'<line x1="{left}" x2="{width}" y1="{y:.1f}" y2="{y:.1f}" stroke="var(--line)"/>'
            f'<text x="{left - 5}" y="{y + 4:.1f}" text-anchor="end">{value:.0f}</text>'
        )
    for column, bucket in enumerate(comparison.buckets):
        parts.append(
            f'<text x="{across(column):.1f}" y="{height - 6}" text-anchor="middle">'
            f"{bucket.label}</text>"
        )
    for number, row in enumerate(values):
        color = f"var(--s{number % _COLORS})"
        points = [(across(column), down(value)) for column, value in enumerate(row)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{color}"/>' for x, y in points]
    return "".join(parts) + "</svg>"


def _sentences(comparison: Comparison, texts: _Texts) -> Iterator[str]:
    alone = len(comparison.systems) == 1
    order = most_different(comparison)
    articles, size = [], 0
    for number in order[:MOST_SENTENCES]:
        article = "".join(_article(comparison, texts, number))
        size += len(article.encode("utf-8", "backslashreplace"))
        if size > _MOST_BYTES:
            break
        articles.append(article)
    if not articles:
        yield "<h2>Sentences</h2><p>All systems score the same on every sentence.</p>"
        return
    what = "with the lowest chrF2" if alone else "whose chrF2 differs most between systems"
    yield f"<h2>Sentences {what}</h2>"
    yield f'<p><span id="shown">{len(articles)}</span> shown of {len(articles)} here; '
    yield f"{len(order):,} of {comparison.sentences:,} "
    yield "were scored.</p>" if alone else "differ in chrF2.</p>"
    marked = "the first reference" if alone else "the other translation"
    yield f'<p class="grey">Marked: words that {marked} does not have.</p>'
    yield from _form(comparison, alone)
    yield f'<div id="sentences">{"".join(articles)}</div><script>{SCRIPT}</script>'


def _form(comparison: Comparison, alone: bool) -> Iterator[str]:
    first = 0 if alone else 1
    base = _escape(comparison.baseline.name)
    orders = [("lowest", "lowest chrF2"), ("line", "line number")]
    if not alone:
        orders = [
            ("difference", "largest difference"),
            ("worse", f"better in {base}"),
            ("better", f"worse in {base}"),
            *orders,
        ]
    yield '<form hidden><label>Order<select name="order">'
    yield "".join(f'<option value="{key}">{label}</option>' for key, label in orders)
    hide = " hidden" if len(comparison.systems) < 3 else ""
    yield f'</select></label><label{hide}>Compare with<select name="other">'
    for number, system in enumerate(comparison.systems[first:], start=first):
        yield f'<option value="{number}">{_escape(system.name)}</option>'
    yield '</select></label><label>With the text<input type="search" name="search"></label></form>'


def _article(comparison: Comparison, texts: _Texts, number: int) -> Iterator[str]:
    scores = [system.sentence_chrf[number] for system in comparison.systems]
    yield f'<article data-line="{number + 1}" '
    yield f'data-scores="{" ".join(f"{score:.2f}" for score in scores)}">'
    yield f'<h3>Line {number + 1:,}</h3><dl class="texts">'
    if texts.sources is not None:
        yield _term("Source", _shown(texts.sources[number]))
    for rank, reference in enumerate(texts.references[:_MOST_REFERENCES], start=1):
        name = "Reference" if len(texts.references) == 1 else f"Reference {rank}"
        yield _term(name, _shown(reference[number]))
    yield '</dl><dl class="sides">'
    lines = [_cut(system.translations[number]) for system in texts.systems]
    # The baseline beside the system it differs from most, every other one beside the baseline.
    furthest = max(range(len(scores)), key=lambda other: abs(scores[other] - scores[0]))
    for rank, (system, line) in enumerate(zip(texts.systems, lines, strict=True)):
        other = lines[0] if rank else lines[furthest]
        if len(lines) == 1:
            other = _cut(texts.references[0][number])
        runs = differences(line, other, texts.unspaced)
        body = "".join(
            f"<mark>{_escape(run)}</mark>" if new and run.strip() else _escape(run)
            for run, new in runs
        )
        color = f"var(--s{rank % _COLORS})"
        yield f'<div style="border-color:{color}">'
        yield _term(f"{system.name} · chrF2 {scores[rank]:.1f}", body or "(empty)") + "</div>"
    yield "</dl></article>"


def _term(name: str, body: str) -> str:
    return f'<dt>{_escape(name)}</dt><dd dir="auto">{body}</dd>'


def _shown(text: str) -> str:
    return _escape(_cut(text)) or "(empty)"


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST_TEXT else text[:_LONGEST_TEXT] + " … (cut)"


def _escape(text: str) -> str:
    return html.escape(_UNSEEN.sub(lambda match: f"\\u{ord(match[0]):04x}", text))
