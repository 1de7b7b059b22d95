"""What search and scoring ask of a model with an encoder and a decoder, of whatever kind.

Shapes: B batch, S source, T target, D d_model, V vocabulary, H heads, N beams of a sentence.
"""

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dragoman.model.sequence_model import SequenceModel


@dataclass(frozen=True)
class AttentionMaps:
    """Attention weights by layer, each (B, H, queries, keys)."""

    encoder: list[Tensor]
    decoder: list[Tensor]
    cross: list[Tensor]


class EncoderDecoder(SequenceModel):
    """An encoder that makes a memory of the source, a decoder that attends to it at every step.

    The cache is of each child's own kind.
    """

    @property
    @abstractmethod
    def attends(self) -> tuple[int, int]:
        """Layers and heads of the attention to the source."""

    def hidden(self, source: Tensor, target_in: Tensor) -> Tensor:
        """What the output layer reads: (B, S), (B, T) -> (B, T, D)."""
        return self.decode(target_in, self.encode(source), source)

    @abstractmethod
    def encode(self, source: Tensor, maps: AttentionMaps | None = None) -> Tensor:
        """(B, S) -> the memory, (B, S, D or more)."""

    @abstractmethod
    def decode(
        self, target_in: Tensor, memory: Tensor, source: Tensor, maps: AttentionMaps | None = None
    ) -> Tensor:
        """Teacher-forced decoder states: (B, T), the memory, (B, S) -> (B, T, D)."""

    @abstractmethod
    def start(self, memory: Tensor, source: Tensor, beams: int) -> Any:
        """The cache before the first step: it has `beams`, and can `reorder` its rows."""

    def step(self, ids: Tensor, cache: Any) -> Tensor:
        """One step of every beam: ids (B, N) -> logits (B, N, V); the cache grows by one step."""
        return self.logits(self.step_states(ids, cache))

    @abstractmethod
    def step_states(self, ids: Tensor, cache: Any) -> Tensor:
        """What the output layer reads of a step: ids (B, N) -> (B, N, D); the cache grows."""

    @torch.no_grad()
    def attention_maps(self, source: Tensor, target_in: Tensor) -> AttentionMaps:
        """The weights of every head for (B, S), (B, T), from the model's own attention."""
        maps = AttentionMaps([], [], [])
        self.decode(target_in, self.encode(source, maps), source, maps)
        return maps
