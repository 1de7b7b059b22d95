"""A treebank as pairs: the words of each sentence, and its tree as a sequence of symbols.

Each symbol of a tree is one piece of the tokenizer. The word's symbol and the brackets hold a round
bracket, which no word of a treebank does, so none of them ever stands in a source.
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
from dragoman.text.trees import WORD, read_treebank

END, WORD_NUMBER, FIRST = 0, 1, 2
"""The numbers of the end of a tree, of a word, and of the first bracket that opens."""


def tree_symbols(labels: Iterable[str]) -> list[str]:
    """The symbols of trees with these labels: a word, then all that open, then all that close."""
    known = sorted(labels)
    return [WORD, *(f"({label}" for label in known), *(f"){label}" for label in known)]


def labels_of(target: str) -> set[str]:
    """The labels of the tree that a target text holds."""
    return {symbol[1:] for symbol in target.split(" ") if symbol.startswith(")")}


def tree_pieces(targets: Iterable[str]) -> list[str]:
    """The pieces that a tokenizer needs for these trees: their symbols, each with its space."""
    labels = set().union(*map(labels_of, targets))
    return [f"\u2581{symbol}" for symbol in tree_symbols(labels)]


class TreeSymbols:
    """The symbols that a tokenizer has for trees: texts and ids by number, the end among them.

    Raises UserError for a tokenizer without them.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        pieces = tokenizer.pieces(range(tokenizer.vocabulary_size))
        known = {piece[1:]: number for number, piece in enumerate(pieces) if piece[1:2] in "()"}
        self.labels = sorted(name[1:] for name in known if name[:1] == ")" and len(name) > 1)
        texts = tree_symbols(self.labels)
        if not self.labels or any(text not in known for text in texts):
            raise UserError(
                "this tokenizer has no brackets", "give that of a model of the task parsing"
            )
        self.texts = ["", *texts]
        self.ids = [Tokenizer.eos_id, *(known[text] for text in texts)]


def write_pairs(
    trees: Path,
    words: Path,
    brackets: Path,
    warn: Callable[[str], None],
    errors: ErrorPolicy = "strict",
    known: Collection[str] | None = None,
) -> set[str]:
    """Write the sentences of a treebank, one a line, and the symbols of their trees; the labels.

    known: the labels there may be, of another treebank or a tokenizer; None: any. Raises UserError
    with file and line for what is no tree and for another label; warn is told of oddities.
    """
    found: set[str] = set()
    with atomic_write(words) as sources, atomic_write(brackets) as targets:
        for line, tree in read_treebank(trees, warn, errors):
            target = " ".join(tree.symbols())
            labels = labels_of(target)
            if known is not None and (unknown := sorted(labels.difference(known))):
                raise UserError(
                    f"{display_name(trees)}:{line}: the label {unknown[0]} is not known",
                    f"known are {', '.join(sorted(known))}: those of the trees trained on",
                )
            found |= labels
            sources.write(" ".join(tree.words()).encode() + b"\n")
            targets.write(target.encode() + b"\n")
    return found


@contextmanager
def treebank_pairs(files: CorpusFiles, warn: Callable[[str], None]) -> Iterator[CorpusFiles]:
    """The pairs of treebanks given as text, in a temporary folder. Raises as `write_pairs` does.

    Labels that the trees to validate on have, and those to train on or the given tokenizer have
    not, are refused.
    """
    assert files.text is not None
    known = None if files.tokenizer is None else TreeSymbols(Tokenizer.load(files.tokenizer)).labels
    with TemporaryDirectory(prefix="dragoman-trees-") as folder:

        def convert(
            trees: Path, place: str, labels: Collection[str] | None
        ) -> tuple[Path, Path, set[str]]:
            Path(folder, place).mkdir()
            words = Path(folder, place, f"{trees.name}.words")
            brackets = words.with_suffix(".brackets")
            return words, brackets, write_pairs(trees, words, brackets, warn, files.errors, labels)

        source, target, labels = convert(files.text, "train", known)
        pairs = replace(files, text=None, valid_text=None, source=source, target=target)
        if files.valid_text is not None:
            source, target, _ = convert(files.valid_text, "valid", known or labels)
            pairs = replace(pairs, valid_source=source, valid_target=target)
        yield pairs
