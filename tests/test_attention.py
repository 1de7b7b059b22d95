"""Attention (sections 3.2.1 and 3.2.2) against PyTorch's own and against the formula.

Shapes: B batch, H heads, Q queries, M keys and values, K d_k, W d_v, D d_model.
"""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from torch.testing import assert_close

import dragoman
from dragoman.model.attention import MultiHeadAttention, attention, causal_mask
from dragoman.model.layout import PADDED

# Absolute and relative. bfloat16 keeps 8 bits; the reference is computed in float64.
TOLERANCES = {torch.float32: 1e-5, torch.bfloat16: 3e-2}
SHORT, LONG = (5, 7), (300, 310)  # (Q, M); the long one is over the switch to the fused kernel


def random_inputs(
    queries: int, keys: int, dtype: torch.dtype = torch.float32, d_k: int = 8, d_v: int = 8
) -> list[Tensor]:
    generator = torch.Generator().manual_seed(queries * 1000 + keys)
    shapes = ((2, 3, queries, d_k), (2, 3, keys, d_k), (2, 3, keys, d_v))
    return [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]


def make_mask(kind: str, queries: int, keys: int) -> Tensor | None:
    generator = torch.Generator().manual_seed(keys)
    if kind == "none":
        return None
    if kind == "causal":
        return torch.ones(queries, keys, dtype=torch.bool).tril()[None, None]
    if kind == "padding":
        lengths = torch.tensor([keys, keys // 2])
        return (torch.arange(keys) < lengths[:, None])[:, None, None, :]
    mask = torch.rand(2, 3, queries, keys, generator=generator) < 0.4
    mask[..., 0] = True
    return mask


def output_and_gradients(function: object, inputs: list[Tensor]) -> list[Tensor]:
    """The output and the gradients of all inputs, for an uneven weighting of the output."""
    leaves = [tensor.detach().clone().requires_grad_() for tensor in inputs]
    output = function(*leaves)  # type: ignore[operator]
    weighting = torch.linspace(-1, 1, output.numel()).view(output.shape).to(output.dtype)
    gradients = torch.autograd.grad((output * weighting).sum(), leaves)
    return [output.detach(), *gradients]


@pytest.mark.parametrize("d_v", [8, 5], ids=["d_v=d_k", "d_v<d_k"])
@pytest.mark.parametrize("mask_kind", ["none", "causal", "padding", "random"])
@pytest.mark.parametrize("lengths", [SHORT, LONG], ids=["short", "long"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_attention_is_pytorchs_forward_and_backward(
    dtype: torch.dtype, lengths: tuple[int, int], mask_kind: str, d_v: int
) -> None:
    inputs, mask = random_inputs(*lengths, dtype, d_v=d_v), make_mask(mask_kind, *lengths)
    ours = output_and_gradients(lambda q, k, v: attention(q, k, v, mask), inputs)
    theirs = output_and_gradients(
        lambda q, k, v: scaled_dot_product_attention(q, k, v, attn_mask=mask),
        [tensor.double() for tensor in inputs],
    )
    tolerance = TOLERANCES[dtype]
    for mine, reference in zip(ours, theirs, strict=True):
        assert mine.dtype == dtype
        assert_close(mine.double(), reference, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("mask_kind", ["none", "causal", "padding", "random"])
@pytest.mark.parametrize("lengths", [SHORT, LONG], ids=["short", "long"])
def test_asking_for_weights_changes_no_output(lengths: tuple[int, int], mask_kind: str) -> None:
    """With weights the explicit formula runs, without them the fused kernel when it is long."""
    inputs, mask = random_inputs(*lengths), make_mask(mask_kind, *lengths)
    explicit = output_and_gradients(
        lambda q, k, v: attention(q, k, v, mask, return_weights=True)[0], inputs
    )
    plain = output_and_gradients(lambda q, k, v: attention(q, k, v, mask), inputs)
    for one, other in zip(explicit, plain, strict=True):
        assert_close(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("lengths", [SHORT, LONG], ids=["short", "long"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_a_query_that_may_see_nothing_gets_zeros(
    dtype: torch.dtype, lengths: tuple[int, int]
) -> None:
    inputs = random_inputs(*lengths, dtype)
    mask = torch.ones(2, 1, *lengths, dtype=torch.bool)
    mask[1, :, 2] = False
    output, *gradients = output_and_gradients(lambda q, k, v: attention(q, k, v, mask), inputs)
    assert bool((output[1, :, 2] == 0).all())
    assert all(bool(gradient.isfinite().all()) for gradient in gradients)
    assert bool((gradients[0][1, :, 2] == 0).all())
    _, weights = attention(*inputs, mask, return_weights=True)
    assert bool((weights[1, :, 2] == 0).all())
    unmasked = attention(*inputs)
    tolerance = TOLERANCES[dtype]
    assert_close(output[0], unmasked[0], rtol=tolerance, atol=tolerance)


@settings(deadline=None, max_examples=60)
@given(
    batch=st.sampled_from([(), (2,), (2, 3)]),
    queries=st.integers(1, 9),
    keys=st.integers(1, 9),
    d_k=st.integers(1, 9),
    d_v=st.integers(1, 9),
    masked=st.booleans(),
    seed=st.integers(0, 2**31),
)
def test_attention_is_equation_1_for_every_shape(
    batch: tuple[int, ...], queries: int, keys: int, d_k: int, d_v: int, masked: bool, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    query = torch.randn(*batch, queries, d_k, generator=generator)
    key = torch.randn(*batch, keys, d_k, generator=generator)
    value = torch.randn(*batch, keys, d_v, generator=generator)
    mask = torch.rand(*batch, queries, keys, generator=generator) < 0.6 if masked else None
    output, weights = attention(query, key, value, mask, return_weights=True)
    scores = torch.einsum("...qk,...mk->...qm", query.double(), key.double()) / math.sqrt(d_k)
    numerators = scores.exp() if mask is None else scores.exp() * mask
    expected = numerators / numerators.sum(-1, keepdim=True).clamp(min=1e-30)
    assert output.shape == (*batch, queries, d_v)
    assert_close(weights.double(), expected, rtol=1e-5, atol=1e-6)
    assert_close(output.double(), expected @ value.double(), rtol=1e-4, atol=1e-5)


def test_the_smallest_use() -> None:
    x = torch.randn(1, 5, 64)
    output = dragoman.attention(x, x, x)
    assert output.shape == (1, 5, 64)
    assert_close(output, scaled_dot_product_attention(x, x, x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("lengths", [(40, 40), LONG], ids=["short", "long"])
def test_dropout_falls_on_the_weights_only(lengths: tuple[int, int]) -> None:
    torch.manual_seed(3)
    query, key, _ = random_inputs(*lengths)
    value = torch.eye(lengths[1]).expand(2, 3, -1, -1)  # so that the output is the weights
    dropped = attention(query, key, value, dropout_rate=0.25)
    output, weights = attention(query, key, value, dropout_rate=0.25, return_weights=True)
    assert_close(weights, attention(query, key, value), rtol=1e-5, atol=1e-6)
    for result in (dropped, output):
        kept = result != 0
        assert abs(float(kept.float().mean()) - 0.75) < 0.03
        assert_close(result[kept], weights[kept] / 0.75, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("length", [1, 2, 7])
def test_the_causal_mask_lets_a_position_see_itself_and_those_before(length: int) -> None:
    mask = causal_mask(length, torch.device("cpu"))
    expected = [[key <= query for key in range(length)] for query in range(length)]
    assert mask.shape == (1, 1, length, length)
    assert mask[0, 0].tolist() == expected


def pair_of_modules(d_model: int, heads: int) -> tuple[MultiHeadAttention, nn.MultiheadAttention]:
    torch.manual_seed(d_model + heads)
    ours = MultiHeadAttention(d_model, heads, d_model // heads, d_model // heads, 0.0)
    theirs = nn.MultiheadAttention(d_model, heads, bias=False, batch_first=True)
    with torch.no_grad():
        theirs.in_proj_weight.copy_(ours.in_projection.weight)
        theirs.out_proj.weight.copy_(ours.out_projection.weight)
    return ours, theirs


@pytest.mark.parametrize("heads", [1, 2, 8])
@pytest.mark.parametrize("masked", [False, True])
def test_self_attention_is_torch_multihead_attention(heads: int, masked: bool) -> None:
    ours, theirs = pair_of_modules(32, heads)
    x = torch.randn(3, 6, 32)
    mask = causal_mask(6, x.device) if masked else None
    maps: list[Tensor] = []
    output = ours.attend(ours.project_self(x, PADDED), mask, PADDED, maps)
    expected, weights = theirs(
        x, x, x, attn_mask=~mask[0, 0] if mask is not None else None, average_attn_weights=False
    )
    assert_close(output, expected, rtol=1e-5, atol=1e-5)
    assert_close(maps[0], weights, rtol=1e-5, atol=1e-5)
    assert_close(
        ours.attend(ours.project_self(x, PADDED), mask, PADDED, None),
        expected,
        rtol=1e-5,
        atol=1e-5,
    )


def test_attention_over_a_memory_is_torch_multihead_attention() -> None:
    ours, theirs = pair_of_modules(32, 4)
    x, memory = torch.randn(3, 5, 32), torch.randn(3, 7, 32)
    real = torch.arange(7) < torch.tensor([7, 4, 1])[:, None]
    output = ours.attend(
        (ours.project_query(x, PADDED), *ours.project_memory(memory, PADDED)),
        real[:, None, None, :],
        PADDED,
        None,
    )
    expected, _ = theirs(x, memory, memory, key_padding_mask=~real)
    assert_close(output, expected, rtol=1e-5, atol=1e-5)


@settings(deadline=None, max_examples=25)
@given(
    heads=st.integers(1, 4), d_k=st.integers(1, 6), d_v=st.integers(1, 6), seed=st.integers(0, 99)
)
def test_heads_of_any_width_are_the_formula_of_section_3_2_2(
    heads: int, d_k: int, d_v: int, seed: int
) -> None:
    torch.manual_seed(seed)
    module = MultiHeadAttention(10, heads, d_k, d_v, 0.0)
    x = torch.randn(2, 4, 10)
    w_query, w_key, w_value = module.in_projection.weight.split(
        [heads * d_k, heads * d_k, heads * d_v]
    )
    outputs = []
    for head in range(heads):
        query = x @ w_query[head * d_k : (head + 1) * d_k].T
        key = x @ w_key[head * d_k : (head + 1) * d_k].T
        value = x @ w_value[head * d_v : (head + 1) * d_v].T
        outputs.append(torch.softmax(query @ key.mT / math.sqrt(d_k), dim=-1) @ value)
    expected = torch.cat(outputs, dim=-1) @ module.out_projection.weight.T
    assert_close(
        module.attend(module.project_self(x, PADDED), None, PADDED, None),
        expected,
        rtol=1e-4,
        atol=1e-5,
    )
    assert module.in_projection.bias is None and module.out_projection.bias is None
