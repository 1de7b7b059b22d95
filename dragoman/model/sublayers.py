"""Sublayers of a training step on a CPU with matrix units: a linear map is a call of products.cpp.

The call takes along what stands around the product: the normalization before it, and bias, ReLU,
dropout and the residual sum behind it. The call of its backward pass gives all gradients. Where
there are no such units the parts of layers.py and attention.py compute the same one by one.

Shapes: R packed rows, K inputs and N outputs of a map, D d_model, H heads.
"""

import ctypes
import functools
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from dragoman.model.attention import MultiHeadAttention
from dragoman.model.fused import draw_seed, ragged_attention
from dragoman.model.kernels import kernels, usable
from dragoman.model.layers import LAYER_NORM_EPSILON, FeedForward, Residual
from dragoman.model.layout import Ragged

_BLOCK = 32  # rows, inputs and outputs are multiples of it
_POINTER, _LONG, _FLOAT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float


class _Map(ctypes.Structure):
    """`Linear` of products.cpp."""

    _fields_ = (
        *((name, _LONG) for name in ("rows", "inputs", "outputs")),
        *((name, _POINTER) for name in ("x", "norm_weight", "norm_bias", "statistics")),
        *((name, _POINTER) for name in ("weight", "bias", "residual", "y")),
        *(("epsilon", _FLOAT), ("rate", _FLOAT), ("seed", ctypes.c_uint64)),
        ("relu", ctypes.c_int32),
        *((name, _POINTER) for name in ("gradient", "around", "x_gradient")),
        *((name, _POINTER) for name in ("weight_gradient", "bias_gradient", "norm_gradient")),
    )


def _call(function: str, parts: dict[str, Tensor | float | None]) -> None:
    given = {
        name: part.data_ptr() if isinstance(part, Tensor) else part
        for name, part in parts.items()
        if part is not None
    }
    getattr(kernels().functions, function)(ctypes.byref(_Map(**given)))


class Behind(NamedTuple):
    """What is done to the sum of product and bias, before the residual sum."""

    relu: bool
    rate: float  # of dropout


class _Linear(torch.autograd.Function):
    """Gives y, and x again for what goes around the map: its gradient is then added here.

    ReLU and a residual sum exclude each other: where ReLU is open is read off y.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        norm_weight: Tensor | None,
        norm_bias: Tensor | None,
        residual: Tensor | None,
        behind: Behind,
    ) -> tuple[Tensor, Tensor]:
        (rows, inputs), outputs = x.shape, weight.shape[0]
        parts = {
            **{"rows": rows, "inputs": inputs, "outputs": outputs, "epsilon": LAYER_NORM_EPSILON},
            **{"x": x.contiguous(), "norm_weight": norm_weight, "norm_bias": norm_bias},
            "statistics": None if norm_weight is None else torch.empty(rows, 2),
            **{"weight": weight.contiguous(), "bias": bias},
            **{"relu": behind.relu, "rate": behind.rate, "seed": draw_seed(behind.rate)},
        }
        y = x.new_empty(rows, outputs)
        added = None if residual is None else residual.contiguous()
        _call("linear_forward", parts | {"residual": added, "y": y})
        ctx.parts, ctx.added = parts, residual is not None
        ctx.save_for_backward(y if behind.relu else None)
        ctx.set_materialize_grads(False)
        return y, x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, around: Tensor | None) -> tuple[Tensor | None, ...]:
        parts, (y,) = ctx.parts, ctx.saved_tensors
        ctx.parts = None  # frees what it holds; a second backward pass is an error of autograd's
        gradient, x, weight = gradient.contiguous(), parts["x"], parts["weight"]
        found = {
            "x_gradient": torch.empty_like(x),
            "weight_gradient": torch.empty_like(weight) if ctx.needs_input_grad[1] else None,
            "bias_gradient": None if parts["bias"] is None else torch.empty_like(parts["bias"]),
            "norm_gradient": None if parts["statistics"] is None else torch.empty(2, x.shape[1]),
        }
        given = {
            "y": y,
            "gradient": gradient,
            "around": None if around is None else around.contiguous(),
        }
        _call("linear_backward", parts | found | given)
        norms = (None, None) if found["norm_gradient"] is None else found["norm_gradient"]
        to_map = (found["x_gradient"], found["weight_gradient"], found["bias_gradient"])
        return *to_map, *norms, gradient if ctx.added else None, None


linear = cast(Callable[..., tuple[Tensor, Tensor]], _Linear.apply)


def matrix_units(x: Tensor, *widths: int) -> bool:
    """Whether products.cpp can take packed rows (R, D) through maps of these widths."""
    return (
        x.dtype == torch.bfloat16
        and x.dim() == 2
        and all(size % _BLOCK == 0 for size in (*x.shape, *widths))
        and usable(x)
        and _units_agree()
    )


@functools.cache
def _units_agree() -> bool:
    """Whether there are units and they compute what PyTorch does, on something small."""
    if not kernels().matrix_units:
        return False
    wave = torch.linspace(-3, 3, 64 * 32).sin()
    x, weight = wave.view(64, 32).bfloat16().requires_grad_(), wave.view(64, 32).requires_grad_()
    with torch.enable_grad():
        y, _ = linear(x, weight, None, None, None, None, Behind(False, 0.0))
        expected = torch.nn.functional.linear(x.float(), weight)
    ours = torch.autograd.grad(y, (x, weight), torch.ones_like(y))
    theirs = torch.autograd.grad(expected, (x, weight), torch.ones_like(expected))
    pairs = zip((y, *ours), (expected, *theirs), strict=True)
    return all(torch.allclose(one.float(), two.float(), rtol=2e-2, atol=0.1) for one, two in pairs)


def attend(
    x: Tensor,
    residual: Residual,
    attention: MultiHeadAttention,
    memory: Tensor | None,
    ragged: Ragged,
) -> Tensor:
    """The sublayer of attention of packed rows to themselves or `memory_rows`: (R, D) -> (R, D)."""
    width = attention.heads * attention.d_k
    if not (residual.training and matrix_units(x, width)):
        attended = attention.attend_rows(residual.before(x), memory, ragged)
        return residual.after(x, attended)
    weight: Tensor = attention.in_projection.weight
    if memory is not None:
        weight = weight[:width]
    queries, x = linear(x, weight, None, *_norm_before(residual), None, Behind(False, 0.0))
    joined = ragged_attention(queries, memory, ragged, attention.heads, attention.dropout_rate)
    behind = Behind(False, residual.dropout_rate)
    total, _ = linear(joined, attention.out_projection.weight, None, None, None, x, behind)
    return total if residual.pre_norm else residual.norm(total)


def transform(x: Tensor, residual: Residual, feed_forward: FeedForward) -> Tensor:
    """The sublayer of the feed-forward network: (..., D) -> (..., D)."""
    inner, outer = feed_forward.inner, feed_forward.outer
    if not (residual.training and matrix_units(x, inner.weight.shape[0], outer.weight.shape[1])):
        return residual.after(x, feed_forward(residual.before(x)))
    gated = feed_forward.gated
    behind = Behind(not gated, 0.0 if gated else feed_forward.dropout_rate)
    hidden, x = linear(x, inner.weight, inner.bias, *_norm_before(residual), None, behind)
    if gated:
        hidden = feed_forward.activate(hidden)
    behind = Behind(False, residual.dropout_rate)
    total, _ = linear(hidden, outer.weight, outer.bias, None, None, x, behind)
    return total if residual.pre_norm else residual.norm(total)


def memory_rows(memory: Tensor, attention: MultiHeadAttention) -> Tensor:
    """`attention.memory_rows`: (R, D) -> (R, 2 * H * K)."""
    width = attention.heads * attention.d_k
    if not (attention.training and matrix_units(memory, width)):
        return attention.memory_rows(memory)
    weight = attention.in_projection.weight[width:]
    return linear(memory, weight, None, None, None, None, Behind(False, 0.0))[0]


def _norm_before(residual: Residual) -> tuple[Tensor | None, Tensor | None]:
    return (residual.norm.weight, residual.norm.bias) if residual.pre_norm else (None, None)
