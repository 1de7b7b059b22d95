"""Learning-rate schedules: Equation 3 by hand, linear and cosine by their corners."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.config import TrainingConfig
from dragoman.training.schedule import learning_rate

PAPER = TrainingConfig(schedule="paper", warmup_steps=4000)
LINEAR = TrainingConfig(schedule="linear", learning_rate=0.01, warmup_steps=100)
COSINE = TrainingConfig(schedule="cosine", learning_rate=0.01, warmup_steps=100)


@pytest.mark.parametrize(
    ("d_model", "step", "expected"),
    [
        (512, 1, 1 / math.sqrt(512) / 4000**1.5),
        (512, 2000, 1 / math.sqrt(512) * 2000 / (4000 * math.sqrt(4000))),
        (512, 4000, 6.987712429686843e-04),
        (512, 16000, 3.4938562148434214e-04),  # four times the steps, half the rate
        (1024, 4000, 4.941058844013092e-04),
    ],
)
def test_equation_3_by_hand(d_model: int, step: int, expected: float) -> None:
    assert learning_rate(PAPER, d_model, step, 0.3) == pytest.approx(expected, rel=1e-12)


@given(step=st.integers(1, 10**6), warmup=st.integers(1, 10**5), progress=st.floats(0, 1))
def test_equation_3_rises_to_the_end_of_the_warmup_and_falls_after_it(
    step: int, warmup: int, progress: float
) -> None:
    config = TrainingConfig(schedule="paper", warmup_steps=warmup)
    now, after = (learning_rate(config, 512, s, progress) for s in (step, step + 1))
    assert (after > now) == (step < warmup)
    assert 0 < now <= learning_rate(config, 512, warmup, progress)


@pytest.mark.parametrize("config", [LINEAR, COSINE], ids=["linear", "cosine"])
def test_linear_and_cosine_end_at_zero(config: TrainingConfig) -> None:
    assert learning_rate(config, 256, 1000, 0.0) == pytest.approx(0.01)
    assert learning_rate(config, 256, 1000, 0.5) == pytest.approx(0.005)
    assert learning_rate(config, 256, 1000, 1.0) == pytest.approx(0.0, abs=1e-18)
    assert learning_rate(config, 256, 1000, 1.7) == pytest.approx(0.0, abs=1e-18)
    assert learning_rate(config, 256, 25, 0.0) == pytest.approx(0.0025)
    assert learning_rate(config, 256, 100, 0.0) == pytest.approx(0.01)


def test_linear_and_cosine_in_between() -> None:
    assert learning_rate(LINEAR, 256, 500, 0.25) == pytest.approx(0.0075)
    expected = 0.01 * (1 + math.cos(math.pi / 4)) / 2
    assert learning_rate(COSINE, 256, 500, 0.25) == pytest.approx(expected)


@pytest.mark.parametrize("config", [LINEAR, COSINE], ids=["linear", "cosine"])
@given(step=st.integers(100, 10**6), progress=st.floats(0, 0.999))
def test_after_the_warmup_the_rate_only_falls(
    config: TrainingConfig, step: int, progress: float
) -> None:
    now = learning_rate(config, 256, step, progress)
    assert 0 < now <= config.learning_rate
    assert learning_rate(config, 256, step + 1, progress + 0.001) <= now
