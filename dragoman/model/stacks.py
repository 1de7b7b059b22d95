"""Encoder-only and decoder-only models: other assemblies of the same layers.

Shapes: B batch, T positions, R packed rows, D d_model, V vocabulary.
"""

import torch
from torch import Tensor, nn

from dragoman.config import ModelConfig
from dragoman.model.cache import Past, TextCache
from dragoman.model.layout import Packed, Ragged
from dragoman.model.sequence_model import PAD, SequenceModel
from dragoman.model.transformer import EncoderLayer, final_norm, kernels_attend
from dragoman.model.windowed import Sight

# A beginning longer than this is read piece by piece: its mask would have T x T positions.
_PIECE = 512


class _Stack(SequenceModel):
    """One stack of layers over `target_in`; it has no source."""

    def __init__(self, config: ModelConfig, vocabulary_size: int, layers: int) -> None:
        super().__init__(config, vocabulary_size)
        self.layers = nn.ModuleList(EncoderLayer(config) for _ in range(layers))
        self.norm = final_norm(config)

    @property
    def repeated_layers(self) -> list[nn.Module]:
        """The layers of the one stack."""
        return list(self.layers)

    def _run(self, ids: Tensor, causal: bool) -> Tensor:
        mask = Sight.of(ids, causal, self.config.window)
        x = self.embedding(ids)
        for layer in self.layers:
            x = layer(x, mask)
        states: Tensor = self.norm(x)
        return states

    def _run_packed(self, ids: Tensor, causal: bool) -> tuple[Tensor, Packed]:
        packed = Packed(ids)
        x = self.embedding.rows(packed)
        within: Sight | Ragged = Sight.of(ids, causal, self.config.window)
        if kernels_attend(self.config, ids.shape[1], self.embedding.weight):
            within = Ragged.between(packed, packed, causal)
        for layer in self.layers:
            x = layer(x, within, packed)
        return self.norm(x), packed


class EncoderOnly(_Stack):
    """A bidirectional stack of `encoder_layers`: every position sees every other."""

    def __init__(self, config: ModelConfig, vocabulary_size: int) -> None:
        super().__init__(config, vocabulary_size, config.encoder_layers)

    def hidden(self, source: Tensor, target_in: Tensor) -> Tensor:
        """(B, T) -> states (B, T, D); the source is not read."""
        return self._run(target_in, causal=False)

    def packed_hidden(self, source: Tensor, target_in: Tensor) -> tuple[Tensor, Packed]:
        """What `hidden` gives, as packed rows (R, D), and how target_in was packed."""
        return self._run_packed(target_in, causal=False)

    def pooled(self, ids: Tensor) -> Tensor:
        """The mean of the states of each sentence's tokens, padding left out: (B, T) -> (B, D)."""
        if ids.device.type == "cpu":
            rows, packed = self.packed_hidden(ids, ids)
            lengths = packed.starts.diff()  # (B,)
            sums = rows.new_zeros(len(ids), rows.shape[1])
            sentences = torch.repeat_interleave(lengths)  # of each row, (R,) but for spare ones
            sums = sums.index_add(0, sentences, rows[: packed.tokens])
        else:
            real = (ids != PAD)[..., None]
            lengths = real.sum(dim=(1, 2))
            sums = (self.hidden(ids, ids) * real).sum(dim=1)
        return sums / lengths[:, None].to(sums.dtype)


class DecoderOnly(_Stack):
    """A causal stack of `decoder_layers` with the tied output layer: a language model."""

    def __init__(self, config: ModelConfig, vocabulary_size: int) -> None:
        super().__init__(config, vocabulary_size, config.decoder_layers)

    def hidden(self, source: Tensor, target_in: Tensor) -> Tensor:
        """(B, T), padded at the end -> states (B, T, D); the source is not read."""
        return self._run(target_in, causal=True)

    def packed_hidden(self, source: Tensor, target_in: Tensor) -> tuple[Tensor, Packed]:
        """What `hidden` gives, as packed rows (R, D), and how target_in was packed."""
        return self._run_packed(target_in, causal=True)

    def start(self, texts: int) -> TextCache:
        """The cache of so many texts before their first tokens."""
        lengths = torch.zeros(texts, dtype=torch.long, device=self.embedding.weight.device)
        pasts = [Past() for _ in self.layers]
        return TextCache(pasts, lengths.new_empty(texts, 0), self.config.window, lengths)

    def step_states(self, ids: Tensor, cache: TextCache) -> Tensor:
        """What the output layer reads of tokens that follow those in the cache, which grows.

        (B, T), padded at the end -> (B, T, D).
        """
        if ids.shape[1] > _PIECE:
            pieces = [self.step_states(piece, cache) for piece in ids.split(_PIECE, dim=1)]
            return torch.cat(pieces, dim=1)
        positions, mask = cache.advance(ids != PAD)
        x = self.embedding.at(ids, positions)
        for layer, past in zip(self.layers, cache.layers, strict=True):
            x = layer(x, mask, past=past)
        states: Tensor = self.norm(x)
        return states
