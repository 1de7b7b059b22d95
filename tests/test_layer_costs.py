"""Layers whose cost is measured: what they compute, what they hold in memory, fitted exponents."""

import pytest
import torch

from dragoman.inspection.layer_costs import (
    KINDS,
    LayerKind,
    LayerSizes,
    fit_exponent,
    make_layer,
    measure_layer,
    peak_memory,
    table_operations,
)

SIZES = LayerSizes(width=16, heads=2, reach=4, kernel=3)


def test_explicit_and_fused_attention_are_the_same_layer() -> None:
    fused, explicit = (make_layer(kind, SIZES) for kind in KINDS[:2])
    explicit.load_state_dict(fused.state_dict())
    x = torch.randn(1, 200, SIZES.width)
    torch.testing.assert_close(fused(x), explicit(x))


@pytest.mark.parametrize("kind", KINDS)
def test_every_layer_keeps_the_shape_and_is_measured(kind: LayerKind) -> None:
    layer = make_layer(kind, SIZES)
    costs = measure_layer(layer, SIZES.width, [16, 8], seconds=0.0, memory=True)
    assert [cost.length for cost in costs] == [8, 16]
    for cost in costs:
        assert layer(torch.randn(1, cost.length, SIZES.width)).shape == (1, cost.length, 16)
        assert cost.seconds > 0
        assert cost.peak_bytes is not None
        assert cost.peak_bytes >= cost.length * SIZES.width * 4


def test_measuring_stops_at_what_is_slow() -> None:
    layer = make_layer("convolutional", SIZES)
    assert len(measure_layer(layer, SIZES.width, [8, 16, 32], 0.0, slowest=0.0)) == 1


def test_only_explicit_attention_holds_n_squared_numbers() -> None:
    lengths = [256, 512, 1024]
    fitted = {}
    for kind in KINDS:
        layer = make_layer(kind, SIZES)
        peaks = [peak_memory(layer, torch.randn(1, n, SIZES.width)) for n in lengths]
        fitted[kind] = fit_exponent(lengths, peaks)
        if kind == "explicit self-attention":
            assert peaks[-1] >= SIZES.heads * lengths[-1] ** 2 * 4
    quadratic = [kind for kind, exponent in fitted.items() if exponent > 1.7]
    assert quadratic == ["explicit self-attention"], fitted


@pytest.mark.parametrize("exponent", [0.0, 1.0, 1.5, 2.0])
def test_a_power_law_is_found_again(exponent: float) -> None:
    lengths = [32, 64, 128, 256]
    assert fit_exponent(lengths, [3e-5 * n**exponent for n in lengths]) == pytest.approx(exponent)


def test_one_length_has_no_exponent() -> None:
    with pytest.raises(ValueError, match="two lengths"):
        fit_exponent([8], [1.0])


def test_operations_are_those_of_table_1() -> None:
    sizes = LayerSizes(width=512, heads=8, reach=10, kernel=3)
    n, d = 70, 512
    expected = [n * n * d, n * n * d, 10 * n * d, n * d * d, 3 * n * d * d]
    assert [table_operations(kind, n, sizes) for kind in KINDS] == expected
