"""PARSEVAL (Black et al. 1991), counted as the program evalb counts it with COLLINS.prm.

Labelled brackets over the words that are left when punctuation is gone: the tags ``, : `` '' .``
and ``-NONE-``. A bracket with nothing left in it and the label TOP do not count; ADVP and PRT are
one label; labels end before ``-`` or ``=``. Equal brackets match one to one, so a unary chain
``(NP (NP …))`` counts twice where both trees have it twice.

What is punctuation the gold tree decides for both. evalb goes by the tags of each tree and gives a
sentence up where that leaves other words; where the gold tags are put into the parser's trees, as
is usual, it counts what is counted here.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass

from dragoman.errors import UserError
from dragoman.text.trees import EMPTY, TOP, Tree

SHORT = 40
"""The words of evalb's second table: sentences of at most so many, punctuation included."""
_DELETED = frozenset({",", ":", "``", "''", ".", EMPTY, TOP})
_EQUAL = {"PRT": "ADVP"}

Bracket = tuple[str, int, int]


@dataclass(frozen=True, slots=True)
class TreeScore:
    """Counts over sentences; those that are punctuation only are skipped.

    gold, predicted and matched are brackets; crossing are predicted brackets that overlap one of
    the gold tree and neither holds the other; exact, uncrossed and hardly_crossed (by at most two)
    are sentences.
    """

    sentences: int = 0
    skipped: int = 0
    gold: int = 0
    predicted: int = 0
    matched: int = 0
    exact: int = 0
    crossing: int = 0
    uncrossed: int = 0
    hardly_crossed: int = 0
    words: int = 0
    tagged: int = 0

    def __add__(self, other: "TreeScore") -> "TreeScore":
        """The counts of both."""
        return TreeScore(*map(sum, zip(astuple(self), astuple(other), strict=True)))

    @property
    def recall(self) -> float:
        """Matched brackets in percent of those of the gold trees."""
        return _percent(self.matched, self.gold)

    @property
    def precision(self) -> float:
        """Matched brackets in percent of those predicted."""
        return _percent(self.matched, self.predicted)

    @property
    def f1(self) -> float:
        """The harmonic mean of precision and recall, in percent."""
        return _percent(2 * self.matched, self.gold + self.predicted)

    def rows(self) -> list[tuple[str, str]]:
        """Names and values as evalb's summary has them."""
        valid = self.sentences - self.skipped
        return [
            ("sentences", f"{self.sentences:,}"),
            ("skipped (punctuation only)", f"{self.skipped:,}"),
            ("brackets: gold", f"{self.gold:,}"),
            ("brackets: predicted", f"{self.predicted:,}"),
            ("brackets: matched", f"{self.matched:,}"),
            ("labelled recall", f"{self.recall:.2f}"),
            ("labelled precision", f"{self.precision:.2f}"),
            ("labelled F1", f"{self.f1:.2f}"),
            ("complete match", f"{_percent(self.exact, valid):.2f}"),
            ("average crossing", f"{self.crossing / valid if valid else 0:.2f}"),
            ("no crossing", f"{_percent(self.uncrossed, valid):.2f}"),
            ("2 or less crossing", f"{_percent(self.hardly_crossed, valid):.2f}"),
            ("tagging accuracy", f"{_percent(self.tagged, self.words):.2f}"),
        ]


def _percent(part: int, whole: int) -> float:
    return 100 * part / whole if whole else 0.0


def score_trees(
    gold: Sequence[Tree], predicted: Sequence[Tree], longest: int | None = None
) -> TreeScore:
    """The score of all sentences, or of those of at most so many words (without traces).

    Raises UserError when the numbers of trees differ, or the words of two trees.
    """
    if len(gold) != len(predicted):
        raise UserError(
            f"{len(predicted):,} trees, but {len(gold):,} gold trees", "give one for each, in order"
        )
    total = TreeScore()
    for number, pair in enumerate(zip(gold, predicted, strict=True), start=1):
        length = sum(leaf.label != EMPTY for leaf in pair[0].leaves())
        if longest is None or length <= longest:
            total += score_tree(*pair, f"tree {number:,}")
    return total


def score_tree(gold: Tree, predicted: Tree, name: str = "tree") -> TreeScore:
    """The score of one sentence. Raises UserError when the trees have other words."""
    leaves, others = gold.leaves(), predicted.leaves()
    if len(leaves) != len(others):
        raise UserError(
            f"{name}: {len(others):,} words, but {len(leaves):,} in the gold tree",
            "both trees must be of the same sentence",
        )
    for leaf, other in zip(leaves, others, strict=True):
        if leaf.word != other.word:
            raise UserError(
                f"{name}: the word '{other.word}' is '{leaf.word}' in the gold tree",
                "both trees must be of the same sentence",
            )
    counted = [leaf.label not in _DELETED for leaf in leaves]
    if not any(counted):
        return TreeScore(sentences=1, skipped=1)
    known, found = brackets(gold, counted), brackets(predicted, counted)
    matched = (known & found).total()
    crossing = sum(count for one, count in found.items() if _crosses(one, known))
    return TreeScore(
        sentences=1,
        gold=known.total(),
        predicted=found.total(),
        matched=matched,
        exact=int(matched == known.total() == found.total()),
        crossing=crossing,
        uncrossed=int(crossing == 0),
        hardly_crossed=int(crossing <= 2),
        words=sum(counted),
        tagged=sum(
            one.label == other.label
            for one, other, counts in zip(leaves, others, counted, strict=True)
            if counts
        ),
    )


def brackets(tree: Tree, counted: Sequence[bool]) -> Counter[Bracket]:
    """(label, start, end) of the constituents over the words that count, as often as each stands.

    counted: for every word of the tree whether it does.
    """
    found: Counter[Bracket] = Counter()
    supply = iter(counted)

    def walk(node: Tree, start: int) -> int:
        if not node.children:
            return start + next(supply)
        end = start
        for child in node.children:
            end = walk(child, end)
        label = node.label.partition("-")[0].partition("=")[0]
        if end > start and label not in _DELETED:
            found[_EQUAL.get(label, label), start, end] += 1
        return end

    walk(tree, 0)
    return found


def _crosses(one: Bracket, others: Iterable[Bracket]) -> bool:
    _, start, end = one
    return any(s < start < e < end or start < s < end < e for _, s, e in others)
