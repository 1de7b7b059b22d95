"""A prepared folder holds what the files say, without leaks, and is made again only if need be."""

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest
from preparing import SENTENCES, SETTINGS, contents, parallel, prepare, stored, write

from dragoman.corpus.pairs import read_table
from dragoman.corpus.preparation import (
    OVERLAP,
    TOO_LONG,
    VALIDATION_TOO_LONG,
)
from dragoman.corpus.prepared import (
    COMPLETE,
    REPORT,
    TOKENIZER,
    TRAIN,
    VALID,
    VALID_TEXT,
    VALIDATION_EMPTY,
    CorpusFiles,
    load_prepared,
)
from dragoman.corpus.store import CorpusStore
from dragoman.corpus.tokenizer import Tokenizer
from dragoman.errors import UserError
from dragoman.text.normalize import normalize_key


def test_the_folder_holds_every_pair_once_and_nothing_leaks(tmp_path: Path) -> None:
    out = tmp_path / "corpus"
    corpus = prepare(parallel(tmp_path, SENTENCES), out)
    texts = list(read_table(out / VALID_TEXT))
    assert corpus.validation_pairs == len(texts) == len(CorpusStore.open(out / VALID)) == 5
    assert corpus.training_pairs == len(CorpusStore.open(out / TRAIN)) == corpus.pairs - 5
    assert corpus.pairs == len(SENTENCES)
    plain = [pair for pair in stored(out, TRAIN) if "\U000f0000" not in pair[0]]
    held_out = {(pair.source, pair.target) for pair in texts}
    expected = [pair for pair in SENTENCES if "{" not in pair[0] and pair not in held_out]
    assert sorted(plain) == sorted(expected)
    for side in (0, 1):
        kept = {normalize_key(pair[side]) for pair in SENTENCES if pair not in held_out}
        assert not kept & {normalize_key(pair[side]) for pair in held_out}


def test_the_validation_ids_are_those_of_the_validation_texts(tmp_path: Path) -> None:
    prepare(parallel(tmp_path, SENTENCES), tmp_path / "out")
    tokenizer = Tokenizer.load(tmp_path / "out" / TOKENIZER)
    store = CorpusStore.open(tmp_path / "out" / VALID)
    texts = list(read_table(tmp_path / "out" / VALID_TEXT))
    expected = [tokenizer.encode_pair(pair.source, pair.target) for pair in texts]
    assert [(s.tolist(), t.tolist()) for s, t in map(store.__getitem__, range(len(store)))] == (
        expected
    )


def test_two_preparations_are_the_same_to_the_byte(tmp_path: Path) -> None:
    files = parallel(tmp_path, SENTENCES)
    prepare(files, tmp_path / "a")
    prepare(files, tmp_path / "b")
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


def test_nothing_is_done_again_for_the_same_content_and_settings(tmp_path: Path) -> None:
    files = parallel(tmp_path, SENTENCES)
    first = prepare(files, tmp_path / "out")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").iterdir()}
    parallel(tmp_path, SENTENCES)  # another time, the same content
    second = prepare(files, tmp_path / "out")
    assert before == {path: path.stat().st_mtime_ns for path in (tmp_path / "out").iterdir()}
    assert not first.reused
    assert second == replace(first, reused=True) == load_prepared(tmp_path / "out")


@pytest.mark.parametrize("change", ["content", "settings", "language", "errors", "marker", "file"])
def test_it_is_made_again_when_something_differs(tmp_path: Path, change: str) -> None:
    files, settings, out = parallel(tmp_path, SENTENCES), SETTINGS, tmp_path / "out"
    prepare(files, out)
    if change == "content":
        parallel(tmp_path, SENTENCES[:-1])
    elif change == "settings":
        settings = SETTINGS.model_copy(update={"seed": 2})
    elif change == "language":
        files = replace(files, target_language="nl")
    elif change == "errors":
        files = replace(files, errors="replace")
    elif change == "marker":
        (out / COMPLETE).write_text((out / COMPLETE).read_text("utf-8")[:50], "utf-8")
    else:
        (out / TRAIN).unlink()
    assert not prepare(files, out, settings).reused
    assert prepare(files, out, settings).reused


def test_a_preparation_that_fails_leaves_no_complete_folder(tmp_path: Path) -> None:
    files, out = parallel(tmp_path, SENTENCES), tmp_path / "out"
    prepare(files, out)
    write(tmp_path, "train.de", ["only one line"])
    with pytest.raises(UserError, match=r"train.en:2: this line has no partner"):
        prepare(files, out)
    with pytest.raises(UserError, match="not a completely prepared corpus"):
        load_prepared(out)


def test_training_pairs_like_given_validation_pairs_are_left_out(tmp_path: Path) -> None:
    training = [*SENTENCES, ("We have 3 cats", "Wir haben 3 Katzen"), ("one more", "noch eins")]
    valid = [
        ("we have 14 cats!", "Wir besitzen 14"),
        ("a", " "),
        ("other", "Noch eins."),
        ("b", "c"),
    ]
    files = parallel(tmp_path, training)
    given = parallel(tmp_path, valid, "valid")
    files = replace(files, valid_source=given.source, valid_target=given.target)
    corpus = prepare(files, tmp_path / "out")
    report = json.loads((tmp_path / "out" / REPORT).read_text("utf-8"))
    assert report["dropped"] == {VALIDATION_EMPTY: 1, OVERLAP: 2}
    assert [example["source"] for example in report["examples"][OVERLAP]] == [
        "We have 3 cats",
        "one more",
    ]
    assert corpus.pairs == corpus.training_pairs == report["kept"] == len(SENTENCES)
    assert [pair.source for pair in read_table(tmp_path / "out" / VALID_TEXT)] == [
        "we have 14 cats!",
        "other",
        "b",
    ]


def test_pairs_of_too_many_subwords_are_counted_and_left_out(tmp_path: Path) -> None:
    letters = random.Random(1)
    long, other = (
        ("".join(letters.choices("qxyzjkvw", k=200)), "".join(letters.choices("qxyzjkvw", k=200)))
        for _ in range(2)
    )
    files = parallel(tmp_path, [*SENTENCES, long])
    given = parallel(tmp_path, [("x", "y"), other], "valid")
    files = replace(files, valid_source=given.source, valid_target=given.target)
    corpus = prepare(files, tmp_path / "out")
    report = json.loads((tmp_path / "out" / REPORT).read_text("utf-8"))
    assert report["dropped"] == {TOO_LONG: 1, VALIDATION_TOO_LONG: 1}
    assert report["kept"] == corpus.training_pairs == len(SENTENCES)
    assert corpus.validation_pairs == 1
    assert "line 0" not in corpus.report
    assert CorpusStore.open(tmp_path / "out" / TRAIN).source_lengths.max() <= SETTINGS.max_tokens


def test_an_existing_tokenizer_is_used_as_it_is(tmp_path: Path) -> None:
    prepare(parallel(tmp_path, SENTENCES), tmp_path / "first")
    files = replace(
        parallel(tmp_path, SENTENCES[::2], "half"), tokenizer=tmp_path / "first" / TOKENIZER
    )
    prepare(files, tmp_path / "second")
    assert contents(tmp_path / "first")[TOKENIZER] == contents(tmp_path / "second")[TOKENIZER]


def test_a_table_gives_the_same_folder_as_two_files(tmp_path: Path) -> None:
    prepare(parallel(tmp_path, SENTENCES), tmp_path / "a")
    table = write(tmp_path, "train.tsv", [f"{source}\t{target}" for source, target in SENTENCES])
    prepare(CorpusFiles("en", "de", table=table), tmp_path / "b")
    names = (TRAIN, VALID, VALID_TEXT, TOKENIZER)
    assert all(
        (tmp_path / "a" / n).read_bytes() == (tmp_path / "b" / n).read_bytes() for n in names
    )


@pytest.mark.parametrize(
    ("sentences", "message"),
    [
        ([], "the corpus is empty"),
        ([("one pair", "ein Paar")], "too few pairs .*: 1 of 1 pairs are left"),
        ([("", "x"), ("y", " ")], "too few pairs .*: 0 of 2 pairs are left; 2 empty side"),
        ([("step 1", "Schritt 1"), ("step 2", "Schritt 2")], "too few pairs"),
    ],
)
def test_too_few_pairs_are_one_clear_line(
    tmp_path: Path, sentences: list[tuple[str, str]], message: str
) -> None:
    with pytest.raises(UserError, match=message) as caught:
        prepare(parallel(tmp_path, sentences), tmp_path / "out")
    assert "\n" not in caught.value.message
    assert not (tmp_path / "out" / COMPLETE).exists()


def test_no_pair_short_enough_is_an_error(tmp_path: Path) -> None:
    settings = SETTINGS.model_copy(update={"max_tokens": 8, "vocabulary_size": 300})
    sentences = [(f"zq{a} xw{b} vj{a}{b}", f"{a} yk {b} pf {b}{a}") for a, b in ["ab", "cd", "ef"]]
    with pytest.raises(UserError, match="no pair is short enough") as caught:
        prepare(parallel(tmp_path, sentences), tmp_path / "out", settings)
    assert caught.value.hint == "set data.max_tokens higher"


def test_half_of_the_validation_data_is_an_error(tmp_path: Path) -> None:
    files = parallel(tmp_path, SENTENCES)
    with pytest.raises(UserError, match="needs both --valid-source and --valid-target"):
        prepare(replace(files, valid_source=files.source), tmp_path / "out")


def test_damaged_and_missing_folders_are_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"nothing: no such folder"):
        load_prepared(tmp_path / "nothing")
    prepare(parallel(tmp_path, SENTENCES), tmp_path / "out")
    (tmp_path / "out" / REPORT).write_text("{}", "utf-8")
    with pytest.raises(UserError, match="damaged"):
        load_prepared(tmp_path / "out")
