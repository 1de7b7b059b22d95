"""The arithmetic of an update is counted exactly, and the peak it is compared with is measured."""

from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from dragoman.config import ModelConfig
from dragoman.corpus.batches import Batch
from dragoman.model.sequence_model import SequenceModel
from dragoman.model.stacks import DecoderOnly, EncoderOnly
from dragoman.model.transformer import Transformer
from dragoman.training import utilization as module
from dragoman.training.loss import Loss
from dragoman.training.meter import Meter
from dragoman.training.precision import matrix_product_rate
from dragoman.training.state import TrainingState
from dragoman.training.utilization import TrainingCost, matrix_product_peak, utilization

VOCABULARY = 50
SIZES: dict[str, Any] = {"d_model": 12, "d_ff": 20, "heads": 3, "max_positions": 32}


def counted(model: SequenceModel, batch: int, source: int, target: int) -> int:
    """What PyTorch counts in a forward and backward pass over sentences without padding."""
    ids = (
        torch.randint(4, VOCABULARY, (batch, source)),
        torch.randint(4, VOCABULARY, (batch, target)),
    )
    with FlopCounterMode(display=False) as counter:
        model(*ids).sum().backward()
    return int(counter.get_total_flops())


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"d_k": 6, "d_v": 10, "norm": "post"},
        {"encoder_layers": 1, "decoder_layers": 4, "feed_forward": "gated"},
        {"encoder_layers": 4, "decoder_layers": 1, "d_ff": 7, "positions": "learned"},
    ],
)
@pytest.mark.parametrize(("batch", "source", "target"), [(1, 1, 1), (3, 7, 5), (2, 4, 11)])
def test_the_cost_is_what_pytorch_counts(
    settings: dict[str, Any], batch: int, source: int, target: int
) -> None:
    config = ModelConfig(**(SIZES | settings))
    cost = TrainingCost.of(config, VOCABULARY)
    lengths = np.full(batch, source), np.full(batch, target)
    model = Transformer(config, VOCABULARY)
    assert cost.of_lengths(*lengths) == counted(model, batch, source, target)
    assert TrainingCost.of(config, VOCABULARY, 2).of_lengths(*lengths) == 2 * cost.of_lengths(
        *lengths
    )


def test_a_single_stack_reads_the_target_alone() -> None:
    config = ModelConfig(**SIZES, encoder_layers=1, decoder_layers=4)
    for model, name in (
        (DecoderOnly(config, VOCABULARY), "decoder"),
        (EncoderOnly(config, VOCABULARY), "encoder"),
    ):
        cost = TrainingCost.of(config, VOCABULARY, stacks=(name,))
        assert cost.of_lengths(np.full(3, 2), np.full(3, 7)) == counted(model, 3, 2, 7)


def test_a_padded_batch_costs_what_its_sentences_cost() -> None:
    cost = TrainingCost.of(ModelConfig(**SIZES), VOCABULARY)
    source, target = np.array([2, 5, 3], np.uint16), np.array([4, 1, 6], np.uint16)
    ids = [np.where(np.arange(9) < lengths[:, None], 7, 0) for lengths in (source, target)]
    batch = Batch(ids[0], ids[1], ids[1], np.arange(3))
    single = [cost.of_lengths(source[[row]], target[[row]]) for row in range(3)]
    assert cost.of_batch(batch) == cost.of_lengths(source, target) == sum(single)


def test_long_sentences_do_not_overflow() -> None:
    cost = TrainingCost.of(ModelConfig(**SIZES), VOCABULARY)
    short, long = (np.array([length], np.uint16) for length in (1, 65_000))
    ratio = cost.of_lengths(long, long) / cost.of_lengths(short, short)
    assert ratio > 65_000


def test_the_peak_is_the_best_of_some_products_and_a_slow_machine_tries_fewer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rates, tried = iter([3.0, 5.0, 4.0, 1.0, 9.0, 9.0]), []

    def rate(device: torch.device, dtype: torch.dtype, shape: tuple[int, int, int]) -> float:
        tried.append(shape)
        return next(rates)

    monkeypatch.setattr(module, "matrix_product_rate", rate)
    cpu = torch.device("cpu")
    assert matrix_product_peak(cpu, torch.float32) == 5.0
    assert len(set(tried)) == 3
    monkeypatch.setattr(module, "_LONGEST", -1.0)
    assert matrix_product_peak(cpu, torch.float32) == 1.0


def test_an_event_tells_the_share_of_the_interval_alone() -> None:
    state = TrainingState(step=5, tokens=100, flops=10**9, seconds=10.0)
    meter = Meter(state, peak=1e9)
    for _ in range(4):
        state.step, state.flops = state.step + 1, state.flops + 250_000_000
        meter.add(Loss(torch.tensor(30.0), torch.tensor(20.0), 10))
    state.seconds = 12.5
    event = meter.event(state, 0.5, 1e-3, 1.0)
    assert (event["utilization"], event["tokens_per_second"]) == (40.0, 16)
    assert (event["loss"], event["nll"]) == (3.0, 2.0)
    # A validation of seven seconds is no part of the next interval.
    meter.restart(state, seconds=19.5)
    state.seconds, state.flops = 20.0, state.flops + 100_000_000
    meter.add(Loss(torch.tensor(30.0), torch.tensor(20.0), 10))
    event = meter.event(state, 0.6, 1e-3, 1.0)
    assert (event["utilization"], event["tokens_per_second"]) == (20.0, 20)
    unmeasured = Meter(state, peak=0.0)
    unmeasured.add(Loss(torch.tensor(30.0), torch.tensor(20.0), 10))
    state.seconds += 1
    assert "utilization" not in unmeasured.event(state, 0.7, 1e-3, 1.0)


def test_the_real_peak_is_above_nothing_and_utilization_is_in_percent() -> None:
    assert matrix_product_peak(torch.device("cpu"), torch.float32) > 1e6
    assert utilization(5 * 10**9, 10.0, 1e9) == 50.0


def test_measuring_takes_nothing_from_the_random_numbers_of_training() -> None:
    """It happens after a resumed run has its random state back."""
    torch.manual_seed(1)
    before = torch.get_rng_state()
    matrix_product_rate(torch.device("cpu"), torch.float32, (8, 8, 8))
    assert torch.equal(torch.get_rng_state(), before)
