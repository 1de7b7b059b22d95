"""A comparison as aligned lines of at most 80 columns, for a person at a terminal."""

from collections.abc import Mapping, Sequence
from typing import Final

from rich.cells import cell_len, set_cell_size

from dragoman.evaluation.comparison import Comparison, Score, SystemResult
from dragoman.evaluation.placeholders import Survival
from dragoman.text.display import printable

WIDTH: Final = 80
SIGNIFICANT: Final = 0.05
_CELL: Final = 16


def render(comparison: Comparison, survivals: Mapping[str, Survival]) -> str:
    """The scores with their intervals and p-values, signatures, and the scores by length."""
    count, references = comparison.sentences, comparison.references
    head = f"{_plural(count, 'sentence')}, {_plural(references, 'reference')}"
    if comparison.samples:
        head += f"; ± is half the 95% interval of {comparison.samples:,} resamples"
    lines = [head, "", *_scores(comparison), ""]
    for name, signature in comparison.signatures.items():
        lines.append(f"{name}: {signature}")
    if len(comparison.systems) > 1 and comparison.samples:
        baseline = printable(comparison.baseline.name)
        lines.append(f"p: paired bootstrap against {baseline}; * is p < {SIGNIFICANT}")
    if comparison.note:
        lines.append(f"note: {comparison.note}")
    lines += ["", *_lengths(comparison)]
    kept = [
        f"placeholders kept by {printable(name)}: {survival.kept:,} of {survival.total:,} "
        f"({100 * survival.share:.1f}%)"
        for name, survival in survivals.items()
        if survival.share is not None
    ]
    if kept:
        lines += ["", *kept]
    return "\n".join(line.rstrip() for line in lines)


def show_score(name: str, score: Score) -> str:
    """A score with its margin: BLEU to two places, COMET, which is about 1, to four."""
    places = 4 if name == "COMET" else 2
    shown = f"{score.value:.{places}f}"
    return shown if score.margin is None else f"{shown} ± {score.margin:.{places}f}"


def show_p_value(score: Score) -> str:
    """``p = 0.012 *``, or nothing for the baseline."""
    if score.p_value is None:
        return ""
    star = " *" if score.p_value < SIGNIFICANT else ""
    return f"p = {score.p_value:.3f}{star}"


def _plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _scores(comparison: Comparison) -> list[str]:
    names = list(comparison.baseline.scores)
    width = _name_width(comparison.systems, WIDTH - _CELL * len(names))
    lines = [_row("system", width, names, _CELL)]
    for system in comparison.systems:
        cells = [show_score(name, score) for name, score in system.scores.items()]
        lines.append(_row(system.name, width, cells, _CELL))
        p_values = [show_p_value(score) for score in system.scores.values()]
        if any(p_values):
            lines.append(_row("", width, p_values, _CELL))
    return lines


def _lengths(comparison: Comparison) -> list[str]:
    """A row a system and a column a length, so that any number of systems fits."""
    buckets = comparison.buckets
    cell = 7
    title = f"by {comparison.unit}"
    room = WIDTH - cell * len(buckets)
    width = max(_name_width(comparison.systems, room - 6) + 6, min(len(title) + 1, room))
    lines = [_row(title, width, [bucket.label for bucket in buckets], cell)]
    lines.append(_row("sentences", width, [f"{bucket.sentences:,}" for bucket in buckets], cell))
    for name in ("BLEU", "chrF2"):
        for system in comparison.systems:
            label = f"{name:<6}{printable(system.name)}"
            lines.append(
                _row(label, width, [f"{value:.1f}" for value in system.by_length[name]], cell)
            )
    return lines


def _name_width(systems: Sequence[SystemResult], most: int) -> int:
    return max(8, min(most, max(cell_len(printable(system.name)) for system in systems) + 1))


def _row(first: str, width: int, cells: Sequence[str], cell: int) -> str:
    name = printable(first)
    if cell_len(name) > width - 1:
        name = set_cell_size(name, width - 2) + "…"
    return set_cell_size(name, width) + "".join(f"{text:>{cell}}" for text in cells)
