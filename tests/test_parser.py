"""Parsing: the grammar that the search keeps to, and trees from a model that knows nothing."""

import itertools
from functools import cache

import numpy as np
import pytest
import torch

from dragoman.config import Config, config_from_toml
from dragoman.corpus.tokenizer import Tokenizer
from dragoman.corpus.treebank import END, TreeSymbols
from dragoman.decoding.parser import Parser, SymbolStep
from dragoman.decoding.tree_grammar import TreeGrammar
from dragoman.errors import UserError
from dragoman.model.folder import LoadedModel
from dragoman.model.transformer import Transformer
from dragoman.text.trees import rebuild

SETTINGS = """
task = "parsing"
[model]
d_model = 32
d_ff = 16
heads = 2
encoder_layers = 1
decoder_layers = 1
max_positions = 64
[search]
beam = 5
length_penalty = 0.3
max_extra_tokens = 30
"""
SYMBOLS = "(DT) (NN) (.) (S )S (NP )NP (VP )VP".split()
SENTENCES = ["a b", "the cat sleeps", "the", "in the house the cat sees a dog", "a"]


@cache
def make_parser(seed: int, settings: str = SETTINGS) -> Parser:
    torch.manual_seed(seed)
    texts = [f"{sentence} {number}" for number in range(20) for sentence in SENTENCES]
    tokenizer = Tokenizer.train(texts, 330, symbols=[f"\u2581{symbol}" for symbol in SYMBOLS])
    config: Config = config_from_toml(settings, "test")
    model = Transformer(config.model, tokenizer.vocabulary_size).eval()
    with torch.no_grad():
        model.embedding.weight *= 3  # else all symbols are about as likely
    return Parser(LoadedModel(config, tokenizer, model))


def allowed_sequences(symbols: TreeSymbols, words: int, limit: int) -> set[tuple[int, ...]]:
    """All that a search could end with, step by step."""
    grammar = TreeGrammar(symbols, [99, words])
    found, open_ = set(), [()]
    for length in range(limit + 1):
        if not open_:
            break
        tokens = np.array(open_, dtype=np.int64).reshape(1, len(open_), length)
        flags = grammar.allowed(np.array([1]), tokens, np.array([limit - length]))[0]
        assert flags.any(axis=1).all(), "no sequence is led astray"
        found |= {sequence for sequence, one in zip(open_, flags, strict=True) if one[END]}
        open_ = [
            (*sequence, symbol)
            for sequence, one in zip(open_, flags, strict=True)
            for symbol in np.flatnonzero(one).tolist()
            if symbol != END
        ]
    assert not open_
    return found


@pytest.mark.parametrize(
    ("texts", "words", "limit"),
    [("(t) (A )A (B )B", 1, 6), ("(t) (A )A (B )B", 2, 6), ("(t) (A )A", 3, 7),
     ("(t) (A )A (B )B", 2, 4), ("(s) (t) (A )A", 2, 6)],
)  # fmt: skip
def test_the_grammar_allows_all_the_trees_there_are_and_nothing_else(
    texts: str, words: int, limit: int
) -> None:
    symbols = TreeSymbols(texts.split())
    expected = set()
    for length in range(limit + 1):
        for sequence in itertools.product(range(1, len(symbols.texts)), repeat=length):
            try:
                rebuild([symbols.texts[symbol] for symbol in sequence], ["w"] * words)
            except ValueError:
                continue
            expected.add(sequence)
    assert expected
    assert allowed_sequences(symbols, words, limit) == expected


def test_a_depth_is_never_passed() -> None:
    grammar = TreeGrammar(TreeSymbols(["(t)", "(A", ")A"]), [3])
    tokens = np.full((1, 1, 200), 2)
    assert not grammar.allowed(np.array([0]), tokens, np.array([10_000]))[0, 0, 2]
    assert grammar.allowed(np.array([0]), tokens[:, :, :199], np.array([10_000]))[0, 0, 2]


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_whatever_the_model_says_the_output_is_a_tree_over_the_words(seed: int) -> None:
    parser = make_parser(seed)
    sentences = [sentence.split() for sentence in SENTENCES]
    parses = parser.parse(sentences)
    for words, parse in zip(sentences, parses, strict=True):
        assert parse.tree.words() == words
        assert parse.tree.children
        assert parse.score is not None
    alone = [parser.parse([words])[0] for words in sentences]
    assert [one.tree for one in alone] == [parse.tree for parse in parses]
    assert [one.score for one in alone] == pytest.approx(
        [parse.score for parse in parses], abs=1e-4
    )


def test_without_the_grammar_it_is_not_and_the_tree_is_flat() -> None:
    (parse,) = make_parser(1).parse([["the", "cat", "sleeps"]], constrained=False)
    assert parse.score is None
    assert str(parse.tree) == "(S (XX the) (XX cat) (XX sleeps))"


def test_a_sentence_too_long_for_the_model_is_a_flat_tree() -> None:
    long, short = ["cat"] * 80, ["cat"]
    first, second = make_parser(2).parse([long, short])
    assert (first.score, first.tree.words()) == (None, long)
    assert second.score is not None
    # As many words as fit with the brackets around them, all the same.
    full = ["a"] * 40
    (parse,) = make_parser(2).parse([full])
    assert parse.score is not None


def test_the_search_finds_the_likeliest_tree_where_the_beam_holds_them_all() -> None:
    settings = SETTINGS.replace("max_extra_tokens = 30", "max_extra_tokens = 2")
    wide = make_parser(3, settings.replace("beam = 5", "beam = 500"))
    (found,) = wide.parse([["the", "cat"]])
    step = SymbolStep(wide.model, wide.symbols.ids)
    ids, _ = wide.tokenizer.encode_source("the cat")
    sequences = allowed_sequences(wide.symbols, 2, len(ids) + 1 + 2)
    assert len(sequences) <= 500

    def log_prob(sequence: tuple[int, ...]) -> float:
        source = torch.tensor([[*ids, Tokenizer.eos_id]])
        state, total = step.start(source, 1), 0.0
        for read, said in zip((len(wide.symbols.ids), *sequence), (*sequence, END), strict=True):
            log_probs, state = step(torch.tensor([read]), state)
            total += float(log_probs.dense()[0, said])
        return total / ((5 + len(sequence) + 1) / 6) ** 0.3

    with torch.inference_mode():
        best = max(sequences, key=log_prob)
        assert found.score == pytest.approx(log_prob(best), abs=1e-4)
    assert found.tree.symbols() == [wide.symbols.texts[symbol] for symbol in best]


def test_a_tokenizer_without_brackets_is_refused() -> None:
    with pytest.raises(UserError, match="has no brackets"):
        TreeSymbols.of(Tokenizer.train(["the cat ( sees )"] * 20, 330))


def test_each_symbol_is_one_piece_and_no_word_is_one() -> None:
    tokenizer = make_parser(1).tokenizer
    assert len(tokenizer.encode(" ".join(SYMBOLS))) == len(SYMBOLS)
    words = tokenizer.encode("XX S NP -LRB- S) )S".replace(")", "-RRB-"))
    assert not {*words} & {*TreeSymbols.of(tokenizer).ids}
