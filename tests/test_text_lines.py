import errno
import gzip
import io
import lzma
import os
import stat
import sys
import tracemalloc
from itertools import islice
from pathlib import Path
from types import SimpleNamespace

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from dragoman.errors import UserError
from dragoman.text import lines as lines_module
from dragoman.text.lines import (
    ErrorPolicy,
    atomic_write,
    iterate_lines,
    open_bytes,
    read_lines,
    write_lines,
)

# Whatever some program takes for a line break, or for nothing at all, and scripts of all kinds.
ODD = [
    "a\rb",
    "a\u2028b\u2029c",
    "a\u0085b",
    "a\x0bb\x0cc",
    "a\x1cb\x1dc\x1ed",
    "nul \x00 inside",
    "middle \ufeff mark",
    "no\u00a0break",
    "join\u200der",
    "e\u0301 combining",
    "👩‍👩‍👧 emoji",
    "مرحبا بالعالم",
    "สวัสดีชาวโลก",
    "你好，世界。",
    "",
    "   \t ",
    "\ufffd",
    "x" * 100_000,
]
COMPRESSIONS = {
    "gzip": gzip.compress,
    "xz": lzma.compress,
    "zstd": zstandard.ZstdCompressor().compress,
}
any_line = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n"))
line_pieces = st.lists(
    st.sampled_from(["\r", "\n", "\r\n", "\ufeff", "\u2028", "\x85", "\x0b", "\x0c", "\x00", "é"])
)


def lines_of(data: bytes, errors: ErrorPolicy = "strict") -> list[str]:
    return list(iterate_lines(io.BytesIO(data), "data.en", errors))


class Trickle(io.RawIOBase):
    """A stream that gives one byte at a time."""

    def __init__(self, data: bytes) -> None:
        self.inner = io.BytesIO(data)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        data = self.inner.read(1)
        buffer[: len(data)] = data
        return len(data)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", []),
        (b"\n", [""]),
        (b"a", ["a"]),
        (b"a\n", ["a"]),
        (b"a\n\nb", ["a", "", "b"]),
        (b"a\r\nb\r\n", ["a", "b"]),
        (b"a\rb\n", ["a\rb"]),
        (b"a\r\r\n", ["a\r"]),
        (b"a\r", ["a\r"]),
        (b"\r\n \n", ["", " "]),
        (b"\xef\xbb\xbfa\n\xef\xbb\xbfb\n", ["a", "\ufeffb"]),
        (b"\xef\xbb\xbf", [""]),
        (b"\xef\xbb\xbf\xef\xbb\xbfa", ["\ufeffa"]),
        (b"a\xef\xbb\xbf", ["a\ufeff"]),
    ],
)
def test_line_ends(data: bytes, expected: list[str]) -> None:
    assert lines_of(data) == expected


def test_odd_characters_stay_in_their_line() -> None:
    data = "\n".join(ODD).encode()
    assert lines_of(data) == ODD
    assert lines_of(data.replace(b"\n", b"\r\n")) == ODD


@given(line_pieces.map("".join))
def test_count_is_that_of_line_feeds(text: str) -> None:
    data = text.encode()
    lines = lines_of(data)
    assert len(lines) == data.count(b"\n") + (not data.endswith(b"\n") and bool(data))
    assert lines == list(iterate_lines(io.BufferedReader(Trickle(data)), "x"))


@given(st.lists(any_line | line_pieces.map(lambda p: "".join(p).replace("\n", ""))))
def test_written_lines_are_read_again(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str]
) -> None:
    path = tmp_path_factory.mktemp("lines") / "file"
    write_lines(path, lines)
    assert list(read_lines(path)) == lines
    assert path.read_bytes().count(b"\n") == len(lines)


@given(st.binary())
def test_any_bytes_give_lines_or_one_error_that_is_right(data: bytes) -> None:
    replaced = lines_of(data, "replace")
    assert len(replaced) == data.count(b"\n") + (not data.endswith(b"\n") and bool(data))
    try:
        assert lines_of(data) == replaced
    except UserError as error:
        place, rest = error.message.split(": invalid UTF-8 at byte ")
        line = data.split(b"\n")[int(place.removeprefix("data.en:")) - 1]
        byte = int(rest.split()[0])
        line[: byte - 1].decode()
        with pytest.raises(UnicodeDecodeError):
            line.decode()
        assert f"(0x{line[byte - 1]:02X})" in rest


def test_invalid_utf8_names_file_line_and_byte() -> None:
    data = "eins\nzwei\ncafé au lait\n".encode("latin-1")
    with pytest.raises(UserError) as caught:
        lines_of(data)
    assert caught.value.message == "data.en:3: invalid UTF-8 at byte 4 (0xE9)"
    assert "--errors replace" in caught.value.hint
    assert lines_of(data, "replace")[2] == "caf\ufffd au lait"


def test_byte_order_mark_counts_in_the_byte_position() -> None:
    with pytest.raises(UserError, match=r"^data\.en:1: invalid UTF-8 at byte 5 "):
        lines_of(b"\xef\xbb\xbfa\xff\n")


def test_encoded_surrogate_is_invalid() -> None:
    with pytest.raises(UserError, match=r"^data\.en:2: invalid UTF-8 at byte 1 \(0xED\)"):
        lines_of(b"a\n\xed\xa0\x80\n")


def test_utf16_is_recognized() -> None:
    with pytest.raises(UserError) as caught:
        lines_of("Hallo\n".encode("utf-16"))
    assert "iconv -f UTF-16" in caught.value.hint


def test_line_above_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines_module, "MAXIMUM_LINE_BYTES", 1024**2)
    longest = b"x" * 1024**2
    assert [len(line) for line in lines_of(b"a\n" + longest + b"\n" + longest)] == [
        1,
        1024**2,
        1024**2,
    ]
    for tail in (b"", b"\nb\n"):
        with pytest.raises(UserError, match=r"^data\.en:2: line is longer than 1 MiB") as caught:
            lines_of(b"a\n" + longest + b"x" + tail)
        assert "CR" in caught.value.hint


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    path = tmp_path / "big.gz"
    line = b"y" * 999 + b"\n"
    with gzip.open(path, "wb", compresslevel=1) as stream:
        for _ in range(20):
            stream.write(line * 1000)
    tracemalloc.start()
    try:
        count = sum(1 for _ in read_lines(path))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert count == 20_000
    assert peak < 2 * 1024**2


def test_lines_come_one_by_one_through_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    os.write(writing, b"first line\n")
    with os.fdopen(reading, "rb") as pipe:
        monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=pipe))
        stream = open_bytes("-")
        lines = iterate_lines(stream, "pipe")
        assert next(lines) == "first line"  # would wait for ever if a whole block were awaited
        os.write(writing, b"second")
        os.close(writing)
        assert list(lines) == ["second"]


@pytest.mark.parametrize("kind", COMPRESSIONS)
class TestArchives:
    def test_content_decides_not_the_name(self, kind: str, tmp_path: Path) -> None:
        path = tmp_path / "file.txt"
        path.write_bytes(COMPRESSIONS[kind]("\n".join(ODD).encode()))
        assert list(read_lines(path)) == ODD

    def test_several_members(self, kind: str, tmp_path: Path) -> None:
        path = tmp_path / "file"
        path.write_bytes(COMPRESSIONS[kind](b"a\nb") + COMPRESSIONS[kind](b"c\nd\n"))
        assert list(read_lines(path)) == ["a", "bc", "d"]

    def test_truncated(self, kind: str, tmp_path: Path) -> None:
        path = tmp_path / "file"
        data = COMPRESSIONS[kind](os.urandom(100_000).hex().encode())
        for size in (9, len(data) // 2, len(data) - 1):
            path.write_bytes(data[:size])
            with pytest.raises(UserError) as caught:
                list(read_lines(path))
            assert caught.value.message.startswith(f"{path}: the {kind} archive is truncated")
            assert caught.value.hint

    def test_what_follows_an_archive_and_is_none_is_no_end(self, kind: str, tmp_path: Path) -> None:
        path, data = tmp_path / "file", COMPRESSIONS[kind](b"a\n")
        for rest in (b"garbage", data[:1] + b"?" + data[2:]):
            path.write_bytes(data + rest)
            with pytest.raises(UserError, match=f"the {kind} archive"):
                list(read_lines(path))

    def test_corrupt(self, kind: str, tmp_path: Path) -> None:
        path = tmp_path / "file"
        data = bytearray(COMPRESSIONS[kind](os.urandom(100_000).hex().encode()))
        data[20:2000] = bytes(1980)
        path.write_bytes(data)
        with pytest.raises(UserError, match=f"the {kind} archive"):
            list(read_lines(path, "replace"))

    def test_standard_input(
        self, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        buffer = io.BytesIO(COMPRESSIONS[kind](b"a\nb"))
        monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=buffer))
        assert list(read_lines("-")) == ["a", "b"]

    def test_error_inside_names_the_line(self, kind: str, tmp_path: Path) -> None:
        path = tmp_path / "file"
        path.write_bytes(COMPRESSIONS[kind](b"a\nb\xff\n"))
        with pytest.raises(UserError) as caught:
            list(read_lines(path))
        assert caught.value.message == f"{path}:2: invalid UTF-8 at byte 2 (0xFF)"


def test_parallel_zstd_and_expansion_in_bounds(tmp_path: Path) -> None:
    path = tmp_path / "file"
    frame = zstandard.ZstdCompressor().compress(b"a\n")
    skippable = b"P*M\x18\x04\x00\x00\x00" + len(frame).to_bytes(4, "little")
    path.write_bytes(skippable + frame + skippable + frame)
    assert list(read_lines(path)) == ["a", "a"]
    path.write_bytes(zstandard.ZstdCompressor().compress(bytes(100 * 1024**2)))
    with pytest.raises(UserError, match=":1: line is longer than 64 MiB"):
        list(read_lines(path))


def test_zstandard_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file.zst"
    path.write_bytes(COMPRESSIONS["zstd"](b"a\n"))
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(UserError, match="zstandard is not installed") as caught:
        list(read_lines(path))
    assert "pip install zstandard" in caught.value.hint


def test_the_beginnings_of_magic_numbers_are_text(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for data in (b"(", b"P", b"P*M\x18", b"\x1f", b"P*\n(\n"):
        path.write_bytes(data)
        assert list(read_lines(path)) == data.decode().removesuffix("\n").split("\n")


def test_standard_input_stays_open(monkeypatch: pytest.MonkeyPatch) -> None:
    buffer = io.BytesIO("\ufeffa\r\n\nü".encode())
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=buffer))
    assert list(read_lines("-")) == ["a", "", "ü"]
    assert not buffer.closed
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(b"\xff")))
    with pytest.raises(UserError, match=r"^<stdin>:1: invalid UTF-8 at byte 1 "):
        list(read_lines("-"))
    monkeypatch.setattr("sys.stdin", None)
    with pytest.raises(UserError, match="standard input is closed"):
        open_bytes("-")


def test_a_file_is_closed_with_its_stream(tmp_path: Path) -> None:
    before = set(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").exists() else set()
    for kind, compress in COMPRESSIONS.items():
        path = tmp_path / kind
        path.write_bytes(compress(b"a\nb\nc\n"))
        list(islice(read_lines(path), 1))
    if before:
        assert set(os.listdir("/proc/self/fd")) == before


def test_files_that_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        open_bytes(tmp_path / "missing.en")
    assert caught.value.message == f"{tmp_path / 'missing.en'}: no such file"
    with pytest.raises(UserError, match="is a folder"):
        open_bytes(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="cannot be opened"):
        open_bytes(tmp_path / "file" / "inner")
    with pytest.raises(UserError, match="cannot be opened"):
        open_bytes("a\x00b")


class TestAtomicWrite:
    def test_keeps_the_old_content_when_the_block_fails(self, tmp_path: Path) -> None:
        path = tmp_path / "file"
        path.write_bytes(b"old")
        with pytest.raises(KeyboardInterrupt), atomic_write(path) as stream:
            stream.write(b"new")
            stream.flush()
            raise KeyboardInterrupt
        assert path.read_bytes() == b"old"
        assert os.listdir(tmp_path) == ["file"]

    def test_replaces_and_keeps_mode_and_link(self, tmp_path: Path) -> None:
        path = tmp_path / "file"
        path.write_bytes(b"old")
        path.chmod(0o640)
        link = tmp_path / "link"
        link.symlink_to(path)
        with atomic_write(link) as stream:
            stream.write(b"new")
            assert path.read_bytes() == b"old"
        assert path.read_bytes() == b"new"
        assert link.is_symlink()
        assert stat.S_IMODE(path.stat().st_mode) == 0o640

    def test_new_file_has_the_usual_mode(self, tmp_path: Path) -> None:
        (tmp_path / "plain").touch()
        with atomic_write(tmp_path / "new") as stream:
            stream.write(b"x")
        assert (tmp_path / "new").stat().st_mode == (tmp_path / "plain").stat().st_mode

    def test_long_name(self, tmp_path: Path) -> None:
        path = tmp_path / ("ü" * 127)
        write_lines(path, ["a"])
        assert list(read_lines(path)) == ["a"]

    def test_full_disk(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def full(descriptor: int) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        path = tmp_path / "file"
        path.write_bytes(b"old")
        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(UserError, match="no space left on the device"):
            write_lines(path, ["new"])
        assert path.read_bytes() == b"old"
        assert os.listdir(tmp_path) == ["file"]

    @pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
    def test_devices_are_written_directly(self) -> None:
        with pytest.raises(UserError, match=r"^/dev/full: no space left on the device"):
            write_lines(Path("/dev/full"), ["a"])
        write_lines(Path("/dev/null"), ["a"])
        assert stat.S_ISCHR(os.stat("/dev/null").st_mode)

    def test_bad_paths(self, tmp_path: Path) -> None:
        with pytest.raises(UserError, match="its folder does not exist") as caught:
            write_lines(tmp_path / "missing" / "file", [])
        assert caught.value.hint == f"mkdir -p {tmp_path / 'missing'}"
        with pytest.raises(UserError, match="is a folder"):
            write_lines(tmp_path, [])

    def test_errors_about_other_files_pass(self, tmp_path: Path) -> None:
        with pytest.raises(FileNotFoundError), atomic_write(tmp_path / "file"):
            (tmp_path / "other").read_bytes()
        with pytest.raises(BrokenPipeError), atomic_write(tmp_path / "file"):
            raise BrokenPipeError(errno.EPIPE, "pipe")

    @pytest.mark.parametrize("line", ["a\nb", "\n", "\ud800"])
    def test_lines_that_are_none(self, tmp_path: Path, line: str) -> None:
        with pytest.raises(ValueError):
            write_lines(tmp_path / "file", ["fine", line])
        assert os.listdir(tmp_path) == []
