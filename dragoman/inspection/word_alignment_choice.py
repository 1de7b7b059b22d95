"""Which head's attention aligns words best, and the file in a model folder that remembers it."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from dragoman.corpus.pairs import Pair
from dragoman.errors import UserError
from dragoman.inspection.word_alignment import AlignmentHead, WordAligner
from dragoman.inspection.word_alignment_gold import (
    AlignmentError,
    GoldAlignment,
    alignment_error,
    check_gold,
)
from dragoman.text.lines import atomic_write

CHOICE: Final = "alignment.json"
"""The name of the file in a model folder."""
ENOUGH: Final = 100
"""Pairs that are enough to choose by."""
_AGAIN = "choose anew: dragoman align --choose"


@dataclass(frozen=True, slots=True)
class MeasuredHead:
    """A head and how wrong its alignments are."""

    head: AlignmentHead
    error: AlignmentError


def measure_heads(
    aligner: WordAligner, pairs: Sequence[Pair], gold: Sequence[GoldAlignment] | None = None
) -> list[MeasuredHead]:
    """All heads of a model, the best first, by their alignment error rate on some pairs.

    Without gold alignments the rate is against those that `WordAligner.align` finds by hiding
    source words: what the head attends to is what the model cannot do without. Raises UserError for
    gold alignments of other pairs.
    """
    if gold is None:
        hidden = aligner.align(pairs)
        links = [frozenset(found.links if found else ()) for found in hidden]
        gold = [GoldAlignment(sure, sure) for sure in links]
    heads = aligner.heads()
    aligned = aligner.align_by_all(pairs, heads)
    check_gold(gold, [found[0].size if found else None for found in aligned])
    measured = []
    for number, head in enumerate(heads):
        links = [frozenset(found[number].links if found else ()) for found in aligned]
        measured.append(MeasuredHead(head, alignment_error(links, gold)))
    return sorted(measured, key=lambda one: one.error.rate)


def save_choice(folder: Path, head: AlignmentHead) -> None:
    """Remember a head in a model folder, in the place of any other."""
    with atomic_write(folder / CHOICE) as stream:
        stream.write(json.dumps(asdict(head)).encode() + b"\n")


def load_choice(folder: Path, aligner: WordAligner) -> AlignmentHead | None:
    """The head that a model folder remembers, None where it does not.

    Raises UserError for a damaged file and for a head that the model does not have.
    """
    path = folder / CHOICE
    if not path.exists():
        return None
    try:
        return aligner.checked(AlignmentHead(**json.loads(path.read_text("utf-8"))))
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise UserError(f"{path}: damaged: {error}", _AGAIN) from None
    except UserError as error:
        raise UserError(f"{path}: {error.message}", _AGAIN) from None
