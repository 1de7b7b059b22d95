"""The sentences before a sentence as its context: documents, and how a model reads them.

A model with data.context_sentences reads the source sentences before the one to translate and then
that one, each of the former closed by end-of-sentence, and writes the translation of the last alone
("2-to-1" of Tiedemann and Scherrer 2017): one line in stays one line out. Documents end at blank
source lines and where a file ends.
"""

import itertools
import json
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from dragoman.corpus.pairs import Context, Pair, read_table
from dragoman.corpus.tokenizer import Tokenizer
from dragoman.text.lines import read_lines


class Preceding:
    """Follows the lines of a text; `of` tells of each which lines of its document are before it."""

    def __init__(self, count: int) -> None:
        self._lines = deque[str](maxlen=count)

    def of(self, line: str) -> Context:
        """The last `count` lines before this one, which comes next. A blank one ends a document."""
        found = tuple(self._lines)
        if line.strip():
            self._lines.append(line)
        else:
            self._lines.clear()
        return found


def with_contexts(pairs: Iterable[Pair], preceding: Preceding) -> Iterator[Pair]:
    """Pairs in the order of their documents, each with its context."""
    return (replace(pair, context=preceding.of(pair.source)) for pair in pairs)


def read_contexts(path: Path) -> list[Pair]:
    """The validation pairs of a prepared folder, with their contexts. Raises UserError."""
    return [
        replace(pair, context=tuple(json.loads(line).get("context", ())))
        for pair, line in zip(read_table(path), read_lines(path), strict=True)
    ]


def encode_contexts(tokenizer: Tokenizer, contexts: Sequence[Context]) -> list[list[list[int]]]:
    """The ids of every sentence of every context; each different sentence is encoded once."""
    texts = list(dict.fromkeys(itertools.chain.from_iterable(contexts)))
    encoded = tokenizer.encode_sources([text.strip() for text in texts])
    known = {text: ids for text, (ids, _) in zip(texts, encoded, strict=True)}
    return [[known[text] for text in context] for context in contexts]


def fitting(context: Sequence[list[int]], room: int) -> list[int]:
    """What goes before a source: as many of the nearest sentences as there is room for, closed."""
    found: list[int] = []
    for sentence in reversed(context):
        if len(found) + len(sentence) + 1 > room:
            break
        found = [*sentence, Tokenizer.eos_id, *found]
    return found


def own_start(ids: Sequence[int]) -> int:
    """Where the sentence itself begins in a source that may have a context before it."""
    places = (place for place in reversed(range(len(ids))) if ids[place] == Tokenizer.eos_id)
    return next(places, -1) + 1
