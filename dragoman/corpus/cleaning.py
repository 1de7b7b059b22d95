"""Drop pairs that teach a model nothing or something wrong, and report every drop.

The rules are few and cautious, made for user-interface strings as well as for sentences:
one-word pairs, placeholders, markup, line breaks inside a text and names left untranslated stay.

Two rules depend on the corpus and are learned from its first `SAMPLE_SIZE` pairs: the usual length
ratio of its two languages (Chinese has a third of the characters of English), and whether
untranslated text is normal in it (American to British English).

Each pair is judged for itself (`fault`, then `verdict`), here or in another process; only
duplicates need all pairs, of which their digests are enough.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice
from statistics import median
from typing import Any

import numpy as np

from dragoman.config import DataConfig
from dragoman.corpus.digests import first_rows, pair_digest
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
_OF_TEXTS = {EMPTY: "blank", DUPLICATE: "duplicate text"}

# Tab, LF and CR are part of many strings. U+FFFD stands for a byte that was already lost, C1
# controls for text decoded with the wrong table, a surrogate for half a character.
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffd-\uffff]")
_VISIBLE = re.compile(r"[^\s\u00ad\u200b-\u200f\u2060\ufeff]")
_WORD = re.compile(r"[^\W\d_]+")


@dataclass(slots=True)
class CleaningReport:
    """What cleaning read, kept and dropped.

    `examples` holds the first three dropped pairs of each reason with their numbers, counted from
    1 in the order read (the line number for files of one line a pair). `length_ratio` is the usual
    ratio of target to source characters that was learned, None for an empty corpus. unit: of the
    counts; pairs of "texts" have no source.
    """

    total: int = 0
    kept: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    examples: dict[str, list[tuple[int, Pair]]] = field(default_factory=dict)
    length_ratio: float | None = None
    unit: str = "pairs"

    def drop(self, reason: str, line: int, pair: Pair) -> None:
        """Count one dropped pair and keep it as an example if it is among the first.

        `line` is 0 where there is none.
        """
        self.count(reason, 1, [(line, pair)])

    def count(self, reason: str, number: int, examples: Iterable[tuple[int, Pair]]) -> None:
        """Count so many dropped pairs, of which some are given with their lines."""
        if self.unit == "texts":
            reason = _OF_TEXTS.get(reason, reason)
        self.dropped[reason] = self.dropped.get(reason, 0) + number
        known = self.examples.setdefault(reason, [])
        known += islice(examples, EXAMPLES - len(known))

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
        lines = [f"{self.total:,} {self.unit} read, {self.kept:,} kept{share}"]
        for reason, count in sorted(self.dropped.items(), key=lambda item: (-item[1], item[0])):
            lines.append(f"  dropped {count:,}: {reason}")
            lines += [
                f"    {_place(line)}{self._example(pair)}" for line, pair in self.examples[reason]
            ]
        return "\n".join(lines)

    def counts(self) -> str:
        """The report in half a line."""
        dropped = [f"{count:,} {reason}" for reason, count in self.dropped.items()]
        return "; ".join([f"{self.kept:,} of {self.total:,} {self.unit} are left", *dropped])

    def _example(self, pair: Pair) -> str:
        source = "" if self.unit == "texts" else f"{_quoted(pair.source)} -> "
        return source + _quoted(pair.target)


def _place(line: int) -> str:
    return f"line {line}: " if line else ""


def _quoted(text: str) -> str:
    return f'"{excerpt(text, 60)}"'


@dataclass(frozen=True, slots=True)
class Usual:
    """What is usual in a corpus: target characters a source character, and equal texts."""

    length_ratio: float
    copying: bool


def learn_usual(pairs: Iterable[Pair], config: DataConfig) -> Usual | None:
    """What is usual among the first `SAMPLE_SIZE` pairs without a `fault`; None without any."""
    longest = longest_text(config)
    sample = list(islice((pair for pair in pairs if not fault(pair, longest)), SAMPLE_SIZE))
    return Usual(_usual_ratio(sample), _is_copying(sample)) if sample else None


def longest_text(config: DataConfig) -> int:
    """The characters that `config.max_tokens` subwords can hold at most."""
    return config.max_tokens * CHARACTERS_PER_SUBWORD


def fault(pair: Pair, longest: int) -> str:
    """Why a pair is dropped whatever the corpus is like, or nothing; `longest` in characters."""
    source, target = pair.source, pair.target
    if not _VISIBLE.search(source) or not _VISIBLE.search(target):
        return EMPTY
    if _CONTROL.search(source) or _CONTROL.search(target):
        return CONTROL
    if len(source) > longest or len(target) > longest:
        return TOO_LONG
    return ""


def verdict(pair: Pair, usual: Usual, limit: float) -> str:
    """Why a pair without `fault` is dropped from such a corpus, or nothing.

    `limit`: by how much the lengths may differ from the usual ratio (`config.max_length_ratio`).
    """
    source, target = pair.source, pair.target
    if source == target and not usual.copying and is_prose(source):
        return UNTRANSLATED
    lengths = (len(target) / usual.length_ratio + SLACK) / (len(source) + SLACK)
    return "" if 1 / limit <= lengths <= limit else LENGTH_RATIO


def clean_pairs(pairs: Iterable[Pair], config: DataConfig, report: CleaningReport) -> list[Pair]:
    """The pairs worth training on, unchanged and in order; the others are counted in `report`.

    For pairs that memory holds; `dragoman.corpus.preparation` does the same to any number. Dropped,
    by the first reason that holds:

    - a side that is empty or only blank and invisible characters;
    - control characters, U+FFFD or lone surrogates (tab and line breaks are fine);
    - more characters than `config.max_tokens` subwords can hold;
    - the same pair again (a source with another translation is no duplicate);
    - running text whose two sides are equal, unless that is usual in this corpus;
    - lengths that differ by more than `config.max_length_ratio` times the usual ratio, each
      length counted in source characters plus ten.
    """
    every = list(pairs)
    usual = learn_usual(every, config)
    report.total = len(every)
    report.length_ratio = usual.length_ratio if usual else None
    longest = longest_text(config)
    faults = [fault(pair, longest) for pair in every]
    whole = [row for row, found in enumerate(faults) if not found]
    digests = [pair_digest(every[row].source, every[row].target) for row in whole]
    first = dict(zip(whole, first_rows(np.array(digests, dtype=np.uint64)).tolist(), strict=True))
    kept = []
    for row, (pair, reason) in enumerate(zip(every, faults, strict=True)):
        if not reason and whole[first[row]] != row:
            reason = DUPLICATE
        elif not reason and usual is not None:
            reason = verdict(pair, usual, config.max_length_ratio)
        if reason:
            report.drop(reason, row + 1, pair)
        else:
            kept.append(pair)
    report.kept = len(kept)
    return kept


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
