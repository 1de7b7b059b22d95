"""The convolutional encoder-decoder, ConvS2S (Gehring et al. 2017, arXiv 1705.03122).

Gated linear units over a kernel's width of tokens, residual connections, and attention in every
layer of the decoder; what is added up is scaled by sqrt(0.5) to keep its variance (section 3.5).
Embeddings are scaled to the deviation of theirs, 0.1: that all variances stay as they are holds for
inputs as small. What differs from their system: there is no weight normalization, and gradients of
the encoder are not scaled, both of which Adam makes needless.

Shapes: B batch, S source, T target, D d_model, W kernel_width, N beams of a sentence, R = B * N.
"""

import math
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from dragoman.config import ModelConfig
from dragoman.model.attention import attention
from dragoman.model.cache import RowStates
from dragoman.model.encoder_decoder import AttentionMaps, EncoderDecoder
from dragoman.model.layers import Linear, dropout
from dragoman.model.sequence_model import PAD

_HALF = math.sqrt(0.5)
_EMBEDDED = 0.1  # deviation of embeddings (section 4.3), of 1 as the Transformer reads them


class GatedConvolution(nn.Module):
    """v([A B]) = A * sigmoid(B), where [A B] is a convolution of D to 2 D features (section 3.2).

    As a matrix product over the W tokens that a place sees side by side.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.width, self.dropout_rate = config.kernel_width, config.dropout
        self.linear = Linear(self.width * config.d_model, 2 * config.d_model)
        deviation = math.sqrt(4 * (1 - config.dropout) / (self.width * config.d_model))
        nn.init.normal_(self.linear.weight, std=deviation)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T + W - 1, D) -> (B, T, D): place t sees x[t] to x[t + W - 1]."""
        x = dropout(x, self.dropout_rate if self.training else 0.0)
        length = x.shape[1] - self.width + 1
        seen = torch.cat([x[:, place : place + length] for place in range(self.width)], dim=-1)
        gated: Tensor = functional.glu(self.linear(seen), dim=-1)
        return gated


class EncoderLayer(nn.Module):
    """A convolution that sees as much before a token as after it, and the residual."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.convolution = GatedConvolution(config)
        before = (config.kernel_width - 1) // 2
        self._padding = 0, 0, before, config.kernel_width - 1 - before

    def forward(self, x: Tensor, real: Tensor) -> Tensor:
        """(B, S, D), real (B, S, 1) -> (B, S, D)."""
        padded = functional.pad(x.masked_fill(~real, 0.0), self._padding)
        output: Tensor = (x + self.convolution(padded)) * _HALF
        return output


class DecoderLayer(nn.Module):
    """A convolution over what came before, then attention to the memory (section 3.3)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.convolution = GatedConvolution(config)
        self.query = Linear(config.d_model, config.d_model)
        self.context = Linear(config.d_model, config.d_model)

    def forward(
        self,
        x: Tensor,
        target: Tensor,
        memory: tuple[Tensor, Tensor],
        maps: AttentionMaps | None = None,
    ) -> Tensor:
        """The new (R, T, D) of x (R, W - 1 + T, D), whose first W - 1 places came before.

        target (R, T, D): embeddings. memory: keys and values (B, S, 2 D), and where it has tokens
        (B, 1, 1, S); N rows read one sentence.
        """
        h: Tensor = self.convolution(x)
        both, real = memory
        key, value = both.chunk(2, dim=-1)
        # Their scores are not divided by sqrt(d_model), as `attention` does.
        query = (self.query(h) + target) * (_HALF * math.sqrt(target.shape[-1]))
        operands = query.reshape(len(both), 1, -1, key.shape[-1]), key[:, None], value[:, None]
        if maps:
            context, weights = attention(*operands, real, return_weights=True)
            maps.cross.append(weights)
        else:
            context = attention(*operands, real)
        # A mean of m vectors has 1 / m of their variance, where all weigh the same.
        context = context * real.sum(dim=-1, keepdim=True).sqrt().to(context.dtype)
        h = (h + self.context(context.reshape(h.shape))) * _HALF
        output: Tensor = (x[:, -h.shape[1] :] + h) * _HALF
        return output


class Convolutional(EncoderDecoder):
    """Encoder and decoder of gated convolutions, for token ids padded with 0.

    One embedding matrix serves source, target and output, as in the Transformer.
    """

    def __init__(self, config: ModelConfig, vocabulary_size: int) -> None:
        super().__init__(config, vocabulary_size)
        self.encoder = nn.ModuleList(EncoderLayer(config) for _ in range(config.encoder_layers))
        self.decoder = nn.ModuleList(DecoderLayer(config) for _ in range(config.decoder_layers))
        self.decoder_output = Linear(config.d_model, config.d_model)

    @property
    def repeated_layers(self) -> list[nn.Module]:
        """Encoder layers, then decoder layers."""
        return [*self.encoder, *self.decoder]

    @property
    def attends(self) -> tuple[int, int]:
        """Layers and heads of the attention to the source."""
        return self.config.decoder_layers, 1

    def encode(self, source: Tensor, maps: AttentionMaps | None = None) -> Tensor:
        """(B, S) -> memory (B, S, 2 D): outputs z, and z with the embeddings e (Equation 2)."""
        embedded = x = self.embedding(source) * _EMBEDDED
        real = (source != PAD)[..., None]
        for layer in self.encoder:
            x = layer(x, real)
        return torch.cat([x, (x + embedded) * _HALF], dim=-1)

    def decode(
        self, target_in: Tensor, memory: Tensor, source: Tensor, maps: AttentionMaps | None = None
    ) -> Tensor:
        """Teacher-forced decoder states: (B, T), (B, S, 2 D), (B, S) -> (B, T, D)."""
        read = memory, (source != PAD)[:, None, None]
        embedded = x = self.embedding(target_in) * _EMBEDDED
        for layer in self._decoder_layers():
            before = functional.pad(x, (0, 0, self.config.kernel_width - 1, 0))
            x = layer(before, embedded, read, maps)
        return self._output(x)

    def start(self, memory: Tensor, source: Tensor, beams: int) -> RowStates:
        """The cache before the first step: what each layer saw last, at first zeros."""
        rows, before = len(source) * beams, self.config.kernel_width - 1
        nothing = memory.new_zeros(rows, before, self.config.d_model)
        read = memory, (source != PAD)[:, None, None]
        return RowStates(beams, read, (nothing,) * len(self.decoder))

    def step_states(self, ids: Tensor, cache: RowStates) -> Tensor:
        """What the output layer reads of a step: ids (B, N) -> (B, N, D); the cache grows."""
        memory, real = cache.sentences
        embedded = x = _EMBEDDED * self.embedding.at(ids, cache.step).reshape(ids.numel(), 1, -1)
        seen = []
        for layer, past in zip(self._decoder_layers(), cache.rows, strict=True):
            all_seen = torch.cat([past, x], dim=1)
            seen.append(all_seen[:, 1:])
            x = layer(all_seen, embedded, (memory, real))
        cache.rows = tuple(seen)
        cache.step += 1
        return self._output(x).view(*ids.shape, -1)

    def _output(self, x: Tensor) -> Tensor:
        output: Tensor = self.decoder_output(x)
        return dropout(output, self.config.dropout if self.training else 0.0)

    def _decoder_layers(self) -> list[DecoderLayer]:
        return cast(list[DecoderLayer], list(self.decoder))
