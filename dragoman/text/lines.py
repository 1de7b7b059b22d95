"""Lines of text, lossless in both directions.

A line ends at LF and nowhere else; one CR right before the LF belongs to the line end. Every other
character that some program takes for a line break (lone CR, U+2028, U+0085, VT, FF) stays in its
line, so that two parallel files never drift apart. Reading holds one line and one block at a time.
"""

import contextlib
import errno
import gzip
import io
import lzma
import os
import secrets
import stat
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, Final, Literal, Protocol, cast

from dragoman.errors import UserError

ErrorPolicy = Literal["strict", "replace"]

MAXIMUM_LINE_BYTES: Final = 64 * 1024 * 1024
_BLOCK: Final = 64 * 1024
# A run-length block of zstd turns 4 bytes into 128 KiB: a read of 2 KiB yields at most 64 MiB.
_ZSTD_BLOCK: Final = 2 * 1024
# The largest dictionary that `xz -9` makes takes 65 MiB; an archive may ask for 4 GiB.
_XZ_MEMORY: Final = 512 * 1024 * 1024
_BOM: Final = b"\xef\xbb\xbf"
# What would end a line of output, or hide what is before it on a terminal.
_LINE_BREAKS: Final = str.maketrans({"\n": " ", "\r": " "})
_MAGIC: Final = {
    b"\x1f\x8b": "gzip",
    b"\xfd7zXZ\x00": "xz",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"P*M\x18\x04\x00\x00\x00": "zstd",  # pzstd opens with this skippable frame
}


class _Readable(Protocol):
    """What a source of bytes must offer: a read that returns what is there, b"" at the end."""

    def read1(self, size: int, /) -> bytes: ...


def open_bytes(path: str | Path) -> BinaryIO:
    """Open a file, or standard input for ``"-"``, for reading bytes.

    What gzip, zstd or xz compressed is decompressed: the first bytes decide, never the name.
    Raises UserError when the file is missing, a folder or unreadable; reading from the result
    raises UserError when the file turns out truncated or corrupt.
    """
    name = display_name(path)
    if str(path) == "-":
        if sys.stdin is None:
            raise UserError("standard input is closed", "name a file instead of -")
        # Not ours to close.
        return _open_stream(cast(_Readable, sys.stdin.buffer), name, [])
    try:
        opened = open(path, "rb")  # noqa: SIM115 - the stream around it closes it
    except (OSError, ValueError) as error:
        raise _open_error(name, error) from None
    try:
        return _open_stream(opened, name, [opened])
    except BaseException:
        opened.close()
        raise


def display_name(path: str | Path) -> str:
    """Return the name of ``path`` in messages."""
    return "<stdin>" if str(path) == "-" else str(path)


def iterate_lines(
    stream: BinaryIO, name: str, errors: ErrorPolicy = "strict", first: int = 1
) -> Iterator[str]:
    """Yield the lines of ``stream`` without their line ends; ``first`` is the number of the first.

    A byte-order mark is dropped at the start of line 1 only; a last line without LF counts.
    Lines are yielded as soon as they are complete, also from a pipe.

    Raises UserError, with ``name`` and the line's number, for invalid UTF-8 (``errors="strict"``;
    "replace" puts U+FFFD in its place) and for a line above ``MAXIMUM_LINE_BYTES``.
    """
    for number, line in enumerate(_split(stream, name, first), start=first):
        try:
            text = line.decode("utf-8", errors)
        except UnicodeDecodeError as error:
            raise _decode_error(name, number, error) from None
        yield text.removeprefix("\ufeff") if number == 1 else text


def read_lines(path: str | Path, errors: ErrorPolicy = "strict") -> Iterator[str]:
    """Yield the lines of a file or of standard input (``"-"``), closing it at the end.

    Compression, line ends and errors are those of ``open_bytes`` and ``iterate_lines``.
    """
    with open_bytes(path) as stream:
        yield from iterate_lines(stream, display_name(path), errors)


def one_line(text: str) -> str:
    """The text as one line of a file: each line break inside it becomes a space."""
    return text.translate(_LINE_BREAKS)


@contextlib.contextmanager
def atomic_write(path: str | Path) -> Iterator[BinaryIO]:
    """Open ``path`` for writing such that it holds either its old content or all of the new.

    Written is a temporary file in the same folder; it is synced and renamed when the block ends
    and removed when the block fails. A link is followed; what is not a regular file (a pipe,
    a device) is written directly. Raises UserError when the folder is missing or not writable and
    when the disk is full.
    """
    real = Path(os.path.realpath(path))
    temporary = real.parent / f".{real.name[:40]}.{secrets.token_hex(6)}.tmp"
    try:
        mode = real.stat().st_mode if real.exists() else None
        if mode is not None and not stat.S_ISREG(mode):
            with open(real, "wb") as stream:
                yield stream
            return
        try:
            with open(temporary, "xb") as stream:
                if mode is not None:
                    os.chmod(temporary, stat.S_IMODE(mode))
                yield stream
                stream.flush()
                os.fsync(stream.fileno())
            os.replace(temporary, real)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise
        sync_folder(real.parent)
    except OSError as error:
        if _is_ours(error, real, temporary):
            raise write_error(str(path), real.parent, error) from None
        raise


def write_lines(path: str | Path, lines: Iterable[str]) -> None:
    """Write lines to a file, atomically, as UTF-8 with LF.

    ``read_lines`` returns exactly these lines: a line that itself ends in CR is ended with CRLF,
    and a first line that itself begins with U+FEFF gets a byte-order mark before it.
    Raises ValueError for a line that holds LF or a lone surrogate.
    """
    with atomic_write(path) as stream:
        for number, line in enumerate(lines):
            if "\n" in line:
                raise ValueError(f"line {number + 1} holds a line feed: {line[:80]!r}")
            if number == 0 and line.startswith("\ufeff"):
                stream.write(_BOM)
            stream.write(line.encode("utf-8"))
            stream.write(b"\r\n" if line.endswith("\r") else b"\n")


def _split(stream: BinaryIO, name: str, number: int) -> Iterator[bytes]:
    """Yield the lines of ``stream`` as bytes, without LF or CRLF."""
    # A plain read would wait for a whole block where lines come in one by one.
    read: Callable[[int], bytes] = getattr(stream, "read1", stream.read)
    pending: list[bytes] = []
    size = 0
    while block := read(_BLOCK):
        lines = block.split(b"\n")
        pending.append(lines[0])
        size += len(lines[0])
        if size > MAXIMUM_LINE_BYTES:
            raise UserError(
                f"{name}:{number}: line is longer than {MAXIMUM_LINE_BYTES // 1024**2} MiB",
                "lines end at LF; if the file uses CR alone, convert it: tr '\\r' '\\n'",
            )
        if len(lines) == 1:
            continue
        lines[0] = b"".join(pending)
        for line in lines[:-1]:
            yield line[:-1] if line.endswith(b"\r") else line
        number += len(lines) - 1
        pending = [lines[-1]]
        size = len(lines[-1])
    if size:
        yield b"".join(pending)


def _decode_error(name: str, number: int, error: UnicodeDecodeError) -> UserError:
    byte = error.object[error.start]
    hint = (
        "convert the file to UTF-8, or put U+FFFD in its place with --errors replace (for train: "
        "of dragoman prepare)"
    )
    if number == 1 and error.object[:2] in (b"\xff\xfe", b"\xfe\xff"):
        hint = "the file looks like UTF-16; convert it: iconv -f UTF-16 -t UTF-8"
    return UserError(
        f"{name}:{number}: invalid UTF-8 at byte {error.start + 1} (0x{byte:02X})", hint
    )


def _open_error(name: str, error: OSError | ValueError) -> UserError:
    if isinstance(error, FileNotFoundError):
        return UserError(f"{name}: no such file", "check the path")
    if isinstance(error, IsADirectoryError):
        return UserError(f"{name}: is a folder, not a file", "name a file in it")
    if isinstance(error, PermissionError):
        return UserError(f"{name}: permission denied", "check who may read the file")
    reason = error.strerror if isinstance(error, OSError) else str(error)
    return UserError(f"{name}: cannot be opened: {reason}", "check the path")


def _is_ours(error: OSError, *paths: Path) -> bool:
    """Tell whether an error comes from writing these files, not from what else the block did."""
    if error.filename is not None:
        return Path(os.fsdecode(error.filename)) in paths
    return error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS)


def write_error(name: str, folder: Path, error: OSError) -> UserError:
    """What to tell a person when writing a file in a folder failed."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return UserError(f"{name}: no space left on the device", "free some space and run again")
    if isinstance(error, FileNotFoundError):
        return UserError(f"{name}: its folder does not exist", f"mkdir -p {folder}")
    if isinstance(error, IsADirectoryError):
        return UserError(f"{name}: is a folder, not a file", "name a file in it")
    if isinstance(error, PermissionError) or error.errno == errno.EROFS:
        return UserError(f"{name}: permission denied", "check who may write to the folder")
    return UserError(f"{name}: cannot be written: {error.strerror}", "check the path and the disk")


def sync_folder(folder: Path) -> None:
    """Make the rename itself durable, where the system lets a folder be synced."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _open_stream(source: _Readable, name: str, opened: list[BinaryIO]) -> BinaryIO:
    """Wrap ``source`` in its decompressor, if its first bytes call for one."""
    prefix = b""
    # Byte by byte only while a magic number is still possible: a person may type at stdin.
    try:
        while any(len(prefix) < len(magic) and magic.startswith(prefix) for magic in _MAGIC):
            more = source.read1(1)
            if not more:
                break
            prefix += more
    except OSError as error:
        raise _open_error(name, error) from None
    kind = next((kind for magic, kind in _MAGIC.items() if prefix.startswith(magic)), "")
    plain = io.BufferedReader(_Source(_Prefixed(prefix, source), name, "", opened), _BLOCK)
    if not kind:
        return plain
    if kind != "gzip":
        unpacked = _Zstd(plain, name) if kind == "zstd" else _Xz(plain)
        return io.BufferedReader(_Source(unpacked, name, kind, [plain]), _BLOCK)
    archive = gzip.GzipFile(fileobj=plain)
    layers = [cast(BinaryIO, archive), plain]
    return io.BufferedReader(_Source(cast(_Readable, archive), name, kind, layers), _BLOCK)


class _Prefixed:
    """A source with the bytes that were already taken from it put back in front."""

    def __init__(self, prefix: bytes, source: _Readable) -> None:
        self._prefix = prefix
        self._source = source

    def read1(self, size: int, /) -> bytes:
        if not self._prefix:
            return self._source.read1(size)
        taken, self._prefix = self._prefix[:size], self._prefix[size:]
        return taken


class _Source(io.RawIOBase):
    """A raw stream over a source, in which a failed read is a UserError."""

    def __init__(self, source: _Readable, name: str, kind: str, opened: list[BinaryIO]) -> None:
        self._source = source
        self._name = name
        self._kind = kind
        self._opened = opened

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview, /) -> int:  # type: ignore[override]
        try:
            data = self._source.read1(len(buffer))
        except (EOFError, OSError, zlib.error, lzma.LZMAError) as error:
            if not self._kind:
                raise _open_error(self._name, OSError(0, str(error))) from None
            problem = "is truncated" if isinstance(error, EOFError) else "cannot be read"
            raise UserError(
                f"{self._name}: the {self._kind} archive {problem}: {error}",
                "copy or download the file again, or decompress it with its own tool",
            ) from None
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        for stream in self._opened:
            stream.close()
        super().close()


class _Xz:
    """Decompressor of xz streams in bounded memory.

    Unlike the library's reader it takes what follows a stream and is none for an error, not an end.
    """

    def __init__(self, source: _Readable) -> None:
        self._source = source
        self._stream: lzma.LZMADecompressor | None = None
        self._data = b""

    def read1(self, size: int, /) -> bytes:
        while (stream := self._begun()) is not None:
            if stream.needs_input and not self._data:
                self._data = self._source.read1(_BLOCK)
                if not self._data:
                    raise EOFError("the last stream is incomplete")
            ready = stream.decompress(self._data, size)
            self._data = b""
            if stream.eof:
                self._data, self._stream = stream.unused_data, None
            if ready:
                return ready
        return b""

    def _begun(self) -> lzma.LZMADecompressor | None:
        """The stream that is read, or the next one, if there is one; zeros may pad between."""
        while self._stream is None:
            self._data = self._data or self._source.read1(_BLOCK)
            if not self._data:
                return None
            self._data = self._data.lstrip(b"\0")
            if self._data:
                self._stream = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_XZ_MEMORY)
        return self._stream


class _Zstd:
    """Decompressor of zstd frames that, unlike the library's reader, notices a truncated one."""

    def __init__(self, source: _Readable, name: str) -> None:
        try:
            import zstandard
        except ImportError:
            raise UserError(
                f"{name}: is zstd-compressed and the package zstandard is not installed",
                "pip install zstandard, or decompress the file first: zstd -d",
            ) from None
        self._source = source
        self._library = zstandard
        self._frame: zstandard.ZstdDecompressionObj | None = None
        self._data = b""
        self._ready = memoryview(b"")

    def read1(self, size: int, /) -> bytes:
        while not self._ready:
            self._data = self._data or self._source.read1(_ZSTD_BLOCK)
            if not self._data:
                if self._frame is not None:
                    raise EOFError("the last frame is incomplete")
                return b""
            if self._frame is None:
                self._frame = self._library.ZstdDecompressor().decompressobj()
            try:
                self._ready = memoryview(self._frame.decompress(self._data))
            except self._library.ZstdError as error:
                raise OSError(str(error)) from None
            self._data = self._frame.unused_data
            if self._frame.eof:
                self._frame = None
        taken, self._ready = bytes(self._ready[:size]), self._ready[size:]
        return taken
