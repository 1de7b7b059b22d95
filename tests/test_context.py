"""Sentences before a sentence as its context: in preparation, training data and translation."""

import asyncio
import itertools
import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import Outcome
from hypothesis import given
from hypothesis import strategies as st
from preparing import SENTENCES, SETTINGS, parallel, prepare, stored

from dragoman.cli.translation_input import Input
from dragoman.config import Config, DataConfig, SearchConfig
from dragoman.corpus import preparation
from dragoman.corpus.blocks import cut_parallel, cut_table, with_before
from dragoman.corpus.context import Preceding, fitting, own_start, read_contexts
from dragoman.corpus.pairs import Context
from dragoman.corpus.prepared import TOKENIZER, TRAIN, VALID_TEXT
from dragoman.corpus.resampling import Resampler
from dragoman.corpus.store import CorpusStore
from dragoman.corpus.tokenizer import Tokenizer
from dragoman.decoding import translator as translator_module
from dragoman.decoding.engine import Request, output_limit, output_minimum
from dragoman.decoding.hypothesis import Hypothesis
from dragoman.decoding.scorer import Scorer
from dragoman.decoding.translator import Translator
from dragoman.model.folder import load_model, save_model
from dragoman.text.lines import read_lines

LINES = ["one", "two", "", "three", "four", "five", "one", "two", " ", "one", "two", "five"]
CONTEXTS = [
    (), ("one",), ("one", "two"), (), ("three",), ("three", "four"), ("four", "five"),
    ("five", "one"), ("one", "two"), (), ("one",), ("one", "two"),
]  # fmt: skip


def test_a_context_is_the_lines_before_back_to_a_blank_one() -> None:
    assert list(map(Preceding(2).of, LINES)) == CONTEXTS
    assert set(map(Preceding(0).of, LINES)) == {()}


@pytest.mark.parametrize("size", [1, 2, 3, 5, 100])
@pytest.mark.parametrize("end", ["", "\n"])
def test_contexts_do_not_depend_on_where_a_corpus_is_cut(
    size: int, end: str, tmp_path: Path
) -> None:
    source, target, table = (tmp_path / name for name in ("a.en", "a.de", "a.tsv"))
    source.write_text("\n".join(LINES) + end, "utf-8", newline="\n")
    target.write_text("\n".join(LINES).upper() + end, "utf-8", newline="\n")
    table.write_text("\n".join(f"{line}\tx" for line in LINES) + end, "utf-8", newline="\n")
    for cut in (cut_parallel(source, target, size, "strict"), cut_table(table, size, "strict")):
        pairs = [pair for block in with_before(cut, 2) for pair in block.pairs()]
        assert [pair.source for pair in pairs] == LINES
        assert [pair.context for pair in pairs] == CONTEXTS


@given(st.lists(st.lists(st.integers(4, 9), max_size=4), max_size=4), st.integers(0, 20))
def test_the_nearest_sentences_are_before_a_source_as_far_as_they_fit(
    context: list[list[int]], room: int
) -> None:
    found = fitting(context, room)
    choices = [context[start:] for start in range(len(context) + 1)]
    closed = [[n for ids in chosen for n in (*ids, Tokenizer.eos_id)] for chosen in choices]
    assert found == next(ids for ids in closed if len(ids) <= room)
    assert own_start([*found, 7, 8]) == len(found)


PLAIN = [pair for pair in SENTENCES if "{" not in pair[0]]
DOCUMENTS = [pair for n in range(0, 75, 4) for pair in [*PLAIN[n : n + 4], ("", "")]]
VALIDATION = [*((f"we {a}", f"wir {b}") for a, b in PLAIN[:6]), ("", ""), ("no", "nein")]
WITH_CONTEXT = SETTINGS.model_copy(update={"context_sentences": 2, "max_tokens": 60})


def contexts(pairs: list[tuple[str, str]]) -> dict[str, Context]:
    sources = [source for source, _ in pairs]
    return dict(zip(sources, map(Preceding(2).of, sources), strict=True))


def sentences(ids: list[int], tokenizer: Tokenizer) -> list[str]:
    """The texts of a source of the store: its context and itself."""
    split = [list(part) for end, part in itertools.groupby(ids, Tokenizer.eos_id.__eq__) if not end]
    return [tokenizer.decode(part) for part in split]


@pytest.mark.parametrize(("chunk", "separate"), [(7, False), (1000, True)])
def test_a_prepared_corpus_holds_contexts(
    chunk: int, separate: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preparation, "CHUNK_LINES", chunk)
    files, out = parallel(tmp_path, DOCUMENTS), tmp_path / "out"
    if separate:
        other = parallel(tmp_path, VALIDATION, "valid")
        files = replace(files, valid_source=other.source, valid_target=other.target)
    prepare(files, out, WITH_CONTEXT)
    store, tokenizer = CorpusStore.open(out / TRAIN), Tokenizer.load(out / TOKENIZER)
    expected = contexts(DOCUMENTS)
    for row in range(len(store)):
        *context, sentence = sentences(store[row][0].tolist(), tokenizer)
        assert tuple(context) == expected[sentence]
    assert len(store) > 60
    held_out, wanted = (
        read_contexts(out / VALID_TEXT),
        contexts(VALIDATION if separate else DOCUMENTS),
    )
    assert [pair.context for pair in held_out] == [wanted[pair.source] for pair in held_out]
    assert any(pair.context for pair in held_out)
    assert prepare(files, out, WITH_CONTEXT).reused
    assert not prepare(files, out).reused
    assert not any("context" in line for line in read_lines(out / VALID_TEXT))
    assert all(source for source, _ in stored(out, TRAIN))


def test_a_pair_in_another_context_is_another_example(tmp_path: Path) -> None:
    again = [("it is", "er ist"), ("the tree", "Baum")]
    files = parallel(tmp_path, [*DOCUMENTS, *again, *again, *again])
    found = [prepare(files, tmp_path / "out", data).pairs for data in (SETTINGS, WITH_CONTEXT)]
    assert found == [len(PLAIN) + 2, len(PLAIN) + 4]  # of the last two sentences one context is new


def test_bpe_dropout_leaves_a_context_as_it_is(tmp_path: Path) -> None:
    prepare(parallel(tmp_path, DOCUMENTS), tmp_path, WITH_CONTEXT)
    store, tokenizer = CorpusStore.open(tmp_path / TRAIN), Tokenizer.load(tmp_path / TOKENIZER)
    resample = Resampler(tokenizer, 0.5, seed=1, longest=200).in_epoch(1)
    changed = 0
    for row in range(len(store)):
        source = store[row][0].tolist()
        found = resample(row, *store[row])[0].tolist()
        assert found[: own_start(source)] == source[: own_start(source)]
        assert sentences(found, tokenizer) == sentences(source, tokenizer)
        changed += found != source
    assert changed > 20


class Recorder:
    """An engine that answers with the source itself and keeps what it was asked."""

    def __init__(self, context_sentences: int) -> None:
        self.config = Config(
            source_language="en",
            target_language="de",
            data=DataConfig(context_sentences=context_sentences, max_tokens=30),
        )
        self.tokenizer = Tokenizer.train(itertools.chain.from_iterable(PLAIN), 350)
        self.asked: list[list[str]] = []

    def search_each(
        self, sources: Sequence[Sequence[int]], request: Request
    ) -> Iterator[tuple[int, list[Hypothesis]]]:
        for number, ids in enumerate(sources):
            self.asked.append(sentences(list(ids), self.tokenizer))
            own = list(ids[own_start(ids) :])
            attention = [[float(place) for place in range(len(ids) + 1)]] * (len(own) + 1)
            yield number, [Hypothesis(own, -1.0, -1.0, attention=attention)]

    def search(self, sources: Sequence[Sequence[int]], request: Request) -> list[list[Hypothesis]]:
        return [found for _, found in self.search_each(sources, request)]


TEXT = ["the cat sees", "the dog finds", "", "the cat sees", "42", "the dog finds", "the dog finds"]
ASKED = [
    ["the cat sees"],
    ["the cat sees", "the dog finds"],
    ["the cat sees", "42", "the dog finds"],
    ["42", "the dog finds", "the dog finds"],
]


def test_a_translator_reads_the_lines_before_and_translates_the_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The same whether lines come together, in windows or one by one, with equal lines as one."""
    monkeypatch.setattr(translator_module, "_WINDOW", 2)

    async def streamed(translator: Translator) -> list[str]:
        return [found.text async for found in translator.stream(TEXT)]

    def one_by_one(translator: Translator) -> list[str]:
        given = zip(TEXT, map(Preceding(2).of, TEXT), strict=True)
        return [translator.translate([x], contexts=[context])[0].text for x, context in given]

    ways: list[Callable[[Translator], list[str]]] = [
        lambda translator: [found.text for found in translator.translate(TEXT)],
        lambda translator: [found.text for found in translator.translate_stream(TEXT)],
        lambda translator: asyncio.run(streamed(translator)),
        one_by_one,
    ]
    for way in ways:
        engine = Recorder(2)
        assert way(Translator(engine)) == TEXT
        assert [asked for asked, _ in itertools.groupby(sorted(engine.asked))] == sorted(ASKED)
    engine = Recorder(0)
    Translator(engine).translate(TEXT)
    assert engine.asked == [["the cat sees"], ["the dog finds"]]


def test_attention_and_limits_are_those_of_the_line_itself() -> None:
    translator = Translator(Recorder(2))
    alone, behind = translator.translate(["the cat", "the dog"], details=True)
    for found in (alone, behind):
        rows, source = found.candidates[0].attention, found.source_tokens
        assert rows and source and {len(row) for row in rows} == {len(source) + 1}
    context, own = [7, 8, Tokenizer.eos_id], [9, 10]
    search, config = SearchConfig(max_length_ratio=3.0, min_length_ratio=1.0), Config()
    for ids in (own, context + own):
        limit = output_limit(ids, search, config)
        assert (limit, output_minimum(ids, search, limit)) == (6, 2)


def test_a_line_that_leaves_no_room_has_less_context_or_none() -> None:
    engine = Recorder(2)
    long = " ".join(["the tree draws the cat"] * 3)
    Translator(engine).translate([long, "the dog", long, long + long])
    sizes = [
        sum(len(engine.tokenizer.encode_source(text)[0]) + 1 for text in asked) - 1
        for asked in engine.asked
    ]
    assert max(sizes) <= 30
    assert [long, "the dog"] in engine.asked


@pytest.fixture
def documents(model: Path, tmp_path: Path) -> Path:
    """The folder of a model that reads two sentences of context."""
    loaded, folder = load_model(model), tmp_path / "model"
    data = loaded.config.data.model_copy(update={"context_sentences": 2})
    config = loaded.config.model_copy(update={"data": data})
    save_model(folder, config, loaded.tokenizer, loaded.model.state_dict(), "# a model\n")
    return folder


def test_scores_are_those_of_a_line_in_its_context(documents: Path) -> None:
    scorer = Scorer.load(documents)
    before = list(map(Preceding(2).of, TEXT))
    together = [found.log_prob for found in scorer.score(TEXT, TEXT)]
    apart = [scorer.score([x], [x], contexts=[c])[0] for x, c in zip(TEXT, before, strict=True)]
    plain = [scorer.score([line], [line])[0].log_prob for line in TEXT]
    assert together == pytest.approx([found.log_prob for found in apart], abs=1e-4)
    same = [abs(a - b) < 1e-4 for a, b in zip(together, plain, strict=True)]
    assert same == [not context for context in before]
    assert len(apart[1].source_tokens) > len(apart[0].source_tokens) + 3


def test_translate_goes_on_within_a_document(
    dragoman: Callable[..., Outcome], documents: Path, model: Path, tmp_path: Path
) -> None:
    """One line out for each line in, as the translator has it, also when gone on with."""
    lines = [*TEXT, *(f"the {n} cat" for n in range(40)), *TEXT]
    text = tmp_path / "text.en"
    text.write_text("\n".join(lines) + "\n", "utf-8", newline="\n")
    assert "context    2 sentences before each" in dragoman("info", documents).lines
    found = dragoman("translate", "--model", documents, text, "--engine", "native", "--json")
    scores = [json.loads(line)["score"] for line in found.lines]
    known, plain = (
        [each.score for each in Translator.load(path, engine="native").translate(lines)]
        for path in (documents, model)
    )
    assert scores == pytest.approx(known, abs=1e-4) and scores != pytest.approx(plain, abs=1e-2)
    given = Input([], [text], None, "strict", context=2)
    entries = list(given.entries())
    assert [entry.context for entry in entries] == list(map(Preceding(2).of, lines))
    assert list(given.entries(5)) == entries[5:]
    twice = list(Input([], [text, text], None, "strict", context=2).entries())
    assert [entry[:3] for entry in twice] == [entry[:3] for entry in entries * 2]


NOUNS = {
    "man": ("der", "Mann", "er"), "woman": ("die", "Frau", "sie"), "child": ("das", "Kind", "es"),
    "dog": ("der", "Hund", "er"), "cat": ("die", "Katze", "sie"), "horse": ("das", "Pferd", "es"),
}  # fmt: skip
ADJECTIVES = {"old": "alt", "big": "groß", "red": "rot", "small": "klein", "good": "gut"}


def documents_of_two(count: int, seed: int) -> list[tuple[str, str]]:
    """Whether "it" is er, sie or es, only the line before says."""
    chance, lines = random.Random(seed), list[tuple[str, str]]()
    for _ in range(count):
        noun = chance.choice(list(NOUNS))
        article, name, pronoun = NOUNS[noun]
        first, second, third = (chance.choice(list(ADJECTIVES)) for _ in range(3))
        lines += [
            (f"the {noun} is {first}", f"{article} {name} ist {ADJECTIVES[first]}"),
            (
                f"it is {second} and {third}",
                f"{pronoun} ist {ADJECTIVES[second]} und {ADJECTIVES[third]}",
            ),
            ("", ""),
        ]
    return lines


@pytest.mark.slow
@pytest.mark.parametrize("count", [0, 1])
def test_a_model_learns_what_only_the_line_before_says(
    count: int, dragoman: Callable[..., Outcome], tmp_path: Path
) -> None:
    files = parallel(tmp_path, documents_of_two(1500, seed=1))
    given = parallel(tmp_path, documents_of_two(20, seed=2), "valid")
    sides = "--source", files.source, "--target", files.target
    sides += "--valid-source", given.source, "--valid-target", given.target
    settings = [
        f"data.context_sentences={count}", "data.vocabulary_size=350", "training.max_steps=150",
        "training.validations=1",
    ]  # fmt: skip
    options = [part for setting in settings for part in ("--set", setting)]
    out = tmp_path / "model"
    found = dragoman("train", *map(str, sides), "--out", out, "--preset", "tiny", *options)
    assert found.status == 0, found.err
    pairs = documents_of_two(60, seed=3)
    text = parallel(tmp_path, pairs, "test").source
    found = dragoman("translate", "--model", out, str(text))
    assert found.status == 0 and len(found.lines) == len(pairs)
    right = [
        ours.split()[:1] == [theirs.split()[0]]
        for ours, (source, theirs) in zip(found.lines, pairs, strict=True)
        if source.startswith("it")
    ]
    assert len(right) == 60 and (sum(right) >= 57 if count else sum(right) <= 40)
