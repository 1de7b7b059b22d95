"""ALL-CAPS lines: translated as a sentence, then capitalized again.

A model sees few lines in capitals, and its subwords of them are short and rare. The same line in
sentence case is what it was trained on.
"""

import itertools
import re
import unicodedata
from enum import StrEnum
from typing import Final

from dragoman.text.languages import base_code
from dragoman.text.protect import find_spans

_DOTTED_I: Final = frozenset(("tr", "tur", "az", "aze", "crh", "tt", "tat"))
_GREEK: Final = frozenset(("el", "ell", "gre"))
_ENGLISH: Final = frozenset(("en", "eng"))
_DUTCH: Final = frozenset(("nl", "nld", "dut"))
# Georgian capitals are for headings alone and have no place in ordinary text.
_NO_CAPITALS: Final = frozenset(("ka", "kat", "geo"))

# Two letters in a row, neither of them an ASCII lower-case one: most lines have none.
_CAPITALS: Final = re.compile(r"[^\W\d_a-z]{2}")
_WORD: Final = re.compile(r"[^\W\d_]+")
# Three letters before a full stop: most of what is shorter is an abbreviation.
_SENTENCE_START: Final = re.compile(r"(?:\w{3}[.]|[!?…])\s[^\w]{0,4}+\w")
_FIRST_LETTER: Final = re.compile(r"[^\w]*+\w")
_PRONOUN: Final = re.compile(r"\bi\b(?!\.)")
_GREEK_DIPHTHONG: Final = re.compile("([ΆΈΌΎ])([ΙΥ])")
_GREEK_ACCENTED: Final = str.maketrans("ΆΈΉΊΌΎΏ", "ΑΕΗΙΟΥΩ")
_DIALYTIKA: Final = str.maketrans("ΙΥ", "ΪΫ")


class Casing(StrEnum):
    """A casing that a line as a whole has, and its translation is to have again."""

    UPPER = "upper"
    INVERTED = "inverted"


def odd_casing(text: str) -> Casing | None:
    """What is odd about the casing of a line, None where nothing is.

    UPPER is a line in capitals that is longer than an acronym: one word of 7 letters or more, or
    several words of 8 letters or more together, one of which has at least 4. INVERTED is what a
    forgotten caps-lock key writes ("hELLO wORLD"). Protected spans do not count.
    """
    if text[1:].islower():  # as nearly every line is, and cheaper to see than what follows
        return None
    if not _CAPITALS.search(text) or not any(map(str.isupper, text)):
        return None
    outside = _outside(text)
    letters = "".join(_WORD.findall(outside))
    if letters.isupper():
        words = [word for word in _WORD.findall(outside) if word.isupper()]
        longest, total = max(map(len, words)), sum(map(len, words))
        long_enough = longest >= 7 if len(words) == 1 else total >= 8 and longest >= 4
        return Casing.UPPER if long_enough else None
    words = [word for word in _WORD.findall(outside) if len(word) > 2]
    if len(words) > 1 and all(word[0].islower() and word[1:].isupper() for word in words):
        return Casing.INVERTED
    return None


def normalize_case(text: str, casing: Casing, language: str) -> str:
    """The line in sentence case, by the rules of its language; protected spans stay."""
    code = base_code(language)
    if casing is Casing.INVERTED:
        return _change(text, code, invert=True)
    parts = _parts(text)
    parts[::2] = [_sentence_case(part, code) for part in parts[::2]]
    if first := _FIRST_LETTER.match(parts[0]):
        parts[0] = _upper_last(first[0], code) + parts[0][first.end() :]
    if code in _DUTCH and parts[0].startswith("Ij"):
        parts[0] = "IJ" + parts[0][2:]
    return "".join(parts)


def restore_case(translation: str, casing: Casing, language: str) -> str:
    """The translation of a line as cased as the line was, by the rules of its own language.

    German ß becomes SS, Turkish i İ, and Greek capitals have no accents. A translation in
    a script without capitals stays as it is, Latin names in it as well.
    """
    code = base_code(language)
    letters = _WORD.findall(_outside(translation))
    total = sum(map(len, letters))
    cased = sum(character.lower() != character.upper() for word in letters for character in word)
    if code in _NO_CAPITALS or 4 * cased < 3 * total:
        return translation
    return _change(translation, code, invert=casing is Casing.INVERTED)


def _change(text: str, code: str, invert: bool) -> str:
    change = _swap if invert else _upper
    parts = _parts(text)
    parts[::2] = [change(part, code) for part in parts[::2]]
    return "".join(parts)


def _sentence_case(text: str, code: str) -> str:
    lowered = _lower(text, code)
    lowered = _SENTENCE_START.sub(lambda match: _upper_last(match[0], code), lowered)
    return _PRONOUN.sub("I", lowered) if code in _ENGLISH else lowered


def _upper_last(text: str, code: str) -> str:
    return text[:-1] + _upper(text[-1], code)


def _swap(text: str, code: str) -> str:
    return "".join(
        _lower(character, code) if character.isupper() else _upper(character, code)
        for character in text
    )


def _lower(text: str, code: str) -> str:
    if code in _DOTTED_I:
        text = text.replace("İ", "i").replace("I\u0307", "i").replace("I", "ı")
    return text.lower()


def _upper(text: str, code: str) -> str:
    if code in _DOTTED_I:
        return text.replace("i", "İ").upper()
    if code in _GREEK:
        return re.sub(r"\w+", lambda match: _greek_upper(match[0]), text)
    return text.upper()


def _greek_upper(word: str) -> str:
    """Capitals without the accent, which goes on as a dialytika where it parted two vowels."""
    upper = unicodedata.normalize("NFC", word).upper()
    if upper == "Ή":  # "or", told from the article by its accent
        return upper
    parted = _GREEK_DIPHTHONG.sub(lambda m: m[1] + m[2].translate(_DIALYTIKA), upper)
    plain = unicodedata.normalize("NFD", parted.translate(_GREEK_ACCENTED)).replace("\u0301", "")
    return unicodedata.normalize("NFC", plain)


def _parts(text: str) -> list[str]:
    """The text cut at its protected spans, which are the odd parts."""
    edges = [0, *(edge for span in find_spans(text) for edge in span), len(text)]
    return [text[start:end] for start, end in itertools.pairwise(edges)]


def _outside(text: str) -> str:
    return " ".join(_parts(text)[::2])
