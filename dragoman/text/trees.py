"""Constituency trees: Penn brackets in and out, and the sequence of symbols that a model writes.

A tree is linearized after Vinyals et al. 2015 (arXiv 1412.7449), which section 6.3 of the paper
follows: a symbol opens each constituent, another closes it, both with its label, and the symbol of
a word is its part of speech in brackets::

    (S (NP (NN Time)) (VP (VBZ flies)))  ->  (S (NP (NN) )NP (VP (VBZ) )VP )S
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from dragoman.errors import UserError
from dragoman.text.lines import ErrorPolicy, display_name, read_lines

UNKNOWN_TAG, EMPTY, TOP = "XX", "-NONE-", "TOP"
DEEPEST = 200
"""Constituents inside each other that a tree may have; treebanks have some 30."""
# Words with a space that a file may have: more are no words but phrases without parts of speech.
_MOST_SPACED = 20
# What some treebanks call the bracket around a sentence.
_OUTERMOST = frozenset({"", TOP, "ROOT", "S1"})
_PART = re.compile(r"[()]|[^() \t\r\n\f\v]+")
# "NP-SBJ-1", "NP=2", "ADVP|PRT"; but "-LRB-" and "-NONE-" are whole labels.
_PLAIN = re.compile(r"[^-=|][^-=|]*")
_ESCAPES = (("(", "-LRB-"), (")", "-RRB-"))


@dataclass(frozen=True, slots=True)
class Tree:
    """A constituent with children, or a word: then label is its part of speech."""

    label: str
    children: tuple["Tree", ...] = ()
    word: str = ""

    def __str__(self) -> str:
        """The tree in Penn brackets, on one line."""
        if not self.children:
            return f"({self.label} {self.word})"
        return f"({self.label} {' '.join(map(str, self.children))})"

    def leaves(self) -> list["Tree"]:
        """The words from left to right, each with its part of speech."""
        if not self.children:
            return [self]
        return [leaf for child in self.children for leaf in child.leaves()]

    def words(self) -> list[str]:
        """The words from left to right."""
        return [leaf.word for leaf in self.leaves()]

    def symbols(self) -> list[str]:
        """The tree as the sequence of symbols that a model writes; `rebuild` is the inverse."""
        if not self.children:
            return [f"({self.label})"]
        inside = [symbol for child in self.children for symbol in child.symbols()]
        return [f"({self.label}", *inside, f"){self.label}"]


class Placed(NamedTuple):
    """A tree and the number of the line it begins on."""

    line: int
    tree: Tree


def rebuild(symbols: Sequence[str], words: Sequence[str]) -> Tree:
    """The tree of a sequence of symbols over these words: the inverse of `Tree.symbols`.

    Raises ValueError, which says what is wrong, for a sequence that is no one tree over so many
    words: brackets that do not match, a constituent with nothing in it.
    """
    open_: list[tuple[str, list[Tree]]] = [("", [])]
    supply = iter(words)
    for symbol in symbols:
        label, children = open_[-1]
        if len(open_) == 1 and children:
            raise ValueError(f"{symbol} stands after the end of the tree")
        if symbol.endswith(")"):
            word = next(supply, None)
            if word is None or len(open_) == 1:
                raise ValueError("more words than there are" if word is None else "no tree around")
            children.append(Tree(symbol[1:-1], (), word))
        elif symbol.startswith("("):
            open_.append((symbol[1:], []))
        elif symbol != f"){label}" or not children:
            raise ValueError(f"{symbol} stands where ({label} is open or has nothing in it")
        else:
            open_.pop()
            open_[-1][1].append(Tree(label, tuple(children)))
    if len(open_) > 1 or not open_[0][1] or next(supply, None) is not None:
        raise ValueError("the tree has no end, or not all the words")
    return open_[0][1][0]


def flat(words: Iterable[str]) -> Tree:
    """A tree that says nothing: all words in one constituent, of parts of speech not known."""
    return Tree("S", tuple(Tree(UNKNOWN_TAG, (), word) for word in words))


def escape_brackets(word: str) -> str:
    """A word as a treebank has it: round brackets, which are its own marks, by name."""
    for bracket, name in _ESCAPES:
        word = word.replace(bracket, name)
    return word


def read_treebank(
    path: str | Path, warn: Callable[[str], None], errors: ErrorPolicy = "strict"
) -> Iterator[Placed]:
    """The trees of a file in Penn brackets as a parser learns them: see `plain_tree`.

    A tree without any word is left out. Raises UserError with file and line; warn is told of what
    can be read in spite of it.
    """
    for line, tree in parse_brackets(read_lines(path, errors), display_name(path), warn):
        plain = plain_tree(tree)
        if plain is not None:
            yield Placed(line, plain)


def plain_tree(tree: Tree) -> Tree | None:
    """The tree without traces and functional tags; None when nothing is left of it.

    As is standard: words tagged ``-NONE-`` go, and constituents that hold nothing else; labels end
    before their first ``-``, ``=`` or ``|`` (``NP-SBJ-1`` is ``NP``; ``-LRB-`` stays); the bracket
    around the sentence, without a label or called TOP, ROOT or S1, goes where one constituent is
    in it, and is TOP elsewhere.
    """
    plain = _without_traces(tree)
    if plain is None or plain.label not in _OUTERMOST:
        return plain if plain is None or plain.children else Tree(TOP, (plain,))
    if len(plain.children) == 1 and plain.children[0].children:
        return plain.children[0]
    return Tree(TOP, plain.children)


def _without_traces(tree: Tree) -> Tree | None:
    if tree.label == EMPTY:
        return None
    found = _PLAIN.match(tree.label)
    label = found[0] if found else tree.label
    if not tree.children:
        return Tree(label, (), tree.word)
    children = tuple(kept for child in tree.children if (kept := _without_traces(child)))
    return Tree(label, children) if children else None


@dataclass(slots=True)
class _Open:
    """A bracket that is not closed yet."""

    line: int
    label: str = ""
    word: str = ""
    children: list[Tree] = field(default_factory=list)


def parse_brackets(
    lines: Iterable[str], name: str, warn: Callable[[str], None]
) -> Iterator[Placed]:
    """The trees of text in Penn brackets, as they stand there; a tree may take several lines.

    The outermost bracket may have no label. A space inside a word, which some treebank has by
    mistake, is read as a no-break space, and warn is told. Raises UserError with name and line for
    brackets that do not match, words without a bracket of their own, and what has nothing in it.
    """
    open_: list[_Open] = []
    spaced = 0
    for number, line in enumerate(lines, start=1):
        place = f"{name}:{number}"
        for part in _PART.findall(line):
            if part == "(":
                if open_ and open_[-1].word:
                    raise _no_tree(place, f"a bracket beside the word '{open_[-1].word}'")
                if len(open_) == DEEPEST:
                    raise _no_tree(place, f"more than {DEEPEST} brackets in each other")
                open_.append(_Open(number))
            elif not open_:
                raise _no_tree(place, f"'{part}' stands outside of any tree")
            elif part == ")":
                first, tree = open_[-1].line, _closed(open_, place)
                if not open_:
                    yield Placed(first, tree)
                else:
                    open_[-1].children.append(tree)
            elif _take_text(open_[-1], part, place):
                spaced += 1
                if spaced > _MOST_SPACED:
                    raise _no_tree(place, f"'{part}' has no bracket of its own")
                warn(f"{place}: a space in the word '{open_[-1].word}'")
    if open_:
        raise _no_tree(f"{name}:{open_[0].line}", "this tree has no end")


def _take_text(bracket: _Open, text: str, place: str) -> bool:
    """A label, right after the bracket, or a word; whether that has a space in it."""
    if bracket.children:
        raise _no_tree(place, f"'{text}' has no bracket of its own")
    if not bracket.label:
        bracket.label = text
        return False
    spaced = bool(bracket.word)
    bracket.word = f"{bracket.word}\N{NO-BREAK SPACE}{text}" if spaced else text
    return spaced


def _closed(open_: list[_Open], place: str) -> Tree:
    bracket = open_.pop()
    if not bracket.children and not bracket.word:
        raise _no_tree(place, f"nothing is in ({bracket.label})")
    if open_ and not bracket.label:
        raise _no_tree(place, "a bracket inside a tree has no label")
    return Tree(bracket.label, tuple(bracket.children), bracket.word)


def _no_tree(place: str, problem: str) -> UserError:
    return UserError(
        f"{place}: {problem}", "a tree is written as (S (NP (DT The) (NN cat)) (VP (VBZ sleeps)))"
    )
