"""Linear maps with what stands around them in one call are the formulas, forward and backward.

Shapes: R rows, K inputs, N outputs of a map.
"""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.testing import assert_close

from dragoman.config import TrainingConfig, resolve_config
from dragoman.model import sublayers
from dragoman.model.kernels import kernels
from dragoman.model.layers import LAYER_NORM_EPSILON
from dragoman.model.sublayers import Behind, linear
from dragoman.model.transformer import Transformer
from dragoman.training import optimizer as optimizers
from dragoman.training.loss import cross_entropy
from dragoman.training.optimizer import Adam, make_optimizer

with_units = pytest.mark.skipif(
    not kernels().matrix_units, reason="this processor has no matrix units for bfloat16"
)


def random(*shape: int, kind: torch.dtype = torch.float32, seed: int = 1) -> Tensor:
    chance = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=chance).to(kind).requires_grad_()


def distance(one: Tensor, other: Tensor) -> float:
    return float((one - other).detach().norm() / other.detach().norm())


@with_units
@pytest.mark.parametrize("sizes", [(32, 32, 32), (96, 64, 160), (64, 160, 96)])
@pytest.mark.parametrize("normalized", [False, True])
@pytest.mark.parametrize(("relu", "added"), [(False, False), (True, False), (False, True)])
def test_a_map_is_its_formula(
    sizes: tuple[int, int, int], normalized: bool, relu: bool, added: bool
) -> None:
    rows, inputs, outputs = sizes
    x = random(rows, inputs, kind=torch.bfloat16)
    weight, bias = random(outputs, inputs, seed=2), random(outputs, seed=3)
    norm = (random(inputs, seed=4), random(inputs, seed=5)) if normalized else (None, None)
    residual = random(rows, outputs, kind=torch.bfloat16, seed=6) if added else None
    y, passed_on = linear(x, weight, bias, *norm, residual, Behind(relu, 0.0))

    given = [one for one in (x, weight, bias, *norm, residual) if one is not None]
    exact = {one: one.detach().double().requires_grad_() for one in given}
    hidden = exact[x]
    if norm[0] is not None:
        scales = exact[norm[0]], exact[norm[1]]
        hidden = functional.layer_norm(hidden, (inputs,), *scales, LAYER_NORM_EPSILON)
    expected = functional.linear(hidden, exact[weight], exact[bias])
    expected = expected.relu() if relu else expected
    expected = expected if residual is None else expected + exact[residual]
    assert distance(y, expected) < 0.01

    # What goes around the map has a gradient too.
    upstream, around = random(rows, outputs, seed=7).bfloat16(), random(rows, inputs, seed=8)
    ours = torch.autograd.grad([y, passed_on], given, [upstream, around.bfloat16()])
    total = (expected * upstream.double()).sum() + (exact[x] * around.bfloat16().double()).sum()
    theirs = torch.autograd.grad(total, list(exact.values()))
    for one, other in zip(ours, theirs, strict=True):
        assert distance(one, other) < (0.1 if relu else 0.02)  # some are open only as rounded


@with_units
@pytest.mark.parametrize("relu", [False, True])
def test_dropout_decides_alike_in_both_directions(relu: bool) -> None:
    rows, width, rate = 64, 96, 0.25
    x, weight = torch.zeros(rows, 32, dtype=torch.bfloat16), random(width, 32)
    bias = torch.ones(width, requires_grad=True)
    torch.manual_seed(3)
    y, _ = linear(x, weight, bias, None, None, None, Behind(relu, rate))
    kept = y != 0
    assert_close(y[kept], torch.full_like(y[kept], 1 / (1 - rate)), rtol=1e-2, atol=0)
    assert abs(float(kept.float().mean()) - (1 - rate)) < 0.03
    (gradient,) = torch.autograd.grad(y, bias, torch.ones_like(y))
    assert_close(gradient, kept.sum(0) / (1 - rate), rtol=1e-2, atol=0)
    torch.manual_seed(3)
    again, _ = linear(x, weight, bias, None, None, None, Behind(relu, rate))
    assert torch.equal(y, again)


@with_units
@pytest.mark.parametrize("change", ["norm=pre", "norm=post", "feed_forward=gated"])
def test_a_whole_model_computes_as_without(change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradients are as near to float32's as those of the parts one by one."""
    sizes = ["model.d_model=64", "model.d_ff=96", "model.heads=2", "model.dropout=0.0"]
    torch.manual_seed(1)
    config = resolve_config("tiny", None, None, [*sizes, f"model.{change}"])
    model = Transformer(config.model, 64).train()
    ids = torch.randint(4, 60, (7, 12))
    ids[0, 5:] = 0

    def gradients(kind: torch.dtype) -> list[Tensor]:
        model.embedding.compute_dtype = kind
        rows, packed = model.packed_hidden(ids, ids)
        loss = cross_entropy(rows, model.embedding.weight, packed.pack(ids), 0.1, 0).smoothed
        return list(torch.autograd.grad(loss, list(model.parameters())))

    exact, ours = gradients(torch.float32), gradients(torch.bfloat16)
    monkeypatch.setattr(sublayers, "matrix_units", lambda *_: False)
    parts = gradients(torch.bfloat16)
    for true, one, other in zip(exact, ours, parts, strict=True):
        assert (one - true).norm() < 1.5 * (other - true).norm() + 1e-3 * true.norm()


@pytest.mark.skipif(kernels().library is None, reason=kernels().reason)
@pytest.mark.parametrize("limit", [0.0, 1.0])
def test_an_update_in_one_call_is_pytorchs(limit: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes that fill no vector, large and small gradients, a weight without one."""
    found = []
    for compiled in (True, False):
        if not compiled:
            monkeypatch.setattr(optimizers, "_is_plain", lambda _: False)
        torch.manual_seed(1)
        module = nn.Sequential(nn.Linear(40, 33), nn.LayerNorm(33), nn.Linear(33, 5))
        optimizer = make_optimizer(module, TrainingConfig(weight_decay=0.1))
        norms = []
        for step in range(4):
            for group in optimizer.param_groups:
                group["lr"] = 0.01 * (step + 1)
            for number, weight in enumerate(module.parameters()):
                scale = 10.0**-step
                weight.grad = scale * random(*weight.shape, seed=10 * step + number).detach()
            module[0].bias.grad = None
            norms.append(optimizer.clip(limit))
            optimizer.step()
        found.append((norms, list(module.parameters()), state_of(optimizer, module)))
    for one, other in zip(*found, strict=True):
        assert_close(one, other, rtol=1e-5, atol=1e-7)


def state_of(optimizer: Adam, module: nn.Module) -> list[dict[str, Tensor]]:
    return [optimizer.state[weight] for weight in module.parameters() if weight.grad is not None]
