"""Training that goes on from a model: what it takes over, what it refuses, and adapters."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from dragoman.config import Config, Coverage, ModelConfig, read_config, resolve_config
from dragoman.corpus.coverage import CorpusCoverage, SideCoverage, measure_coverage
from dragoman.corpus.store import CorpusStore, write_store
from dragoman.corpus.tokenizer import Tokenizer
from dragoman.model.adapters import ADAPTER, read_adapter_settings
from dragoman.model.description import file_digest
from dragoman.model.folder import load_model
from dragoman.presets import PRESETS
from dragoman.training.fine_tuning import fine_tuning_settings, judge_coverage

Dragoman = Callable[..., Any]  # (arguments, stdin) -> status, out, err, lines: conftest.py
QUICK = [
    "--set=training.batch_tokens=400", "--set=training.precision=float32",
    "--set=training.validations=2", "--budget=4-steps",
]  # fmt: skip
LORA = ["--set=training.lora_rank=2"]


def files(corpus: Path) -> list[str | Path]:
    return ["--source", corpus / "train.en", "--target", corpus / "train.de"]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return dict(load_file(folder / "model.safetensors"))


def distance(one: Path, other: Path) -> float:
    first, second = weights(one), weights(other)
    assert first.keys() == second.keys()
    return max(float((first[name] - second[name]).abs().max()) for name in first)


@pytest.mark.parametrize("preset", ["small", "medium", "paper-base"])
def test_the_rate_is_a_tenth_of_the_presets_highest_and_its_length_is_not_taken(
    preset: str,
) -> None:
    parent = resolve_config(preset, {"training": {"max_steps": 7, "learning_rate": 1e-5}})
    chosen = resolve_config(preset, fine_tuning_settings(parent, adapters=False))
    wanted = PRESETS[preset].get("training", {}).get("learning_rate", 2e-3)
    if preset == "paper-base":
        wanted = (512 * 4000) ** -0.5
    assert chosen.training.learning_rate == pytest.approx(wanted / 10)
    assert (chosen.training.schedule, chosen.training.max_steps) == ("linear", None)
    assert (chosen.training.epochs, chosen.training.warmup_steps) == (10, 100)
    assert chosen.model == parent.model
    adapters = resolve_config(preset, fine_tuning_settings(parent, adapters=True))
    assert adapters.training.learning_rate == pytest.approx(wanted)


def test_a_model_of_no_known_preset_and_few_positions_has_settings_too() -> None:
    parent = Config(preset="marian", model=ModelConfig(max_positions=64))
    chosen = resolve_config("small", fine_tuning_settings(parent, adapters=False))
    assert chosen.data.max_tokens == 63


def test_coverage_counts_characters_subwords_and_bytes(tmp_path: Path) -> None:
    tokenizer = Tokenizer.train(["a small cat", "a small dog"] * 20, 320)
    pairs = [("a small cat", "ж"), ("a small dog {x}", "a жж")]
    write_store(tmp_path / "s", tokenizer.encode_pairs(pairs), tokenizer.vocabulary_size)
    store = CorpusStore.open(tmp_path / "s")
    found = measure_coverage(store, tokenizer)
    assert found.source.characters == len("a small cat") + len("a small dog *")
    assert found.source.subwords == int(store.source_lengths.sum())
    assert found.source.byte_subwords == 0
    assert found.target.byte_subwords == 3 * len("ж".encode())
    assert found.target.byte_share == 6 / int(store.target_lengths.sum())
    few = measure_coverage(store, tokenizer, rows=1)
    assert few.target.byte_subwords == 2


@pytest.mark.parametrize(
    ("subwords", "in_bytes", "own", "poor"),
    [(250, 2, 0.2, False), (250, 3, 0.2, True), (281, 0, 0.2, True), (900, 0, None, False)],
)
def test_poor_coverage_is_judged_by_bytes_and_by_the_models_own_length(
    subwords: int, in_bytes: int, own: float | None, poor: bool
) -> None:
    good, found = SideCoverage(1000, 200, 0), SideCoverage(1000, subwords, in_bytes)
    report = judge_coverage(CorpusCoverage(good, found), Coverage(source=0.2, target=own))
    assert report.line.count("subwords a character") == 2
    assert [warning.split(": ")[0] for warning in report.warnings] == (
        ["the model's vocabulary covers the target poorly"] if poor else []
    )
    assert all("\nhint: " in warning for warning in report.warnings)


def test_going_on_from_a_model(
    dragoman: Dragoman, model: Path, corpus: Path, tmp_path: Path, sentences: list[tuple[str, str]]
) -> None:
    out = tmp_path / "new"
    result = dragoman("train", "--init-from", model, *files(corpus), "--out", out, *QUICK)
    assert result.status == 0, result.err
    assert "vocabulary coverage: source 0.00% bytes, " in result.err
    assert "covers the" not in result.err
    old, new = read_config(model / "config.toml"), read_config(out / "config.toml")
    assert new.model == old.model
    assert new.search == old.search
    assert new.training.learning_rate == pytest.approx(2e-4)
    digest = file_digest(model / "model.safetensors")
    assert (new.parent.name, new.parent.weights) == ("random", digest)
    assert file_digest(out / "tokenizer.model") == file_digest(model / "tokenizer.model")
    assert 0 < distance(out, model) < 4 * 2e-4
    assert digest in (out / "README.md").read_text("utf-8")
    assert new.coverage.source == pytest.approx(new.coverage.target, rel=1.0)
    # From there on to a text it has no subwords for: both sides are named, with what was usual.
    cyrillic = {ord("a") + number: ord("а") + number for number in range(26)}
    for name, side in (("train.en", 0), ("train.de", 1)):
        text = "".join(f"{pair[side]}\n" for pair in sentences[:100])
        (tmp_path / name).write_text(text.translate(cyrillic), "utf-8")
    other = files(tmp_path)
    warned = dragoman("train", "--init-from", out, *other, "--out", tmp_path / "ru", *QUICK)
    assert warned.status == 0, warned.err
    assert warned.err.count("warning: the model's vocabulary covers the ") == 2
    assert warned.err.count("\nhint: more than 1% of single bytes or 1.4 times") == 2
    assert warned.err.count(" times the model's own)") == 4


@pytest.mark.slow
def test_stopped_and_resumed_without_the_parent_is_the_same(
    dragoman: Dragoman, model: Path, corpus: Path, tmp_path: Path
) -> None:
    for kind, options in (("all", []), ("adapters", LORA)):
        parent = tmp_path / "parent"
        shutil.copytree(model, parent)
        whole, parts = tmp_path / f"{kind}-whole", tmp_path / f"{kind}-parts"
        command = ["train", "--init-from", parent, *files(corpus), *QUICK, *options]
        assert dragoman(*command, "--out", whole).status == 0
        assert dragoman(*command, "--out", parts).status == 0
        shutil.rmtree(parent)
        (parts / "model.safetensors").unlink()
        shutil.rmtree(parts / "training" / "checkpoints" / "step-00000004")
        resumed = dragoman("train", "--resume", "--out", parts)
        assert resumed.status == 0, resumed.err
        assert "going on from step 2" in resumed.err
        assert distance(whole, parts) == 0.0


def test_adapters_train_alone_are_saved_small_and_merge_to_the_same_model(
    dragoman: Dragoman, model: Path, corpus: Path, tmp_path: Path
) -> None:
    out, merged = tmp_path / "new", tmp_path / "merged"
    command = ["train", "--init-from", model, *files(corpus), "--out", out, *QUICK, *LORA]
    result = dragoman(*command)
    assert result.status == 0, result.err
    before, after = weights(model), weights(out)
    changed = {name for name in before if not before[name].equal(after[name])}
    linears = {n for n in before if "projection" in n or "inner.weight" in n or "outer.weight" in n}
    assert changed == linears and len(linears) == 2 + 2 + 2 * 2 + 2
    assert load_model(out).config.training.lora_rank == 2
    adapter = out / "training" / "adapter"
    assert read_adapter_settings(adapter).base_weights == file_digest(model / "model.safetensors")
    assert (adapter / ADAPTER).stat().st_size < (model / "model.safetensors").stat().st_size / 2
    checkpoint = out / "training" / "checkpoints" / "step-00000004"
    assert load_file(checkpoint / "model.safetensors").keys() == {
        f"{name.removesuffix('.weight')}.parametrizations.weight.0.{part}"
        for name in linears
        for part in "ab"
    }
    moments = load_file(checkpoint / "optimizer.safetensors")
    assert {name.rpartition("/")[0] for name in moments} == load_file(
        checkpoint / "model.safetensors"
    ).keys()
    done = dragoman("merge", "--model", model, "--adapter", adapter, "--out", merged)
    assert done.status == 0, done.err
    assert distance(merged, out) < 1e-6
    averaged = tmp_path / "averaged"
    assert dragoman("average", checkpoint, "--out", averaged).status == 0
    assert distance(averaged, model) > 0
    assert dragoman("translate", "--model", averaged, "--text", "the red cat").status == 0
    wrong = dragoman("merge", "--model", out, "--adapter", adapter, "--out", tmp_path / "no")
    assert (wrong.status, "trained on another model, 'random'" in wrong.err) == (2, True)
    none = dragoman("merge", "--model", model, "--adapter", tmp_path, "--out", tmp_path / "no")
    assert (none.status, "no adapter in this folder" in none.err) == (2, True)


def test_a_prepared_corpus_must_have_the_models_tokenizer(
    dragoman: Dragoman, model: Path, corpus: Path, tmp_path: Path
) -> None:
    other, right = tmp_path / "other", tmp_path / "right"
    assert dragoman("prepare", *files(corpus), "--out", other).status == 0
    command = ["train", "--init-from", model, "--out", tmp_path / "new", *QUICK]
    refused = dragoman(*command, "--prepared", other)
    assert refused.status == 2
    assert "prepared with another tokenizer" in refused.err
    assert not (tmp_path / "new").exists()
    tokenizer = ["--tokenizer", model / "tokenizer.model"]
    assert dragoman("prepare", *files(corpus), *tokenizer, "--out", right).status == 0
    result = dragoman(*command, "--prepared", right)
    assert result.status == 0, result.err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--set", "model.d_model=32"], "model.d_model = 32, but the model to begin with has 16"),
        (["--preset", "tiny"], "--preset tiny: the model to begin with has the preset small"),
        (
            ["--source-language", "fr"],
            "the data is fr -> de, but the model of --init-from is en",
        ),
        (["--tokenizer", "x.model"], "the model to begin with brings its tokenizer"),
        (["--init-from", "nowhere"], "nowhere: no such folder"),
    ],
)
def test_what_does_not_fit_the_model_is_one_error(
    dragoman: Dragoman, model: Path, corpus: Path, tmp_path: Path, options: list[str], message: str
) -> None:
    out = tmp_path / "new"
    command = ["train", "--init-from", model, *files(corpus), "--out", out, *QUICK]
    result = dragoman(*command, *options)
    assert result.status == 2
    assert f"error: {message}" in result.err and "hint: " in result.err
    assert not out.exists()


def test_dropout_may_differ_and_adapters_need_a_model(
    dragoman: Dragoman, model: Path, corpus: Path, tmp_path: Path
) -> None:
    alone = dragoman("train", *files(corpus), "--out", tmp_path / "no", *QUICK, *LORA)
    assert alone.status == 2
    assert "training.lora_rank: adapters belong to a model" in alone.err
    out = tmp_path / "new"
    command = ["train", "--init-from", model, *files(corpus), "--out", out, *QUICK]
    assert dragoman(*command, "--set", "model.dropout=0.4").status == 0
    assert load_model(out).config.model.dropout == 0.4
