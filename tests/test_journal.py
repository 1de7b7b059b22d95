"""The file job of `dragoman translate`: whatever ends it, it goes on, and the file is the same."""

import contextlib
import fcntl
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dragoman.decoding import journal
from dragoman.decoding.journal import FileJob
from dragoman.errors import UserError

JOB = {"input": ["a.en", 12, 34], "model": ["5f"], "search": {"beam": 4}}
LINES = [f"Zeile {number} ".encode() * (number % 7 + 1) + b"\n" for number in range(300)]
SHORT = "--set=search.max_extra_tokens=0"  # random weights never end by themselves
Dragoman = Callable[..., Any]


@pytest.fixture(autouse=True)
def records_at_every_write(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "_INTERVAL", 0.0)


def interrupted(path: Path, lines: int, job: dict[str, Any] = JOB) -> FileJob:
    """Write up to so many lines, then leave as an error does."""
    work = FileJob(path, job)
    with contextlib.suppress(ArithmeticError), work:
        for line in LINES[work.lines : lines]:
            work.write(line, 1)
        raise ArithmeticError
    return work


def finished(path: Path, job: dict[str, Any] = JOB) -> FileJob:
    with FileJob(path, job) as work:
        for line in LINES[work.lines :]:
            work.write(line, 1)
    return work


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_job_leaves_its_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_text("old")
    path.chmod(0o640)
    with FileJob(path, JOB) as work:
        work.write(b"new\n", 1)
        assert path.read_text() == "old"
        assert names(tmp_path) == ["out", "out.journal", "out.partial"]
    assert (path.read_text(), path.stat().st_mode & 0o777) == ("new\n", 0o640)
    assert (names(tmp_path), work.note) == (["out"], None)


def test_an_interrupted_job_goes_on_where_it_stopped(tmp_path: Path) -> None:
    path = tmp_path / "out"
    interrupted(path, 100)
    assert names(tmp_path) == ["out.journal", "out.partial"]
    assert interrupted(path, 200).note == f"going on with {path} after line 100"
    assert finished(path).note == f"going on with {path} after line 200"
    assert (path.read_bytes(), names(tmp_path)) == (b"".join(LINES), ["out"])


def test_a_job_that_did_nothing_leaves_nothing(tmp_path: Path) -> None:
    interrupted(tmp_path / "out", 0)
    assert names(tmp_path) == []


@pytest.mark.parametrize("aspect", JOB)
def test_another_job_begins_anew_and_says_why(tmp_path: Path, aspect: str) -> None:
    path = tmp_path / "out"
    interrupted(path, 100)
    work = finished(path, JOB | {aspect: "other"})
    assert work.note == f"{path}.partial: of another {aspect}: beginning anew"
    assert path.read_bytes() == b"".join(LINES)


def test_a_partial_file_that_was_changed_is_not_gone_on_with(tmp_path: Path) -> None:
    path, partial = tmp_path / "out", tmp_path / "out.partial"
    for damage in (b"", b"?" + b"".join(LINES[:100])[1:], None):
        interrupted(path, 100)
        if damage is None:
            partial.unlink()
        else:
            partial.write_bytes(damage)
        work = finished(path)
        assert work.note is not None and work.note.endswith(": beginning anew")
        assert path.read_bytes() == b"".join(LINES)


def test_whatever_a_kill_leaves_the_file_is_the_same(tmp_path: Path) -> None:
    """More was written than was recorded; the last record, or the first line, is cut short."""
    path, chance = tmp_path / "out", random.Random(3)
    for _ in range(60):
        interrupted(path, chance.randint(1, 299))
        done = (tmp_path / "out.journal").read_bytes()
        cut = chance.randint(1, len(done)) if chance.random() < 0.5 else len(done)
        (tmp_path / "out.journal").write_bytes(done[:cut])
        with open(tmp_path / "out.partial", "ab") as stream:
            stream.write(b"half a line"[: chance.randint(0, 11)])
        if chance.random() < 0.3:
            finished(path)
            assert path.read_bytes() == b"".join(LINES)
            path.unlink()
    finished(path)
    assert path.read_bytes() == b"".join(LINES)


def test_a_damaged_journal_begins_anew(tmp_path: Path) -> None:
    path, mark = tmp_path / "out", b'{"journal": "dragoman"'
    for rest in (b"", b"\0\xff\n[]\n", b"}\n{}\n", b"}\n" + b"{" * 9999 + b"\n", b', "input": 1'):
        (tmp_path / "out.journal").write_bytes(mark + rest)
        (tmp_path / "out.partial").write_bytes(b"whatever\n")
        finished(path)
        assert path.read_bytes() == b"".join(LINES)
    (tmp_path / "out.journal").write_bytes(bytes(512))  # of a power cut
    finished(path)
    assert path.read_bytes() == b"".join(LINES)


@pytest.mark.parametrize("content", [b"Dear diary\n", b"{}\n", b"\xff", b"null\n" * 3])
def test_what_is_no_journal_of_ours_is_not_written_over(tmp_path: Path, content: bytes) -> None:
    for name in ("out.journal", "out.partial"):
        (tmp_path / name).write_bytes(content)
        with (
            pytest.raises(UserError, match=f"{name}: is in the way"),
            FileJob(tmp_path / "out", JOB),
        ):
            pass
        assert names(tmp_path) == [name]
        assert (tmp_path / name).read_bytes() == content
        (tmp_path / name).unlink()


def test_a_pipe_is_written_directly_whatever_its_name(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    path = Path(f"/proc/self/fd/{writing}")  # its real path is none: pipe:[NUMBER]
    if not path.exists():
        pytest.skip("the system has no such names")
    with FileJob(path, JOB) as work:
        work.write(b"line\n", 1)
    os.close(writing)
    with os.fdopen(reading, "rb") as stream:
        assert stream.read() == b"line\n"


def test_the_second_of_two_jobs_on_one_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "out"
    with FileJob(path, JOB) as work:
        work.write(b"first\n", 1)
        with pytest.raises(UserError, match="another process"), FileJob(path, JOB):
            pass
    assert path.read_bytes() == b"first\n"


def test_a_journal_that_another_job_has_just_removed_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flock, calls = fcntl.flock, []

    def late(log: Any, how: int) -> None:
        if not calls:
            (tmp_path / "out.journal").unlink()
        calls.append(how)
        flock(log, how)

    monkeypatch.setattr(fcntl, "flock", late)
    interrupted(tmp_path / "out", 5)
    assert len(calls) == 2
    assert names(tmp_path) == ["out.journal", "out.partial"]


def test_where_nothing_can_be_written_one_error_says_so(tmp_path: Path) -> None:
    for path, words in (
        (tmp_path / "none" / "out", "its folder does not exist"),
        (tmp_path, "is a folder"),
        (Path("/dev/full"), "no space left"),
    ):
        with pytest.raises(UserError, match=words), FileJob(path, JOB) as work:
            work.write(b"line\n", 1)
    assert names(tmp_path) == []


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Path]:
    """A small file system in memory; skips where this user may not mount one."""
    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", str(place)]
    if shutil.which("mount") is None or subprocess.run(command, check=False).returncode:
        pytest.skip("this user may not mount a file system")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_a_full_disk_is_one_error_and_the_job_goes_on_once_there_is_room(mount: Path) -> None:
    path = mount / "out"
    work = FileJob(path, JOB)
    with pytest.raises(UserError, match="no space left") as error, work:
        for line in LINES:
            work.write(line, 1)
    assert "what is done is kept" in error.value.hint
    subprocess.run(["mount", "-o", "remount,size=1m", str(mount)], check=True)
    work = finished(path)
    assert work.note is not None and work.note.startswith("going on with")
    assert path.read_bytes() == b"".join(LINES)


def start(*arguments: str | Path, **more: Any) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [sys.executable, "-m", "dragoman", *map(str, arguments)],
        cwd=Path(__file__).resolve().parents[1],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        # A shell lets what it starts in the background ignore it.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        **{"stderr": subprocess.PIPE} | more,
    )


def text(path: Path, lines: int) -> Path:
    words = "the red old big cat dog house tree bird sees finds draws".split()
    chance = random.Random(4)
    path.write_text("".join(f"{' '.join(chance.choices(words, k=3))} {n}\n" for n in range(lines)))
    return path


def test_a_job_says_that_it_goes_on_and_ends_in_the_same_file(
    dragoman: Dragoman, model: Path, tmp_path: Path
) -> None:
    source, path = text(tmp_path / "source", 300), tmp_path / "out"
    command = ("translate", "--model", model, source, "--json")
    expected = dragoman(*command)
    source_text = source.read_bytes()
    source.write_bytes(source_text[:-2] + b"\xff\n")  # the last line is no UTF-8
    refused = dragoman(*command, "--output", path)
    assert (refused.status, path.exists()) == (2, False)
    assert "source:300: invalid UTF-8" in refused.err
    done = json.loads((tmp_path / "out.journal").read_text().splitlines()[-1])
    assert done["lines"] == 299
    again = dragoman(*command, "--output", path)
    assert f"going on with {path} after line 299" in again.err
    source.write_bytes(source_text)
    os.utime(source, ns=(1, 1))
    whole = dragoman(*command, "--output", path)
    assert "of another input: beginning anew" in whole.err
    assert (path.read_bytes(), whole.out) == (expected.out, b"")


def test_an_interrupt_ends_it_at_once_with_whole_lines(model: Path, tmp_path: Path) -> None:
    command = ("translate", "--model", model, "-")
    with start(*command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(b"the cat\n")
        process.stdin.flush()
        assert process.stdout.readline().endswith(b"\n")  # answered though more may come
        process.send_signal(signal.SIGINT)
        # stdin is still open: it must not wait for more of it.
        assert process.wait(60) == 130
        out, err = process.stdout.read(), process.stderr.read()  # type: ignore[union-attr]
    assert out == b""
    assert b"Traceback" not in err and b"terminate" not in err


@pytest.mark.slow
def test_killed_again_and_again_it_ends_in_the_same_file(model: Path, tmp_path: Path) -> None:
    source, whole, path = text(tmp_path / "source", 600), tmp_path / "whole", tmp_path / "out"
    command = ("translate", "--model", model, "--n-best", "2", SHORT, source, "--output")
    _, errors = (process := start(*command, whole)).communicate(timeout=300)
    assert process.returncode == 0, errors
    chance, kills, log = random.Random(5), 0, tmp_path / "out.journal"
    while True:
        before = log.stat().st_size if log.exists() else 0
        process = start(*command, path, stderr=subprocess.DEVNULL)  # nobody would read it
        while process.poll() is None:
            with contextlib.suppress(FileNotFoundError):
                if log.stat().st_size > before + 200:  # it began and has recorded something new
                    time.sleep(chance.random() / 2)
                    process.kill()
            time.sleep(0.01)
        if process.returncode == 0:
            break
        assert process.returncode == -signal.SIGKILL
        kills += 1
    assert path.read_bytes() == whole.read_bytes()
    assert kills > 0
    assert names(tmp_path) == ["out", "source", "whole"]


@pytest.mark.slow
def test_processes_give_the_same_text_and_one_that_dies_is_one_error(
    model: Path, tmp_path: Path
) -> None:
    source, path = text(tmp_path / "source", 1300), tmp_path / "out"
    command = ("translate", "--model", model, "--engine", "native", "--beam", "1", SHORT, source)
    for threads in (1, 2):
        process = start(*command, "--threads", str(threads), "--output", tmp_path / str(threads))
        _, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors
    assert (tmp_path / "1").read_bytes() == (tmp_path / "2").read_bytes()
    process = start(*command, "--threads", "2", "--output", path)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    if not children.exists():
        process.kill()
        pytest.skip("the system does not tell of child processes")
    while not (found := workers(process.pid)):
        assert process.poll() is None
        time.sleep(0.05)
    os.kill(found[-1], signal.SIGKILL)
    _, errors = process.communicate(timeout=300)
    lines = errors.decode().splitlines()
    assert process.returncode == 1
    assert [line for line in lines if line.startswith("error:")] == [
        "error: a worker process died, often for want of memory"
    ]
    assert b"Traceback" not in errors


def workers(parent: int) -> list[int]:
    """Copies of a process that it has made of itself, whichever of its threads did."""
    found, own = [], Path(f"/proc/{parent}/cmdline").read_bytes()
    for path in Path(f"/proc/{parent}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in path.read_text().split():
                if Path(f"/proc/{child}/cmdline").read_bytes() == own:
                    found.append(int(child))
    return found
