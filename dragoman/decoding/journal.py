"""A file that is written bit by bit, such that an interrupted job goes on where it stopped.

Beside FILE, while the job runs, are FILE.partial, what is done, and FILE.journal: a line that says
what the job is, then one for every moment at which what had been written was safely on the disk.
"""

import contextlib
import fcntl
import json
import os
import stat
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Final, Self

from dragoman.errors import UserError
from dragoman.text.lines import sync_folder, write_error

# Seconds between two records, each of which waits for the disk.
_INTERVAL: Final = 1.0
_BLOCK: Final = 1024 * 1024
_LONGEST_JOURNAL: Final = 1024 * 1024 * 1024
# What every journal begins with: what does not is somebody's own file of that name.
_MARK: Final = b'{"journal": "dragoman"'

Identity = dict[str, Any]
"""What a job is, by aspects such as "input" and "model": two jobs are one when all are equal."""


class FileJob:
    """Writes a file; use it within `with`, then `write` whole lines.

    `lines` says how many lines of input were done before, `note` what a person should know of that.
    The file holds its old content until the end. A pipe or a device is written directly. Raises
    UserError when the folder is missing or not writable, when the disk is full and when another
    process works on the same file, with what is done kept; and when FILE.partial or FILE.journal
    are there and not a job's.
    """

    def __init__(self, path: Path, identity: Identity) -> None:
        self.path = path
        self.identity: Identity = json.loads(json.dumps(identity))  # as it is when read again
        self._real = Path(os.path.realpath(path))
        self._partial = self._real.with_name(f"{self._real.name}.partial")
        self._journal = self._real.with_name(f"{self._real.name}.journal")
        self.lines, self._bytes, self._checksum = 0, 0, 0
        self.note: str | None = None
        self._recorded = 0
        self._last = time.monotonic()
        self._stream: BinaryIO
        self._log: BinaryIO | None = None

    def __enter__(self) -> Self:
        with self._errors():
            # Not the real path: that of /dev/stdout may be a name that nobody can open.
            if self.path.exists() and not stat.S_ISREG(self.path.stat().st_mode):
                self._stream = open(self.path, "wb", buffering=0)
                return self
            self._log = self._lock()
            try:
                self._go_on(self._log)
            except BaseException:
                if not os.fstat(self._log.fileno()).st_size:
                    self._journal.unlink()
                self._log.close()
                raise
        return self

    def write(self, data: bytes, lines: int) -> None:
        """Append the answers to so many lines of input."""
        with self._errors():
            view = memoryview(data)
            while view:
                view = view[self._stream.write(view) :]
            self.lines += lines
            self._bytes += len(data)
            self._checksum = zlib.crc32(data, self._checksum)
            if time.monotonic() - self._last >= _INTERVAL:
                self._record()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self._finish()
            elif self._log is not None:
                with contextlib.suppress(OSError):
                    self._record()
        finally:
            self._stream.close()
            if self._log is not None:
                if kind is not None and not self._recorded:
                    self._partial.unlink(missing_ok=True)
                    self._journal.unlink(missing_ok=True)
                self._log.close()

    def _finish(self) -> None:
        if self._log is None:
            return
        with self._errors():
            self._record()
            if self._real.exists():
                os.chmod(self._partial, stat.S_IMODE(self._real.stat().st_mode))
            os.replace(self._partial, self._real)
            sync_folder(self._real.parent)
            self._journal.unlink(missing_ok=True)

    def _record(self) -> None:
        """Note what is done, once it is on the disk."""
        self._last = time.monotonic()
        if self._log is None or self._recorded == self.lines:
            return
        os.fsync(self._stream.fileno())
        record = {"lines": self.lines, "bytes": self._bytes, "crc32": self._checksum}
        self._log.write(json.dumps(record).encode() + b"\n")
        os.fsync(self._log.fileno())
        self._recorded = self.lines

    def _lock(self) -> BinaryIO:
        """The journal, held by this process alone."""
        while True:
            log = open(self._journal, "a+b", buffering=0)  # noqa: SIM115
            try:
                fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                log.close()
                raise UserError(
                    f"{self.path}: another process is writing this file",
                    "wait for it, stop it, or give another --output",
                ) from None
            if os.fstat(log.fileno()).st_nlink:
                return log
            log.close()  # its job was ended between the two

    def _go_on(self, log: BinaryIO) -> None:
        """Open the partial file after what the journal says is done; else begin anew."""
        header, last, end = _read(log)
        self._refuse_foreign(log)
        problem = None
        if last is not None:
            problem = self._difference(header) or self._damage(last)
        if last is not None and problem is None:
            log.truncate(end)
            self.note = f"going on with {self.path} after line {self.lines:,}"
        else:
            if problem is not None:
                self.note = f"{self._partial}: {problem}: beginning anew"
            self.lines = self._bytes = self._checksum = 0
            self._partial.unlink(missing_ok=True)  # before its journal: alone it is somebody's
            log.truncate(0)
            header = {"journal": "dragoman"} | self.identity
            log.write(json.dumps(header).encode() + b"\n")
            os.fsync(log.fileno())
        self._recorded = self.lines
        self._stream = open(self._partial, "ab", buffering=0)  # noqa: SIM115
        self._stream.truncate(self._bytes)

    def _refuse_foreign(self, log: BinaryIO) -> None:
        """Raises UserError for files of these names that no job has written."""
        log.seek(0)
        start = log.read(len(_MARK)).rstrip(b"\0")  # zeros: of a power cut
        found = None
        if not _MARK.startswith(start):
            found = self._journal
        elif not start and self._partial.exists() and self._partial.stat().st_size:
            found = self._partial
        if found is not None:
            raise UserError(
                f"{found}: is in the way, and not of a job of Dragoman",
                "move it elsewhere, or give another --output",
            )

    def _difference(self, header: Identity) -> str | None:
        for aspect, value in self.identity.items():
            if header.get(aspect) != value:
                return f"of another {aspect}"
        return None

    def _damage(self, last: dict[str, int]) -> str | None:
        """Take over the last record, unless the partial file is not what it says."""
        self.lines, self._bytes, self._checksum = last["lines"], last["bytes"], last["crc32"]
        try:
            with open(self._partial, "rb") as stream:
                left, found = self._bytes, 0
                while left and (block := stream.read(min(left, _BLOCK))):
                    found = zlib.crc32(block, found)
                    left -= len(block)
        except FileNotFoundError:
            return "missing"
        return "damaged or changed" if left or found != self._checksum else None

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError:
            raise
        except OSError as error:
            told = write_error(str(self.path), self._real.parent, error)
            if self._recorded:
                told = UserError(told.message, f"{told.hint}; what is done is kept")
            raise told from None


def _read(log: BinaryIO) -> tuple[Identity, dict[str, int] | None, int]:
    """The header, the last whole record if there is one, and where that ends."""
    log.seek(0)
    header: Identity | None = None
    last: dict[str, int] | None = None
    end = 0
    for line in log.read(_LONGEST_JOURNAL).split(b"\n")[:-1]:
        try:
            found = json.loads(line)
            if header is None:
                header = dict(found)
            else:
                last = {name: int(found[name]) for name in ("lines", "bytes", "crc32")}
        except (ValueError, TypeError, KeyError, RecursionError):
            break
        end += len(line) + 1
    return header or {}, last, end
