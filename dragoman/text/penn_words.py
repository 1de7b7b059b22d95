"""Text cut into the words of the Penn Treebank, as a parser was taught them.

The rules are those of the treebank's own ``tokenizer.sed``, the ones that matter: punctuation
stands alone, contractions are cut ("don't": ``do n't``), quotation marks are ```` `` ```` and
``''``, brackets have names (``-LRB-``), and a full stop is cut off at the end of the text only, so
that abbreviations keep theirs.
"""

import re
from typing import Final

from dragoman.text.trees import escape_brackets

_NAMED: Final = {"[": "-LSB-", "]": "-RSB-", "{": "-LCB-", "}": "-RCB-"}
# In this order: what one rule has set apart, the next may look at.
_RULES: Final = tuple(
    (re.compile(pattern, re.IGNORECASE), spaced)
    for pattern, spaced in (
        (r"[“„]|(?<=[\s(\[{])\"|^\"", " `` "),
        (r"[\"”]", " '' "),
        (r"[‘’]", "'"),
        (r"\.\.\.|…", " ... "),
        (r"[,:](?!\d)|[;@#$%&?!()\[\]{}<>]|--+|[–—]", r" \g<0> "),
        (r"([^.\s])(\.)(?=[\s)\]}'\"]*$)", r"\1 \2 "),
        (r"(?<=\w)'(s|m|d|ll|re|ve)\b", r" '\1"),
        (r"(?<=\w)n't\b", " n't"),
        (r"(?<=\w)'(?=\s|$)", " '"),
        (r"(?<=\s)'(?=\w)(?!(?:s|m|d|ll|re|ve)\b)|^'(?=\w)", " ` "),
        (r"\b(can)(not)\b|\b(gon|wan)(na)\b|\b(got)(ta)\b", r"\1\3\5 \2\4\6"),
    )
)


def penn_words(text: str) -> list[str]:
    """The words of a sentence."""
    for pattern, spaced in _RULES:
        text = pattern.sub(spaced, text)
    return [_NAMED.get(word, escape_brackets(word)) for word in text.split()]
