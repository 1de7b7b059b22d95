"""A prepared folder holds what the files say, without leaks, and is made again only if need be."""

import errno
import itertools
import json
import os
import random
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from dragoman.config import DataConfig
from dragoman.corpus import blocks, encoding, examination, preparation
from dragoman.corpus.pairs import read_parallel, read_table
from dragoman.corpus.preparation import (
    OVERLAP,
    TOO_LONG,
    VALIDATION_EMPTY,
    VALIDATION_TOO_LONG,
    Advance,
    prepare_corpus,
)
from dragoman.corpus.prepared import (
    COMPLETE,
    FILES,
    REPORT,
    TOKENIZER,
    TRAIN,
    VALID,
    VALID_TEXT,
    CorpusFiles,
    PreparedCorpus,
    load_prepared,
)
from dragoman.corpus.processes import Processes
from dragoman.corpus.store import CorpusStore
from dragoman.corpus.tokenizer import Tokenizer
from dragoman.errors import UserError
from dragoman.text.normalize import normalize_key

NOUNS = {"cat": "Katze", "dog": "Hund", "house": "Haus", "tree": "Baum", "bird": "Vogel"}
VERBS = {"sees": "sieht", "finds": "findet", "draws": "malt", "{verb}": "{verb}"}
SETTINGS = DataConfig.model_validate({"vocabulary_size": 400, "max_tokens": 40})
SENTENCES = [
    (f"the {a} {v} the {b}", f"{NOUNS[a]} {VERBS[v]} {NOUNS[b]}")
    for a, v, b in itertools.product(NOUNS, VERBS, NOUNS)
]


@contextmanager
def quiet(name: str, total: int | None) -> Iterator[Advance]:
    done: list[int] = []
    yield done.append
    if total is not None:
        assert sum(done) == total, name


def write(folder: Path, name: str, lines: list[str]) -> Path:
    path = folder / name
    path.write_text("".join(f"{line}\n" for line in lines), "utf-8", newline="\n")
    return path


def parallel(folder: Path, sentences: list[tuple[str, str]], name: str = "train") -> CorpusFiles:
    source = write(folder, f"{name}.en", [source for source, _ in sentences])
    target = write(folder, f"{name}.de", [target for _, target in sentences])
    return CorpusFiles("en", "de", source, target)


def prepare(files: CorpusFiles, folder: Path, settings: DataConfig = SETTINGS) -> PreparedCorpus:
    return prepare_corpus(files, folder, lambda _: settings, quiet)


def stored(folder: Path, name: str) -> list[tuple[str, str]]:
    """The pairs of a store as masked text."""
    tokenizer, store = Tokenizer.load(folder / TOKENIZER), CorpusStore.open(folder / name)
    rows = [store[row] for row in range(len(store))]
    return [(tokenizer.decode(s.tolist()), tokenizer.decode(t.tolist())) for s, t in rows]


def contents(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in (*FILES, COMPLETE)}


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


# Chunks: any number of workers, stopped and taken up again


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preparation, "CHUNK_LINES", 7)


@contextmanager
def stopping(after: int, at: str, name: str, total: int | None) -> Iterator[Advance]:
    """A stage that is stopped, as Ctrl-C does it, when so many chunks of it are done."""
    calls = itertools.count(1)

    def advance(_: int) -> None:
        if name == at and next(calls) > after:
            raise KeyboardInterrupt

    yield advance


def test_the_size_of_a_chunk_does_not_show(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = parallel(tmp_path, [*SENTENCES, *SENTENCES[:9], ("", "leer"), ("x", "")])
    prepare(files, tmp_path / "whole")
    for lines in (3, 64):
        monkeypatch.setattr(preparation, "CHUNK_LINES", lines)
        prepare(files, tmp_path / str(lines))
        assert contents(tmp_path / "whole") == contents(tmp_path / str(lines))


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 3])
def test_any_number_of_processes_gives_the_same_bytes(
    tmp_path: Path, small_chunks: None, workers: int
) -> None:
    files = parallel(tmp_path, SENTENCES)
    prepare(files, tmp_path / "here")
    with Processes(workers) as processes:
        prepare_corpus(files, tmp_path / "there", lambda _: SETTINGS, quiet, processes.map)
    assert contents(tmp_path / "here") == contents(tmp_path / "there")


@pytest.mark.parametrize(
    ("at", "after", "examined", "encoded"),
    [("reading and cleaning", 3, 11, 15), ("encoding", 5, 0, 10)],
)
def test_a_stopped_preparation_goes_on_with_the_chunks_it_has(
    tmp_path: Path,
    small_chunks: None,
    monkeypatch: pytest.MonkeyPatch,
    at: str,
    after: int,
    examined: int,
    encoded: int,
) -> None:
    files, out = parallel(tmp_path, SENTENCES), tmp_path / "out"
    prepare(files, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        prepare_corpus(files, out, lambda _: SETTINGS, partial(stopping, after, at))
    with pytest.raises(UserError, match="not a completely prepared corpus"):
        load_prepared(out)
    written: list[str] = []
    for module in (examination, encoding):
        real = module.write_chunk
        monkeypatch.setattr(
            module,
            "write_chunk",
            lambda path, *rest, real=real: (written.append(path.name), real(path, *rest)),
        )
    prepare(files, out)
    assert sum(name.startswith("pairs") for name in written) == examined
    assert sum(name.startswith("ids") for name in written) == encoded
    assert contents(out) == contents(tmp_path / "whole")
    assert {path.name for path in out.iterdir()} == {*FILES, COMPLETE}


@pytest.mark.parametrize("damage", ["cut", "flipped"])
def test_a_damaged_chunk_is_made_again(tmp_path: Path, small_chunks: None, damage: str) -> None:
    files, out = parallel(tmp_path, SENTENCES), tmp_path / "out"
    prepare(files, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        prepare_corpus(files, out, lambda _: SETTINGS, partial(stopping, 4, "encoding"))
    chunks = sorted(out.glob("work/*/*.arrow"))
    for path in (chunks[0], chunks[-1]):
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content if damage == "flipped" else content[:-9])
    (chunks[0].parent / ".half.tmp").write_bytes(b"of a write that was killed")
    prepare(files, out)
    assert contents(out) == contents(tmp_path / "whole")


@pytest.mark.parametrize("change", ["content", "rules", "vocabulary", "seed"])
def test_work_on_something_else_is_not_used(
    tmp_path: Path, small_chunks: None, change: str
) -> None:
    files, out, settings = parallel(tmp_path, SENTENCES), tmp_path / "out", SETTINGS
    with pytest.raises(KeyboardInterrupt):
        prepare_corpus(files, out, lambda _: SETTINGS, partial(stopping, 5, "encoding"))
    if change == "content":
        files = parallel(tmp_path, SENTENCES[::-1])
    else:
        update = {"rules": {"max_length_ratio": 1.2}, "vocabulary": {"vocabulary_size": 380}}
        settings = SETTINGS.model_copy(update=update.get(change, {"seed": 2}))
    prepare(files, out, settings)
    prepare(files, tmp_path / "whole", settings)
    assert contents(out) == contents(tmp_path / "whole")


def test_a_full_disk_is_one_line_and_the_next_run_goes_on(
    tmp_path: Path, small_chunks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, out = parallel(tmp_path, SENTENCES), tmp_path / "out"
    prepare(files, tmp_path / "whole")
    writes = itertools.count()
    real = os.fsync

    def full(descriptor: int) -> None:
        if next(writes) > 6:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(UserError, match="no space left on the device"):
            prepare(files, out)
    assert list(out.glob("work/*/pairs-*.arrow"))
    assert not list(out.glob("work/*/.*.tmp"))
    prepare(files, out)
    assert contents(out) == contents(tmp_path / "whole")


@pytest.mark.parametrize("lines", [1, 2, 3, 100])
def test_lines_are_counted_over_blocks(
    tmp_path: Path, lines: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocks, "_READ_BYTES", 5)
    path, other = tmp_path / "a.en", tmp_path / "a.de"
    path.write_bytes("\ufeffone\r\ntwo\u2028x\n\n\ufefffour\rx\nfünf".encode())
    other.write_bytes(b"1\n2\n3\n4\n5\n")
    found = [
        pair
        for block in blocks.cut_parallel(path, other, lines, "strict")
        for pair in block.pairs()
    ]
    assert found == list(read_parallel(path, other))
    counts = [block.line_count() for block in blocks.cut_parallel(path, other, lines, "strict")]
    assert sum(counts) == 5
    other.write_bytes(b"1\n2\n3\n4\n5\n6\n7")
    with pytest.raises(UserError, match=r"a.de:6: this line has no partner: .*5 lines, .*7 lines"):
        list(blocks.cut_parallel(path, other, lines, "strict"))
    path.write_bytes(b"1\n2\n3\n4\xff\n5\n6\n7\n")
    with pytest.raises(UserError, match=r"a.en:4: invalid UTF-8 at byte 2"):
        deque((list(b.pairs()) for b in blocks.cut_parallel(path, other, lines, "strict")), 0)
    table = write(tmp_path, "a.tsv", ["a\tb", "c\td", "e f"])
    with pytest.raises(UserError, match=r"a.tsv:3: no tab"):
        deque((list(b.pairs()) for b in blocks.cut_table(table, lines, "strict")), 0)


@pytest.mark.slow
def test_a_preparation_killed_at_any_moment_comes_out_the_same(tmp_path: Path) -> None:
    names = ["".join(letters) for letters in itertools.product("bdfgk", repeat=4)]
    sentences = [(f"{s} {name}", f"{t} {name}") for name in names for s, t in SENTENCES]
    files = parallel(tmp_path, sentences)
    arguments = ["--source", files.source, "--target", files.target, "--workers", "2"]
    arguments += ["--set", "data.vocabulary_size=400"]
    command = [sys.executable, "-m", "dragoman", "prepare", *map(str, arguments), "--out"]
    subprocess.run([*command, tmp_path / "whole"], check=True, capture_output=True, timeout=300)
    out, seen, kept = tmp_path / "out", 0, list[int]()
    for pattern in ("pairs-*.arrow", "pairs-00000[2-9].arrow", "ids-*.arrow", "train.arrow"):
        process = subprocess.Popen([*command, out], stdout=subprocess.DEVNULL, stderr=-1)
        while not list(out.glob(f"work/*/{pattern}")) and process.poll() is None:
            time.sleep(0.01)
        seen += process.poll() is None
        process.kill()
        process.communicate()
        kept.append(len(list(out.glob("work/*/*.arrow"))))
    assert seen >= 3  # the last may have come to its end before
    assert kept[0] > 0
    done = subprocess.run([*command, out], capture_output=True, timeout=300)
    assert done.returncode == 0
    for name in FILES:
        assert (out / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert not (out / "work").exists()


@pytest.mark.slow
def test_ray_data_gives_the_same_bytes(tmp_path: Path, small_chunks: None) -> None:
    pytest.importorskip("ray.data", reason="Ray is not installed: pip install 'dragoman[scale]'")
    from dragoman.scale.ray_data import RayData

    files = parallel(tmp_path, SENTENCES)
    prepare(files, tmp_path / "here")
    with RayData("local") as cluster:
        prepare_corpus(files, tmp_path / "there", lambda _: SETTINGS, quiet, cluster.map)
        assert contents(tmp_path / "here") == contents(tmp_path / "there")
        broken = (tmp_path / "train.en").read_bytes() + b"\xff\n"
        (tmp_path / "train.en").write_bytes(broken)
        (tmp_path / "train.de").write_bytes((tmp_path / "train.de").read_bytes() + b"x\n")
        with pytest.raises(UserError, match=r"train.en:101: invalid UTF-8 at byte 1"):
            prepare_corpus(files, tmp_path / "there", lambda _: SETTINGS, quiet, cluster.map)
