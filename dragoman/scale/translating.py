"""Bulk translation on Ray Data: the windows of a text are the rows of a dataset.

Each worker process opens the model once. What a killed worker had in hand is given to another, and
results come back in the order of the lines, so that the text is that of one machine. Every machine
must see the model folders under the same paths; text and translations go through this one.
"""

import functools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from dragoman.corpus.processes import OrderedMap
from dragoman.decoding.answers import Answer
from dragoman.decoding.pipeline import Entry, Key
from dragoman.decoding.recipe import Recipe
from dragoman.decoding.translator import Translator
from dragoman.decoding.workers import Wanted
from dragoman.errors import UserError

_LINES, _CHARACTERS = 1024, 500_000  # of a window
Window = list[tuple[Entry, Answer]]


def translate_on_cluster(
    run: OrderedMap, recipe: Recipe, wanted: Wanted, entries: Iterable[Entry], first: int
) -> Iterator[Window]:
    """The entries with their answers, window by window, in order; run is `RayData.map`.

    first is the number of the first entry. An error of the entries is raised after the answers to
    what was read before it.
    """
    folders = tuple(folder.resolve() for folder in recipe.folders)  # a worker stands elsewhere
    recipe = replace(recipe, folders=folders, choice=replace(recipe.choice, threads=1))
    problems: list[UserError] = []
    waiting: deque[list[Entry]] = deque()

    def rows() -> Iterator[tuple[list[Key], int]]:
        number = first
        for window in _cut(iter(entries), problems.append):
            waiting.append(window)
            yield [entry[:3] for entry in window], number
            number += len(window)

    for answers in run(functools.partial(_answers, recipe, wanted), rows()):
        yield list(zip(waiting.popleft(), answers, strict=True))
    if problems:
        raise problems[0]


def _cut(entries: Iterator[Entry], failed: Callable[[UserError], None]) -> Iterator[list[Entry]]:
    window, characters = list[Entry](), 0
    try:
        for entry in entries:
            window.append(entry)
            characters += len(entry.text)
            if len(window) == _LINES or characters > _CHARACTERS:
                yield window
                window, characters = [], 0
    except UserError as error:
        failed(error)
    if window:
        yield window


def _answers(recipe: Recipe, wanted: Wanted, row: tuple[Sequence[Key], int]) -> list[Answer]:
    """In a worker process: the answers to a window, of which equal lines have equal ones."""
    keys, first = row
    different = list(dict.fromkeys(keys))
    if any(prefix for _, prefix, _ in keys):  # a message about one has the number of its line
        different = list(keys)
    found = wanted.answers(_translator(recipe), different, first)
    known = dict(zip(different, found, strict=True))
    return [known[key] for key in keys]


@functools.lru_cache(maxsize=1)
def _translator(recipe: Recipe) -> Translator:
    # Ray has set the threads of PyTorch to the cores of a task, which is one.
    return recipe.open(lambda _: None)
