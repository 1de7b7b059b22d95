"""What `dragoman translate` reads: lines of --text, of files or of stdin, each with its prefix."""

import os
import stat
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dragoman.corpus.context import Preceding
from dragoman.corpus.pairs import COMPRESSED_SUFFIXES
from dragoman.decoding.pipeline import Entry
from dragoman.errors import UserError
from dragoman.text.lines import ErrorPolicy, open_bytes, read_lines

STDIN = Path("-")


@dataclass
class Input:
    """The lines to translate: texts, or else those of the paths, of which one may be stdin.

    skipped counts the bytes of the lines that were left out, when reading has come to the others.
    """

    texts: list[str]
    paths: list[Path]
    prefix: Path | None
    errors: ErrorPolicy
    context: int = 0  # lines before each that its translation depends on
    skipped: int = 0

    def __post_init__(self) -> None:
        """Raises UserError for a path that is no file, before anything is loaded."""
        for number, text in enumerate(self.texts, start=1):
            try:
                text.encode()
            except UnicodeEncodeError:  # what is not UTF-8 on a command line comes as surrogates
                raise UserError(
                    f"--text number {number}: is not UTF-8",
                    "give it in a file with --errors replace",
                ) from None
        paths = [*self.paths, *([] if self.prefix is None else [self.prefix])]
        if paths.count(STDIN) > 1:
            raise UserError("standard input is named twice", "it can be read only once")
        for path in paths:
            if path != STDIN and not (path.exists() and not path.is_dir()):
                open_bytes(path).close()

    @property
    def typed(self) -> bool:
        """Whether somebody types the lines and waits for each answer."""
        alone = self.paths == [STDIN] and self.prefix is None
        return alone and sys.stdin is not None and sys.stdin.isatty()

    @property
    def stored(self) -> bool:
        """Whether all of the text is there already: no pipe, no terminal."""
        return all(_regular(path) is not None for path in self.paths)

    @property
    def size(self) -> int | None:
        """Bytes of text, where that can be known before it is read."""
        files = [_regular(path) for path in self.paths]
        known = [file.st_size for file in files if file is not None]
        packed = any(path.suffix.lower() in COMPRESSED_SUFFIXES for path in self.paths)
        if packed or len(known) < len(files):
            return None
        return sum(known) + sum(map(line_size, self.texts))

    def identity(self) -> list[Any]:
        """What tells this input from any other; a pipe is none but itself."""
        paths = self.paths if self.prefix is None else [*self.paths, self.prefix]
        return [self.texts, [_file_identity(path) for path in paths], self.errors]

    def entries(self, skip: int = 0) -> Iterator[Entry]:
        """The lines in their order, without so many of the first.

        Raises UserError for what cannot be read, and for more or fewer prefixes than lines.
        """
        prefixes = None if self.prefix is None else read_lines(self.prefix, self.errors)
        for number, entry in enumerate(_with_prefixes(self._entries(), prefixes)):
            if number >= skip:
                yield entry
            else:
                self.skipped += line_size(entry.text)

    def _entries(self) -> Iterator[Entry]:
        preceding = Preceding(self.context)
        for number, text in enumerate(self.texts, start=1):
            yield Entry(text, "", preceding.of(text), "line ", number)
        for path in self.paths:
            source = "line " if path == STDIN else f"{path}:"
            preceding = Preceding(self.context)
            for number, line in enumerate(read_lines(path, self.errors), start=1):
                yield Entry(line, "", preceding.of(line), source, number)


def line_size(text: str) -> int:
    """Bytes of a line in a file."""
    return (len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))) + 1


def _with_prefixes(entries: Iterable[Entry], prefixes: Iterator[str] | None) -> Iterator[Entry]:
    if prefixes is None:
        yield from entries
        return
    for number, entry in enumerate(entries, start=1):
        prefix = next(prefixes, None)
        if prefix is None:
            raise UserError(f"line {number:,} has no prefix", "give as many prefixes as lines")
        yield entry._replace(prefix=prefix)
    if next(prefixes, None) is not None:
        raise UserError("there are more prefixes than lines", "give as many as lines")


def _regular(path: Path) -> os.stat_result | None:
    """What the system says of a regular file; None for anything else."""
    try:
        found = os.fstat(sys.stdin.fileno()) if path == STDIN else path.stat()
    except (OSError, ValueError, AttributeError):  # also: stdin is closed, or no file at all
        return None
    return found if stat.S_ISREG(found.st_mode) else None


def _file_identity(path: Path) -> list[Any]:
    found = _regular(path)
    if found is None:
        return [str(path), os.urandom(16).hex()]
    name = f"{found.st_dev}:{found.st_ino}" if path == STDIN else os.path.realpath(path)
    return [name, found.st_size, found.st_mtime_ns]
