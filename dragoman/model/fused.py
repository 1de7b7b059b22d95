"""Operations of a training step on a CPU in one pass each, by the functions of kernels.cpp.

Each computes what the PyTorch operations named in its docstring compute, in float32 inside, and
gives the gradient too. The decisions of dropout come from a seed, drawn from PyTorch's generator:
the gradient draws them again instead of keeping them.

Shapes: R rows, D features, H heads, K head width, V vocabulary.
"""

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor

from dragoman.model.kernels import kernels
from dragoman.model.layout import Ragged


def draw_seed(rate: float) -> int:
    """Of the decisions of a dropout, from PyTorch's generator; 0 where none are made."""
    if rate == 0.0:
        return 0
    return int(torch.empty((), dtype=torch.int64).random_())


class _AddDropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor | None, y: Tensor, rate: float) -> Tensor:
        ctx.rate, ctx.seed, ctx.added = rate, draw_seed(rate), x is not None
        y, x = y.contiguous(), None if x is None else x.contiguous()
        output = torch.empty_like(y)
        kernels().call("add_dropout", y.dtype, y.numel(), x, y, rate, ctx.seed, output)
        return output

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor, None]:
        change = gradient.contiguous()
        masked = torch.empty_like(change)
        kernels().call(
            "add_dropout", change.dtype, change.numel(), None, change, ctx.rate, ctx.seed, masked
        )
        return gradient if ctx.added else None, masked, None


class _ReluDropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, rate: float) -> Tensor:
        ctx.rate, x = rate, x.contiguous()
        output = torch.empty_like(x)
        kernels().call("relu_dropout", x.dtype, x.numel(), x, rate, draw_seed(rate), output)
        ctx.save_for_backward(output)
        return output

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (output,) = ctx.saved_tensors
        gradient = gradient.contiguous()
        result = torch.empty_like(output)
        kernels().call(
            "relu_dropout_backward",
            output.dtype,
            output.numel(),
            output,
            gradient,
            ctx.rate,
            result,
        )
        return result, None


class _Gate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x, width = x.contiguous(), x.shape[-1] // 2
        output = x.new_empty(*x.shape[:-1], width)
        kernels().call("gate", x.dtype, output.numel() // width, width, x, output)
        ctx.save_for_backward(x)
        return output

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        gradient, width = gradient.contiguous(), x.shape[-1] // 2
        result = torch.empty_like(x)
        rows = gradient.numel() // width
        kernels().call("gate_backward", x.dtype, rows, width, x, gradient, result)
        return result


class _LayerNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, epsilon: float) -> Tensor:
        x = x.contiguous()
        width = x.shape[-1]
        rows = x.numel() // width
        output, statistics = torch.empty_like(x), torch.empty(rows, 2)
        kernels().call(
            "layer_norm", x.dtype, rows, width, epsilon, x, weight, bias, output, statistics
        )
        ctx.save_for_backward(x, weight, statistics)
        return output

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        x, weight, statistics = ctx.saved_tensors
        gradient = gradient.contiguous()
        result = torch.empty_like(x)
        changes = torch.empty_like(weight), torch.empty_like(weight)
        rows, width = statistics.shape[0], x.shape[-1]
        kernels().call(
            "layer_norm_backward",
            x.dtype,
            *(rows, width, x, weight, statistics, gradient, result, *changes),
        )
        return result, *changes, None


class _RaggedAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, queries: Tensor, memory: Tensor | None, ragged: Ragged, heads: int, rate: float
    ) -> Tensor:
        queries = queries.contiguous()
        memory = None if memory is None else memory.contiguous()
        ctx.ragged, ctx.heads, ctx.rate, ctx.seed = ragged, heads, rate, draw_seed(rate)
        rows, features = queries.shape
        width = features if memory is not None else features // 3
        output = queries.new_empty(rows, width)
        output[ragged.tokens :] = 0  # the spare rows
        log_sums = torch.empty(rows, heads)
        kernels().call(
            "attention_forward",
            queries.dtype,
            *(*_describe(ctx, queries, memory), output, log_sums),
        )
        ctx.save_for_backward(queries, memory, log_sums)
        return output

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor | None, None, None, None]:
        queries, memory, log_sums = ctx.saved_tensors
        gradient = gradient.contiguous()
        changes = torch.empty_like(queries), None if memory is None else torch.empty_like(memory)
        changes[0][ctx.ragged.tokens :] = 0
        if changes[1] is not None:
            changes[1][ctx.ragged.keys :] = 0
        query, key, value = _operands(*changes)
        kernels().call(
            "attention_backward",
            queries.dtype,
            *_describe(ctx, queries, memory),
            *(log_sums, gradient, query, key, value),
        )
        return *changes, None, None, None


def _operands(queries: Tensor, memory: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values as parts of what projections made."""
    if memory is None:
        query, key, value = queries.chunk(3, dim=-1)
        return query, key, value
    key, value = memory.chunk(2, dim=-1)
    return queries, key, value


def _describe(ctx: Any, queries: Tensor, memory: Tensor | None) -> list[Tensor | int | float]:
    """The arguments that the attention functions of kernels.cpp begin with."""
    query, key, value = _operands(queries, memory)
    ragged: Ragged = ctx.ragged
    sizes = len(ragged.query_starts) - 1, ctx.heads, query.shape[-1] // ctx.heads
    starts = ragged.query_starts, ragged.key_starts
    operands = query, query.stride(0), key, value, key.stride(0)
    return [*sizes, int(ragged.causal), *starts, *operands, ctx.rate, ctx.seed]


def add_dropout(x: Tensor | None, y: Tensor, rate: float) -> Tensor:
    """x + dropout(y), or dropout(y) alone."""
    return cast(Callable[..., Tensor], _AddDropout.apply)(x, y, rate)


def relu_dropout(x: Tensor, rate: float) -> Tensor:
    """dropout(relu(x))."""
    return cast(Callable[..., Tensor], _ReluDropout.apply)(x, rate)


def gate(x: Tensor) -> Tensor:
    """silu(a) * b of the halves a and b of the last dimension; each a multiple of WIDTH wide."""
    return cast(Callable[..., Tensor], _Gate.apply)(x)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, epsilon: float) -> Tensor:
    """torch.nn.functional.layer_norm over the last dimension; weight and bias are float32."""
    return cast(Callable[..., Tensor], _LayerNorm.apply)(x, weight, bias, epsilon)


def ragged_attention(
    queries: Tensor, memory: Tensor | None, ragged: Ragged, heads: int, rate: float
) -> Tensor:
    """Scaled dot-product attention within each sentence of packed rows, with dropout of weights.

    queries (R, 3 * H * K), what they attend to beside them, or (R, H * K) with memory
    (R', 2 * H * K), keys before values. Returns (R, H * K), zero in the spare rows.
    """
    return cast(Callable[..., Tensor], _RaggedAttention.apply)(queries, memory, ragged, heads, rate)


def softmax_(logits: Tensor, labels: Tensor, nll: Tensor, gold: Tensor) -> None:
    """Softmax of logits (R, V) in place; -log softmax and the logit of each label, float32 (R)."""
    rows, columns = logits.shape
    kernels().call("softmax", logits.dtype, rows, columns, logits, labels, nll, gold)


def less_a_row(matrix: Tensor, row: Tensor, scale: float) -> Tensor:
    """(matrix (R, D) - row (D)) * scale, in float32; row is float32."""
    result = torch.empty(matrix.shape)
    rows, width = matrix.shape
    kernels().call("less_a_row", matrix.dtype, rows, width, matrix, row, scale, result)
    return result
