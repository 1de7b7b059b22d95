"""Layers whose cost is measured: what they compute, what they hold in memory, fitted exponents."""

import importlib
from pathlib import Path

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


@pytest.mark.parametrize("model", ["DecoderOnly", "EncoderOnly"])
def test_the_benchmark_of_length_measures_the_same_models(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Explicit and fused attention give the same states; every case has a time and a peak."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "benchmarks" / "paper"))
    script = importlib.import_module("length")
    case = {"model": model, "width": 64, "window": 150, "seconds": 0.0, "length": 300}
    ids = torch.randint(4, 1000, (1, 300))
    found = {}
    for kind in script.KINDS:
        for task in script.TASKS:
            measured = script.measure(case | {"kind": kind, "task": task})
            assert measured["seconds"] > 0 and measured["megabytes"] >= 0
        built = script.make(case | {"kind": kind}).eval()
        with torch.inference_mode():
            found[kind] = script.states(built, ids, kind == "explicit")
    torch.testing.assert_close(found["explicit"], found["fused"], rtol=1e-4, atol=1e-4)
    same = (found["fused"] - found["restricted"]).abs().amax(-1)[0] < 1e-5
    assert not same[-1] and (model == "EncoderOnly" or same[:150].all())
