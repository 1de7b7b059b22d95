"""The parts that are not attention: linear maps, dropout, normalization, feed-forward.

Shapes: B batch, T positions, D d_model, F d_ff.

Weights are float32 masters; every part computes in the dtype of its input, so that one model
trains in bfloat16 and translates in float32 without a copy of its code.
"""

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from dragoman.model import fused
from dragoman.model.kernels import usable

LAYER_NORM_EPSILON = 1e-6  # tensor2tensor's; the paper states none


class Linear(nn.Module):
    """x W^T + b in x's dtype; Xavier-uniform weights, zero bias."""

    def __init__(self, inputs: int, outputs: int, bias: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs))
        self.bias = nn.Parameter(torch.zeros(outputs)) if bias else None
        nn.init.xavier_uniform_(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        """(..., inputs) -> (..., outputs)."""
        bias = None if self.bias is None else self.bias.to(x.dtype)
        return functional.linear(x, self.weight.to(x.dtype), bias)


class LayerNorm(nn.Module):
    """Layer normalization (section 3.1; Ba et al. 2016) in x's dtype."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        """(..., width) -> the same."""
        weight: Tensor = self.weight
        bias: Tensor = self.bias
        if self.training and usable(x):
            return fused.layer_norm(x, weight, bias, LAYER_NORM_EPSILON)
        if x.device.type != "cpu":  # a CPU's kernel takes float32 weights beside bfloat16
            weight, bias = weight.to(x.dtype), bias.to(x.dtype)
        return functional.layer_norm(x, x.shape[-1:], weight, bias, LAYER_NORM_EPSILON)


def dropout(x: Tensor, rate: float) -> Tensor:
    """Dropout of section 5.4: zero a share `rate` of x, scale the rest by 1 / (1 - rate).

    On a CPU the random decisions are the bytes of 64-bit random integers, eight times fewer draws
    than PyTorch's; the rate is then rounded to a multiple of 1/256.
    """
    if rate == 0.0:
        return x
    if x.device.type != "cpu":
        return functional.dropout(x, rate)
    if usable(x):
        return fused.add_dropout(None, x, rate)
    return _byte_dropout(x, rate)


def add_dropout(x: Tensor, y: Tensor, rate: float) -> Tensor:
    """x + dropout(y) in one pass less; shapes and dtypes equal."""
    if rate == 0.0 or x.device.type != "cpu":
        return x + dropout(y, rate)
    if usable(x):
        return fused.add_dropout(x, y, rate)
    return _add_byte_dropout(x, y, rate)


_BITS = {
    torch.bfloat16: torch.int16,
    torch.float16: torch.int16,
    torch.float32: torch.int32,
    torch.float64: torch.int64,
}


def keep_mask(x: Tensor, rate: float) -> tuple[Tensor, float]:
    """A random mask of x's shape, all bits set = keep, none = drop, and 1 / (1 - rounded rate).

    Integers as wide as x's elements: integer arithmetic is vectorized where comparisons and
    conversions of booleans are not.
    """
    threshold = min(max(round(rate * 256), 1), 255)
    bits = _BITS[x.dtype]
    draws = torch.empty((x.numel() + 7) // 8, dtype=torch.int64).random_(-(2**63), None)
    random_bytes = draws.view(torch.uint8)[: x.numel()].view(x.shape)
    # byte >= threshold: the difference is negative, and its sign fills the word.
    mask = random_bytes.to(bits).neg_().add_(threshold - 1)
    return mask.bitwise_right_shift_(8 * bits.itemsize - 1), 256 / (256 - threshold)


def _masked(x: Tensor, mask: Tensor) -> Tensor:
    return (x.contiguous().view(mask.dtype) & mask).view(x.dtype)


class _ByteDropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, rate: float) -> Tensor:
        mask, ctx.scale = keep_mask(x, rate)
        ctx.save_for_backward(mask)
        return _masked(x, mask).mul_(ctx.scale)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (mask,) = ctx.saved_tensors
        return _masked(gradient, mask).mul_(ctx.scale), None


class _AddByteDropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor, rate: float) -> Tensor:
        mask, ctx.scale = keep_mask(y, rate)
        ctx.save_for_backward(mask)
        return torch.add(x, _masked(y, mask), alpha=ctx.scale)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        (mask,) = ctx.saved_tensors
        return gradient, _masked(gradient, mask).mul_(ctx.scale), None


_byte_dropout = cast(Callable[..., Tensor], _ByteDropout.apply)
_add_byte_dropout = cast(Callable[..., Tensor], _AddByteDropout.apply)


class FeedForward(nn.Module):
    """max(0, x W_1 + b_1) W_2 + b_2, Equation 2.

    Gated: (SiLU(x W_1 + b_1) * (x V + c)) W_2 + b_2, SwiGLU of Shazeer 2020 (arXiv 2002.05202) with
    biases; W_1 and V are the rows of one matrix.
    """

    def __init__(self, d_model: int, d_ff: int, dropout_rate: float, gated: bool = False) -> None:
        super().__init__()
        self.gated = gated
        self.inner = Linear(d_model, 2 * d_ff if gated else d_ff)
        self.outer = Linear(d_ff, d_model)
        self.dropout_rate = dropout_rate
        if gated:
            for matrix in self.inner.weight.detach().chunk(2):
                nn.init.xavier_uniform_(matrix)

    def forward(self, x: Tensor) -> Tensor:
        """(..., D) -> (..., D)."""
        output: Tensor = self.outer(self.activate(self.inner(x)))
        return output

    def activate(self, hidden: Tensor) -> Tensor:
        """What stands between the linear maps: (..., F), gated (..., 2 F) -> (..., F)."""
        rate = self.dropout_rate if self.training else 0.0
        if self.gated:
            first, second = hidden.chunk(2, dim=-1)
            if usable(first):
                return dropout(fused.gate(hidden), rate)
            return dropout(functional.silu(first) * second, rate)
        if self.training and usable(hidden):
            return fused.relu_dropout(hidden, rate)
        return dropout(hidden.relu(), rate)


class Residual(nn.Module):
    """Residual connection and normalization around a sublayer (sections 3.1 and 5.4).

    post (the paper): LayerNorm(x + Dropout(Sublayer(x))). pre: x + Dropout(Sublayer(LayerNorm(x))).
    Use: ``y = residual.before(x)``, ``x = residual.after(x, sublayer(y))``.
    """

    def __init__(self, d_model: int, dropout_rate: float, pre_norm: bool) -> None:
        super().__init__()
        self.norm = LayerNorm(d_model)
        self.dropout_rate = dropout_rate
        self.pre_norm = pre_norm

    def before(self, x: Tensor) -> Tensor:
        """What the sublayer reads."""
        return self.norm(x) if self.pre_norm else x

    def after(self, x: Tensor, output: Tensor) -> Tensor:
        """The sum, normalized when the norm comes after."""
        total = add_dropout(x, output, self.dropout_rate if self.training else 0.0)
        return total if self.pre_norm else self.norm(total)
