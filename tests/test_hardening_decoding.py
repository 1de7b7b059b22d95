"""Commands on what a person may mistake or an enemy may make: one error, and nothing lost."""

import json
import lzma
import os
import shutil
import zlib
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from dragoman.cli import evaluate, stages
from dragoman.cli.destination import whole_folder
from dragoman.config import Config
from dragoman.corpus import blocks
from dragoman.corpus.blocks import cut_table
from dragoman.decoding.teaching import IDENTITY, check_identity
from dragoman.errors import UserError
from dragoman.model.adapters import SETTINGS, read_adapter_settings
from dragoman.text.lines import read_lines
from dragoman.training.fine_tuning import check_sizes

Dragoman = Callable[..., Any]  # (arguments, stdin) -> status, out, err, lines: conftest.py


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A folder with source, reference, hypotheses and a link to the source."""
    for name in ("source.en", "reference.de", "hypotheses.de"):
        (tmp_path / name).write_text(f"a line of {name}\n")
    (tmp_path / "link").symlink_to("source.en")
    return tmp_path


def refused(found: Any, message: str) -> None:
    """One error and one hint and nothing else."""
    lines = found.err.splitlines()
    assert found.status == 2
    assert [line.partition(":")[0] for line in lines[-2:]] == ["error", "hint"]
    assert found.err.count("error:") == 1 and message in lines[-2]


TRANSLATE = "translate --model MODEL source.en --output"
EVALUATE = "evaluate --hypotheses hypotheses.de --reference reference.de --source source.en"


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (f"{TRANSLATE} source.en", "source.en: is read and would be written over"),
        (f"{TRANSLATE} link", "link: is read and would be written over"),
        (f"{TRANSLATE} MODEL/config.toml", "config.toml: is read and would be written over"),
        (f"{TRANSLATE} none/out", "out: its folder does not exist"),
        (f"{TRANSLATE} .", "is a folder"),
        (f"{TRANSLATE} -", "--output -: is no file"),
        (f"{TRANSLATE} out --prefix out", "out: no such file"),
        (f"{TRANSLATE} reference.de --prefix reference.de", "is read and would be written over"),
        ("translate --model MODEL - -", "standard input is named twice"),
        ("translate --model MODEL - --prefix -", "standard input is named twice"),
        ("translate --model MODEL source.en --ray local --threads 1", "exclude each other"),
        (f"{EVALUATE} --html hypotheses.de", "is read and would be written over"),
        (f"{EVALUATE} --html none/page.html", "its folder does not exist"),
        (f"{EVALUATE} --output reference.de", "is read and would be written over"),
        ("report --model MODEL --out MODEL/config.toml", "is read and would be written over"),
    ],
)
def test_what_is_read_is_not_written_over(
    dragoman: Dragoman,
    model: Path,
    files: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: str,
    message: str,
) -> None:
    monkeypatch.chdir(files)
    before = {path: path.read_bytes() for path in [*files.iterdir(), model / "config.toml"]}
    words = [word.replace("MODEL", str(model)) for word in command.split()]
    refused(dragoman(*words), message)
    assert {path: path.read_bytes() for path in [*files.iterdir(), model / "config.toml"]} == before


def test_links_in_a_circle_are_one_error(
    dragoman: Dragoman, model: Path, files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(files)
    (files / "loop").symlink_to("loop")
    refused(dragoman("translate", "--model", model, "loop"), "loop")
    refused(dragoman("evaluate", "--hypotheses", "hypotheses.de", "--reference", "loop"), "loop")


def test_a_text_that_is_not_utf8_is_refused(dragoman: Dragoman, model: Path) -> None:
    for text in ("\udcff", "the \ud800 cat"):  # as Python reads such a command line
        found = dragoman("translate", "--model", model, "--text", "a", "--text", text)
        refused(found, "--text number 2: is not UTF-8")
        assert found.out == b""


def test_a_file_too_large_to_be_measured_is_named(
    dragoman: Dragoman, files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(files)
    monkeypatch.setattr(evaluate, "_LARGEST", 400)
    (files / "hypotheses.de").write_text("\n" * 1000)
    words = ("--hypotheses", "hypotheses.de", "--reference", "reference.de")
    refused(dragoman("evaluate", *words), "hypotheses.de:9: too large to be measured")


def test_a_corpus_whose_lines_would_fill_the_memory_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocks, "_MOST_BYTES", 3_000_000)
    path = tmp_path / "corpus.tsv"
    path.write_bytes(b"a\tb\n" * 1000 + b"x" * 600_000 + b"\n" + (b"y" * 600_000 + b"\n") * 9)
    with pytest.raises(UserError, match=r"corpus.tsv:1001: the \d lines from here on have more"):
        list(cut_table(path, 1000, "strict"))


def test_a_folder_that_is_nobodys_corpus_is_left_alone(files: Path) -> None:
    (files / "mine" / "work").mkdir(parents=True)
    (files / "mine" / "work" / "thesis.tex").write_text("all of it")
    with pytest.raises(UserError, match="holds something else"):
        stages.check_prepared_output(files / "mine")
    (files / "mine" / "lock").touch()  # what a preparation makes first
    stages.check_prepared_output(files / "mine")


@pytest.mark.parametrize("content", ["[]", "null", "3", "{", '"x"', "[" * 100_000, '{"beam": 1}'])
def test_a_damaged_record_of_a_distillation_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / IDENTITY).write_text(content)
    with pytest.raises(UserError, match="holds translations with other"):
        check_identity(tmp_path, {"beam": 4, "errors": "strict"})


@pytest.mark.parametrize("rank", ["inf", "nan", "0", "-1", "4097", "1000000000000", "[]", "'x'"])
def test_an_adapter_of_an_impossible_rank_is_damaged(tmp_path: Path, rank: str) -> None:
    table = f"rank = {rank}\nalpha = 1.0\n[base]\nname = 'a'\nweights = 'b'\n"
    (tmp_path / SETTINGS).write_text(table)
    with pytest.raises(UserError, match="damaged"):
        read_adapter_settings(tmp_path)


def test_a_foreign_folder_moves_no_cursor(dragoman: Dragoman, model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(model, folder)
    (folder / "README.md").write_text("# x\n\n## Results\n\n\x1b[2Jall gone\n")
    (folder / "training").mkdir()
    events = [{"step": 1}, {"step": 2, "event": "validation"}, {"step": 3, "event": []}]
    events += [{"step": n, "event": "validation", "nll": nll} for n, nll in ((4, "x"), (5, 2.0))]
    text = "".join(f"{json.dumps(event)}\n" for event in events)
    (folder / "training" / "log.jsonl").write_text(text)
    found = dragoman("info", folder)
    assert (found.status, b"\x1b" in found.out, b"\\x1b[2Jall gone" in found.out) == (
        0,
        False,
        True,
    )
    assert json.loads(dragoman("info", folder, "--json").out)["best_validation"]["step"] == 5


def test_weights_that_are_numbers_without_sense_are_no_traceback(
    dragoman: Dragoman, model: Path, files: Path
) -> None:
    folder = files / "model"
    shutil.copytree(model, folder)
    settings = (folder / "config.toml").read_text()
    (folder / "config.toml").write_text(settings[: settings.index("[checksums]")])
    weights = load_file(model / "model.safetensors")
    save_file(
        {name: 1e4 * weight for name, weight in weights.items()}, folder / "model.safetensors"
    )
    pair = ("--source", files / "source.en", "--target", files / "reference.de")
    found = dragoman("score", "--model", folder, *pair)
    assert found.status == 0 and "perplexity" in found.err


def test_adapters_larger_than_the_model_are_refused() -> None:
    parent = Config()
    training = parent.training.model_copy(update={"lora_rank": parent.model.d_model + 1})
    with pytest.raises(UserError, match="more than d_model of the model, 256"):
        check_sizes(parent.model_copy(update={"training": training}), parent)


def test_a_pipe_in_a_model_folder_is_not_waited_for(
    dragoman: Dragoman, model: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(model, folder, ignore=shutil.ignore_patterns("ct2"))
    (folder / "README.md").unlink()
    os.mkfifo(folder / "README.md")
    (folder / "ct2" / "int8").mkdir(parents=True)
    os.mkfifo(folder / "ct2" / "int8" / "dragoman.json")
    assert dragoman("info", folder).status == 0
    found = dragoman("translate", "--model", folder, "--beam", "1", "--text", "the cat")
    assert (found.status, len(found.lines)) == (0, 1)


def test_a_folder_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(ArithmeticError), whole_folder(out) as folder:
        (folder / "half").touch()
        raise ArithmeticError
    assert list(tmp_path.iterdir()) == []
    for taken in (False, True):
        expected = pytest.raises(UserError, match="not empty") if taken else nullcontext()
        with expected, whole_folder(out) as folder:
            (folder / "whole").touch()
    assert [path.name for path in tmp_path.rglob("*")] == ["out", "whole"]


def test_xz_with_padding_and_with_a_dictionary_that_would_fill_a_memory(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(lzma.compress(b"a\n") + bytes(8) + lzma.compress(b"b\n") + bytes(70_000))
    assert list(read_lines(path)) == ["a", "b"]
    archive = bytearray(lzma.compress(b"a\n", check=lzma.CHECK_NONE))
    assert archive[12:17] == b"\x02\x00\x21\x01\x16"  # a block's header: LZMA2, 8 MiB
    archive[16] = 40  # 4 GiB
    archive[20:24] = zlib.crc32(archive[12:20]).to_bytes(4, "little")
    path.write_bytes(archive)
    with pytest.raises(UserError, match="the xz archive cannot be read: Memory usage limit"):
        list(read_lines(path))
