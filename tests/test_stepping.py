"""The functions of decoding.cpp and the cached step that calls them, held against PyTorch's."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.config import ModelConfig
from dragoman.decoding.log_probs import LogProbs, largest, log_sums
from dragoman.model import stepping
from dragoman.model.kernels import kernels
from dragoman.model.transformer import Transformer

needs_kernels = pytest.mark.skipif(kernels().library is None, reason=kernels().reason)

SMALL = ModelConfig(d_model=64, d_ff=96, heads=2, encoder_layers=2, decoder_layers=2, dropout=0.0)


@needs_kernels
@settings(deadline=None, max_examples=30)
@given(
    seed=st.integers(0, 10**6),
    sixteens=st.integers(1, 40),
    count=st.integers(1, 16),
    levels=st.sampled_from([3, 10**6]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
)
def test_largest_values_and_sums_are_pytorchs(
    seed: int, sixteens: int, count: int, levels: int, dtype: torch.dtype
) -> None:
    generator = torch.Generator().manual_seed(seed)
    values = torch.randint(levels, (3, 16 * sixteens), generator=generator) / levels * 20 - 10
    values = values.to(dtype)
    values[0, 1:] = -math.inf
    values[1] = -math.inf
    best, places = largest(values, count)
    assert torch.equal(best, values.float().topk(count, dim=1).values)
    assert torch.equal(values.float().gather(1, places), best)
    assert all(len(set(row)) == count for row in places.tolist())
    assert torch.allclose(log_sums(values), values.float().logsumexp(dim=1), atol=1e-5)


def test_more_than_the_kernel_selects_comes_from_pytorch() -> None:
    values = torch.arange(4096.0).repeat(2, 1)
    best, places = largest(values, 17)
    assert best.tolist() == places.tolist() == [list(range(4095, 4078, -1))] * 2


def test_log_probabilities_are_the_softmax() -> None:
    logits = torch.randn(5, 48, generator=torch.Generator().manual_seed(1))
    expected = logits.log_softmax(dim=1)
    found = LogProbs.of(logits)
    assert torch.allclose(found.dense(), expected, atol=1e-6)
    assert torch.allclose(found.of_symbol(7), expected[:, 7], atol=1e-6)
    values, symbols = found.top(3)
    assert torch.allclose(values, expected.topk(3, dim=1).values, atol=1e-6)
    assert torch.equal(symbols, expected.topk(3, dim=1).indices)


@needs_kernels
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 0.05)])
@pytest.mark.parametrize(("heads", "window"), [(1, None), (2, None), (4, None), (2, 1), (2, 2)])
def test_steps_are_those_of_the_padded_cache(
    dtype: torch.dtype, tolerance: float, heads: int, window: int | None
) -> None:
    """Of heads of 64, 32 and 16 features, with and without a window."""
    torch.manual_seed(3)
    sizes = SMALL.model_copy(update={"heads": heads, "window": window})
    model = Transformer(sizes, 48).eval().to(dtype)
    model.embedding.compute_dtype = dtype
    beams = 3
    source = torch.randint(3, 48, (4, 9))
    for row, length in enumerate((9, 2, 5, 1)):
        source[row, length:] = 0
    with torch.inference_mode():
        assert stepping.possible(model)
        cache = stepping.start(model, source, beams)
        padded = model.start(model.encode(source), source, beams)
        rows = torch.arange(12)
        for kept in ([0, 1, 2, 3], [0, 2, 3], [0, 1, 2], [1]):
            ids = torch.randint(3, 48, (len(rows),))
            found = stepping.step_states(model, ids, cache)[: len(rows)]
            expected = model.step_states(ids.unflatten(0, (-1, beams)), padded).flatten(0, 1)
            assert torch.allclose(found.float(), expected.float(), atol=tolerance, rtol=tolerance)
            parents = torch.randint(beams, (len(kept), beams))
            rows = (torch.tensor(kept)[:, None] * beams + parents).flatten()
            cache.reorder(rows)
            padded.reorder(rows)


@needs_kernels
def test_a_sentence_is_the_same_to_the_bit_beside_others() -> None:
    """No padding, and products of 16 rows at least: nothing depends on the neighbors."""
    torch.manual_seed(4)
    model = Transformer(SMALL, 48).eval()
    source = torch.randint(3, 48, (20, 12))
    source[1:, 7:] = 0
    with torch.inference_mode():
        together, alone = (stepping.start(model, part, 2) for part in (source, source[3:4, :7]))
        ids = torch.randint(3, 48, (40,))
        for _ in range(3):
            states = stepping.step_states(model, ids, together)[6:8]
            assert torch.equal(states, stepping.step_states(model, ids[6:8], alone)[:2])
