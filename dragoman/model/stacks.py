"""Encoder-only and decoder-only models: other assemblies of the same layers.

Shapes: B batch, T positions, D d_model, V vocabulary.
"""

from torch import Tensor, nn

from dragoman.config import ModelConfig
from dragoman.model.attention import causal_mask
from dragoman.model.transformer import EncoderLayer, final_norm, make_embedding, padding_mask


class _Stack(nn.Module):
    def __init__(self, config: ModelConfig, vocabulary_size: int, layers: int) -> None:
        super().__init__()
        self.embedding = make_embedding(config, vocabulary_size)
        self.layers = nn.ModuleList(EncoderLayer(config) for _ in range(layers))
        self.norm = final_norm(config)

    def _run(self, ids: Tensor, mask: Tensor | None) -> Tensor:
        x = self.embedding(ids)
        for layer in self.layers:
            x = layer(x, mask)
        states: Tensor = self.norm(x)
        return states


class EncoderOnly(_Stack):
    """A bidirectional stack of `encoder_layers`: every position sees every other."""

    def __init__(self, config: ModelConfig, vocabulary_size: int) -> None:
        super().__init__(config, vocabulary_size, config.encoder_layers)

    def forward(self, ids: Tensor) -> Tensor:
        """(B, T) -> states (B, T, D)."""
        return self._run(ids, padding_mask(ids))


class DecoderOnly(_Stack):
    """A causal stack of `decoder_layers` with the tied output layer: a language model."""

    def __init__(self, config: ModelConfig, vocabulary_size: int) -> None:
        super().__init__(config, vocabulary_size, config.decoder_layers)

    def forward(self, ids: Tensor) -> Tensor:
        """(B, T), padded at the end -> logits (B, T, V) of the token after each position."""
        return self.embedding.logits(self._run(ids, causal_mask(ids.shape[1], ids.device)))
