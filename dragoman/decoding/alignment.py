"""Which source word a word of a translation comes from, by the attention between their subwords.

Letters: T target subwords, S source subwords, N target words, M source words.
"""

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

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
    sources, targets = word_ranges(source, unspaced[0]), word_ranges(target, unspaced[1])
    if not sources or not targets:
        return []
    weights = np.asarray(attention)[: len(target), : len(source)]
    places = attended_words(
        weights, [word.start for word in sources], [word.start for word in targets]
    )
    return [
        Link(word_text(source, sources[place]), word_text(target, targets[number]), place, number)
        for number, place in enumerate(places.tolist())
    ]


def attended_words(
    weights: npt.NDArray[Any], source_starts: Sequence[int], target_starts: Sequence[int]
) -> npt.NDArray[np.int64]:
    """(T, S) weights -> (N,): for each target word the source word it attends to most.

    The weights of a word are the sums over its subwords; starts are the places of the first of
    each word, both not empty.
    """
    columns = np.add.reduceat(weights, source_starts, axis=1)  # (T, S) -> (T, M)
    summed = np.add.reduceat(columns, target_starts, axis=0)  # (T, M) -> (N, M)
    places: npt.NDArray[np.int64] = summed.argmax(axis=1)
    return places


def word_ranges(pieces: Sequence[str], unspaced: bool) -> list[range]:
    """Where the subwords of each word stand; a lone sign for a space belongs to what follows."""
    starts = [
        place
        for place, piece in enumerate(pieces)
        if place == 0 or piece.startswith(_SPACE) or (unspaced and pieces[place - 1] != _SPACE)
    ]
    return [range(*both) for both in itertools.pairwise([*starts, len(pieces)])]


def word_text(pieces: Sequence[str], places: range) -> str:
    """A word as text, without the sign for the space before it."""
    return "".join(pieces[place] for place in places).strip(_SPACE)
