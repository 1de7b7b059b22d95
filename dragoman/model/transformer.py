"""Encoder, decoder and the whole Transformer (section 3.1, Figure 1).

Shapes: B batch, S source, T target, D d_model, V vocabulary, H heads, N beams of a sentence.
"""

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from dragoman.config import ModelConfig
from dragoman.model.attention import MultiHeadAttention
from dragoman.model.cache import DecoderCache, LayerCache, Past
from dragoman.model.encoder_decoder import AttentionMaps, EncoderDecoder
from dragoman.model.kernels import WIDTH, usable
from dragoman.model.layers import FeedForward, LayerNorm, Residual
from dragoman.model.layout import PADDED, Layout, Packed, Ragged
from dragoman.model.sequence_model import padding_mask
from dragoman.model.sublayers import attend, memory_rows, transform
from dragoman.model.windowed import Sight

# Longer sentences than this are for matrix products: their units outrun vectors.
_RAGGED_LENGTH = 256


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


def make_feed_forward(config: ModelConfig) -> FeedForward:
    """The feed-forward network of the configuration's sizes."""
    gated = config.feed_forward == "gated"
    return FeedForward(config.d_model, config.d_ff, config.activation_dropout, gated)


class EncoderLayer(nn.Module):
    """Self-attention, then feed-forward; also a decoder-only layer when its mask is causal."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        pre = config.norm == "pre"
        self.self_attention = make_attention(config)
        self.self_residual = Residual(config.d_model, config.dropout, pre)
        self.feed_forward = make_feed_forward(config)
        self.feed_forward_residual = Residual(config.d_model, config.dropout, pre)

    def forward(
        self,
        x: Tensor,
        mask: Tensor | Sight | Ragged | None,
        layout: Layout = PADDED,
        maps: list[Tensor] | None = None,
        past: Past | None = None,
    ) -> Tensor:
        """(..., D) -> (..., D), by default (B, S, D); mask, a tensor: (B or 1, 1, S or 1, S)."""
        if isinstance(mask, Ragged):
            x = attend(x, self.self_residual, self.self_attention, None, mask)
        else:
            operands = self.self_attention.project_self(self.self_residual.before(x), layout)
            if past is not None:  # mask (B, 1, T, C) is of all that is in it then
                assert isinstance(mask, Tensor)
                operands = operands[0], *past.append(*operands[1:], mask.shape[-1])
            attended = self.self_attention.attend(operands, mask, layout, maps)
            x = self.self_residual.after(x, attended)
        return transform(x, self.feed_forward_residual, self.feed_forward)


class DecoderLayer(nn.Module):
    """Masked self-attention, attention over the memory, feed-forward."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        pre = config.norm == "pre"
        self.self_attention = make_attention(config)
        self.self_residual = Residual(config.d_model, config.dropout, pre)
        self.cross_attention = make_attention(config)
        self.cross_residual = Residual(config.d_model, config.dropout, pre)
        self.feed_forward = make_feed_forward(config)
        self.feed_forward_residual = Residual(config.d_model, config.dropout, pre)

    def forward(
        self,
        x: Tensor,
        memory: "LayerCache | RaggedMemory",
        self_mask: Tensor | Sight | None = None,
        source_mask: Tensor | None = None,
        cached: bool = False,
        layout: Layout = PADDED,
        maps: AttentionMaps | None = None,
    ) -> Tensor:
        """(..., D) -> (..., D), by default (B, T, D).

        cached: x is one step; self_mask, (B, 1, N, C), is of the last C slots of the cache.
        """
        if isinstance(memory, RaggedMemory):
            x = attend(x, self.self_residual, self.self_attention, None, memory.own)
            x = attend(x, self.cross_residual, self.cross_attention, memory.rows, memory.across)
        else:
            operands = self.self_attention.project_self(self.self_residual.before(x), layout)
            if cached:
                assert isinstance(self_mask, Tensor)
                past = memory.append(*operands[1:], self_mask.shape[-1])
                operands = (operands[0], *past)
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
        return transform(x, self.feed_forward_residual, self.feed_forward)


def final_norm(config: ModelConfig) -> nn.Module:
    """Pre-norm stacks end with a normalization of their own; the paper's need none."""
    return LayerNorm(config.d_model) if config.norm == "pre" else nn.Identity()


def kernels_attend(
    config: ModelConfig, longest: int, tensor: Tensor, limit: int = _RAGGED_LENGTH
) -> bool:
    """Whether attention in one pass over packed rows is possible, and faster than products.

    longest: in tokens, of the sentences, at most limit; tensor: one of the model's.
    """
    return (
        longest <= limit
        and (config.window is None or config.window >= longest - 1)
        and config.key_width == config.value_width
        and config.key_width % WIDTH == 0
        and config.d_model % WIDTH == 0
        and usable(tensor)
    )


class Transformer(EncoderDecoder):
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

    def encode(self, source: Tensor, maps: AttentionMaps | None = None) -> Tensor:
        """(B, S) -> memory (B, S, D)."""
        mask = Sight.of(source, False, self.config.window)
        x = self.embedding(source)
        for layer in self.encoder:
            x = layer(x, mask, maps=maps.encoder if maps else None)
        memory: Tensor = self.encoder_norm(x)
        return memory

    def decode(
        self, target_in: Tensor, memory: Tensor, source: Tensor, maps: AttentionMaps | None = None
    ) -> Tensor:
        """Teacher-forced decoder states: (B, T), (B, S, D), (B, S) -> (B, T, D)."""
        mask = Sight.of(target_in, True, self.config.window)
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
        memory = self.encode_rows(source, source_layout)
        longest = max(source.shape[1], target_in.shape[1])
        if kernels_attend(self.config, longest, self.embedding.weight):
            return self._ragged_states(memory, source_layout, target_layout), target_layout
        source_mask = padding_mask(source)
        mask = Sight.of(target_in, True, self.config.window)
        x = self.embedding.rows(target_layout)
        for layer in self._decoder_layers():
            cache = LayerCache(*layer.cross_attention.project_memory(memory, source_layout))
            x = layer(x, cache, mask, source_mask, layout=target_layout)
        return self.decoder_norm(x), target_layout

    def _ragged_states(self, memory: Tensor, source: Packed, target: Packed) -> Tensor:
        """The same where attention takes the packed rows as they are."""
        own, across = Ragged.between(target, target, causal=True), Ragged.between(target, source)
        x = self.embedding.rows(target)
        for layer in self._decoder_layers():
            rows = memory_rows(memory, layer.cross_attention)
            x = layer(x, RaggedMemory(rows, own, across))
        states: Tensor = self.decoder_norm(x)
        return states

    def encode_rows(self, source: Tensor, layout: Packed, limit: int = _RAGGED_LENGTH) -> Tensor:
        """What `encode` gives of (B, S), as packed rows (R, D).

        By the kernels, if they can, where no sentence is longer than limit.
        """
        within: Sight | Ragged = Sight.of(source, False, self.config.window)
        if kernels_attend(self.config, source.shape[1], self.embedding.weight, limit):
            within = Ragged.between(layout, layout)
        x = self.embedding.rows(layout)
        for layer in self.encoder:
            x = layer(x, within, layout)
        memory: Tensor = self.encoder_norm(x)
        return memory

    @property
    def attends(self) -> tuple[int, int]:
        """Layers and heads of the attention to the source."""
        return self.config.decoder_layers, self.config.heads

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
        return DecoderCache(layers, padding_mask(source), nothing, self.config.window)

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
