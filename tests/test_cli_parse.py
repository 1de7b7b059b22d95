"""dragoman parse, and a treebank's way into the corpus store."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch
from conftest import Outcome
from preparing import prepare, stored, write

from dragoman.config import config_from_toml
from dragoman.corpus.prepared import TRAIN, VALID, CorpusFiles
from dragoman.corpus.tokenizer import Tokenizer
from dragoman.corpus.treebank import TreeSymbols, treebank_pairs
from dragoman.errors import UserError
from dragoman.model.folder import save_model
from dragoman.model.transformer import Transformer
from dragoman.text.trees import Tree, parse_brackets

Dragoman = Callable[..., Outcome]
SETTINGS = """
task = "parsing"
[model]
d_model = 16
d_ff = 16
heads = 2
encoder_layers = 1
decoder_layers = 1
max_positions = 64
[search]
beam = 3
max_extra_tokens = 20
"""
WORDS = ["the", "cat", "dog", "sees", "a", "house", "does", "n't"]
TREES = [
    f"( (S (NP-SBJ (DT the) (NN {a})) (VP (VBZ sees) (NP (NN {b})) (SBAR (-NONE- 0))) (. .)) )"
    for a in WORDS
    for b in WORDS
]


@pytest.fixture(scope="module")
def parser(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A parser that knows nothing."""
    folder = tmp_path_factory.mktemp("parser")
    torch.manual_seed(1)
    symbols = [f"\u2581{symbol}" for symbol in "(DT) (NN) (S )S (NP )NP (VP )VP".split()]
    texts = [" ".join(WORDS[start:]) for start in range(len(WORDS))] * 9
    tokenizer = Tokenizer.train(texts, 330, symbols=symbols)
    config = config_from_toml(SETTINGS, "test")
    weights = dict(Transformer(config.model, tokenizer.vocabulary_size).state_dict())
    save_model(folder, config, tokenizer, weights, "")
    return folder


def words_of(line: str) -> list[str]:
    ((_, tree),) = parse_brackets([line], "output", pytest.fail)
    return tree.words()


def test_a_sentence_is_a_tree_on_one_line_and_drawn_on_request(
    dragoman: Dragoman, parser: Path, tmp_path: Path
) -> None:
    found = dragoman("parse", "--model", parser, "The cat doesn't (see).")
    assert (found.status, found.err) == (0, "")
    (line,) = found.lines
    words = ["The", "cat", "does", "n't", "-LRB-", "see", "-RRB-", "."]
    assert words_of(line) == words
    picture = tmp_path / "tree.svg"
    drawn = dragoman("parse", "--model", parser, words[1], "--draw", "--svg", picture)
    assert drawn.status == 0
    assert len(drawn.lines) > 1
    assert ElementTree.parse(picture).getroot().get("aria-label") == "cat"


def test_as_many_trees_come_out_as_lines_go_in(dragoman: Dragoman, parser: Path) -> None:
    text = "the cat\n\n" + "a " * 80 + "\nf(x)  sees\n"
    found = dragoman("parse", "--model", parser, "--tokenized", stdin=text.encode())
    assert [words_of(line) if line else [] for line in found.lines] == [
        ["the", "cat"],
        [],
        ["a"] * 80,
        ["f-LRB-x-RRB-", "sees"],
    ]
    assert found.err == "warning: line 3: too long for the model: the tree is flat\n"
    as_json = dragoman("parse", "--model", parser, "--tokenized", "--json", stdin=text.encode())
    records = [json.loads(line) for line in as_json.lines]
    assert [record["tree"] or "" for record in records] == found.lines
    assert [record["score"] is None for record in records] == [False, True, True, False]


def test_a_treebank_measures_the_parser(dragoman: Dragoman, parser: Path, tmp_path: Path) -> None:
    gold = write(tmp_path, "gold.ptb", TREES[:6])
    table = dragoman("parse", "--model", parser, "--gold", gold)
    assert table.status == 0
    rows = dict(line.rsplit(None, 2)[::2] for line in table.lines[1:-1])
    assert (rows["sentences"], rows["brackets: gold"]) == ("6", "24")
    assert table.lines[-1] == "well-formed by the grammar: 6 of 6 (100.00%)"
    free = dragoman("parse", "--model", parser, "--gold", gold, "--unconstrained", "--json")
    record = json.loads(free.out)
    assert record["all"]["sentences"] == "6"
    assert record["well_formed"] <= 6


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["a", "--gold", "x"], "error: SENTENCE, --input and --gold exclude each other"),
        (["--svg", "x.svg"], "error: --svg draws one tree"),
        (["--gold", "nothing.ptb"], "error: nothing.ptb: no such file"),
        (["--input", "nothing.txt"], "error: nothing.txt: no such file"),
    ],
)
def test_mistakes_are_told_in_a_line(
    dragoman: Dragoman, parser: Path, arguments: list[str], message: str
) -> None:
    found = dragoman("parse", "--model", parser, *arguments)
    assert found.status == 2
    assert found.err.splitlines()[0].startswith(message)
    assert len(found.err.splitlines()) == 2


def test_a_model_of_another_task_is_refused(dragoman: Dragoman, model: Path, parser: Path) -> None:
    assert "not a parser" in dragoman("parse", "--model", model, "a").err
    assert "is a parser" in dragoman("translate", "--model", parser, "--text", "a").err


def test_a_treebank_is_prepared_with_each_symbol_as_one_piece(tmp_path: Path) -> None:
    trees = write(tmp_path, "train.ptb", TREES)
    files = CorpusFiles("en", "target", text=trees, task="parsing")
    with treebank_pairs(files, pytest.fail) as pairs:
        corpus = prepare(pairs, tmp_path / "corpus")
    assert (corpus.task, corpus.inputs) == ("parsing", ["train.ptb.words", "train.ptb.brackets"])
    tokenizer = Tokenizer.load(tmp_path / "corpus" / "tokenizer.model")
    symbols = TreeSymbols.of(tokenizer)
    assert symbols.labels == ["NP", "S", "VP"]
    rows = stored(tmp_path / "corpus", TRAIN) + stored(tmp_path / "corpus", VALID)
    assert len(rows) == len(TREES)
    assert symbols.tags == ["(.)", "(DT)", "(NN)", "(VBZ)"]
    linearized = "(S (NP (DT) (NN) )NP (VP (VBZ) (NP (NN) )NP )VP (.) )S"
    assert {target for _, target in rows} == {linearized}
    assert {*tokenizer.encode(linearized)} <= {*symbols.ids}
    assert len(tokenizer.encode(linearized)) == len(linearized.split())


def test_labels_that_only_validation_or_new_trees_have_are_refused(tmp_path: Path) -> None:
    files = CorpusFiles("en", "target", text=write(tmp_path, "train.ptb", TREES), task="parsing")
    other = write(tmp_path, "other.ptb", [TREES[0], str(Tree("X", (Tree("NN", (), "cat"),)))])
    message = r"other.ptb:2: the symbol \(X is not known"
    with (
        pytest.raises(UserError, match=message),
        treebank_pairs(replace(files, valid_text=other), pytest.fail),
    ):
        pass
    with treebank_pairs(replace(files, valid_text=files.text), pytest.fail) as pairs:
        assert pairs.valid_source is not None
        assert pairs.source is not None
        assert pairs.valid_source.read_text() == pairs.source.read_text()
    with treebank_pairs(files, pytest.fail) as pairs:
        prepare(pairs, tmp_path / "corpus")
    known = replace(files, text=other, tokenizer=tmp_path / "corpus" / "tokenizer.model")
    with pytest.raises(UserError, match=message), treebank_pairs(known, pytest.fail):
        pass
