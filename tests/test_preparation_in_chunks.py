"""Preparation in chunks: any number of processes, stopped, damaged, killed, taken up again."""

import errno
import itertools
import os
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
from preparing import SENTENCES, SETTINGS, contents, parallel, prepare, quiet, write

from dragoman.corpus import blocks, encoding, examination, preparation
from dragoman.corpus.pairs import read_parallel
from dragoman.corpus.preparation import (
    Advance,
    prepare_corpus,
)
from dragoman.corpus.prepared import (
    COMPLETE,
    FILES,
    load_prepared,
)
from dragoman.corpus.processes import Processes
from dragoman.errors import UserError


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
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of Ray among its own parts
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
