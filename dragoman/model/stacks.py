"""Encoder-only and decoder-only models: other assemblies of the same layers.

Shapes: B batch, T positions, R packed rows, D d_model, V vocabulary.
"""

from torch import Tensor, nn

from dragoman.config import ModelConfig
from dragoman.model.attention import causal_mask
from dragoman.model.layout import Packed, Ragged
from dragoman.model.sequence_model import SequenceModel, padding_mask
from dragoman.model.transformer import EncoderLayer, final_norm, kernels_attend


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

    def _run(self, ids: Tensor, mask: Tensor | None) -> Tensor:
        x = self.embedding(ids)
        for layer in self.layers:
            x = layer(x, mask)
        states: Tensor = self.norm(x)
        return states

    def _run_packed(self, ids: Tensor, mask: Tensor | None, causal: bool) -> tuple[Tensor, Packed]:
        packed = Packed(ids)
        x = self.embedding.rows(packed)
        length, weight = ids.shape[1], self.embedding.weight
        if kernels_attend(self.config, length, weight):
            within: Tensor | Ragged | None = Ragged.between(packed, packed, causal=causal)
        else:
            within = mask
        for layer in self.layers:
            x = layer(x, within, packed)
        return self.norm(x), packed


class EncoderOnly(_Stack):
    """A bidirectional stack of `encoder_layers`: every position sees every other."""

    def __init__(self, config: ModelConfig, vocabulary_size: int) -> None:
        super().__init__(config, vocabulary_size, config.encoder_layers)

    def hidden(self, source: Tensor, target_in: Tensor) -> Tensor:
        """(B, T) -> states (B, T, D); the source is not read."""
        return self._run(target_in, padding_mask(target_in))

    def packed_hidden(self, source: Tensor, target_in: Tensor) -> tuple[Tensor, Packed]:
        """What `hidden` gives, as packed rows (R, D), and how target_in was packed."""
        return self._run_packed(target_in, padding_mask(target_in), causal=False)


class DecoderOnly(_Stack):
    """A causal stack of `decoder_layers` with the tied output layer: a language model."""

    def __init__(self, config: ModelConfig, vocabulary_size: int) -> None:
        super().__init__(config, vocabulary_size, config.decoder_layers)

    def hidden(self, source: Tensor, target_in: Tensor) -> Tensor:
        """(B, T), padded at the end -> states (B, T, D); the source is not read."""
        return self._run(target_in, causal_mask(target_in.shape[1], target_in.device))

    def packed_hidden(self, source: Tensor, target_in: Tensor) -> tuple[Tensor, Packed]:
        """What `hidden` gives, as packed rows (R, D), and how target_in was packed."""
        mask = causal_mask(target_in.shape[1], target_in.device)
        return self._run_packed(target_in, mask, causal=True)
