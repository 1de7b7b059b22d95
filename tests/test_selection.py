"""Which weights are delivered, the moving average, and that a checkpoint is read once."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from dragoman.config import TrainingConfig
from dragoman.errors import UserError
from dragoman.training import selection
from dragoman.training.checkpoints import Checkpoint, list_checkpoints, write_checkpoint
from dragoman.training.moving_average import (
    AVERAGE,
    averaged_weights,
    averages_of,
    update_average,
)
from dragoman.training.optimizer import make_optimizer, optimizer_tensors, restore_optimizer
from dragoman.training.selection import select_weights

AVERAGED = "the average of the last 2 checkpoints"
BEST = "the best checkpoint, step 1"
MOVING = "the moving average at step 1"


def write_values(folder: Path, values: dict[int, float], moving: float | None = None) -> list[Path]:
    """A checkpoint for each step, whose one weight is that value."""
    for step, value in values.items():
        moments = {"w/exp_avg": torch.zeros(2)}
        if moving is not None:
            moments[f"w/{AVERAGE}"] = torch.full((2,), moving)
        weights = {"w": torch.full((2,), value), "frozen": torch.ones(1)}
        write_checkpoint(folder, step, Checkpoint(weights, moments, {}))
    return list_checkpoints(folder)


def distance(target: float) -> "object":
    return lambda weights: float((weights["w"] - target).abs().sum())


def refuse(message: str) -> None:
    raise AssertionError(message)


@pytest.mark.parametrize(
    ("target", "name", "value"), [(3.0, AVERAGED, 3.0), (1.25, BEST, 1.0), (7.5, MOVING, 8.0)]
)
def test_the_best_of_three_is_kept(tmp_path: Path, target: float, name: str, value: float) -> None:
    paths = write_values(tmp_path, {1: 1.0, 2: 2.0, 3: 4.0}, moving=8.0)
    found = select_weights(paths, {2, 3}, 1, distance(target), refuse)
    assert (found.name, found.nll) == (name, 2 * abs(target - value))
    assert found.weights["w"].tolist() == [value, value]
    assert found.weights["frozen"].tolist() == [1.0]
    assert {name, *found.others} == {AVERAGED, BEST, MOVING}
    assert list(found.others.values()) == sorted(found.others.values())
    assert found.description.startswith(f"{name} (nll {found.nll:.4f}, ")


def test_without_a_moving_average_there_are_two_and_one_checkpoint_is_one(tmp_path: Path) -> None:
    paths = write_values(tmp_path, {1: 1.0, 2: 2.0})
    assert select_weights(paths, {1, 2}, 1, distance(0), refuse).others.keys() == {AVERAGED}
    found = select_weights(paths, {1}, 1, distance(0), refuse)
    assert (found.name, found.others) == (BEST, {})
    found = select_weights(paths, {2}, 1, distance(2), refuse)
    assert found.weights["w"].tolist() == [2.0, 2.0] and found.others == {BEST: 2.0}


def test_a_loss_that_is_no_number_never_wins(tmp_path: Path) -> None:
    paths = write_values(tmp_path, {1: 1.0, 2: 2.0})
    found = select_weights(
        paths, {1, 2}, 1, lambda w: float("nan") if w["w"][0] > 1 else 9.0, refuse
    )
    assert (found.name, found.nll) == (BEST, 9.0)


def test_each_checkpoint_is_read_once_and_a_damaged_one_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = write_values(tmp_path, {1: 1.0, 2: 2.0, 3: 4.0, 9: 9.0})
    read: list[str] = []
    original = selection.load_checkpoint

    def watched(path: Path) -> Checkpoint:
        read.append(path.name)
        return original(path)

    monkeypatch.setattr(selection, "load_checkpoint", watched)
    (paths[1] / "model.safetensors").write_bytes(b"cut")
    warnings: list[str] = []
    found = select_weights(paths, {1, 2, 3}, 1, distance(2.5), warnings.append)
    assert found.name == AVERAGED and found.weights["w"].tolist() == [2.5, 2.5]
    assert read == ["step-00000001", "step-00000002", "step-00000003"]
    assert len(warnings) == 1 and "step-00000002" in warnings[0]
    for path in paths:
        (path / "model.safetensors").write_bytes(b"cut")
    with pytest.raises(UserError, match="no whole checkpoint is left"):
        select_weights(paths, {1, 2, 3}, 1, distance(2.5), warnings.append)


def small_module(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    module = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    module[0].bias.requires_grad_(False)
    return module


def train(module: nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> list[Tensor]:
    """Updates with invented gradients; the values of one weight after each."""
    values = []
    for step in steps:
        generator = torch.Generator().manual_seed(step)
        for parameter in module.parameters():
            if parameter.requires_grad:
                parameter.grad = torch.randn(parameter.shape, generator=generator)
        optimizer.param_groups[0]["lr"] = 0.05
        optimizer.step()
        update_average(optimizer, 0.9, step)
        values.append(module[0].weight.detach().clone())
    return values


def test_the_moving_average_is_its_formula() -> None:
    module = small_module(1)
    optimizer = make_optimizer(module, TrainingConfig())
    values = train(module, optimizer, range(1, 120))
    expected = values[0].double()
    for step, value in enumerate(values[1:], start=2):
        decay = min(0.9, (1 + step) / (10 + step))
        expected = decay * expected + (1 - decay) * value.double()
    found = optimizer.state[module[0].weight][AVERAGE]
    assert found.dtype == torch.float32
    assert_close(found.double(), expected, rtol=1e-5, atol=1e-6)


def test_a_look_at_the_averaged_weights_changes_nothing() -> None:
    module = small_module(1)
    optimizer = make_optimizer(module, TrainingConfig())
    before = {name: weight.clone() for name, weight in module.state_dict().items()}
    with averaged_weights(module, optimizer):  # before the first update there is none
        assert all(weight.equal(before[name]) for name, weight in module.state_dict().items())
    train(module, optimizer, range(1, 9))
    before = {name: weight.clone() for name, weight in module.state_dict().items()}
    moments = {
        name: tensor.clone() for name, tensor in optimizer_tensors(optimizer, module).items()
    }
    expected = averages_of(before, moments)
    assert expected is not None and not expected["0.weight"].equal(before["0.weight"])
    assert expected["0.bias"].equal(before["0.bias"])  # frozen: it has no average
    with pytest.raises(KeyboardInterrupt), averaged_weights(module, optimizer):
        assert all(weight.equal(expected[name]) for name, weight in module.state_dict().items())
        raise KeyboardInterrupt
    assert all(weight.equal(before[name]) for name, weight in module.state_dict().items())
    after = optimizer_tensors(optimizer, module)
    assert after.keys() == moments.keys()
    assert all(after[name].equal(tensor) for name, tensor in moments.items())


def test_saved_and_restored_the_average_goes_on_bit_for_bit() -> None:
    module, other = small_module(1), small_module(2)
    optimizer, restored = (make_optimizer(one, TrainingConfig()) for one in (module, other))
    train(module, optimizer, range(1, 4))
    other.load_state_dict(module.state_dict())
    saved = {name: tensor.clone() for name, tensor in optimizer_tensors(optimizer, module).items()}
    restore_optimizer(restored, other, saved)
    train(module, optimizer, range(4, 8))
    train(other, restored, range(4, 8))
    mine, its = optimizer_tensors(optimizer, module), optimizer_tensors(restored, other)
    assert mine.keys() == its.keys()
    assert any(name.endswith(AVERAGE) for name in mine)
    assert all(mine[name].equal(its[name]) for name in mine)
