"""The commands as a person meets them: files in, lines and folders out, mistakes named."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open

from dragoman import __version__
from dragoman.corpus.tokenizer import Tokenizer

Pairs = list[tuple[str, str]]
Dragoman = Callable[..., Any]  # (arguments, stdin) -> status, out, err, lines: conftest.py


def write(path: Path, lines: list[str]) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines), "utf-8", newline="\n")
    return path


def files(corpus: Path) -> list[str | Path]:
    return ["--source", corpus / "train.en", "--target", corpus / "train.de"]


def test_invalid_utf8_names_file_line_and_byte(
    dragoman: Dragoman, model: Path, tmp_path: Path
) -> None:
    path = tmp_path / "latin"
    path.write_bytes(b"a\nb\ncaf\xe9\n")
    result = dragoman("translate", "--model", model, path)
    assert (result.status, len(result.lines)) == (2, 2)  # what comes before it is translated
    assert f"error: {path}:3: invalid UTF-8 at byte 4 (0xE9)\nhint: " in result.err
    replaced = dragoman("translate", "--model", model, path, "--errors", "replace")
    assert (replaced.status, len(replaced.lines)) == (0, 3)


def test_a_model_is_refused_for_other_languages(dragoman: Dragoman, model: Path) -> None:
    text = ("translate", "--model", model, "--text", "x")
    same = dragoman(*text, "--source-language", "EN", "--target-language", "de")
    assert same.status == 0
    for option, code in (("--target-language", "fr"), ("--source-language", "de")):
        other = dragoman(*text, option, code)
        assert (other.status, other.out) == (2, b"")
        assert other.err == f"error: this model is en->de\nhint: it cannot do '{code}'\n"


def test_evaluating_a_model_is_evaluating_its_translations(
    dragoman: Dragoman, model: Path, tmp_path: Path, sentences: Pairs
) -> None:
    sources = [f"{source} {{name}}" for source, _ in sentences[:12]]
    source = write(tmp_path / "test.en", sources)
    reference = write(tmp_path / "test.de", [f"{target} {{name}}" for _, target in sentences[:12]])
    kept = tmp_path / "kept.txt"
    pair = ("--source", source, "--reference", reference)
    direct = dragoman("evaluate", "--model", f"one={model}", *pair, "--output", kept)
    again = dragoman("evaluate", *pair, "--hypotheses", f"one={kept}")
    assert direct.status == again.status == 0
    assert direct.lines == again.lines
    assert direct.lines[-1].startswith("placeholders kept by one: ")
    assert " of 12 (" in direct.lines[-1]
    assert kept.read_bytes() == dragoman("translate", "--model", model, source).out
    perfect = dragoman("evaluate", "--reference", reference, "--hypotheses", reference, "--json")
    record = json.loads(perfect.out)
    scores = record["systems"][0]["scores"]
    assert [round(scores[name]["value"]) for name in ("BLEU", "chrF2", "TER")] == [100, 100, 0]
    assert record["sentences"] == 12


def test_a_language_picks_the_tokenizer_of_bleu(dragoman: Dragoman, tmp_path: Path) -> None:
    chinese = write(tmp_path / "test.zh", ["猫看见狗。", "狗看见房子。"])
    command = ("evaluate", "--hypotheses", chinese, "--reference", chinese)
    assert b"tok:zh" in dragoman(*command).out
    assert b"tok:13a" in dragoman(*command, "--target-language", "fr").out


def test_scores_are_tab_separated_lines(
    dragoman: Dragoman, model: Path, corpus: Path, sentences: Pairs
) -> None:
    result = dragoman("score", "--model", model, *files(corpus))
    rows = [line.split("\t") for line in result.lines]
    assert len(rows) == len(sentences)
    tokenizer = Tokenizer.load(model / "tokenizer.model")
    for (score, log_prob, tokens), (_, target) in zip(rows, sentences, strict=True):
        count = len(tokenizer.encode(target)) + 1
        assert int(tokens) == count
        penalty = ((5 + count) / 6) ** 0.6
        assert float(score) == pytest.approx(float(log_prob) / penalty, abs=1e-3)
    assert f"{len(sentences)} pairs, perplexity " in result.err


def test_info_adds_up(dragoman: Dragoman, model: Path) -> None:
    result = dragoman("info", model, "--json")
    record = json.loads(result.out)
    parameters = record["parameters"]
    with safe_open(model / "model.safetensors", framework="pt") as stream:
        names = list(stream.keys())
        counts = [stream.get_tensor(name).numel() for name in names]
    assert parameters.pop("total") == sum(parameters.values()) == sum(counts)
    assert parameters["embedding"] == record["vocabulary"] * 16
    assert record["settings"]["model"]["d_model"] == 16
    text = dragoman("info", model)
    assert text.out.startswith(b"en -> de, preset ")
    assert text.out.endswith(b"\nResults\nBLEU 0\n")


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        ("bogus", "No such command 'bogus'", "dragoman --help"),
        ("train --bogus", "No such option: --bogus", "dragoman train --help"),
        (
            "train --source {corpus}/train.en --target {corpus}/train.de",
            "Missing option '--out'",
            "",
        ),
        ("train --out {new}", "no pairs given", "--source and --target"),
        ("train --source {corpus}/train.en --out {new}", "no pairs given", "--data"),
        ("train --source none.en --target {corpus}/train.de --out {new}", "none.en: no such", ""),
        ("train {pair} --data x.tsv --out {new}", "--data holds both sides", "either"),
        ("train {pair} --out {new} --preset smal", "unknown preset 'smal'", "'small'"),
        ("train {pair} --out {new} --set training.warmup=3", "training.warmup'", "warmup_steps"),
        ("train {pair} --out {new} --set training.patience=x", "training.patience = 'x'", ""),
        ("train {pair} --out {new} --set warmup_steps", "no '='", "--set training"),
        ("train {pair} --out {new} --set preset=tiny", "no setting for --set", "--preset"),
        ("train {pair} --out {new} --config none.toml", "none.toml: no such file", ""),
        ("train {pair} --out {new} --budget soon", "--budget soon: not a budget", "10m"),
        ("train {pair} --out {new} --device tpu", "device", "cpu"),
        ("train {pair} --out {corpus}", "this folder is not empty", "another --out"),
        ("train {pair} --out {corpus}/train.en", "is not a folder", ""),
        ("train {pair} --out {model}", "there is a model in this folder", "another --out"),
        ("train --out {new} --resume", "no training to go on with", "without --resume"),
        ("train --prepared {corpus} --out {new}", "not a completely prepared corpus", ""),
        ("train --prepared {corpus} {pair} --out {new}", "--prepared brings data", "leave"),
        ("prepare {pair} --out {model}", "holds something else", "another --out"),
        ("translate --text x", "Missing option '--model'", ""),
        ("translate --model {new} --text x", "no such folder", "dragoman train"),
        ("translate --model {corpus} --text x", "no model: ", "dragoman train"),
        ("translate --model {model} none.txt", "none.txt: no such file", ""),
        ("translate --model {model} --text x none.txt", "--text and files together", ""),
        ("translate --model {model} --text x --beam 0", "Invalid value for '--beam'", ""),
        ("evaluate --model {model} --source {corpus}/train.en", "no references", "--reference"),
        ("evaluate --reference {corpus}/train.de", "nothing to measure", "--hypotheses"),
        (
            "translate --model {model} --text x --beam 2 --n-best 3",
            "--n-best 3 is more",
            "--beam 3",
        ),
        ("evaluate {given} --beam 3 --device cpu", "--beam, --device would change", "either"),
        ("evaluate {given} --length-penalty 0", "--length-penalty would change", "either"),
        ("evaluate {given} --model {model}", "nothing to measure", "--source"),
        ("score --model {model} --source {corpus}/train.en", "no pairs given", "--target"),
        ("info {corpus}", "no model: ", ""),
        ("average --out {new}", "which checkpoints?", "--checkpoints DIR"),
        (
            "average --out {new} --checkpoints {corpus}",
            "no checkpoint in this folder",
            "checkpoints",
        ),
    ],
)
def test_a_mistake_is_named_and_nothing_is_written(
    dragoman: Dragoman, model: Path, corpus: Path, tmp_path: Path, arguments: str, message: str,
    hint: str,
) -> None:  # fmt: skip
    pair = "--source {corpus}/train.en --target {corpus}/train.de"
    given = "--hypotheses {corpus}/train.de --reference {corpus}/train.de"
    line = arguments.replace("{pair}", pair).replace("{given}", given)
    places = {"model": model, "corpus": corpus, "new": tmp_path / "new"}
    before = sorted(path for folder in (model, corpus) for path in folder.rglob("*"))
    result = dragoman(*(word.format_map(places) for word in line.split()))
    assert (result.status, result.out) == (2, b"")
    error, *rest = result.err.rstrip("\n").split("\n")
    assert error.startswith("error: ")
    assert message in error
    assert len(rest) <= 1
    assert hint in "".join(rest)
    assert not (tmp_path / "new").exists()
    assert before == sorted(path for folder in (model, corpus) for path in folder.rglob("*"))


def test_version_and_help(dragoman: Dragoman) -> None:
    assert dragoman("--version").out == f"dragoman {__version__}\n".encode()
    assert dragoman().status == 2
    text = " ".join(dragoman("train", "--help").out.decode().split())
    assert "weakest first: preset, --config file, flags, --set" in text


@pytest.mark.slow
def test_a_reader_that_leaves_is_no_mistake(model: Path, tmp_path: Path) -> None:
    text = write(tmp_path / "text", ["the cat sees the dog"] * 5000)
    reading, writing = os.pipe()
    code = "from dragoman.cli import main; main()"
    process = subprocess.Popen(
        [sys.executable, "-c", code, "translate", "--model", str(model), str(text)],
        cwd=Path(__file__).resolve().parents[1],
        stdout=writing,
        stderr=subprocess.PIPE,
    )
    os.close(writing)
    os.close(reading)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 1
    for word in (b"error", b"Traceback", b"terminate", b"Exception"):
        assert word not in err
