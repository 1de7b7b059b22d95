"""Repetition loops: the end of an output that says one phrase over and over.

A search that has lost the source may find the same few tokens likely for ever. Such a loop is a
phrase of ``period`` items that stands ``repeats`` times in a row.
"""

import re
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Final

LONGEST_PHRASE: Final = 8
FEWEST_REPEATS: Final = 4

# Short phrases of characters are common (lines of dots, "hahaha"): those must go on for longer.
_CHARACTER_LOOP: Final = re.compile(r"(.{1,2}?)\1{7,}|(.{3,16}?)\2{3,}", re.DOTALL)
NO_REPEAT: Final = 3
"""So many tokens may not stand twice where a loop is searched anew: no phrase fits four times."""

_WORD: Final = re.compile(r"\w+|[^\w\s]")


@dataclass(frozen=True, slots=True)
class Loop:
    """Items start to start + period stand ``repeats`` times in a row; ``phrase`` is their text."""

    start: int
    period: int
    repeats: int
    phrase: str = ""

    @property
    def second(self) -> int:
        """Where the first repetition starts: what is before it has the phrase once."""
        return self.start + self.period


def find_loop(items: Sequence[Hashable]) -> Loop | None:
    """The longest loop of a phrase of at most 8 items that stands at least 4 times in a row.

    Works for token ids as for words. Returns None where there is none. Time is linear.
    """
    if len(items) < FEWEST_REPEATS:
        return None
    # A loop repeats each item of its phrase: hardly any ordinary sentence gets past these lines.
    if len(items) - len(set(items)) < FEWEST_REPEATS - 1:
        return None
    if max(Counter(items).values()) < FEWEST_REPEATS:
        return None
    best: Loop | None = None
    for period in range(1, min(LONGEST_PHRASE, len(items) // FEWEST_REPEATS) + 1):
        same = 0
        for index in range(period, len(items) + 1):
            if index < len(items) and items[index] == items[index - period]:
                same += 1
                continue
            repeats = same // period + 1
            covered = repeats * period
            if repeats >= FEWEST_REPEATS and (best is None or covered > best.repeats * best.period):
                best = Loop(index - same - period, period, repeats)
            same = 0
    return best


def token_loop(source: Sequence[int], output: Sequence[int]) -> Loop | None:
    """The loop of an output's tokens, where the source has none of about so many repeats."""
    loop = find_loop(output)
    if loop is None:
        return None
    own = find_loop(source)
    return loop if own is None or loop.repeats > 2 * own.repeats else None


def without_loop(tokens: Sequence[int], loop: Loop) -> list[int]:
    """The tokens with the phrase of a loop once."""
    return [*tokens[: loop.second], *tokens[loop.start + loop.period * loop.repeats :]]


def text_loop(text: str) -> Loop | None:
    """The loop of words or characters in a text, its start and period in characters.

    Words come first; characters, for scripts without spaces and words that do not end: a phrase
    of 3 to 16 characters at least 4 times in a row, a shorter one at least 8 times.
    """
    chunks = text.split()
    if len(chunks) - len(set(chunks)) > 1:  # as four in a row make it, whatever stops around them
        spans = [match.span() for match in _WORD.finditer(text)]
        loop = find_loop([text[start:end] for start, end in spans])
        if loop is not None:
            start, second = spans[loop.start][0], spans[loop.second][0]
            phrase = text[start : spans[loop.second - 1][1]]
            return Loop(start, second - start, loop.repeats, phrase)
    # A loop of characters has at least seven that came before.
    for chunk in chunks:
        if len(chunk) > 7 and len(chunk) > len(set(chunk)) + 6 and _may_loop(chunk):
            return _character_loop(text)
    return None


def _may_loop(chunk: str) -> bool:
    """Whether at least four sequences of four characters came before: a loop makes for as many."""
    grams = len(chunk) - 3
    return grams > 4 and grams - len({chunk[i : i + 4] for i in range(grams)}) > 3


def _character_loop(text: str) -> Loop | None:
    best: Loop | None = None
    for match in _CHARACTER_LOOP.finditer(text):
        phrase = match[1] or match[2]
        covered = match.end() - match.start()
        if not phrase.isspace() and (best is None or covered > best.repeats * best.period):
            best = Loop(match.start(), len(phrase), covered // len(phrase), phrase)
    return best
