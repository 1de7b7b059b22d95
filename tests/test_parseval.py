"""PARSEVAL on cases counted by hand, by the rules of evalb with COLLINS.prm."""

import pytest

from dragoman.errors import UserError
from dragoman.evaluation.parseval import SHORT, TreeScore, score_trees
from dragoman.text.trees import Tree, parse_brackets


def tree_of(text: str) -> Tree:
    ((_, tree),) = parse_brackets([text], "tree", pytest.fail)
    return tree


def score(gold: str, predicted: str) -> TreeScore:
    return score_trees([tree_of(gold)], [tree_of(predicted)])


def counts(found: TreeScore) -> tuple[int, int, int]:
    return found.gold, found.predicted, found.matched


GOLD = "(S (NP (DT the) (NN cat)) (VP (VBD sat) (PP (IN on) (NP (DT a) (NN mat)))) (. .))"


@pytest.mark.parametrize(
    ("gold", "predicted", "expected"),
    [
        pytest.param(GOLD, GOLD, (5, 5, 5), id="the same"),
        pytest.param(GOLD, GOLD.replace("NP", "X"), (5, 5, 3), id="two other labels"),
        # The PP one level higher: VP is 2-3, not 2-6.
        pytest.param(
            GOLD,
            "(S (NP (XX the) (XX cat)) (VP (XX sat)) (PP (XX on) (NP (XX a) (XX mat))) (XX .))",
            (5, 5, 4),
            id="another attachment",
        ),
        # Where punctuation hangs does not matter: S is 0-6 in both, and so is ROOT's child.
        pytest.param(
            GOLD,
            "(TOP (S (NP (DT the) (NN cat)) (VP (X sat) (PP (X on) (NP (X a) (X mat) (. .))))))",
            (5, 5, 5),
            id="punctuation and TOP do not count",
        ),
        # Equal brackets match one to one.
        pytest.param("(NP (NP (NN a)))", "(NP (NN a))", (2, 1, 1), id="a unary chain cut"),
        pytest.param("(NP (NN a))", "(NP (NP (NP (NN a))))", (1, 3, 1), id="a unary chain grown"),
        pytest.param(
            "(S (NP (VP (NN a))))", "(VP (S (NP (NN a))))", (3, 3, 3), id="its order is no matter"
        ),
        pytest.param(
            "(S (NP (NN a)) (X (NN b)))", "(S (X (NN a)) (NP (NN b)))", (3, 3, 1), id="no"
        ),
        pytest.param(
            "(VP (VB give) (PRT (RP up)))", "(VP (VB give) (ADVP (RB up)))", (2, 2, 2), id="PRT"
        ),
        # A constituent of nothing but punctuation does not count.
        pytest.param(
            "(S (PRN (: --)) (NP (NN a)))", "(S (X (XX --) (NP (XX a))))", (2, 3, 2), id="empty"
        ),
        pytest.param(
            "(S (NP-SBJ (NN a)) (VP=2 (VB b)))", "(S (NP (XX a)) (VP (XX b)))", (3, 3, 3), id="tags"
        ),
        pytest.param("(S (-LRB- -LRB-) (NN a))", "(S (X (XX -LRB-)) (XX a))", (1, 2, 1), id="LRB"),
    ],
)
def test_brackets_are_counted_as_by_hand(
    gold: str, predicted: str, expected: tuple[int, int, int]
) -> None:
    assert counts(score(gold, predicted)) == expected


def test_scores_are_of_all_brackets_together_in_percent() -> None:
    gold = [tree_of("(S (NP (NN a)) (VP (VB b)))"), tree_of("(NP (NN c))")]
    predicted = [tree_of("(S (NP (NN a)) (VB b))"), tree_of("(X (NN c))")]
    found = score_trees(gold, predicted)
    assert counts(found) == (4, 3, 2)
    assert (found.recall, found.exact) == (50, 0)
    assert found.precision == pytest.approx(200 / 3)
    assert found.f1 == pytest.approx(2 * 50 * (200 / 3) / (50 + 200 / 3))
    assert dict(found.rows())["labelled F1"] == "57.14"


def test_nothing_found_or_to_be_found_is_zero() -> None:
    assert (TreeScore().recall, TreeScore().precision, TreeScore().f1) == (0, 0, 0)
    found = score("(S (. .) (: ;))", "(S (. .) (: ;))")
    assert (found.sentences, found.skipped, counts(found)) == (1, 1, (0, 0, 0))


def test_crossing_brackets_overlap_and_neither_holds_the_other() -> None:
    gold = "(S (X (NN a) (NN b)) (Y (NN c) (NN d)))"
    predicted = "(S (NN a) (Z (Z (NN b) (NN c))) (NN d))"
    found = score(gold, predicted)
    assert (found.crossing, found.uncrossed, found.hardly_crossed) == (2, 0, 1)
    nested = score(gold, "(S (X (W (NN a)) (NN b)) (NN c) (NN d))")
    assert (nested.crossing, nested.uncrossed, nested.exact) == (0, 1, 0)


def test_exact_is_every_bracket_and_no_other() -> None:
    assert score(GOLD, GOLD).exact == 1
    assert score("(S (NP (NN a)))", "(S (NP (NP (NN a))))").exact == 0


def test_tags_are_compared_where_words_count() -> None:
    found = score(GOLD, GOLD.replace("(NN cat)", "(JJ cat)").replace("(. .)", "(NN .)"))
    assert (found.words, found.tagged, counts(found)) == (6, 5, (5, 5, 5))
    assert dict(found.rows())["tagging accuracy"] == "83.33"


def test_the_second_table_is_of_short_sentences_with_their_punctuation() -> None:
    stop, trace = Tree(".", (), "."), Tree("-NONE-", (), "*")

    def sentence(words: int) -> Tree:
        return Tree("S", (stop, trace, *[Tree("NN", (), "a")] * words))

    trees = [sentence(SHORT - 1), sentence(SHORT)]
    assert score_trees(trees, trees, SHORT).sentences == 1
    assert score_trees(trees, trees).sentences == 2


def test_trees_of_other_words_are_refused() -> None:
    with pytest.raises(UserError, match="1 trees, but 0 gold trees"):
        score_trees([], [tree_of(GOLD)])
    with pytest.raises(UserError, match="tree 1: 1 words, but 2 in the gold tree"):
        score("(S (NN a) (NN b))", "(S (NN a))")
    with pytest.raises(UserError, match="tree 1: the word 'c' is 'b' in the gold tree"):
        score("(S (NN a) (NN b))", "(S (NN a) (NN c))")
