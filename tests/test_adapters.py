"""Low-rank adapters: start as nothing, train alone, are saved small, merge to the same model."""

from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn.utils import parametrize
from torch.testing import assert_close

from dragoman.config import ModelConfig
from dragoman.errors import UserError
from dragoman.model.adapters import (
    ADAPTER,
    SETTINGS,
    AdapterSettings,
    add_adapters,
    load_adapter,
    load_trained_weights,
    merge_adapters,
    read_adapter_settings,
    save_adapter,
    trained_weights,
)
from dragoman.model.layers import Linear
from dragoman.model.transformer import Transformer

VOCABULARY, RANK = 50, 3
SETTINGS_OF = AdapterSettings(RANK, 6.0, "base", "0" * 64)
IDS = torch.tensor([[7, 8, 9, 3], [12, 3, 0, 0]])
TARGET = torch.tensor([[2, 21, 22], [2, 31, 0]])


def make_model(seed: int = 1) -> Transformer:
    """d_k and d_v differ and so do encoder and decoder: every way through a projection is taken."""
    torch.manual_seed(seed)
    sizes = {"d_model": 16, "d_ff": 24, "heads": 2, "d_k": 6, "d_v": 8, "max_positions": 16}
    return Transformer(ModelConfig(**sizes, encoder_layers=2, decoder_layers=1), VOCABULARY).eval()


def trained(model: Transformer, seed: int = 2) -> Transformer:
    """Adapters as training might leave them: random."""
    torch.manual_seed(seed)
    for weight in trained_weights(model).values():
        weight.normal_(std=0.3)
    return model


def adapted(seed: int = 1) -> Transformer:
    model = make_model(seed)
    add_adapters(model, RANK, 6.0)
    return model


def outputs(model: Transformer) -> list[Tensor]:
    """Logits of every path: padded, packed, and step by step."""
    with torch.no_grad():
        rows, packed = model.packed_hidden(IDS, TARGET)
        cache = model.start(model.encode(IDS), IDS, 1)
        steps = [model.step(TARGET[:, [t]], cache) for t in range(TARGET.shape[1])]
        return [model(IDS, TARGET), model.logits(rows[: packed.tokens]), torch.cat(steps, dim=1)]


def assert_same_outputs(one: Transformer, other: Transformer, tolerance: float) -> None:
    for mine, its in zip(outputs(one), outputs(other), strict=True):
        assert_close(mine, its, rtol=tolerance, atol=tolerance)


def test_new_adapters_change_nothing() -> None:
    assert_same_outputs(adapted(), make_model(), 0.0)


def test_every_linear_map_has_one_and_only_they_train() -> None:
    model = adapted()
    linears = [module for module in model.modules() if isinstance(module, Linear)]
    assert len(linears) == 2 * 4 + 1 * 6
    assert all(parametrize.is_parametrized(linear, "weight") for linear in linears)
    names = {name for name, p in model.named_parameters() if p.requires_grad}
    assert names == trained_weights(model).keys()
    assert len(names) == 2 * len(linears)


def test_the_weight_is_the_sum_of_the_papers_section_4() -> None:
    base, model = make_model(), trained(adapted())
    linear = model.encoder[0].feed_forward.inner
    adapter = linear.parametrizations.weight[0]
    expected = base.encoder[0].feed_forward.inner.weight + 6.0 / RANK * adapter.b @ adapter.a
    assert_close(linear.weight, expected)


def test_training_moves_the_adapters_and_nothing_else() -> None:
    model = adapted()
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.5)
    for _ in range(2):  # A moves from the second step on: B is zero at first
        optimizer.zero_grad()
        model(IDS, TARGET).square().sum().backward()
        optimizer.step()
    moved = {name for name, weight in model.state_dict().items() if not weight.equal(before[name])}
    assert moved == trained_weights(model).keys()


def test_merged_computes_the_same() -> None:
    model, merged = trained(adapted()), trained(adapted())
    merge_adapters(merged)
    assert merged.state_dict().keys() == make_model().state_dict().keys()
    assert all(parameter.requires_grad for parameter in merged.parameters())
    assert_same_outputs(merged, model, 1e-6)
    assert not outputs(model)[0].allclose(outputs(make_model())[0], atol=1e-2)


def test_a_model_without_adapters_is_trained_whole() -> None:
    model = make_model()
    assert trained_weights(model).keys() == model.state_dict().keys()
    merge_adapters(model)
    assert_same_outputs(model, make_model(), 0.0)


def test_saved_and_loaded_is_the_same_and_small(tmp_path: Path) -> None:
    model = trained(adapted())
    save_adapter(tmp_path, SETTINGS_OF, trained_weights(model))
    assert read_adapter_settings(tmp_path) == SETTINGS_OF
    again = make_model()
    load_adapter(again, tmp_path)
    assert_same_outputs(again, model, 0.0)
    linears = [module for module in model.modules() if isinstance(module, Linear)]
    numbers = sum(RANK * sum(linear.weight.shape) for linear in linears)
    assert (tmp_path / ADAPTER).stat().st_size < 4 * numbers + 200 * len(linears)


def test_weights_of_another_model_are_refused() -> None:
    weights = trained_weights(adapted())
    with pytest.raises(RuntimeError, match="weights missing or unknown"):
        load_trained_weights(make_model(), weights)


@pytest.mark.parametrize("damage", ["rank", "cut", "missing", "toml", "nan", "extra"])
def test_what_is_wrong_with_an_adapter_is_one_error(tmp_path: Path, damage: str) -> None:
    model = trained(adapted())
    weights = trained_weights(model)
    settings = SETTINGS_OF
    if damage == "rank":
        settings = AdapterSettings(RANK + 1, 6.0, "base", "0" * 64)
    if damage == "nan":
        next(iter(weights.values())).fill_(float("nan"))
    if damage == "extra":
        weights |= {"embedding.weight": model.embedding.weight}
    save_adapter(tmp_path, settings, weights)
    if damage == "cut":
        content = (tmp_path / ADAPTER).read_bytes()
        (tmp_path / ADAPTER).write_bytes(content[: len(content) // 2])
    if damage == "missing":
        (tmp_path / SETTINGS).unlink()
    if damage == "toml":
        (tmp_path / SETTINGS).write_text("rank = 0\nalpha = 1.0\n[base]\nname='b'\nweights=''\n")
    with pytest.raises(UserError) as caught:
        load_adapter(make_model(), tmp_path)
    assert str(tmp_path) in caught.value.message and caught.value.hint
