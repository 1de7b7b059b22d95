"""Restricted self-attention and attention without a mask of N x N, held against masks of N x N."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.attention.flex_attention import flex_attention
from torch.testing import assert_close

from dragoman.config import ModelConfig
from dragoman.decoding.converted import refusal
from dragoman.model import attention as attention_module
from dragoman.model import stacks
from dragoman.model.attention import attention, self_attention
from dragoman.model.sequence_model import SequenceModel
from dragoman.model.stacks import DecoderOnly, EncoderOnly
from dragoman.model.transformer import AttentionMaps, Transformer
from dragoman.model.windowed import Sight
from dragoman.training.loss import cross_entropy

SIZES: dict[str, Any] = {"d_model": 32, "d_ff": 24, "heads": 2, "dropout": 0.0}
WINDOWS = pytest.mark.parametrize("window", [None, 5, 70])
KINDS = pytest.mark.parametrize("kind", [Transformer, DecoderOnly, EncoderOnly])


def band(lengths: list[int], causal: bool, window: int | None) -> Tensor:
    """By definition: (B, 1, N, N)."""
    key = torch.arange(max(lengths))
    query, length = key[:, None], torch.tensor(lengths)[:, None, None]
    seen = (key < length).expand(-1, len(key), -1)
    seen = seen & (key <= query) if causal else seen
    return (seen if window is None else seen & ((key - query).abs() <= window))[:, None]


def make_ids(lengths: list[int]) -> Tensor:
    ids = torch.randint(4, 23, (len(lengths), max(lengths)))
    return ids * (torch.arange(max(lengths)) < torch.tensor(lengths)[:, None])


@pytest.mark.parametrize("fused", [False, True])
@settings(deadline=None, max_examples=25)
@given(
    lengths=st.lists(st.integers(1, 200), min_size=1, max_size=3),
    causal=st.booleans(),
    window=st.none() | st.integers(1, 150),
    seed=st.integers(0, 99),
)
def test_what_is_seen_is_full_attention_under_the_band(
    fused: bool, lengths: list[int], causal: bool, window: int | None, seed: int
) -> None:
    """Values and gradients, in blocks or fused; of real positions: padding is never read."""
    torch.manual_seed(seed)
    ids = make_ids(lengths)
    sight, mask = Sight.of(ids, causal, window), band(lengths, causal, window)
    operands = [
        torch.randn(len(lengths), 2, max(lengths), 4, dtype=torch.float64, requires_grad=True)
        for _ in range(3)
    ]
    real = (ids != 0)[:, None, :, None]
    weights = torch.randn(operands[0].shape) * real
    results = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attention_module, "_EXPLICIT_SCORES", 0 if fused else 128 * 128)
        for output in (self_attention((*operands,), sight), attention(*operands, mask)):
            gradients = torch.autograd.grad((output * weights).sum(), operands)
            results.append([output * real, *gradients])
    assert all(tensor.isfinite().all() for tensor in results[0])
    assert_close(results[0], results[1])
    matrix = sight.matrix(max(lengths), ids.device)
    if matrix is not None:
        found = matrix & torch.ones_like(mask)
        assert torch.equal(found & real, mask & real)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:flex_attention called without")
@pytest.mark.parametrize("causal", [False, True])
def test_the_mask_of_a_gpu_is_the_band_too(causal: bool) -> None:
    lengths, window = [150, 40], 9
    ids = make_ids(lengths)
    sight = Sight.of(ids, causal, window)
    operands = torch.randn(3, 2, 2, 150, 16).unbind(0)
    found = flex_attention(*operands, block_mask=sight.block_mask(150, ids.device))
    real = (ids != 0)[:, None, :, None]
    assert_close(found * real, attention(*operands, band(lengths, causal, window)) * real)


def test_blocks_hold_a_few_windows_for_each_query() -> None:
    sight = Sight(window=100)
    query, key, _ = sight.in_blocks((*torch.randn(3, 1, 2, 950, 4).unbind(0),))
    assert query.shape == (10, 2, 100, 4) and key.shape == (10, 2, 300, 4)
    assert sight.blocks(950, query.device).shape == (1, 10, 100, 300)


def make_model(kind: type[SequenceModel], window: int | None, **changes: Any) -> SequenceModel:
    torch.manual_seed(3)
    sizes = SIZES | {"encoder_layers": 2, "decoder_layers": 2, "max_positions": 400}
    return kind(ModelConfig(**(sizes | changes), window=window), 23)


@KINDS
@WINDOWS
@pytest.mark.parametrize("longest", [30, 140, 300])
def test_packed_rows_are_the_padded_states(
    kind: type[SequenceModel], window: int | None, longest: int
) -> None:
    model = make_model(kind, window).train()
    source, target = make_ids([longest, 9, 20]), make_ids([11, longest - 3, 2])
    rows, packed = model.packed_hidden(source, target)
    states = model.hidden(source, target)
    assert_close(rows[: packed.tokens], states[target != 0], rtol=1e-4, atol=1e-4)


@KINDS
@WINDOWS
@pytest.mark.parametrize("d_k", [16, 12])  # of which the kernels take one
def test_a_model_computes_what_it_does_under_a_mask_of_n_by_n(
    kind: type[SequenceModel], window: int | None, d_k: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Loss and gradients; the masks are made by definition and put in the place of a sight."""
    model = make_model(kind, window, d_k=d_k, d_v=d_k).train()
    lengths = [140, 60]
    source, target = make_ids(lengths), make_ids(lengths)

    def gradients() -> list[Tensor]:
        model.zero_grad()
        rows = model.hidden(source, target).flatten(0, 1)
        loss = cross_entropy(rows, model.embedding.weight, target.flatten(), 0.1, 0).smoothed
        loss.backward()
        grads = [parameter.grad for parameter in model.parameters()]
        return [loss.detach(), *(grad for grad in grads if grad is not None)]

    found = gradients()
    monkeypatch.setattr(Sight, "of", lambda ids, causal, window: band(lengths, causal, window))
    assert_close(found, gradients(), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("window", [1, 3, 8])
def test_a_step_sees_the_last_positions_only(window: int) -> None:
    """Cached steps of several beams are the teacher-forced pass; maps are zero outside the band."""
    model = make_model(Transformer, window).eval()
    assert isinstance(model, Transformer)
    source, target = make_ids([12, 7]), make_ids([9, 9])
    with torch.no_grad():
        expected = model.hidden(source, target)
        cache = model.start(model.encode(source), source, beams=2)
        for place in range(9):
            ids = torch.stack([target[:, place], 4 + target[:, place] % 5], dim=1)
            states = model.step_states(ids, cache)
            assert_close(states[:, 0], expected[:, place], rtol=1e-4, atol=1e-4)
            assert cache.ancestors.shape[2] <= 2 * (window + 1)
        maps = AttentionMaps([], [], [])
        states = model.decode(target, model.encode(source, maps), source, maps)
    assert_close(states, expected, rtol=1e-4, atol=1e-4)
    for weights, seen in (
        (maps.encoder[0], band([12, 7], False, window)),
        (maps.decoder[0], band([9, 9], True, window)),
    ):
        assert not weights.masked_select(~seen).any()


@WINDOWS
def test_a_beginning_is_read_in_pieces(window: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """And what follows it, of texts of different lengths, as the teacher-forced pass reads them."""
    monkeypatch.setattr(stacks, "_PIECE", 4)
    model = make_model(DecoderOnly, window).eval()
    assert isinstance(model, DecoderOnly)
    lengths = 11, 6
    beginnings, following = make_ids([*lengths]), make_ids([3, 3])
    with torch.no_grad():
        cache = model.start(2)
        first, later = model.step_states(beginnings, cache), model.step_states(following, cache)
        for row, length in enumerate(lengths):
            whole = torch.cat([beginnings[row, :length], following[row]])[None]
            expected = model.hidden(whole, whole)[0]
            assert_close(first[row, :length], expected[:length], rtol=1e-4, atol=1e-4)
            assert_close(later[row], expected[length:], rtol=1e-4, atol=1e-4)


def test_ctranslate2_refuses_a_window() -> None:
    assert "model.window" in str(refusal(ModelConfig(window=5)))
    assert refusal(ModelConfig()) is None
