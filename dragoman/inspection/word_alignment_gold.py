"""Alignments that people made, and the alignment error rate of a model's beside them.

Och & Ney 2003, "A Systematic Comparison of Various Statistical Alignment Models", section 5.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from dragoman.errors import UserError
from dragoman.text.lines import ErrorPolicy, read_lines

Links = frozenset[tuple[int, int]]
"""Places of a source word and of a target word, each from 0."""
_LINK = re.compile(r"(\d{1,6})([-p])(\d{1,6})", re.ASCII)


@dataclass(frozen=True, slots=True)
class GoldAlignment:
    """The links of a pair: those that are sure, and all that are possible, the sure among them."""

    sure: Links
    possible: Links


class AlignmentError(NamedTuple):
    """How wrong alignments are, and their precision and recall, all between 0 and 1."""

    rate: float
    precision: float
    recall: float


def read_gold(path: Path, errors: ErrorPolicy = "strict") -> list[GoldAlignment]:
    """The alignments of a file, a line for each pair: `0-0` a sure link, `1p2` a possible one.

    Raises UserError with file and line for anything else.
    """
    lines = list(read_lines(path, errors))  # an error then leaves no file open
    return [parse_gold(line, f"{path}:{number}") for number, line in enumerate(lines, start=1)]


def parse_gold(line: str, place: str) -> GoldAlignment:
    """The links of a line. Raises UserError, which names the place."""
    sure, possible = set[tuple[int, int]](), set[tuple[int, int]]()
    for text in line.split():
        found = _LINK.fullmatch(text)
        if found is None:
            raise UserError(
                f"{place}: '{text}' is no link",
                "write SOURCE-TARGET for a sure link and SOURCEpTARGET for a possible one, "
                "words counted from 0: 0-0 1p2",
            )
        link = int(found[1]), int(found[3])
        possible.add(link)
        if found[2] == "-":
            sure.add(link)
    return GoldAlignment(frozenset(sure), frozenset(possible))


def alignment_error(found: Iterable[Links], gold: Sequence[GoldAlignment]) -> AlignmentError:
    """AER = 1 - (|A & S| + |A & P|) / (|A| + |S|) over all pairs; 0 where there is no link at all.

    Precision is |A & P| / |A|, recall |A & S| / |S|. Raises ValueError for other than one set of
    links for each gold alignment.
    """
    links = sure = in_sure = in_possible = 0
    for answer, wanted in zip(found, gold, strict=True):
        links += len(answer)
        sure += len(wanted.sure)
        in_sure += len(answer & wanted.sure)
        in_possible += len(answer & wanted.possible)
    return AlignmentError(
        rate=1 - (in_sure + in_possible) / (links + sure) if links + sure else 0.0,
        precision=in_possible / links if links else 1.0,
        recall=in_sure / sure if sure else 1.0,
    )


def check_gold(gold: Sequence[GoldAlignment], sizes: Sequence[tuple[int, int] | None]) -> None:
    """Raises UserError unless gold alignments are those of pairs with so many words.

    sizes are the words of source and target, None where they are not known.
    """
    if len(gold) != len(sizes):
        raise UserError(
            f"{len(gold):,} gold alignments for {len(sizes):,} pairs", "give one line for each pair"
        )
    for number, (wanted, size) in enumerate(zip(gold, sizes, strict=True), start=1):
        if size is None:
            continue
        for source, target in sorted(wanted.possible):
            if source >= size[0] or target >= size[1]:
                raise UserError(
                    f"gold alignment {number:,} links word {source} to word {target}, but the pair "
                    f"has {size[0]} and {size[1]} words",
                    "words are counted from 0; what white space separates is a word",
                )
