"""Which source word a word of a translation comes from, by the attention between their subwords."""

import itertools
from collections.abc import Sequence
from typing import NamedTuple

_SPACE = "\u2581"  # where a subword begins a word


class Link(NamedTuple):
    """A word of the translation, the source word it attends to most, and their places from 0."""

    source: str
    target: str
    source_place: int
    target_place: int


def align(
    source: Sequence[str],
    target: Sequence[str],
    attention: Sequence[Sequence[float]],
    unspaced: tuple[bool, bool] = (False, False),
) -> list[Link]:
    """One link for each word of the target, in its order; the end of a sentence is no word.

    attention has a row for every target subword, of weights over the source subwords; what it has
    for the ends is not looked at. unspaced: whether the source, the target is of a script that
    writes no spaces; there a subword is a word.
    """
    sources, targets = _words(source, unspaced[0]), _words(target, unspaced[1])
    links = []
    for target_place, rows in enumerate(targets):
        weights = [
            sum(attention[row][column] for row in rows for column in columns) for columns in sources
        ]
        if not weights:
            break
        source_place = max(range(len(weights)), key=weights.__getitem__)
        links.append(
            Link(
                _text(source, sources[source_place]),
                _text(target, rows),
                source_place,
                target_place,
            )
        )
    return links


def _words(pieces: Sequence[str], unspaced: bool) -> list[range]:
    """Where the subwords of each word stand; a lone sign for a space belongs to what follows."""
    starts = [
        place
        for place, piece in enumerate(pieces)
        if place == 0 or piece.startswith(_SPACE) or (unspaced and pieces[place - 1] != _SPACE)
    ]
    return [range(*both) for both in itertools.pairwise([*starts, len(pieces)])]


def _text(pieces: Sequence[str], places: range) -> str:
    return "".join(pieces[place] for place in places).strip(_SPACE)
