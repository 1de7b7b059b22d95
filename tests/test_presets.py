"""The published settings, sections 5 and 6 (Table 3 is in test_paper_tables), and all presets."""

import pytest
import torch

from dragoman.config import Config, resolve_config
from dragoman.model.sequence_model import parameter_count
from dragoman.model.transformer import Transformer
from dragoman.presets import PRESETS, preset_for

VOCABULARY = 37_000


def count_parameters(config: Config, vocabulary_size: int) -> int:
    with torch.device("meta"):  # shapes without memory
        return parameter_count(Transformer(config.model, vocabulary_size))


@pytest.mark.parametrize(
    ("preset", "d_model", "d_ff", "heads", "dropout", "steps", "averaged"),
    [
        ("paper-base", 512, 2048, 8, 0.1, 100_000, 5),
        ("paper-big", 1024, 4096, 16, 0.3, 300_000, 20),
    ],
)
def test_the_published_settings(
    preset: str, d_model: int, d_ff: int, heads: int, dropout: float, steps: int, averaged: int
) -> None:
    config = resolve_config(preset)
    model, training, search = config.model, config.training, config.search
    assert (model.d_model, model.d_ff, model.heads, model.dropout) == (
        d_model, d_ff, heads, dropout,
    )  # fmt: skip
    assert (model.key_width, model.value_width, model.norm) == (64, 64, "post")
    assert (model.encoder_layers, model.decoder_layers) == (6, 6)
    assert (model.attention_dropout, model.activation_dropout) == (0, 0)
    assert (model.positions, config.data.vocabulary_size) == ("sinusoidal", VOCABULARY)
    assert (training.schedule, training.warmup_steps, training.max_steps) == ("paper", 4000, steps)
    assert (training.adam_beta1, training.adam_beta2, training.adam_epsilon) == (0.9, 0.98, 1e-9)
    assert (training.label_smoothing, training.weight_decay) == (0.1, 0)
    assert (training.batch_tokens, training.accumulation) == (25_000, 1)
    assert training.gradient_clip == 0
    assert (training.average_checkpoints, training.checkpoint_minutes) == (averaged, 10)
    assert (search.beam, search.length_penalty, search.max_extra_tokens) == (4, 0.6, 50)


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_resolves_to_a_model_that_runs(name: str) -> None:
    config = resolve_config(name)
    assert config.preset == name
    with torch.device("meta"):
        model = Transformer(config.model, 400).eval()
        ids = torch.ones(2, 5, dtype=torch.long)
        memory = model.encode(ids)
        assert model.decode(ids, memory, ids).shape == (2, 5, config.model.d_model)


def test_larger_corpora_get_larger_presets() -> None:
    chosen = [preset_for(pairs) for pairs in (1, 29_000, 10_000_000)]
    counts = [count_parameters(resolve_config(name), 8000) for name in chosen]
    assert counts == sorted(set(counts))


@pytest.mark.parametrize(
    ("name", "layers", "beside"), [("small-fast", 6, "small"), ("medium-fast", 12, "medium")]
)
def test_a_fast_preset_is_another_with_a_deep_encoder_and_one_decoder_layer(
    name: str, layers: int, beside: str
) -> None:
    fast, usual = resolve_config(name), resolve_config(beside)
    assert (fast.model.encoder_layers, fast.model.decoder_layers) == (layers, 1)
    depths = {"encoder_layers": layers, "decoder_layers": 1}
    assert usual.model.model_copy(update=depths) == fast.model
    assert (fast.data, fast.training, fast.search) == (usual.data, usual.training, usual.search)
    ratio = count_parameters(fast, 8000) / count_parameters(usual, 8000)
    assert 0.9 < ratio < 1.1  # as large, and faster


def test_no_corpus_gets_a_fast_preset_by_itself() -> None:
    assert not any(preset_for(10**exponent).endswith("-fast") for exponent in range(11))


def test_resolving_leaves_the_presets_alone() -> None:
    before = {name: resolve_config(name) for name in PRESETS}
    for name in PRESETS:
        resolve_config(
            name, file={"model": {"d_model": 32, "heads": 2}}, assignments=["data.seed=9"]
        )
    assert {name: resolve_config(name) for name in PRESETS} == before
