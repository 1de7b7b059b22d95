import io
import itertools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import sentencepiece
from hypothesis import given
from hypothesis import strategies as st

from dragoman.corpus.tokenizer import Tokenizer
from dragoman.errors import UserError
from dragoman.text.protect import ESCAPE, SLOTS

LINES = [
    "The house is small.",
    "A small house stands near the old bridge.",
    "Das Haus ist klein.",
    "Ein kleines Haus steht nahe der alten Brücke.",
    "Set {name} to 25 degrees in {name}.",
    "Die Brücke bei 30,5 °C: **heiß**\n\nund neu.",
    "x\u00a0y\tz",
    "我在家。 我不在家。",
    "Turn on the light of the house",
    "Das Licht im Haus einschalten",
] * 3

SPECIAL = [*SLOTS[:3], SLOTS[-1], ESCAPE, "\u2581", " ", "\n", "\0", "{x}", "a", "<s>", "\u0301"]
TEXTS = st.one_of(st.text(), st.lists(st.sampled_from(SPECIAL)).map("".join))

CASES = [
    "",
    " ",
    "   two  spaces   ",
    "line\nbreak",
    "\r\n",
    "\t",
    "NUL\0NUL",
    "\u00a0no-break\u00a0",
    "\u3000ideographic",
    "zero\u200dwidth",
    "\u2581",
    "a\u2581 \u2581b",
    "<unk>",
    "<s>x</s>",
    "<pad>",
    "<0x41>",
    "\u0301",
    "e\u0301 é",
    "ﬁ Å Ａ １２",
    "\ufeff",
    "\u2047 \u2585",
    "\ufffd\ufffe\uffff\U0010ffff",
    "👩‍👩‍👧",
    "مرحبا",
    "สวัสดี",
    "漢字かな",
    "\u2028\u0085\x0b\x0c",
    ESCAPE,
    ESCAPE * 3 + SLOTS[0],
    SLOTS[0] + SLOTS[0] + SLOTS[5],
]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train(LINES, 600)


def assert_lossless(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert all(Tokenizer.eos_id < number < tokenizer.vocabulary_size for number in ids)


@given(text=TEXTS)
def test_encoding_loses_nothing(tokenizer: Tokenizer, text: str) -> None:
    assert_lossless(tokenizer, text)


@pytest.mark.parametrize("text", CASES, ids=ascii)
def test_encoding_loses_nothing_of_odd_texts(tokenizer: Tokenizer, text: str) -> None:
    assert_lossless(tokenizer, text)


def test_every_character_survives(tokenizer: Tokenizer) -> None:
    everything = [chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000]
    texts = ["".join(everything[start : start + 997]) for start in range(0, len(everything), 997)]
    assert [tokenizer.decode(ids) for ids in tokenizer.encode_batch(texts)] == texts


@pytest.mark.parametrize("text", ["long " * 20_000, "长" * 100_000, "\u2581x" * 50_000])
def test_a_very_long_line_survives(tokenizer: Tokenizer, text: str) -> None:
    assert_lossless(tokenizer, text)


def test_the_empty_text_has_no_ids(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("") == []
    assert tokenizer.decode([]) == ""


def test_a_word_is_cut_alike_at_the_start_and_within(tokenizer: Tokenizer) -> None:
    word = tokenizer.encode("house")
    assert tokenizer.encode("small house")[-len(word) :] == word


def test_digits_are_cut_apart(tokenizer: Tokenizer) -> None:
    assert tokenizer.pieces(tokenizer.encode("x 2530"))[-4:] == ["2", "5", "3", "0"]


@pytest.mark.parametrize("text", ["\ud800", "fine \udfff"])
def test_a_lone_surrogate_is_refused(tokenizer: Tokenizer, text: str) -> None:
    with pytest.raises(UserError, match="lone surrogate"):
        tokenizer.encode(text)
    with pytest.raises(UserError, match="lone surrogate"):
        tokenizer.encode_batch(["fine", text])


# Slots and spans


@given(text=TEXTS)
def test_masking_and_encoding_lose_nothing(tokenizer: Tokenizer, text: str) -> None:
    ids, spans = tokenizer.encode_source(text)
    assert tokenizer.decode_target(ids, spans) == text


def test_a_span_is_one_id_and_comes_back(tokenizer: Tokenizer) -> None:
    ids, spans = tokenizer.encode_source("Set {name} to {value} in {name}.")
    first, second = (tokenizer.encode(slot)[-1] for slot in SLOTS[:2])
    assert spans == ["{name}", "{value}"]
    assert (ids.count(first), ids.count(second)) == (2, 1)
    assert tokenizer.decode_target([second, *tokenizer.encode(" ist ")], spans) == "{value}  ist "


def test_a_literal_slot_character_is_no_slot(tokenizer: Tokenizer) -> None:
    slots = {tokenizer.encode(slot)[-1] for slot in SLOTS}
    ids, spans = tokenizer.encode_source(f"{SLOTS[0]} literal {SLOTS[1]}{ESCAPE}")
    assert spans == []
    assert slots.isdisjoint(ids)


def test_a_pair_shares_its_slots(tokenizer: Tokenizer) -> None:
    source, target = tokenizer.encode_pair("{a} and {b}", "{b} und {a} und {c}")
    slot = [tokenizer.encode(slot)[-1] for slot in SLOTS[:3]]
    assert [number for number in source if number in slot] == slot[:2]
    assert [number for number in target if number in slot] == [slot[1], slot[0]]
    assert tokenizer.decode_target(target, ["{a}", "{b}"]) == "{b} und {a} und {c}"


def test_many_pairs_are_encoded_as_one_by_one(tokenizer: Tokenizer) -> None:
    pairs = [(line, other + "\u2581") for line, other in itertools.pairwise(LINES)]
    assert tokenizer.encode_pairs(pairs) == [tokenizer.encode_pair(*pair) for pair in pairs]
    assert tokenizer.encode_pairs([]) == []


# Batches, threads, sampling


def test_a_batch_is_encoded_as_one_by_one(tokenizer: Tokenizer) -> None:
    texts = (LINES + CASES) * 10
    assert tokenizer.encode_batch(texts) == [tokenizer.encode(text) for text in texts]


def test_threads_do_not_disturb_each_other(tokenizer: Tokenizer) -> None:
    texts = (LINES + CASES) * 5
    with ThreadPoolExecutor(4) as pool:
        for ids, text in zip(pool.map(tokenizer.encode, texts), texts, strict=True):
            assert tokenizer.decode(ids) == text
            assert ids == tokenizer.encode(text)


@given(text=TEXTS, sample=st.floats(0.01, 1.0))
def test_sampling_loses_nothing(tokenizer: Tokenizer, text: str, sample: float) -> None:
    ids = tokenizer.encode(text, sample)
    assert tokenizer.decode(ids) == text
    assert Tokenizer.unk_id not in ids


def test_sampling_repeats_itself_by_its_seed(tokenizer: Tokenizer) -> None:
    texts = LINES * 3
    first = tokenizer.encode_batch(texts, sample=0.3, seed=1)
    other = tokenizer.encode_batch(texts, sample=0.3, seed=2)
    tokenizer.encode_batch(texts, sample=0.3)
    assert tokenizer.encode_batch(texts, sample=0.3, seed=1) == first
    assert first not in (other, tokenizer.encode_batch(texts))
    assert len({tuple(ids) for ids in tokenizer.encode_batch(texts[:1] * 50, 0.3, seed=0)}) > 1


def test_seeds_of_several_threads_do_not_mix(tokenizer: Tokenizer) -> None:
    def encode(seed: int) -> list[list[int]]:
        return tokenizer.encode_batch(LINES, sample=0.3, seed=seed)

    alone = [encode(seed) for seed in range(8)]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(encode, range(8))) == alone


# Decoding what a model may produce


def test_special_ids_are_passed_over(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("small house")
    padded = [Tokenizer.bos_id, ids[0], Tokenizer.pad_id, *ids[1:], Tokenizer.eos_id, 0, 0]
    assert tokenizer.decode(padded) == "small house"


def test_broken_bytes_become_replacement_characters(tokenizer: Tokenizer) -> None:
    start, *rest = tokenizer.encode("x\U0001f600")
    assert tokenizer.decode([start, *rest[:-1]])[1:] == "\ufffd"
    assert tokenizer.decode([Tokenizer.unk_id]) == "\ufffd"


@pytest.mark.parametrize("number", [-1, 10**6])
def test_an_id_outside_of_the_vocabulary_is_refused(tokenizer: Tokenizer, number: int) -> None:
    with pytest.raises(ValueError, match="outside"):
        tokenizer.decode([5, number])


def test_arrays_of_ids_are_decoded(tokenizer: Tokenizer) -> None:
    assert tokenizer.decode(np.array(tokenizer.encode("house"), dtype=np.uint16)) == "house"


def test_pieces_can_be_shown(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode(f"The {SLOTS[1]} house\n\t\u00a0我 ☃")
    pieces = tokenizer.pieces(ids)
    assert len(pieces) == len(ids)
    assert all(piece.isprintable() and piece for piece in pieces)
    assert "⟨2⟩" in pieces
    assert pieces[0] == "▁The"


# Training


@pytest.mark.parametrize(
    "texts",
    [
        [f"short line {number}" for number in range(10)],
        ["1 2 3", "3 2 1"],
        ["a"],
        ["\0"],
        ["{name}"],
        ["\u2581\u2585" + ESCAPE + SLOTS[2]],
        ["damaged \ud800 text"],
    ],
    ids=ascii,
)
def test_little_text_gives_a_small_vocabulary(texts: list[str]) -> None:
    tokenizer = Tokenizer.train(texts, 8000)
    assert 276 <= tokenizer.vocabulary_size < 400
    for text in [*CASES, "2024 short line"]:
        assert_lossless(tokenizer, text)


def test_the_vocabulary_is_as_large_as_asked() -> None:
    lines = [f"{chr(97 + i % 26)}{chr(97 + i % 23)}{chr(97 + i % 7)}" * 3 for i in range(2000)]
    assert Tokenizer.train(lines, 400).vocabulary_size == 400


def test_characters_too_many_for_the_vocabulary_fall_to_bytes() -> None:
    common = "的一是不了" * 50
    text = common + "".join(chr(code) for code in range(0x4E00, 0x4E00 + 3000))
    tokenizer = Tokenizer.train([text], 320)
    assert tokenizer.vocabulary_size <= 320
    assert len(tokenizer.encode("的")) <= 2
    assert_lossless(tokenizer, text)


@pytest.mark.parametrize(("size", "coverage"), [(300, 1.0), (300, 0.98), (8000, 0.98)])
def test_a_space_survives_a_training_text_almost_without(size: int, coverage: float) -> None:
    text = "".join(chr(code) * 50 for code in range(0x4E00, 0x4E00 + 40))
    assert_lossless(Tokenizer.train([text], size, coverage), " a  b ")


@pytest.mark.parametrize(
    "odd", ["a" * 100_000, "\u2585", "\u2581", "\0", ESCAPE, SLOTS[0], "\ud800"]
)
def test_no_text_is_left_out_of_training(odd: str) -> None:
    tokenizer = Tokenizer.train([odd + "☃" * 1000], 400)
    assert "☃" in "".join(tokenizer.pieces(tokenizer.encode("☃")))


def test_training_repeats_itself_and_reads_once() -> None:
    lines: Iterator[str] = iter(LINES)
    assert Tokenizer.train(lines, 600).to_bytes() == Tokenizer.train(LINES, 600).to_bytes()
    assert next(lines, None) is None


def test_the_sample_depends_on_the_seed_and_reaches_the_whole_corpus() -> None:
    words = ["".join(chr(97 + (i * k) % 26) for k in (3, 5, 7, 11)) for i in range(1000)]

    def learned(seed: int) -> bytes:
        return Tokenizer.train(iter(words), 600, seed=seed, max_sentences=20).to_bytes()

    assert learned(1) == learned(1)
    assert learned(1) != learned(2)
    late = ["a"] * 5 + ["☃"] * 2000
    pieces = Tokenizer.train(late, 400, max_sentences=5)
    assert "☃" in "".join(pieces.pieces(pieces.encode("☃")))


@pytest.mark.parametrize("texts", [[], [""], [" ", "\n\t", "\u3000"]])
def test_no_text_is_an_error(texts: list[str]) -> None:
    with pytest.raises(UserError, match="no text"):
        Tokenizer.train(texts, 8000)


def test_settings_that_cannot_be_are_errors() -> None:
    with pytest.raises(UserError, match="too small"):
        Tokenizer.train(LINES, 100)
    with pytest.raises(UserError, match="coverage"):
        Tokenizer.train(LINES, 8000, character_coverage=0.5)


def test_nothing_reaches_the_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    Tokenizer.train(LINES, 400).encode("x")
    for model in (b"", b"garbage"):
        with pytest.raises(UserError):
            Tokenizer(model)
    assert capfd.readouterr() == ("", "")


# Files


def test_a_saved_tokenizer_is_the_same(tokenizer: Tokenizer, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.model"
    tokenizer.save(path)
    for again in (Tokenizer.load(path), Tokenizer(tokenizer.to_bytes())):
        assert again.vocabulary_size == tokenizer.vocabulary_size
        assert again.encode_batch(LINES + CASES) == tokenizer.encode_batch(LINES + CASES)
    assert list(tmp_path.iterdir()) == [path]


def test_a_truncated_tokenizer_is_an_error(tokenizer: Tokenizer) -> None:
    model = tokenizer.to_bytes()
    for length in range(0, len(model), 7):
        with pytest.raises(UserError, match="damaged"):
            Tokenizer(model[:length])


@given(place=st.integers(0, 10**6), byte=st.integers(0, 255))
def test_a_tampered_tokenizer_is_an_error_or_works(
    tokenizer: Tokenizer, place: int, byte: int
) -> None:
    model = bytearray(tokenizer.to_bytes())
    model[place % len(model)] = byte
    try:
        damaged = Tokenizer(bytes(model))
    except UserError:
        return
    assert Tokenizer.unk_id not in damaged.encode("small house \u2581 ☃")


def test_a_foreign_tokenizer_is_an_error(tmp_path: Path) -> None:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(LINES),
        model_writer=model,
        vocab_size=60,
        hard_vocab_limit=False,
        minloglevel=3,
    )
    path = tmp_path / "foreign.model"
    path.write_bytes(model.getvalue())
    with pytest.raises(UserError, match=r"foreign\.model: not a tokenizer of Dragoman"):
        Tokenizer.load(path)


def test_an_unreadable_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"missing\.model: cannot read"):
        Tokenizer.load(tmp_path / "missing.model")
    with pytest.raises(UserError, match="cannot read"):
        Tokenizer.load(tmp_path)
