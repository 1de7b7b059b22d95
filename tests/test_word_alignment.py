"""Words linked by a head's attention and by hiding words; the choice of the head; the command."""

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dragoman.corpus.pairs import Pair
from dragoman.errors import UserError
from dragoman.inspection.word_alignment import AlignmentHead, WordAligner
from dragoman.inspection.word_alignment_choice import (
    CHOICE,
    load_choice,
    measure_heads,
    save_choice,
)
from dragoman.inspection.word_alignment_gold import (
    GoldAlignment,
    alignment_error,
    parse_gold,
)
from dragoman.model.folder import LoadedModel, load_model

Dragoman = Callable[..., Any]
HEADS = [AlignmentHead(1, *both) for both in itertools.product(range(3), (False, True))]
PAIRS = [
    Pair("the red cat", "rot Katze"),
    Pair("", "Hund"),
    Pair("the old dog sees the tree", "alt Hund sieht Baum"),
    Pair("bird", ""),
    Pair("a  bird\tsees", " ein Vogel "),
]


@pytest.fixture(scope="module")
def loaded(model: Path) -> LoadedModel:
    return load_model(model)


@pytest.fixture(scope="module")
def aligner(loaded: LoadedModel) -> WordAligner:
    return WordAligner(loaded)


def pieces_of_words(loaded: LoadedModel, text: str) -> tuple[list[int], list[list[int]]]:
    """The ids of a text without protected spans, and the places of each word's subwords."""
    ids = loaded.tokenizer.encode(text)
    words: list[list[int]] = []
    for place, piece in enumerate(loaded.tokenizer.pieces(ids)):
        if piece.startswith("▁"):
            words.append([])
        words[-1].append(place)
    return ids, words


@pytest.mark.parametrize("head", HEADS, ids=str)
def test_a_word_is_linked_to_the_one_that_its_subwords_attend_to_most(
    loaded: LoadedModel, aligner: WordAligner, head: AlignmentHead
) -> None:
    pair = PAIRS[2]
    source, sources = pieces_of_words(loaded, pair.source)
    target, targets = pieces_of_words(loaded, pair.target)
    assert len(source) > len(sources)  # some words are of several subwords
    maps = loaded.model.attention_maps(torch.tensor([[*source, 3]]), torch.tensor([[2, *target]]))
    layer = maps.cross[0][0]
    weights = layer[head.head - 1] if head.head else layer.mean(dim=0)
    links = []
    for number, rows in enumerate(targets):
        received = [
            sum(float(weights[row + head.reading, column]) for row in rows for column in columns)
            for columns in sources
        ]
        links.append((int(np.argmax(received)), number))
    (found,) = aligner.align([pair], head)
    assert found is not None
    assert found.links == tuple(sorted(links))
    assert found.pharaoh == " ".join(f"{s}-{t}" for s, t in sorted(links))
    assert (found.source, found.target) == (
        tuple(pair.source.split()),
        tuple(pair.target.split()),
    )


@torch.inference_mode()
def test_hiding_a_word_is_leaving_nothing_to_attend_to(
    loaded: LoadedModel, aligner: WordAligner
) -> None:
    pair = PAIRS[2]
    source, sources = pieces_of_words(loaded, pair.source)
    target, targets = pieces_of_words(loaded, pair.target)
    losses = []
    for columns in sources:
        seen = [0 if place in columns else number for place, number in enumerate(source)]
        logits = loaded.model(torch.tensor([[*seen, 3]]), torch.tensor([[2, *target]]))
        logits[..., :3] = -torch.inf  # what no translation holds
        log_probs = logits.log_softmax(dim=-1)[0]
        losses.append(
            [-sum(float(log_probs[row, target[row]]) for row in rows) for rows in targets]
        )
    links = [(int(place), number) for number, place in enumerate(np.argmax(losses, axis=0))]
    (found,) = aligner.align([pair])
    assert found is not None
    assert found.links == tuple(sorted(links))


@pytest.mark.parametrize("head", [None, HEADS[0], HEADS[3]], ids=str)
def test_a_pair_is_aligned_alike_beside_any_others(
    aligner: WordAligner, head: AlignmentHead | None
) -> None:
    alone = [aligner.align([pair], head)[0] for pair in PAIRS]
    assert aligner.align(PAIRS, head) == alone
    assert [found.pharaoh == "" for found in alone if found] == [False, True, False, True, False]


def test_every_head_is_tried(aligner: WordAligner) -> None:
    assert aligner.heads() == HEADS
    by_all = aligner.align_by_all(PAIRS, HEADS)
    for number, head in enumerate(HEADS):
        assert [found and found[number] for found in by_all] == aligner.align(PAIRS, head)


def test_a_pair_longer_than_the_model_has_no_links(loaded: LoadedModel) -> None:
    sizes = loaded.config.model.model_copy(update={"max_positions": 9})
    short = WordAligner(
        LoadedModel(
            loaded.config.model_copy(update={"model": sizes}), loaded.tokenizer, loaded.model
        )
    )
    pairs = [Pair("cat", "Katze"), Pair("cat " * 30, "Katze")]
    for head in (None, HEADS[0]):
        first, second = short.align(pairs, head)
        assert first is not None
        assert second is None


def test_words_are_what_white_space_separates(aligner: WordAligner) -> None:
    text = 'a\tb  {name} <b class="x">c</b>, d\u00a0e \U000f0000 ▁x'
    (found,) = aligner.align([Pair(text, text)], HEADS[0])
    assert found is not None
    words = ("a", "b", "{name}", "<b", 'class="x">c</b>,', "d\u00a0e", "\U000f0000", "▁x")
    assert found.source == found.target == words
    assert {target for _, target in found.links} == set(range(len(words)))
    spread = [source for source, target in found.links if target in (3, 4)]
    assert spread[: len(spread) // 2] == spread[len(spread) // 2 :] or len(spread) == 2


def test_a_subword_is_a_word_where_no_spaces_are_written(loaded: LoadedModel) -> None:
    config = loaded.config.model_copy(update={"target_language": "zh-Hans"})
    aligner = WordAligner(LoadedModel(config, loaded.tokenizer, loaded.model))
    (found,) = aligner.align([Pair("red cat", "rot Katze")], HEADS[0])
    assert found is not None
    assert found.source == ("red", "cat")
    assert found.target == tuple(loaded.tokenizer.pieces(loaded.tokenizer.encode("rot Katze")))
    assert {target for _, target in found.links} == set(range(len(found.target)))


@given(source=st.text(max_size=30), target=st.text(max_size=30))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_texts_have_links_within_them(aligner: WordAligner, source: str, target: str) -> None:
    try:
        (found,) = aligner.align([Pair(source, target)], HEADS[0])
    except UserError as error:  # half of a surrogate pair
        assert "surrogate" in error.message
        return
    assert found is not None
    sources, targets = len(found.source), len(found.target)
    assert all(s < sources and t < targets for s, t in found.links)
    if sources and targets:
        assert {t for _, t in found.links} == set(range(targets))


def test_heads_are_measured_against_gold_and_without(aligner: WordAligner) -> None:
    pairs = [PAIRS[0], PAIRS[2]]
    gold = [parse_gold("1-0 2-1 0p0", "line"), parse_gold("1-0 2-1 3-2 5-3", "line")]
    measured = measure_heads(aligner, pairs, gold)
    assert {one.head for one in measured} == set(HEADS)
    assert [one.error.rate for one in measured] == sorted(one.error.rate for one in measured)
    hidden = [frozenset(found.links) for found in aligner.align(pairs) if found]
    by_hiding = measure_heads(aligner, pairs)
    for rates, wanted in ((measured, gold), (by_hiding, [GoldAlignment(h, h) for h in hidden])):
        for one in rates:
            links = [frozenset(f.links) for f in aligner.align(pairs, one.head) if f]
            assert one.error == alignment_error(links, wanted)
    with pytest.raises(UserError, match="gold alignments for 2 pairs"):
        measure_heads(aligner, pairs, gold[:1])


def test_a_model_remembers_its_head(aligner: WordAligner, tmp_path: Path) -> None:
    assert load_choice(tmp_path, aligner) is None
    save_choice(tmp_path, HEADS[3])
    assert load_choice(tmp_path, aligner) == HEADS[3]
    for damaged in ("", "[]", '{"layer": 1}', '{"layer": 7, "head": 1, "reading": false}', "\xff"):
        (tmp_path / CHOICE).write_text(damaged, "latin-1")
        with pytest.raises(UserError) as caught:
            load_choice(tmp_path, aligner)
        assert caught.value.message.startswith(f"{tmp_path / CHOICE}: ")


@pytest.fixture
def files(tmp_path: Path) -> list[str | Path]:
    sides = (tmp_path / "new.en", tmp_path / "new.de")
    sides[0].write_text("the red cat\n\na dog\nthe bird\n" + "cat " * 2000 + "\n", "utf-8")
    sides[1].write_text("rot Katze\nHund\n\nVogel\nKatze\n", "utf-8")
    return ["--source", sides[0], "--target", sides[1]]


def test_as_many_lines_come_out_as_go_in(
    dragoman: Dragoman, model: Path, files: list[str | Path]
) -> None:
    for way in (("--layer", "1"), ("--layer", "1", "--head", "2", "--reading"), ("--hide",)):
        result = dragoman("align", "--model", model, *files, *way)
        assert result.status == 0
        lines = result.lines
        assert [len(line.split()) for line in lines] == [2, 0, 0, 1, 0]
        assert result.err == "pair 5: more than 1,023 tokens: left without links\n"
        records = [
            json.loads(line)
            for line in dragoman("align", "--model", model, *files, *way, "--json").lines
        ]
        assert [" ".join(f"{s}-{t}" for s, t in r["links"]) for r in records] == lines
        assert records[0]["source"] == ["the", "red", "cat"]
    piped = ["--source", "-", *files[2:]]
    stdin = Path(files[1]).read_bytes()
    assert dragoman("align", "--model", model, *piped, *way, stdin=stdin).lines == lines


def test_the_head_is_chosen_kept_and_used(dragoman: Dragoman, model: Path, tmp_path: Path) -> None:
    pair = ("--pair", "the red cat", "rot Katze")
    gold = tmp_path / "gold"
    gold.write_text("1-0 2p1\n", "utf-8")
    command = ("align", "--model", model, *pair)
    unknown = dragoman(*command)
    assert unknown.err.startswith("chosen by hiding words of these pairs: layer 1, ")
    assert not (model / CHOICE).exists()
    try:
        kept = dragoman(*command, "--choose", "--gold", gold)
        assert kept.err.startswith("chosen by the gold alignments: layer 1, ")
        assert (model / CHOICE).is_file()
        known = dragoman(*command, "--gold", gold)
    finally:
        (model / CHOICE).unlink(missing_ok=True)
    assert known.lines == kept.lines
    assert known.err == kept.err.split("\n", 1)[1]
    assert known.err.startswith("alignment error rate 0.")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--pair", "a", "b", "--source", "x"], "--pair and files together"),
        (["--pair", "a", "b", "--head", "1"], "--head and --reading are of a layer"),
        (["--pair", "a", "b", "--layer", "1", "--hide"], "--layer, --hide and --choose exclude"),
        (["--pair", "a", "b", "--layer", "2"], "this model has no layer 2, mean of the heads"),
        ([], "no pairs given"),
    ],
)
def test_what_makes_no_sense_is_refused(
    dragoman: Dragoman, model: Path, options: list[str], message: str
) -> None:
    result = dragoman("align", "--model", model, *options)
    assert (result.status, result.out) == (2, b"")
    assert result.err.startswith(f"error: {message}")
    assert "\nhint: " in result.err
