"""Constituency trees: read, written, linearized, rebuilt, drawn; words cut as a treebank's are."""

from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.corpus.treebank import write_pairs
from dragoman.errors import UserError
from dragoman.inspection.tree_drawing import draw_svg, draw_text
from dragoman.text.penn_words import penn_words
from dragoman.text.trees import (
    DEEPEST,
    Placed,
    Tree,
    parse_brackets,
    plain_tree,
    read_treebank,
    rebuild,
)

LABELS = st.sampled_from(["S", "NP", "VP", "X", "SBAR"])
WORDS = st.text(st.characters(exclude_characters="() \t\r\n\f\v", codec="utf-8"), min_size=1)
LEAVES = st.builds(Tree, st.sampled_from(["NN", ",", "-LRB-", "PRP$"]), st.just(()), WORDS)


def constituents(children: st.SearchStrategy[Tree]) -> st.SearchStrategy[Tree]:
    return st.builds(Tree, LABELS, st.lists(children, min_size=1, max_size=4).map(tuple))


TREES = constituents(st.recursive(LEAVES, constituents, max_leaves=12))


def read(text: str) -> list[Placed]:
    return list(parse_brackets(text.split("\n"), "file", pytest.fail))


def tree_of(text: str) -> Tree:
    (placed,) = read(text)
    return placed.tree


@given(TREES)
def test_to_linearize_and_back_is_the_identity(tree: Tree) -> None:
    symbols = tree.symbols()
    assert rebuild(symbols, tree.words()) == tree
    assert rebuild(" ".join(symbols).split(" "), tree.words()) == tree
    assert read(str(tree)) == [Placed(1, tree)]


@settings(max_examples=40)
@given(TREES, st.data())
def test_no_other_sequence_of_symbols_is_taken_for_the_tree(
    tree: Tree, data: st.DataObject
) -> None:
    symbols = tree.symbols()
    place = data.draw(st.integers(0, len(symbols) - 1))
    with pytest.raises(ValueError, match=r"\w"):
        rebuild(symbols[:place] + symbols[place + 1 :], tree.words())
    with pytest.raises(ValueError, match=r"\w"):
        rebuild([*symbols, symbols[place]], tree.words())
    with pytest.raises(ValueError, match=r"\w"):
        rebuild(symbols, tree.words()[1:])


def test_brackets_have_their_labels_and_words_are_their_parts_of_speech() -> None:
    tree = tree_of("(S (NP (NNP John)) (VP (VBZ has) (NP (DT a) (NN dog))) (. .))")
    expected = "(S (NP (NNP) )NP (VP (VBZ) (NP (DT) (NN) )NP )VP (.) )S"
    assert " ".join(tree.symbols()) == expected
    assert tree.words() == ["John", "has", "a", "dog", "."]


@pytest.mark.parametrize(
    ("symbols", "words"),
    [
        ("(S (XX) )NP", "a"),
        ("(S (NP )NP (XX) )S", "a"),
        ("(XX)", "a"),
        ("(S (XX) )S (S (XX) )S", "a b"),
        (")S", ""),
        ("", ""),
        ("(S (XX)", "a"),
        ("(S (XX) )S", "a b"),
    ],
)
def test_what_is_no_tree_is_refused(symbols: str, words: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        rebuild(symbols.split(), words.split())


def test_traces_and_functional_tags_go_and_what_they_leave_empty() -> None:
    raw = """( (S (NP-SBJ-1 (PRP$ Our) (NNS results)) (, ,) (VP (VBD were)
        (VP (VBN seen) (NP-1 (-NONE- *)) (SBAR (-NONE- 0) (S (-NONE- *T*-2)))
        (PRN (-LRB- -LRB-) (NP=2 (NN see)) (-RRB- -RRB-)) (ADVP|PRT (RB up)))) (. .)) )"""
    (placed,) = read(raw)
    assert str(plain_tree(placed.tree)) == (
        "(S (NP (PRP$ Our) (NNS results)) (, ,) (VP (VBD were) (VP (VBN seen) "
        "(PRN (-LRB- -LRB-) (NP (NN see)) (-RRB- -RRB-)) (ADVP (RB up)))) (. .))"
    )
    assert plain_tree(tree_of("( (S (NP-SBJ (-NONE- *)) (VP (-NONE- *?*))) )")) is None


@pytest.mark.parametrize(
    ("raw", "plain"),
    [
        ("(TOP (S (NN a)))", "(S (NN a))"),
        ("((S (NN a)) (S (NN b)))", "(TOP (S (NN a)) (S (NN b)))"),
        ("( (NN a))", "(TOP (NN a))"),
        ("(NN a)", "(TOP (NN a))"),
        ("(FRAG (NP (NN a)))", "(FRAG (NP (NN a)))"),
    ],
)
def test_the_outermost_bracket_is_a_constituent(raw: str, plain: str) -> None:
    assert str(plain_tree(tree_of(raw))) == plain


def test_trees_of_several_lines_know_where_they_begin() -> None:
    text = "\n(S\n  (NN a))\n(S (NN b)) (S\n(NN c))\n"
    assert [(line, str(tree)) for line, tree in read(text)] == [
        (2, "(S (NN a))"),
        (4, "(S (NN b))"),
        (4, "(S (NN c))"),
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("(S (NN a))\n\n(S (NN b)", "file:3: this tree has no end"),
        ("(S (NN a)))", r"file:1: '\)' stands outside"),
        ("(S (NN a))\nb", "file:2: 'b' stands outside"),
        ("(S (NP) (NN a))", r"file:1: nothing is in \(NP\)"),
        ("()", r"file:1: nothing is in \(\)"),
        ("(S (NN a) b)", "file:1: 'b' has no bracket of its own"),
        ("(S (NN a (NN b)))", "file:1: a bracket beside the word 'a'"),
        ("(S\n((NN a)))", "file:2: a bracket inside a tree has no label"),
        ("(S " * (DEEPEST + 1), f"file:1: more than {DEEPEST} brackets"),
    ],
)
def test_what_is_wrong_is_told_with_its_line(text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        read(text)


def test_a_space_in_a_word_is_told_and_phrases_without_tags_are_no_words() -> None:
    said: list[str] = []
    (placed,) = parse_brackets(["(S (NN Xpd XP))"], "file", said.append)
    assert placed.tree.words() == ["Xpd\N{NO-BREAK SPACE}XP"]
    assert said == ["file:1: a space in the word 'Xpd\N{NO-BREAK SPACE}XP'"]
    with pytest.raises(UserError, match="file:21: 'dog' has no bracket of its own"):
        list(parse_brackets(["(S (NP the dog))"] * 30, "file", said.append))


def test_a_treebank_becomes_two_files_and_other_labels_are_refused(tmp_path: Path) -> None:
    trees = tmp_path / "some.ptb"
    trees.write_text("( (S (NP-SBJ (NN a)) (VP (-NONE- *))) )\n(X (-LRB- -LRB-))\n(S (-NONE- 0))\n")
    words, brackets = tmp_path / "words", tmp_path / "brackets"
    assert write_pairs(trees, words, brackets, pytest.fail) == set(
        "(S (NP (NN) )NP )S (X (-LRB-) )X".split()
    )
    assert words.read_text() == "a\n-LRB-\n"
    assert brackets.read_text() == "(S (NP (NN) )NP )S\n(X (-LRB-) )X\n"
    with pytest.raises(UserError, match=r"some.ptb:2: the symbol \(-LRB-\) is not known"):
        write_pairs(trees, words, brackets, pytest.fail, known="(S (NP (NN) )NP )S (X )X".split())
    assert [str(tree) for _, tree in read_treebank(trees, pytest.fail)] == [
        "(S (NP (NN a)))",
        "(X (-LRB- -LRB-))",
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("I don't think so.", "I do n't think so ."),
        ('He said, "yes"; (why?)', "He said , `` yes '' ; -LRB- why ? -RRB-"),
        ("“Hello,” she wrote…", "`` Hello , '' she wrote ..."),
        ("John's dogs' 3,000.5 mg at 5:30", "John 's dogs ' 3,000.5 mg at 5:30"),
        ("They've seen the U.S. team cannot.", "They 've seen the U.S. team can not ."),
        ("[see Fig. 2] {a}", "-LSB- see Fig. 2 -RSB- -LCB- a -RCB-"),
        ("   ", ""),
    ],
)
def test_words_are_cut_as_in_the_treebank(text: str, words: str) -> None:
    assert penn_words(text) == words.split()


def test_a_tree_is_drawn_as_text_and_as_a_picture() -> None:
    tree = tree_of("(S (NP (DT The) (NN cat)) (VP (VBZ <sleeps>) (PP (IN in) (NP (NN it)))) (. .))")
    assert draw_text(tree).splitlines() == [
        "S",
        "├─ NP The cat",
        "├─ VP",
        "│  ├─ <sleeps>",
        "│  └─ PP",
        "│     ├─ in",
        "│     └─ NP it",
        "└─ .",
    ]
    picture = ElementTree.fromstring(draw_svg(tree))
    texts = [found.text for found in picture.iter("{http://www.w3.org/2000/svg}text")]
    assert sorted(map(str, texts)) == sorted([*tree.words(), "S", "NP", "VP", "PP", "NP"])
