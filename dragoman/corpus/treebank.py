"""A treebank as pairs: the words of each sentence, and its tree as a sequence of symbols.

Each symbol of a tree is one piece of the tokenizer. All of them hold a round bracket, which no word
of a treebank does, so none of them ever stands in a source.
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from dragoman.corpus.prepared import CorpusFiles
from dragoman.corpus.tokenizer import Tokenizer
from dragoman.errors import UserError
from dragoman.text.lines import ErrorPolicy, atomic_write, display_name
from dragoman.text.trees import read_treebank

_MARKS = ("(", ")")
END = 0
"""The number of the end of a tree."""


class TreeSymbols:
    """The symbols of trees, numbered: the end, parts of speech, brackets that open, that close.

    texts: of the others than the end, in any order; of a tokenizer, see `of`. ids: empty, or those
    that a tokenizer has for them, by number.
    """

    def __init__(self, texts: Iterable[str]) -> None:
        known = set(texts)
        self.tags = sorted(text for text in known if text.startswith("(") and text.endswith(")"))
        self.labels = sorted(text[1:] for text in known if text.startswith(")"))
        opening, closing = ([f"{mark}{label}" for label in self.labels] for mark in "()")
        self.texts = ["", *self.tags, *opening, *closing]
        self.ids: list[int] = []

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> "TreeSymbols":
        """Those of a tokenizer. Raises UserError where it has none."""
        pieces = tokenizer.pieces(range(tokenizer.vocabulary_size))
        ids = {piece[1:]: number for number, piece in enumerate(pieces) if piece[1:2] in _MARKS}
        ids = {text: number for text, number in ids.items() if text not in _MARKS}
        symbols = cls(ids)
        if not symbols.labels or not symbols.tags or any(t not in ids for t in symbols.texts[1:]):
            raise UserError(
                "this tokenizer has no brackets", "give that of a model of the task parsing"
            )
        symbols.ids = [Tokenizer.eos_id, *(ids[text] for text in symbols.texts[1:])]
        return symbols

    @property
    def opening(self) -> slice:
        """The numbers of the brackets that open; those that close come after, in the same order."""
        first = 1 + len(self.tags)
        return slice(first, first + len(self.labels))


def tree_pieces(targets: Iterable[str]) -> list[str]:
    """The pieces that a tokenizer needs for these trees: their symbols, each with its space."""
    symbols = TreeSymbols(symbol for target in targets for symbol in target.split(" "))
    return [f"\u2581{text}" for text in symbols.texts[1:]]


def write_pairs(
    trees: Path,
    words: Path,
    brackets: Path,
    warn: Callable[[str], None],
    errors: ErrorPolicy = "strict",
    known: Collection[str] | None = None,
) -> set[str]:
    """Write the sentences of a treebank, one a line, and the symbols of their trees; all symbols.

    known: those there may be, of another treebank or a tokenizer; None: any. Raises UserError with
    file and line for what is no tree and for another symbol; warn is told of oddities.
    """
    found: set[str] = set()
    with atomic_write(words) as sources, atomic_write(brackets) as targets:
        for line, tree in read_treebank(trees, warn, errors):
            symbols = tree.symbols()
            if known is not None and (unknown := sorted(set(symbols).difference(known))):
                raise UserError(
                    f"{display_name(trees)}:{line}: the symbol {unknown[0]} is not known",
                    "labels and parts of speech must be among those of the trees trained on",
                )
            found.update(symbols)
            sources.write(" ".join(tree.words()).encode() + b"\n")
            targets.write(" ".join(symbols).encode() + b"\n")
    return found


@contextmanager
def treebank_pairs(files: CorpusFiles, warn: Callable[[str], None]) -> Iterator[CorpusFiles]:
    """The pairs of treebanks given as text, in a temporary folder. Raises as `write_pairs` does.

    Symbols that the trees to validate on have, and those to train on or the given tokenizer have
    not, are refused.
    """
    assert files.text is not None
    known = None
    if files.tokenizer is not None:
        known = TreeSymbols.of(Tokenizer.load(files.tokenizer)).texts
    with TemporaryDirectory(prefix="dragoman-trees-") as folder:

        def convert(
            trees: Path, place: str, known: Collection[str] | None
        ) -> tuple[Path, Path, set[str]]:
            Path(folder, place).mkdir()
            words = Path(folder, place, f"{trees.name}.words")
            brackets = words.with_suffix(".brackets")
            return words, brackets, write_pairs(trees, words, brackets, warn, files.errors, known)

        source, target, symbols = convert(files.text, "train", known)
        pairs = replace(files, text=None, valid_text=None, source=source, target=target)
        if files.valid_text is not None:
            source, target, _ = convert(files.valid_text, "valid", known or symbols)
            pairs = replace(pairs, valid_source=source, valid_target=target)
        yield pairs
