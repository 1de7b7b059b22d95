"""Keys under which two texts count as the same when data is checked for leaks."""

import re
import unicodedata
from typing import Final

from dragoman.text.protect import find_spans

_MARKER: Final = "\ue000"
_NUMBER: Final = re.compile(r"\d(?:[\d.,:/\u2044'\u2019\-]*\d)?")


class _Collapse(dict[int, str]):
    """Translation table, filled as characters turn up: punctuation and the like become spaces.

    Letters, marks (vowel signs of Thai or Hindi are marks) and digits stay; characters of no
    width and no meaning of their own (category Cf) go.
    """

    def __missing__(self, code: int) -> str:
        character = chr(code)
        category = unicodedata.category(character)
        if category == "Cf":
            replacement = ""
        elif category[0] in "PSZ" or category == "Cc":
            replacement = " "
        else:
            replacement = character
        self[code] = replacement
        return replacement


_COLLAPSE: Final = _Collapse()


def normalize_key(text: str) -> str:
    """Return the key of ``text``: texts with equal keys are near-duplicates of each other.

    Compatibility forms (NFKC), case, numbers, the names of placeholders, URLs and tags,
    punctuation and white space make no difference. A text of nothing but punctuation is its own
    key, so that "+" and "-" stay apart.
    """
    spans = find_spans(text)
    if spans:
        parts: list[str] = []
        position = 0
        for start, end in spans:
            parts += (text[position:start], f" {_MARKER} ")
            position = end
        text = "".join([*parts, text[position:]])
    if text.isascii():  # then there are no compatibility forms
        folded = text.lower()
    else:
        folded = unicodedata.normalize("NFKC", text).casefold()
        folded = unicodedata.normalize("NFKC", folded)
    key = " ".join(_NUMBER.sub("0", folded).translate(_COLLAPSE).split())
    return key or " ".join(folded.split())
