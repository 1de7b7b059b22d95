"""The optimizer (section 5.3) against Adam's own formulas, and its state as tensors."""

import math

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from dragoman.config import TrainingConfig
from dragoman.training.optimizer import make_optimizer, optimizer_tensors, restore_optimizer


def small_module(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 3), nn.LayerNorm(3), nn.Linear(3, 2))


def update(module: nn.Module, optimizer: torch.optim.Optimizer, seed: int, rate: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    for group in optimizer.param_groups:
        group["lr"] = rate
    for parameter in module.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator)
    optimizer.step()


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_three_updates_are_adams_formulas(decay: float) -> None:
    """Kingma and Ba 2015, Algorithm 1, in Python floats; decay by Loshchilov and Hutter 2019."""
    module = small_module(1)
    # One entry of a matrix and one of a bias, which the decay spares.
    for parameter, its_decay in ((module[0].weight, decay), (module[0].bias, 0.0)):
        optimizer = make_optimizer(module, TrainingConfig(weight_decay=decay))
        value, mean, square = float(parameter.detach().flatten()[0]), 0.0, 0.0
        for step, rate in ((1, 0.1), (2, 0.02), (3, 0.3)):
            update(module, optimizer, seed=step, rate=rate)
            gradient = float(parameter.grad.flatten()[0])
            mean = 0.9 * mean + 0.1 * gradient
            square = 0.98 * square + 0.02 * gradient**2
            value *= 1 - rate * its_decay
            corrected = math.sqrt(square / (1 - 0.98**step)) + 1e-9
            value -= rate * (mean / (1 - 0.9**step)) / corrected
            assert float(parameter.detach().flatten()[0]) == pytest.approx(value, rel=1e-4)


def test_the_settings_reach_the_optimizer() -> None:
    config = TrainingConfig(adam_beta1=0.5, adam_beta2=0.75, adam_epsilon=0.125, weight_decay=0.25)
    optimizer = make_optimizer(small_module(1), config)
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.25, 0.0]
    for group in optimizer.param_groups:
        assert (group["betas"], group["eps"]) == ((0.5, 0.75), 0.125)
    trained = [id(p) for group in optimizer.param_groups for p in group["params"]]
    assert len(trained) == len(set(trained)) == 6


def test_saved_and_restored_state_goes_on_bit_for_bit() -> None:
    module, config = small_module(2), TrainingConfig()
    optimizer = make_optimizer(module, config)
    for step in range(3):
        update(module, optimizer, seed=step, rate=0.01)
    saved = {name: tensor.clone() for name, tensor in optimizer_tensors(optimizer, module).items()}
    other = small_module(3)
    other.load_state_dict(module.state_dict())
    restored = make_optimizer(other, config)
    restore_optimizer(restored, other, saved)
    update(module, optimizer, seed=9, rate=0.01)
    update(other, restored, seed=9, rate=0.01)
    for mine, its in zip(module.parameters(), other.parameters(), strict=True):
        assert torch.equal(mine, its)
    again = optimizer_tensors(restored, other)
    for name, tensor in optimizer_tensors(optimizer, module).items():
        assert_close(again[name], tensor, rtol=0, atol=0)
    assert {name.rpartition("/")[0] for name in saved} == dict(module.named_parameters()).keys()
