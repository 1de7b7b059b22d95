"""Numbers in a text, as values that do not depend on how a language writes them."""

import re
import unicodedata
from dataclasses import dataclass
from decimal import Decimal
from typing import Final

from dragoman.text.protect import find_spans

# What a number may be multiplied by in words; a billion is 10^9 here and 10^12 there.
_SCALES: Final[tuple[tuple[str, tuple[int, ...]], ...]] = (
    ("hundred|hundert|cents?|百|백", (2,)),
    ("thousand|tausend|mil(?:le)?(?![a-z])|тыс|千|천", (3,)),
    ("万|萬|만", (4,)),
    ("mill?i[oó]|mio|mln|млн|миллион|m(?![a-z])", (6,)),
    ("亿|億|억", (8,)),
    ("billi|bilh|miliard|milliard|mrd|bn|млрд|миллиард|b(?![a-z])", (9, 12)),
    ("trilli|兆|조", (12, 18)),
)
# Digits in groups: 1,234.5  1.234,5  1'234.50  1 234,5 (a plain space before three digits only),
# with what they are multiplied by as the group after that.
_NUMBER: Final = re.compile(
    r"(?<![0-9])([0-9]{1,3}(?:[ \u00a0\u202f\u2009][0-9]{3})++(?![0-9])(?:[.,][0-9]++)?+"
    r"|[0-9]++(?:[.,'’٫٬][0-9]++)*+)"
    r"(?:[\s\-]?(?:" + "|".join(f"({words})" for words, _ in _SCALES) + "))?",
    re.IGNORECASE,
)
# The time of day; half past two may well have no digit.
_TIME: Final = re.compile(r"(?<![0-9:])([01]?[0-9]|2[0-4]):([0-5][0-9])(?![0-9:])")
_QUARTERS: Final = frozenset(("00", "15", "30", "45"))
_SEPARATOR: Final = re.compile(r"[^0-9]+")
_DIGIT: Final = re.compile(r"\d")
_ZERO_TO_NINE: Final = "0123456789"

# Numbers in characters: 三百六十五.
_CHARACTERS: Final = re.compile(r"[〇一二三四五六七八九十百千万萬億亿两兩]{2,}")
_SMALL: Final = frozenset(map(Decimal, range(13)))
_ROUND: Final = frozenset(Decimal(10) ** exponent for exponent in (2, 3, 6, 9, 12))
_LONGEST: Final = 400
_MANY: Final = 200


@dataclass(frozen=True, slots=True)
class Number:
    """A number as it is written and the values it may have: 1,234 is 1234 or 1.234."""

    text: str
    values: frozenset[Decimal]


def lost_numbers(source: str, translation: str) -> tuple[list[str], list[str]]:
    """The numbers of the source that the translation lacks, and those it has of its own.

    A number is there if some reading of it is some reading of a number of the translation, in any
    script's digits and with its scale in digits or words (``5 million``, ``500万``). Numbers up to
    12 and 100, 1000 ... may become words, a decade may lose its century (``1990s``, ``90er``).
    Protected spans do not count.
    """
    if not _has_digits(source):
        return [], []
    plain_source, plain = _plain(source), _plain(translation)
    wanted, given = _numbers(plain_source), _numbers(plain)
    have = frozenset[Decimal]().union(*(number.values for number in given))
    # Numbers of a telephone are cut in other places.
    joined = _SEPARATOR.sub("", plain) if len(wanted) <= _MANY else ""
    in_characters = _CHARACTERS.search(translation) is not None
    decades = _decades(have)
    lost = []
    for number in wanted:
        if number.values & have or number.values & (_SMALL | _ROUND):
            continue
        digits = _SEPARATOR.sub("", number.text)
        if (len(digits) > 4 and digits in joined) or (len(digits) <= 4 and in_characters):
            continue
        if not (number.values & decades):
            lost.append(number.text)
    if not lost:
        return [], []
    expected = _SMALL.union(*(number.values for number in wanted))
    extra = [number.text for number in given if not number.values & expected]
    return list(dict.fromkeys(lost)), list(dict.fromkeys(extra))


def _decades(values: frozenset[Decimal]) -> frozenset[Decimal]:
    """The decades that go by another name: 1990 for 90, and 90 for 1990."""
    tens = {value for value in values if value < 2000 and value % 10 == 0}
    return frozenset(
        {1900 + value for value in tens if 10 <= value < 100}
        | {value % 100 for value in tens if 1900 <= value < 2000}
    )


def _has_digits(text: str) -> bool:
    return _DIGIT.search(text) is not None


def _plain(text: str) -> str:
    """The text without its protected spans and with ASCII digits."""
    plain = list(text)
    for start, end in find_spans(text):
        plain[start:end] = "\n" * (end - start)
    return _ascii_digits("".join(plain))


def _numbers(text: str) -> list[Number]:
    """The different numbers of a text without protected spans."""
    found = {match[0]: _time(match) for match in _TIME.finditer(text)}
    for match in _NUMBER.finditer(_TIME.sub("\n", text)):
        if match[0] in found:
            continue
        values = set(_readings(match[1]))
        scale = match.lastindex or 1
        if scale > 1:
            exponents = _SCALES[scale - 2][1]
            values |= {value.scaleb(exponent) for value in values for exponent in exponents}
        found[match[0]] = Number(match[1], frozenset(values))
    return list(found.values())


def _time(match: re.Match[str]) -> Number:
    """A time of day; its values are those of 2:30, 14:30, 2.30 and, for a quarter, nothing."""
    hour, minute = int(match[1]), match[2]
    values = {Decimal(f"{shown}.{minute}") for shown in (hour, (hour + 12) % 24, abs(hour - 12))}
    if minute in _QUARTERS:
        values.add(Decimal(0))
    return Number(match[0], frozenset(values))


def _ascii_digits(text: str) -> str:
    if text.isascii():
        return text
    return "".join(
        _ZERO_TO_NINE[unicodedata.decimal(c)] if not c.isascii() and c.isdecimal() else c
        for c in text
    )


def _readings(written: str) -> list[Decimal]:
    """The values of digits with separators: as groups of three, as a decimal, or as parts."""
    if written.isdecimal():
        return [Decimal(written[:_LONGEST])]
    parts = _SEPARATOR.split(written[:_LONGEST])
    marks = _SEPARATOR.findall(written[:_LONGEST])
    parts = [part for part in parts if part]
    readings = []
    grouped = all(len(part) == 3 for part in parts[1:]) and len(parts[0]) <= 3
    if grouped and len(set(marks)) == 1:
        readings.append(Decimal("".join(parts)))
    inner = parts[1:-1]
    last = marks[-1] if marks else ""
    if all(len(part) == 3 for part in inner) and last not in marks[:-1] and last.strip():
        readings.append(Decimal("".join(parts[:-1]) + "." + parts[-1]))
    # Neither: a date, a version, a list.
    return readings or [Decimal(part) for part in parts]
