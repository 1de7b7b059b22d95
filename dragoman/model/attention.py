"""Attention: scaled dot-product (section 3.2.1) and multi-head (section 3.2.2).

Shapes: B batch, H heads, Q queries, M keys and values, K d_k, W d_v, D d_model, N positions of a
self-attention.
"""

import math
from typing import Literal, overload

import torch
from torch import Tensor, nn
from torch.nn import functional

from dragoman.model.fused import ragged_attention
from dragoman.model.layers import Linear, dropout
from dragoman.model.layout import Layout, Ragged
from dragoman.model.windowed import Operands, Sight, compiled_flex, from_blocks

# On a CPU two batched matrix products beat the fused kernel up to about this many scores a head,
# above it the fused kernel's O(n) memory wins.
_EXPLICIT_SCORES = 128 * 128


@overload
def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    *,
    dropout_rate: float = 0.0,
    return_weights: Literal[False] = False,
) -> Tensor: ...


@overload
def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    *,
    dropout_rate: float = 0.0,
    return_weights: Literal[True],
) -> tuple[Tensor, Tensor]: ...


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    *,
    dropout_rate: float = 0.0,
    return_weights: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """softmax(Q K^T / sqrt(d_k)) V, Equation 1.

    query (..., Q, K), key (..., M, K), value (..., M, W); mask, broadcast to (..., Q, M), is True
    where a query may attend. A query that may attend to nothing gets zeros. Returns (..., Q, W),
    and with return_weights also the weights (..., Q, M), before dropout.
    """
    if not return_weights and not _explicit_is_faster(query, key):
        return functional.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, dropout_p=dropout_rate
        )
    scores = query @ key.transpose(-2, -1)
    scale = 1.0 / math.sqrt(query.shape[-1])
    if mask is None:
        weights = (scores * scale).softmax(dim=-1)
    else:
        sees = mask.any(dim=-1, keepdim=True)
        blind = not bool(sees.all())
        # A row of nothing but -inf would give NaN, and NaN gradients: it is zeroed afterwards.
        hidden = ~mask & sees if blind else ~mask
        bias = torch.zeros_like(mask, dtype=scores.dtype).masked_fill_(hidden, -math.inf)
        weights = torch.add(bias, scores, alpha=scale).softmax(dim=-1)
        if blind:
            weights = weights.masked_fill(~sees, 0.0)
    output = dropout(weights, dropout_rate) @ value
    return (output, weights) if return_weights else output


def _explicit_is_faster(query: Tensor, key: Tensor) -> bool:
    return query.device.type == "cpu" and query.shape[-2] * key.shape[-2] <= _EXPLICIT_SCORES


def self_attention(operands: Operands, sight: Sight, dropout_rate: float = 0.0) -> Tensor:
    """Attention of N positions to those among them that each may see: (B, H, N, .) -> the same.

    What is long makes no matrix of N x N, neither of weights nor of a mask, unless weights are
    dropped and there is no window.
    """
    query, key, value = operands
    length, device = query.shape[-2], query.device
    if sight.wide or _explicit_is_faster(query, key):
        return attention(*operands, sight.matrix(length, device), dropout_rate=dropout_rate)
    if sight.window is None:
        return functional.scaled_dot_product_attention(
            query, key, value, is_causal=True, dropout_p=dropout_rate
        )
    flex = compiled_flex()
    if sight.flex is not None and flex is not None and dropout_rate == 0.0:
        return flex(query, key, value, block_mask=sight.flex)
    mask = sight.blocks(length, device).expand(len(query), -1, -1, -1).flatten(0, 1)[:, None]
    output = attention(*sight.in_blocks(operands), mask, dropout_rate=dropout_rate)
    return from_blocks(output, len(query), length)


class MultiHeadAttention(nn.Module):
    """Concat(head_1, ..., head_h) W^O with head_i = Attention(Q W_i^Q, K W_i^K, V W_i^V).

    The three input projections of all heads are the rows of one matrix, [W^Q; W^K; W^V], so that
    self-attention takes one matrix product. No biases, as the paper writes it.
    """

    def __init__(self, d_model: int, heads: int, d_k: int, d_v: int, dropout_rate: float) -> None:
        super().__init__()
        self.heads, self.d_k, self.d_v = heads, d_k, d_v
        self.dropout_rate = dropout_rate
        self.in_projection = Linear(d_model, heads * (2 * d_k + d_v), bias=False)
        self.out_projection = Linear(heads * d_v, d_model, bias=False)

    def project_self(self, x: Tensor, layout: Layout) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of the same positions: (..., D) -> three of (B, H, Q, .)."""
        projected = self.in_projection(x)
        if self.d_k == self.d_v:
            query, key, value = layout.split_heads(projected, 3, self.heads).unbind(0)
            return query, key, value
        keys, values = projected.split([2 * self.heads * self.d_k, self.heads * self.d_v], dim=-1)
        query, key = layout.split_heads(keys, 2, self.heads).unbind(0)
        return query, key, layout.split_heads(values, 1, self.heads)[0]

    def project_query(self, x: Tensor, layout: Layout) -> Tensor:
        """(..., D) -> (B, H, Q, K)."""
        return layout.split_heads(self.query_rows(x), 1, self.heads)[0]

    def project_memory(self, memory: Tensor, layout: Layout) -> tuple[Tensor, Tensor]:
        """Keys and values of the encoder's output: (..., D) -> (B, H, S, K), (B, H, S, W)."""
        weight = self.in_projection.weight[self.heads * self.d_k :]
        projected = functional.linear(memory, weight.to(memory.dtype))
        if self.d_k == self.d_v:
            key, value = layout.split_heads(projected, 2, self.heads).unbind(0)
            return key, value
        keys, values = projected.split([self.heads * self.d_k, self.heads * self.d_v], dim=-1)
        return layout.split_heads(keys, 1, self.heads)[0], layout.split_heads(
            values, 1, self.heads
        )[0]

    def attend_rows(self, x: Tensor, memory: Tensor | None, ragged: Ragged) -> Tensor:
        """Attention of packed rows to themselves or to `memory_rows`, then W^O.

        (R, D) -> (R, D).
        """
        rate = self.dropout_rate if self.training else 0.0
        queries = self.in_projection(x) if memory is None else self.query_rows(x)
        joined: Tensor = self.out_projection(
            ragged_attention(queries, memory, ragged, self.heads, rate)
        )
        return joined

    def query_rows(self, x: Tensor) -> Tensor:
        """(..., D) -> (..., H * K)."""
        weight = self.in_projection.weight[: self.heads * self.d_k]
        return functional.linear(x, weight.to(x.dtype))

    def memory_rows(self, memory: Tensor) -> Tensor:
        """Keys and values of the encoder's output as packed rows: (R, D) -> (R, 2 * H * K)."""
        weight = self.in_projection.weight[self.heads * self.d_k :]
        return functional.linear(memory, weight.to(memory.dtype))

    def attend(
        self,
        operands: Operands,
        mask: Tensor | Sight | None,
        layout: Layout,
        maps: list[Tensor] | None,
    ) -> Tensor:
        """Attention of every head to (query, key, value), then W^O: (B, H, Q, .) -> (..., D).

        layout is that of the queries; the weights are appended to maps when it is a list.
        """
        rate = self.dropout_rate if self.training else 0.0
        if maps is not None:
            if isinstance(mask, Sight):
                mask = mask.matrix(operands[0].shape[-2], operands[0].device)
            output, weights = attention(*operands, mask, dropout_rate=rate, return_weights=True)
            maps.append(weights)
        elif isinstance(mask, Sight):
            output = self_attention(operands, mask, rate)
        else:
            output = attention(*operands, mask, dropout_rate=rate)
        joined: Tensor = self.out_projection(layout.join_heads(output))
        return joined


def causal_mask(length: int, device: torch.device) -> Tensor:
    """(1, 1, T, T), True where target position i may attend to j: j <= i (section 3.2.3)."""
    return torch.ones(length, length, dtype=torch.bool, device=device).tril()[None, None]
