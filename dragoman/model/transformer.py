"""Encoder, decoder and the whole Transformer (section 3.1, Figure 1).

Shapes: B batch, S source, T target, D d_model, V vocabulary, H heads, N beams of a sentence.
"""

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from dragoman.config import ModelConfig
from dragoman.model.attention import MultiHeadAttention, causal_mask
from dragoman.model.cache import DecoderCache, LayerCache
from dragoman.model.kernels import WIDTH, usable
from dragoman.model.layers import FeedForward, LayerNorm, Residual
from dragoman.model.layout import PADDED, Layout, Packed, Ragged
from dragoman.model.sequence_model import SequenceModel, padding_mask

# Longer sentences than this are for matrix products: their units outrun vectors.
_RAGGED_LENGTH = 256


@dataclass(frozen=True)
class AttentionMaps:
    """Attention weights by layer, each (B, H, queries, keys)."""

    encoder: list[Tensor]
    decoder: list[Tensor]
    cross: list[Tensor]


@dataclass(frozen=True)
class RaggedMemory:
    """What a decoder layer attends to where rows are packed and the kernels do the attention."""

    rows: Tensor  # keys and values of the encoder's output, (R, 2 * H * K)
    own: Ragged  # the target to itself
    across: Ragged  # the target to the source


def make_attention(config: ModelConfig) -> MultiHeadAttention:
    """Multi-head attention of the configuration's sizes."""
    return MultiHeadAttention(
        config.d_model, config.heads, config.key_width, config.value_width, config.attention_dropout
    )


class EncoderLayer(nn.Module):
    """Self-attention, then feed-forward; also a decoder-only layer when its mask is causal."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        pre = config.norm == "pre"
        self.self_attention = make_attention(config)
        self.self_residual = Residual(config.d_model, config.dropout, pre)
        self.feed_forward = FeedForward(config.d_model, config.d_ff, config.activation_dropout)
        self.feed_forward_residual = Residual(config.d_model, config.dropout, pre)

    def forward(
        self,
        x: Tensor,
        mask: Tensor | Ragged | None,
        layout: Layout = PADDED,
        maps: list[Tensor] | None = None,
    ) -> Tensor:
        """(..., D) -> (..., D), by default (B, S, D); mask (B or 1, 1, S or 1, S)."""
        normed = self.self_residual.before(x)
        if isinstance(mask, Ragged):
            attended = self.self_attention.attend_rows(normed, None, mask)
        else:
            operands = self.self_attention.project_self(normed, layout)
            attended = self.self_attention.attend(operands, mask, layout, maps)
        x = self.self_residual.after(x, attended)
        transformed = self.feed_forward(self.feed_forward_residual.before(x))
        return self.feed_forward_residual.after(x, transformed)


class DecoderLayer(nn.Module):
    """Masked self-attention, attention over the memory, feed-forward."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        pre = config.norm == "pre"
        self.self_attention = make_attention(config)
        self.self_residual = Residual(config.d_model, config.dropout, pre)
        self.cross_attention = make_attention(config)
        self.cross_residual = Residual(config.d_model, config.dropout, pre)
        self.feed_forward = FeedForward(config.d_model, config.d_ff, config.activation_dropout)
        self.feed_forward_residual = Residual(config.d_model, config.dropout, pre)

    def forward(
        self,
        x: Tensor,
        memory: "LayerCache | RaggedMemory",
        self_mask: Tensor | None = None,
        source_mask: Tensor | None = None,
        cached: bool = False,
        layout: Layout = PADDED,
        maps: AttentionMaps | None = None,
    ) -> Tensor:
        """(..., D) -> (..., D), by default (B, T, D).

        cached: x is one step and attends to all steps before it.
        """
        if isinstance(memory, RaggedMemory):
            normed = self.self_residual.before(x)
            attended = self.self_attention.attend_rows(normed, None, memory.own)
            x = self.self_residual.after(x, attended)
            normed = self.cross_residual.before(x)
            attended = self.cross_attention.attend_rows(normed, memory.rows, memory.across)
        else:
            operands = self.self_attention.project_self(self.self_residual.before(x), layout)
            if cached:
                operands = (operands[0], *memory.append(*operands[1:]))
            attended = self.self_attention.attend(
                operands, self_mask, layout, maps.decoder if maps else None
            )
            x = self.self_residual.after(x, attended)
            query = self.cross_attention.project_query(self.cross_residual.before(x), layout)
            operands = (query, memory.memory_key, memory.memory_value)
            attended = self.cross_attention.attend(
                operands, source_mask, layout, maps.cross if maps else None
            )
        x = self.cross_residual.after(x, attended)
        transformed = self.feed_forward(self.feed_forward_residual.before(x))
        return self.feed_forward_residual.after(x, transformed)


def final_norm(config: ModelConfig) -> nn.Module:
    """Pre-norm stacks end with a normalization of their own; the paper's need none."""
    return LayerNorm(config.d_model) if config.norm == "pre" else nn.Identity()


def kernels_attend(config: ModelConfig, longest: int, tensor: Tensor) -> bool:
    """Whether attention in one pass over packed rows is possible, and faster than products.

    longest: in tokens, of the sentences; tensor: one of the model's.
    """
    return (
        longest <= _RAGGED_LENGTH
        and config.key_width == config.value_width
        and config.key_width % WIDTH == 0
        and config.d_model % WIDTH == 0
        and usable(tensor)
    )


class Transformer(SequenceModel):
    """The encoder-decoder of Figure 1, for token ids padded with 0.

    Masks are made here from the ids. One embedding matrix serves source, target and output
    (section 3.4).
    """

    def __init__(self, config: ModelConfig, vocabulary_size: int) -> None:
        super().__init__(config, vocabulary_size)
        self.encoder = nn.ModuleList(EncoderLayer(config) for _ in range(config.encoder_layers))
        self.encoder_norm = final_norm(config)
        self.decoder = nn.ModuleList(DecoderLayer(config) for _ in range(config.decoder_layers))
        self.decoder_norm = final_norm(config)

    def hidden(self, source: Tensor, target_in: Tensor) -> Tensor:
        """What the output layer reads: (B, S), (B, T) -> (B, T, D)."""
        return self.decode(target_in, self.encode(source), source)

    def encode(self, source: Tensor, maps: AttentionMaps | None = None) -> Tensor:
        """(B, S) -> memory (B, S, D)."""
        mask = padding_mask(source)
        x = self.embedding(source)
        for layer in self.encoder:
            x = layer(x, mask, maps=maps.encoder if maps else None)
        memory: Tensor = self.encoder_norm(x)
        return memory

    def decode(
        self, target_in: Tensor, memory: Tensor, source: Tensor, maps: AttentionMaps | None = None
    ) -> Tensor:
        """Teacher-forced decoder states: (B, T), (B, S, D), (B, S) -> (B, T, D)."""
        mask = causal_mask(target_in.shape[1], target_in.device)
        source_mask = padding_mask(source)
        x = self.embedding(target_in)
        for layer in self._decoder_layers():
            cache = LayerCache(*layer.cross_attention.project_memory(memory, PADDED))
            x = layer(x, cache, mask, source_mask, maps=maps)
        states: Tensor = self.decoder_norm(x)
        return states

    def packed_hidden(self, source: Tensor, target_in: Tensor) -> tuple[Tensor, Packed]:
        """What `hidden` gives, as packed rows (R, D), and how target_in was packed."""
        source_layout, target_layout = Packed(source), Packed(target_in)
        longest = max(source.shape[1], target_in.shape[1])
        if kernels_attend(self.config, longest, self.embedding.weight):
            return self._ragged_hidden(source_layout, target_layout), target_layout
        source_mask = padding_mask(source)
        x = self.embedding.rows(source_layout)
        for layer in self.encoder:
            x = layer(x, source_mask, source_layout)
        memory = self.encoder_norm(x)
        mask = causal_mask(target_in.shape[1], target_in.device)
        x = self.embedding.rows(target_layout)
        for layer in self._decoder_layers():
            cache = LayerCache(*layer.cross_attention.project_memory(memory, source_layout))
            x = layer(x, cache, mask, source_mask, layout=target_layout)
        return self.decoder_norm(x), target_layout

    def _ragged_hidden(self, source: Packed, target: Packed) -> Tensor:
        """The same where attention takes the packed rows as they are."""
        memory = self.encode_rows(source)
        own, across = Ragged.between(target, target, causal=True), Ragged.between(target, source)
        x = self.embedding.rows(target)
        for layer in self._decoder_layers():
            rows = layer.cross_attention.memory_rows(memory)
            x = layer(x, RaggedMemory(rows, own, across))
        states: Tensor = self.decoder_norm(x)
        return states

    def encode_rows(self, source: Packed) -> Tensor:
        """What `encode` gives, as packed rows (R, D), by the kernels."""
        within = Ragged.between(source, source)
        x = self.embedding.rows(source)
        for layer in self.encoder:
            x = layer(x, within)
        memory: Tensor = self.encoder_norm(x)
        return memory

    @property
    def repeated_layers(self) -> list[nn.Module]:
        """Encoder layers, then decoder layers."""
        return [*self.encoder, *self.decoder]

    def start(self, memory: Tensor, source: Tensor, beams: int) -> DecoderCache:
        """The cache before the first step; the memory's keys and values are computed here, once."""
        layers = [
            LayerCache(*layer.cross_attention.project_memory(memory, PADDED))
            for layer in self._decoder_layers()
        ]
        nothing = torch.zeros(source.shape[0], beams, 0, dtype=torch.bool, device=source.device)
        return DecoderCache(layers, padding_mask(source), nothing)

    def step(self, ids: Tensor, cache: DecoderCache) -> Tensor:
        """One step of every beam: ids (B, N) -> logits (B, N, V); the cache grows by one step."""
        return self.logits(self.step_states(ids, cache))

    def step_states(self, ids: Tensor, cache: DecoderCache) -> Tensor:
        """What the output layer reads of a step: ids (B, N) -> (B, N, D); the cache grows."""
        x = self.embedding.at(ids, cache.step)
        mask = cache.advance()
        for layer, layer_cache in zip(self.decoder, cache.layers, strict=True):
            x = layer(x, layer_cache, mask, cache.source_mask, cached=True)
        states: Tensor = self.decoder_norm(x)
        return states

    def _decoder_layers(self) -> list[DecoderLayer]:
        return cast(list[DecoderLayer], list(self.decoder))

    @torch.no_grad()
    def attention_maps(self, source: Tensor, target_in: Tensor) -> AttentionMaps:
        """The weights of every head for (B, S), (B, T), from the model's own attention."""
        maps = AttentionMaps([], [], [])
        self.decode(target_in, self.encode(source, maps), source, maps)
        return maps
