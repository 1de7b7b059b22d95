"""Settings: precedence, TOML there and back, and mistakes that name what was meant."""

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.config import (
    Config,
    DataConfig,
    ModelConfig,
    SearchConfig,
    TrainingConfig,
    config_from_toml,
    config_to_toml,
    read_settings,
    resolve_config,
)
from dragoman.errors import UserError
from dragoman.presets import PRESETS

SHARES = st.floats(0, 0.999)
# TOML is Unicode: no lone surrogates.
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
MODELS = st.builds(
    ModelConfig,
    d_model=st.integers(1, 64).map(lambda half: 2 * half * 6),
    heads=st.sampled_from([1, 2, 3, 6]),
    d_k=st.none() | st.integers(1, 512),
    d_v=st.none() | st.integers(1, 512),
    dropout=SHARES,
    norm=st.sampled_from(["pre", "post"]),
    positions=st.sampled_from(["learned", "sinusoidal"]),
)
TRAININGS = st.builds(
    TrainingConfig,
    schedule=st.sampled_from(["paper", "linear", "cosine"]),
    learning_rate=st.floats(1e-12, 0.9),
    adam_epsilon=st.floats(1e-300, 1e-3),
    max_steps=st.none() | st.integers(1, 10**12),
    budget_seconds=st.none() | st.floats(0.001, 1e9),
    label_smoothing=SHARES,
)
CONFIGS = st.builds(
    Config,
    preset=st.sampled_from(list(PRESETS)),
    source_language=TEXTS,
    target_language=TEXTS,
    model=MODELS,
    data=st.builds(
        DataConfig, max_length_ratio=st.floats(1.1, 1e6), seed=st.integers(0, 2**32 - 1)
    ),
    training=TRAININGS,
    search=st.builds(SearchConfig, length_penalty=st.floats(0, 10)),
)


@given(config=CONFIGS)
def test_toml_there_and_back(config: Config) -> None:
    assert config_from_toml(config_to_toml(config), "config.toml") == config


def test_precedence_is_preset_file_flags_assignments() -> None:
    file = {"training": {"warmup_steps": 2, "seed": 2, "epochs": 2}, "source_language": "en"}
    flags = {"training": {"seed": 3, "epochs": 3}}
    config = resolve_config("tiny", file, flags, ["training.epochs=4", "target_language=de"])
    training = config.training
    assert (training.batch_tokens, training.warmup_steps) == (1000, 2)  # preset, file
    assert (training.seed, training.epochs) == (3, 4)  # flags, assignments
    assert (config.source_language, config.target_language) == ("en", "de")
    assert config.preset == "tiny"
    assert training.label_smoothing == TrainingConfig().label_smoothing  # nobody named it


def test_the_last_of_two_assignments_wins() -> None:
    config = resolve_config("tiny", assignments=["data.seed=4", "data.seed=5"])
    assert config.data.seed == 5


@pytest.mark.parametrize(
    ("assignment", "section", "name", "value"),
    [
        ("training.warmup_steps=8000", "training", "warmup_steps", 8000),
        ("training.warmup_steps = 8_000", "training", "warmup_steps", 8000),
        ("training.learning_rate=1e-4", "training", "learning_rate", 1e-4),
        ("training.budget_seconds=600", "training", "budget_seconds", 600.0),
        ("training.precision=float32", "training", "precision", "float32"),
        ('model.norm="post"', "model", "norm", "post"),
        ("model={norm = 'post'}", "model", "norm", "post"),
    ],
)
def test_assignments_are_typed(assignment: str, section: str, name: str, value: object) -> None:
    found = getattr(getattr(resolve_config("small", assignments=[assignment]), section), name)
    assert found == value and type(found) is type(value)


@pytest.mark.parametrize(
    ("assignment", "unknown", "meant"),
    [
        ("training.warmup_step=1", "training.warmup_step", "training.warmup_steps"),
        ("training.warmpu_steps=1", "training.warmpu_steps", "training.warmup_steps"),
        ("warmup_steps=1", "warmup_steps", "training.warmup_steps"),
        ("train.warmup_steps=1", "train", "training"),
        ("model.layers=3", "model.layers", "_layers"),
        ("model.d_modle=64", "model.d_modle", "model.d_model"),
        ("search.beams=3", "search.beams", "search.beam"),
        ("data.vocab_size=3000", "data.vocab_size", "data.vocabulary_size"),
        ("sourcelanguage=en", "sourcelanguage", "source_language"),
        ("model.key_width=16", "model.key_width", "'model.d_k'"),
        ("value_width=16", "value_width", "'model.d_v'"),
    ],
)
def test_an_unknown_setting_names_the_nearest(assignment: str, unknown: str, meant: str) -> None:
    with pytest.raises(UserError) as caught:
        resolve_config("small", assignments=[assignment])
    assert f"'{unknown}'" in caught.value.message
    assert caught.value.hint.startswith("did you mean '") and meant in caught.value.hint


def test_heads_that_do_not_divide_the_width_say_what_to_do() -> None:
    with pytest.raises(UserError, match="d_model is no multiple of heads") as caught:
        resolve_config("small", assignments=["model.heads=5"])
    assert "divides d_model" in caught.value.hint and "model.d_k and model.d_v" in caught.value.hint
    both = ["model.heads=5", "model.d_k=8", "model.d_v=8"]
    assert resolve_config("small", assignments=both).model.heads == 5


def test_an_unknown_preset_names_the_nearest() -> None:
    with pytest.raises(UserError, match="unknown preset 'paper-bse'") as caught:
        resolve_config("paper-bse")
    assert "'paper-base'" in caught.value.hint


@pytest.mark.parametrize("preset", [3, ["tiny"], {"name": "tiny"}, ""])
def test_a_preset_of_a_file_may_be_anything(preset: Any) -> None:
    with pytest.raises(UserError, match="unknown preset"):
        resolve_config(preset)


@pytest.mark.parametrize(
    ("assignment", "named"),
    [
        ("training.learning_rate=1.5", "training.learning_rate"),
        ("training.learning_rate=0", "training.learning_rate"),
        ("training.learning_rate=nan", "training.learning_rate"),
        ("training.warmup_steps=0", "training.warmup_steps"),
        ("training.warmup_steps=3.5", "training.warmup_steps"),
        ("training.warmup_steps=many", "training.warmup_steps"),
        ("training.schedule=cosin", "training.schedule"),
        ("training.seed=true", "training.seed"),
        ("model.dropout=1.0", "model.dropout"),
        ("model.dropout=-0.1", "model.dropout"),
        ("model.heads=7", "model"),
        ("model.d_model=33", "model"),
        ("model=3", "model"),
        ("data.vocabulary_size=20", "data.vocabulary_size"),
        ("search.beam=0", "search.beam"),
        ("source_language=7", "source_language"),
    ],
)
def test_a_value_out_of_range_names_the_setting(assignment: str, named: str) -> None:
    with pytest.raises(UserError) as caught:
        resolve_config("small", assignments=[assignment])
    assert re.match(rf"setting {re.escape(named)}[ :]", caught.value.message)
    assert "\n" not in caught.value.message


@pytest.mark.parametrize(
    "assignments",
    [
        ["training.warmup_steps"],
        ["model=3", "model.d_ff=64"],
        ["model.d_ff=64", "model=3"],
        ["=3"],
        [""],
        [".=3"],
        ["model.d_ff.x=3"],
        ["source_language.x=3"],
        ["preset=tiny"],  # would come too late to choose anything
    ],
)
def test_a_malformed_assignment_is_an_error(assignments: list[str]) -> None:
    with pytest.raises(UserError):
        resolve_config("small", assignments=assignments)


def test_a_section_that_is_a_value_is_an_error() -> None:
    with pytest.raises(UserError, match="model"):
        resolve_config("small", file={"model": 3}, flags={"model": {"d_ff": 64}})


def test_settings_files(tmp_path: Path) -> None:
    path = tmp_path / "my.toml"
    path.write_bytes(b"\xef\xbb\xbf[training]\r\nwarmup_steps = 7\r\n")  # as Windows editors do
    assert read_settings(path) == {"training": {"warmup_steps": 7}}
    bad: list[tuple[bytes | None, str]] = [
        (None, "no such file"),
        (b"[training]\nwarmup_steps 7\n", "line 2"),
        (b"source_language = '\xff'\n", "UTF-8"),
    ]
    for content, said in bad:
        path.unlink(missing_ok=True)
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(UserError) as caught:
            read_settings(path)
        assert caught.value.message.startswith(str(path)) and said in caught.value.message
    with pytest.raises(UserError):
        read_settings(tmp_path)


@pytest.mark.parametrize(
    "text", ["preset = ", "nonsense = 3", "[model]\nd_model = 'wide'", "model = 1", "[preset]\na=1"]
)
def test_a_damaged_config_names_its_file(text: str) -> None:
    with pytest.raises(UserError) as caught:
        config_from_toml(text, "folder/config.toml")
    assert caught.value.message.startswith("folder/config.toml: ")


def test_settings_cannot_be_changed_by_accident() -> None:
    config: Any = resolve_config("small")
    with pytest.raises(ValueError, match="frozen"):
        config.training.seed = 3
