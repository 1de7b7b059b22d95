"""A cached decoding step on a CPU where the functions of decoding.cpp do the attention.

Nothing is copied between steps: every step's projection stays where it was written, and a table
says which row of it a hypothesis continues. Source sentences are packed, so that no padding costs
or changes anything.

Shapes: B sentences, N beams, R = B * N rows (those of a sentence are neighbors), P padded rows,
M rows of the packed source, D d_model, H heads, K head width, T steps.
"""

from dataclasses import dataclass, field
from typing import cast

import torch
from torch import Tensor
from torch.nn import functional

from dragoman.model.attention import MultiHeadAttention
from dragoman.model.kernels import WIDTH, kernels, usable
from dragoman.model.layout import Packed
from dragoman.model.transformer import DecoderLayer, Transformer

# Rows of a matrix product come in multiples of these. oneDNN, which has those in bfloat16, takes
# 10 ms to prepare each new number of rows; and in float32 the sums of a product of fewer than 16
# rows are added up in another order.
_FLOAT32, _FEW, _MANY, _SOURCE_ROWS = 16, 64, 128, 512
# The kernels hold the weights of a sentence, 4 MB at this length; they are exact beside others.
_LONGEST_ROWS = 1024


@dataclass
class _LayerRows:
    """Keys, values of the source, (M, 2 * H * K); every step's projection, (P, 3 * H * K)."""

    memory: Tensor
    past: list[Tensor] = field(default_factory=list)


@dataclass
class RowCache:
    """What all layers keep, and where the rows of the next step find it."""

    beams: int
    layers: list[_LayerRows]
    starts: Tensor  # (B,), a sentence's first row of the packed source
    lengths: Tensor  # (B,)
    ancestors: Tensor  # (R, T) int32, row of each step that the row goes on from
    window: int | None  # the most steps before its own that a step sees, and T holds
    step: int = 0  # steps done

    def reorder(self, rows: Tensor) -> None:
        """Row i of the next step continues row rows[i]; sentences that are not named leave."""
        if len(rows) < len(self.ancestors):
            sentences = rows[:: self.beams] // self.beams
            self.starts, self.lengths = self.starts[sentences], self.lengths[sentences]
        self.ancestors = self.ancestors.index_select(0, rows)

    def advance(self) -> Tensor:
        """Give every row its own place in the next step, and return the table, (R, T + 1)."""
        own = torch.arange(len(self.ancestors), dtype=torch.int32)
        past = self.ancestors if self.window is None else self.ancestors[:, -self.window :]
        self.ancestors = torch.cat([past, own[:, None]], dim=1)
        self.step += 1
        return self.ancestors


def possible(model: Transformer) -> bool:
    """Whether this machine and the sizes of the model allow it."""
    config = model.config
    return (
        config.key_width == config.value_width
        and config.key_width % WIDTH == 0
        and config.d_model % WIDTH == 0
        and usable(model.embedding.weight)
    )


def start(model: Transformer, source: Tensor, beams: int) -> RowCache:
    """Encode (B, S), padded with 0 at the end, and make the cache of N beams a sentence."""
    packed = Packed(source, _SOURCE_ROWS if source.numel() > 4 * _SOURCE_ROWS else _FEW)
    memory = model.encode_rows(source, packed, _LONGEST_ROWS)
    layers = [_LayerRows(layer.cross_attention.memory_rows(memory)) for layer in _layers(model)]
    starts = packed.starts
    nothing = torch.zeros(len(source) * beams, 0, dtype=torch.int32)
    return RowCache(beams, layers, starts[:-1], starts.diff(), nothing, model.config.window)


def step_states(model: Transformer, ids: Tensor, cache: RowCache) -> Tensor:
    """What the output layer reads of a step: ids (R,) -> (P, D), where R rows count."""
    spare = _padded(len(ids), model.embedding.compute_dtype) - len(ids)
    x = model.embedding.at(functional.pad(ids, (0, spare)), cache.step)
    cache.advance()
    for layer, rows in zip(_layers(model), cache.layers, strict=True):
        x = _layer_step(layer, x, rows, cache)
    states: Tensor = model.decoder_norm(x)
    return states


def _layers(model: Transformer) -> list[DecoderLayer]:
    return cast(list[DecoderLayer], list(model.decoder))


def _padded(rows: int, dtype: torch.dtype) -> int:
    multiple = _FLOAT32 if dtype == torch.float32 else _FEW if rows <= 4 * _FEW else _MANY
    return -(-rows // multiple) * multiple


def _layer_step(layer: DecoderLayer, x: Tensor, rows: _LayerRows, cache: RowCache) -> Tensor:
    attention = layer.self_attention
    rows.past.append(attention.in_projection(layer.self_residual.before(x)))
    del rows.past[: -cache.ancestors.shape[1]]
    x = layer.self_residual.after(x, _attend_past(attention, rows.past, cache))
    attention = layer.cross_attention
    query = attention.query_rows(layer.cross_residual.before(x))
    x = layer.cross_residual.after(x, _attend_memory(attention, query, rows.memory, cache))
    transformed = layer.feed_forward(layer.feed_forward_residual.before(x))
    return layer.feed_forward_residual.after(x, transformed)


def _attend_past(attention: MultiHeadAttention, past: list[Tensor], cache: RowCache) -> Tensor:
    places = torch.tensor([step.data_ptr() for step in past])
    own = past[-1]
    output = own.new_zeros(len(own), attention.heads * attention.d_k)
    kernels().call(
        "attend_past",
        own.dtype,
        *(*cache.ancestors.shape, attention.heads, attention.d_k),
        *(places, cache.ancestors, output),
    )
    joined: Tensor = attention.out_projection(output)
    return joined


def _attend_memory(
    attention: MultiHeadAttention, query: Tensor, memory: Tensor, cache: RowCache
) -> Tensor:
    output = torch.zeros_like(query)
    kernels().call(
        "attend_memory",
        query.dtype,
        *(len(cache.ancestors), cache.beams, attention.heads, attention.d_k),
        *(query, memory, cache.starts, cache.lengths, output),
    )
    joined: Tensor = attention.out_projection(output)
    return joined
