"""Which preset a time budget is enough for."""

import pytest
import torch

from dragoman.config import Config, resolve_config
from dragoman.training import planning
from dragoman.training.planning import ENOUGH_UPDATES, plan_for_time, updates_per_second

CPU = torch.device("cpu")


def test_speed_is_that_of_real_updates_and_leaves_the_random_numbers_alone() -> None:
    config = resolve_config(
        "tiny",
        assignments=["training.batch_tokens=100", "model.d_model=32", "model.d_ff=32"],
    )
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    assert updates_per_second(config, CPU, 0.01) > 0
    assert torch.rand(3).equal(expected)


@pytest.mark.parametrize(
    ("pairs", "hours", "small_rate", "preset"),
    [
        (30_000, 1, 10.0, "small"),
        (30_000, 1, ENOUGH_UPDATES / 3600 * 1.01, "small"),
        (30_000, 1, ENOUGH_UPDATES / 3600 * 0.99, "tiny"),
        (2_000_000, 1, 5.0, "medium"),  # at a tenth of that rate
        (2_000_000, 1, 1.0, "small"),
        (2_000_000, 1, 0.01, "tiny"),
        (100, 1, 0.0001, "tiny"),  # however little: there is no smaller one
    ],
)
def test_the_largest_preset_that_gets_enough_updates(
    monkeypatch: pytest.MonkeyPatch, pairs: int, hours: float, small_rate: float, preset: str
) -> None:
    factor = {"tiny": 5.0, "small": 1.0, "medium": 0.1}

    def rate(config: Config, device: torch.device, seconds: float) -> float:
        assert seconds <= 0.01 * 3600 * hours
        return small_rate * factor[config.preset]

    monkeypatch.setattr(planning, "updates_per_second", rate)
    plan = plan_for_time(pairs, 3600 * hours, CPU)
    assert plan.preset == preset
    assert plan.updates == int(3600 * hours * (small_rate * factor[preset]))
