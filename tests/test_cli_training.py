"""Commands that train: from files to a model, stopped and resumed, and the whole demo."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from dragoman.cli import demonstration
from dragoman.config import Config, config_from_toml
from dragoman.model.folder import load_model
from dragoman.training.progress import read_log

SMALL = [
    f"--set={setting}"
    for setting in (
        "model.d_model=32",
        "model.d_ff=64",
        "model.encoder_layers=1",
        "model.decoder_layers=1",
        "data.vocabulary_size=400",
        "training.batch_tokens=300",
        "training.precision=float32",
    )
]


Pairs = list[tuple[str, str]]
Dragoman = Callable[..., Any]  # (arguments, stdin) -> status, out, err, lines: conftest.py


def write(path: Path, lines: list[str]) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines), "utf-8", newline="\n")
    return path


def files(corpus: Path) -> list[str | Path]:
    return ["--source", corpus / "train.en", "--target", corpus / "train.de"]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return dict(load_file(folder / "model.safetensors"))


def same_weights(left: Path, right: Path) -> bool:
    first, second = weights(left), weights(right)
    return first.keys() == second.keys() and all(first[n].equal(second[n]) for n in first)


def test_files_that_do_not_match_are_one_error(
    dragoman: Dragoman, corpus: Path, tmp_path: Path, sentences: Pairs
) -> None:
    short = write(tmp_path / "short.de", [target for _, target in sentences[:7]])
    command = ("--source", corpus / "train.en", "--target", short)
    for name in ("train", "prepare"):
        result = dragoman(name, *command, "--out", tmp_path / name)
        count = len(sentences)
        assert result.status == 2
        assert f"train.en:8: this line has no partner: {corpus / 'train.en'} has" in result.err
        assert f"has {count} lines, {short} has 7 lines" in result.err


def test_unknown_languages_are_said_and_an_unknown_form_is_an_error(
    dragoman: Dragoman, corpus: Path, tmp_path: Path, sentences: Pairs
) -> None:
    rows = [f"{source}\t{target}" for source, target in sentences]
    table = write(tmp_path / "pairs.tsv", rows)
    said = dragoman("prepare", "--data", table, "--out", tmp_path / "a", SMALL[4])
    assert said.status == 0
    assert "warning: the languages are not known" in said.err
    wrong = dragoman("prepare", "--data", corpus / "train.en", "--out", tmp_path / "b")
    assert wrong.status == 2
    assert "error: " in wrong.err
    assert "cannot tell the form" in wrong.err


def test_an_early_stop_is_said(dragoman: Dragoman, corpus: Path, tmp_path: Path) -> None:
    """Steps too small to change a weight: no validation is better than the first."""
    still = ["training.patience=2", "training.validations=10", "training.learning_rate=1e-30"]
    few = [*(f"--set={setting}" for setting in still), "--budget", "40-steps"]
    result = dragoman("train", *files(corpus), "--out", tmp_path / "m", *SMALL, *few)
    assert result.status == 0
    assert "stopped early: 2 validations in a row were no better" in result.err
    assert "trained 12 steps" in result.err


def test_training_leaves_a_model_and_its_history(
    dragoman: Dragoman, corpus: Path, tmp_path: Path, sentences: Pairs
) -> None:
    out = tmp_path / "en-de"
    settings = write(tmp_path / "s.toml", ["[training]", "warmup_steps = 7", "validations = 3"])
    few = ["--config", settings, "--set", "training.validations=2", "--budget", "12-steps"]
    result = dragoman("train", *files(corpus), "--out", out, *SMALL, *few)
    assert (result.status, result.out) == (0, b"")
    assert f"{len(sentences)} pairs read" in result.err
    names = {path.name for path in out.iterdir()}
    saved = {"README.md", "config.toml", "model.safetensors", "tokenizer.model"}
    assert names == saved | {"alignment.json", "ct2", "shortlist.safetensors", "training"}
    work = {path.name for path in (out / "training").iterdir()}
    written = {"checkpoints", "config.toml", "corpus", "curve.png", "log.jsonl", "report.html"}
    assert work == written | {"lock"}
    config = config_from_toml((out / "training" / "config.toml").read_text("utf-8"), "config")
    chosen = config.training
    assert (config.source_language, config.target_language) == ("en", "de")
    assert (chosen.max_steps, chosen.warmup_steps, chosen.validations) == (12, 7, 2)
    made = load_model(out).config
    assert made.data.max_tokens < config.data.max_tokens  # the longest there was
    parts = {"checksums": config.checksums, "coverage": config.coverage, "data": config.data}
    assert made.model_copy(update=parts) == config
    events = list(read_log(out / "training" / "log.jsonl"))
    validations = [event for event in events if event["event"] == "validation"]
    assert [event["step"] for event in validations] == [6, 12]
    assert all(len(event["samples"]) == 2 for event in validations)
    card = (out / "README.md").read_text("utf-8")
    assert "nrefs:1|case:mixed" in card
    assert "`train.en`, `train.de`" in card
    again = dragoman("train", "--resume", "--out", out)
    assert (again.status, again.out) == (0, b"")
    assert "this training is finished" in again.err
    assert b"Training\n12 updates" in dragoman("info", out).out


def test_a_prepared_folder_trains_the_same_model(
    dragoman: Dragoman, corpus: Path, tmp_path: Path, sentences: Pairs
) -> None:
    data = [option for option in SMALL if "data." in option]
    rest = [option for option in SMALL if "data." not in option]
    prepared, budget = tmp_path / "prepared", ("--budget", "4-steps")
    report = dragoman("prepare", *files(corpus), "--out", prepared, *data)
    assert report.lines[0] == f"{len(sentences)} pairs read, {len(sentences)} kept (100.0%)"
    assert "reused" in dragoman("prepare", *files(corpus), "--out", prepared, *data).err
    other = ("--set", "data.max_tokens=77")
    refused = dragoman("train", "--prepared", prepared, "--out", tmp_path / "no", *rest, *other)
    assert refused.status == 2
    assert "this corpus was prepared with" in refused.err
    one, two = tmp_path / "one", tmp_path / "two"
    assert dragoman("train", "--prepared", prepared, "--out", one, *SMALL, *budget).status == 0
    assert dragoman("train", *files(corpus), "--out", two, *SMALL, *budget).status == 0
    assert same_weights(one, two)


def test_an_unfinished_training_is_not_trained_over(
    dragoman: Dragoman, corpus: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    (out / "training" / "checkpoints" / "step-00000010").mkdir(parents=True)
    result = dragoman("train", *files(corpus), "--out", out)
    assert result.status == 2
    assert "an unfinished training in this folder\nhint: --resume to go on" in result.err


def test_positions_must_do_for_the_longest_pairs(
    dragoman: Dragoman, corpus: Path, tmp_path: Path
) -> None:
    long = ("--set", "model.max_positions=64", "--set", "data.max_tokens=64")
    result = dragoman("train", *files(corpus), "--out", tmp_path / "out", *SMALL, *long)
    assert result.status == 2
    assert "data.max_tokens 64 is too long for model.max_positions 64" in result.err


def start(*arguments: str | Path, **options: int) -> "subprocess.Popen[bytes]":
    code = "from dragoman.cli import main; main()"
    # Sums depend on the number of threads, so it is that of this process.
    environment = os.environ | {"OMP_NUM_THREADS": str(torch.get_num_threads())}
    root = Path(__file__).resolve().parents[1]
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        cwd=root,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=options.get("stdout", subprocess.PIPE),
        stderr=subprocess.PIPE,
    )


@pytest.mark.slow
@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_stopped_and_resumed_is_the_same_as_never_stopped(
    dragoman: Dragoman, corpus: Path, tmp_path: Path, number: int, status: int
) -> None:
    steps = ("--budget", "250-steps", "--set", "training.validations=5")
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert dragoman("train", *files(corpus), "--out", whole, *SMALL, *steps).status == 0
    process = start("train", *files(corpus), "--out", parts, *SMALL, *steps)
    first = parts / "training" / "checkpoints" / "step-00000050"
    deadline = time.monotonic() + 120
    while not first.exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(number)
    _, err = process.communicate(timeout=120)
    assert process.returncode == status
    assert b"go on with: dragoman train --resume --out " in err
    assert not (parts / "model.safetensors").exists()
    with (parts / "training" / "log.jsonl").open("a") as log:
        log.write('{"event": "train", "step": 100000, "seconds": 1}\n{"event": "tra')
    refused = dragoman("train", "--resume", "--out", parts, "--budget", "9m")
    assert (refused.status, "--budget would change them" in refused.err) == (2, True)
    resumed = dragoman("train", "--resume", "--out", parts)
    assert resumed.status == 0
    assert "going on from step " in resumed.err
    assert same_weights(whole, parts)
    logged = [event["step"] for event in read_log(parts / "training" / "log.jsonl")]
    assert logged == sorted(logged)
    assert logged[-1] == 250


@pytest.mark.slow
def test_a_small_language_is_learned_and_every_command_works_on_it(
    dragoman: Dragoman, corpus: Path, tmp_path: Path
) -> None:
    out = tmp_path / "model"
    steps = ("--budget", "600-steps", "--set", "training.warmup_steps=50")
    assert dragoman("train", *files(corpus), "--out", out, *SMALL, *steps).status == 0
    test = ("--model", out, "--source", corpus / "train.en")
    scores = json.loads(
        dragoman("evaluate", *test, "--reference", corpus / "train.de", "--json").out
    )
    assert scores["systems"][0]["scores"]["BLEU"]["value"] > 90
    exactly = ("--engine", "native", "--json")  # what the scorer is compared with
    translated = [
        json.loads(line)
        for line in dragoman("translate", "--model", out, corpus / "train.en", *exactly).lines
    ]
    target = write(tmp_path / "translated.de", [record["text"] for record in translated])
    rows = dragoman("score", *test, "--target", target).lines
    for record, row in zip(translated, rows, strict=True):
        score, log_prob, _ = map(float, row.split("\t"))
        assert score == pytest.approx(record["score"], abs=2e-4)
        assert log_prob == pytest.approx(record["candidates"][0]["log_prob"], abs=2e-4)
    checkpoints = out / "training" / "checkpoints"
    averaged = tmp_path / "averaged"
    assert dragoman("average", "--checkpoints", checkpoints, "--out", averaged).status == 0
    paths = sorted(checkpoints.iterdir())[-5:]
    expected = [load_file(path / "model.safetensors") for path in paths]
    for name, weight in weights(averaged).items():
        mean = torch.stack([one[name].double() for one in expected]).mean(0).float()
        assert torch.allclose(weight, mean, atol=1e-6)
    single = tmp_path / "single"
    assert dragoman("average", paths[-1], "--out", single).status == 0
    assert dragoman("translate", "--model", single, "--text", "the red cat").status == 0


def small_sample(folder: Path, sentences: Pairs) -> Path:
    """A zip file laid out like the demo's sample."""
    strings = [
        {"state": {str(row): pair[side] for row, pair in enumerate(sentences)}} for side in (0, 1)
    ]
    path = folder / demonstration.SAMPLE.filename
    with zipfile.ZipFile(path, "w") as archive:
        for language, catalog in zip(("en", "de"), strings, strict=True):
            name = f"homeassistant/components/light/translations/{language}.json"
            archive.writestr(name, json.dumps(catalog))
    return path


@pytest.mark.slow
def test_the_demo_does_everything_once(
    dragoman: Dragoman, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sentences: Pairs
) -> None:
    digest = hashlib.sha256(small_sample(tmp_path, sentences).read_bytes()).hexdigest()
    monkeypatch.setattr(demonstration, "SAMPLE", replace(demonstration.SAMPLE, sha256=digest))
    monkeypatch.setenv("DRAGOMAN_CACHE", str(tmp_path))
    recipe = {
        "model": {"d_model": 32, "d_ff": 64, "encoder_layers": 1, "decoder_layers": 1},
        "data": {"vocabulary_size": 400},
        "training": {"batch_tokens": 300, "validations": 3, "max_steps": 30},
    }
    monkeypatch.setattr(demonstration, "RECIPE", recipe)
    out = tmp_path / "demo"
    assert dragoman("demo", "--list").lines == ["de"]
    unknown = dragoman("demo", "--target", "xx", "--out", out)
    assert (unknown.status, out.exists()) == (2, False)
    assert "hint: dragoman demo --list shows them\n" in unknown.err
    first = dragoman("demo", "--out", out)
    assert first.status == 0
    text = first.out.decode()
    assert text.count("translation  ") == text.count("reference    ") == 10
    assert "nrefs:1|case:mixed" in text
    assert f"dragoman evaluate --model {out / 'model'}" in text
    for name in ("attention.png", "curve.png"):
        assert (out / name).read_bytes().startswith(b"\x89PNG")
    train, test = (
        [json.loads(line) for line in (out / "data" / name).read_text("utf-8").splitlines()]
        for name in ("train.jsonl", "test.jsonl")
    )
    assert len(train) + len(test) == len(sentences)
    for side in ("source", "target"):
        assert not {pair[side] for pair in train} & {pair[side] for pair in test}
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.is_file()}
    second = dragoman("demo", "--out", out)
    assert second.out == first.out
    assert second.err.count("reused: ") == 3
    origin = out / "data" / "origin.json"
    content = origin.read_text("utf-8")
    for other in (content.replace('"de"', '"fr"'), None):
        if other is None:
            origin.unlink()
        else:
            origin.write_text(other, "utf-8")
        refused = dragoman("demo", "--out", out)
        assert (refused.status, refused.out) == (2, b"")
        assert refused.err.endswith("hint: name another --out\n")
    origin.write_text(content, "utf-8")
    os.utime(origin, ns=(before[origin], before[origin]))
    assert before == {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.is_file()}


def test_the_settings_of_the_demo_exist() -> None:
    from dragoman.config import resolve_config

    assert isinstance(resolve_config("small", flags=demonstration.RECIPE), Config)
