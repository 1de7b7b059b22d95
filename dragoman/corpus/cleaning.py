"""Drop pairs that teach a model nothing or something wrong, and report every drop.

The rules are few and cautious, made for user-interface strings as well as for sentences:
one-word pairs, placeholders, markup, line breaks inside a text and names left untranslated stay.

Two rules depend on the corpus and are learned from its first `SAMPLE_SIZE` pairs: the usual length
ratio of its two languages (Chinese has a third of the characters of English), and whether
untranslated text is normal in it (American to British English).

Memory: the sample, then one pair and a 64-bit digest for each pair kept.
"""

import re
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import chain, islice
from statistics import median
from typing import Any

from dragoman.config import DataConfig
from dragoman.corpus.pairs import Pair
from dragoman.text.display import excerpt
from dragoman.text.protect import find_spans

SAMPLE_SIZE = 10_000
EXAMPLES = 3
CHARACTERS_PER_SUBWORD = 16
"""The longest piece the tokenizer makes: a text longer than this times `max_tokens` cannot fit."""
SLACK = 10
"""Characters added to both lengths before they are compared, so that short texts vary freely."""
INFORMATIVE_LENGTH = 20
"""Characters a source needs for its pair to tell the usual length ratio."""
INFORMATIVE_PAIRS = 30
"""Below this many such pairs, all pairs tell it."""
PROSE_WORDS = 5
PROSE_LETTERS = 12

EMPTY = "empty side"
CONTROL = "control or broken characters"
TOO_LONG = "too long"
DUPLICATE = "duplicate pair"
UNTRANSLATED = "untranslated"
LENGTH_RATIO = "length ratio"

# Tab, LF and CR are part of many strings. U+FFFD stands for a byte that was already lost, C1
# controls for text decoded with the wrong table, a surrogate for half a character.
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffd-\uffff]")
_VISIBLE = re.compile(r"[^\s\u00ad\u200b-\u200f\u2060\ufeff]")
_WORD = re.compile(r"[^\W\d_]+")


@dataclass(slots=True)
class CleaningReport:
    """What `clean_pairs` read, kept and dropped; complete once its pairs have been consumed.

    `examples` holds the first three dropped pairs of each reason with their numbers, counted from
    1 in the order read (the line number for files of one line a pair). `length_ratio` is the usual
    ratio of target to source characters that was learned, None for an empty corpus.
    """

    total: int = 0
    kept: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    examples: dict[str, list[tuple[int, Pair]]] = field(default_factory=dict)
    length_ratio: float | None = None

    def drop(self, reason: str, line: int, pair: Pair) -> None:
        """Count one dropped pair and keep it as an example if it is among the first.

        `line` is 0 where it is no longer known.
        """
        self.dropped[reason] = self.dropped.get(reason, 0) + 1
        examples = self.examples.setdefault(reason, [])
        if len(examples) < EXAMPLES:
            examples.append((line, pair))

    def to_json(self) -> dict[str, Any]:
        """The report as plain values for a JSON file."""
        return {
            "total": self.total,
            "kept": self.kept,
            "length_ratio": self.length_ratio,
            "dropped": dict(self.dropped),
            "examples": {
                reason: [
                    {"line": line, "source": pair.source, "target": pair.target}
                    for line, pair in examples
                ]
                for reason, examples in self.examples.items()
            },
        }

    def render(self) -> str:
        """The report as lines for a person, most frequent reason first, no control characters."""
        share = f" ({100 * self.kept / self.total:.1f}%)" if self.total else ""
        lines = [f"{self.total:,} pairs read, {self.kept:,} kept{share}"]
        for reason, count in sorted(self.dropped.items(), key=lambda item: (-item[1], item[0])):
            lines.append(f"  dropped {count:,}: {reason}")
            lines += [
                f"    {_place(line)}{_quoted(pair.source)} -> {_quoted(pair.target)}"
                for line, pair in self.examples[reason]
            ]
        return "\n".join(lines)


def _place(line: int) -> str:
    return f"line {line}: " if line else ""


def _quoted(text: str) -> str:
    return f'"{excerpt(text, 60)}"'


def clean_pairs(
    pairs: Iterable[Pair], config: DataConfig, report: CleaningReport
) -> Iterator[Pair]:
    """Yield the pairs worth training on, unchanged and in order; count the others in `report`.

    Dropped, by the first reason that holds:

    - a side that is empty or only blank and invisible characters;
    - control characters, U+FFFD or lone surrogates (tab and line breaks are fine);
    - more characters than `config.max_tokens` subwords can hold;
    - the same pair again (a source with another translation is no duplicate);
    - running text whose two sides are equal, unless that is usual in this corpus;
    - lengths that differ by more than `config.max_length_ratio` times the usual ratio, each
      length counted in source characters plus ten.

    `report` must be fresh; it is complete once the iterator is exhausted.
    """
    candidates = _well_formed(pairs, config, report)
    sample = list(islice(candidates, SAMPLE_SIZE))
    usual = _usual_ratio([pair for _, pair in sample])
    report.length_ratio = usual if sample else None
    drop_untranslated = not _is_copying([pair for _, pair in sample])
    limit = config.max_length_ratio
    seen = DigestSet()
    for line, pair in chain(sample, candidates):
        source, target = pair.source, pair.target
        lengths = (len(target) / usual + SLACK) / (len(source) + SLACK)
        if not seen.add(_digest(pair)):
            report.drop(DUPLICATE, line, pair)
        elif source == target and drop_untranslated and is_prose(source):
            report.drop(UNTRANSLATED, line, pair)
        elif not 1 / limit <= lengths <= limit:
            report.drop(LENGTH_RATIO, line, pair)
        else:
            report.kept += 1
            yield pair


def _well_formed(
    pairs: Iterable[Pair], config: DataConfig, report: CleaningReport
) -> Iterator[tuple[int, Pair]]:
    """The pairs that pass the rules that need no other pair, numbered from 1."""
    longest = config.max_tokens * CHARACTERS_PER_SUBWORD
    for line, pair in enumerate(pairs, start=1):
        report.total = line
        source, target = pair.source, pair.target
        if not _VISIBLE.search(source) or not _VISIBLE.search(target):
            report.drop(EMPTY, line, pair)
        elif _CONTROL.search(source) or _CONTROL.search(target):
            report.drop(CONTROL, line, pair)
        elif len(source) > longest or len(target) > longest:
            report.drop(TOO_LONG, line, pair)
        else:
            yield line, pair


def is_prose(text: str) -> bool:
    """Whether a text reads as running text, not as a name, a number or a format.

    At least five words, placeholders and the like apart, of which most begin in lower case; or, in
    scripts without case, at least twelve letters. Few leave such a text as it is by intention.
    """
    for start, end in reversed(find_spans(text)):
        text = f"{text[:start]} {text[end:]}"
    words = _WORD.findall(text)
    uncased = sum(len(word) for word in words if word.upper() == word.lower())
    if uncased >= PROSE_LETTERS:
        return True
    running = sum(word[0].islower() for word in words)
    return len(words) >= PROSE_WORDS and 2 * running > len(words)


def _usual_ratio(sample: list[Pair]) -> float:
    """The median ratio of target to source characters, from long sources where there are any."""
    long = [pair for pair in sample if len(pair.source) >= INFORMATIVE_LENGTH]
    telling = long if len(long) >= INFORMATIVE_PAIRS else sample
    ratios = [len(pair.target) / len(pair.source) for pair in telling]
    return median(ratios) if ratios else 1.0


def _is_copying(sample: list[Pair]) -> bool:
    """Whether most running text of the sample is the same on both sides."""
    prose = [pair.source == pair.target for pair in sample if is_prose(pair.source)]
    return 2 * sum(prose) > len(prose)


def _digest(pair: Pair) -> int:
    # NUL cannot be in a text here, so the joined bytes tell where the source ends.
    both = f"{pair.source}\0{pair.target}".encode()
    return int.from_bytes(blake2b(both, digest_size=8).digest(), "little")


class DigestSet:
    """A set of 64-bit integers in 12 to 24 bytes each, where a Python set takes about 90.

    Open addressing with linear probing in one array, at most two thirds full; zero marks a free
    place, so zero itself is stored as one.
    """

    def __init__(self) -> None:
        self._table = array("Q", bytes(8 * 1024))
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, digest: int) -> bool:
        """Add a digest; False when it was there."""
        digest = digest or 1
        table = self._table
        place = _free_place(table, digest)
        if table[place]:
            return False
        table[place] = digest
        self._count += 1
        if 3 * self._count > 2 * len(table):
            self._grow()
        return True

    def _grow(self) -> None:
        larger = array("Q", bytes(8 * 2 * len(self._table)))
        for digest in self._table:
            if digest:
                larger[_free_place(larger, digest)] = digest
        self._table = larger


def _free_place(table: "array[int]", digest: int) -> int:
    """The place that holds the digest, else the free one where it belongs."""
    mask = len(table) - 1
    place = digest & mask
    while table[place] and table[place] != digest:
        place = (place + 1) & mask
    return place
