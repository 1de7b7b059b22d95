"""What training asks of a model of whatever kind.

Shapes: B batch, S source, T target, R packed rows, D d_model, V vocabulary.
"""

from abc import ABC, abstractmethod

from torch import Tensor, nn

from dragoman.config import ModelConfig
from dragoman.model.embedding import Embedding
from dragoman.model.layout import Packed

PAD = 0


class SequenceModel(nn.Module, ABC):
    """A model that gives a state for every token of `target_in`; one embedding serves all of it.

    A child that can do without padding also defines `packed_hidden`.
    """

    def __init__(self, config: ModelConfig, vocabulary_size: int) -> None:
        super().__init__()
        self.config = config
        self.vocabulary_size = vocabulary_size
        self.embedding = make_embedding(config, vocabulary_size)

    def forward(self, source: Tensor, target_in: Tensor) -> Tensor:
        """Teacher-forced logits: (B, S), (B, T) -> (B, T, V)."""
        return self.logits(self.hidden(source, target_in))

    @abstractmethod
    def hidden(self, source: Tensor, target_in: Tensor) -> Tensor:
        """What the output layer reads: (B, S), (B, T) -> (B, T, D)."""

    def packed_hidden(self, source: Tensor, target_in: Tensor) -> tuple[Tensor, Packed]:
        """What `hidden` gives, as packed rows (R, D), and how target_in was packed."""
        packed = Packed(target_in)
        return packed.pack_states(self.hidden(source, target_in)), packed

    @property
    def repeated_layers(self) -> list[nn.Module]:
        """The layers that are alike: what a compiler and shards take one by one."""
        return []

    def logits(self, hidden: Tensor) -> Tensor:
        """The tied output layer: (..., D) -> (..., V)."""
        return self.embedding.logits(hidden)


def make_embedding(config: ModelConfig, vocabulary_size: int) -> Embedding:
    """The shared embedding of the configuration's sizes."""
    return Embedding(
        vocabulary_size,
        config.d_model,
        config.max_positions,
        config.positions == "learned",
        config.dropout,
    )


def padding_mask(ids: Tensor) -> Tensor | None:
    """(B, S) -> (B, 1, 1, S), True where there is a token; None when there is no padding."""
    mask = ids != PAD
    if ids.device.type == "cpu" and bool(mask.all()):
        return None
    return mask[:, None, None, :]


def parameter_count(model: nn.Module) -> int:
    """Number of trained parameters; a shared matrix counts once."""
    return sum(parameter.numel() for parameter in model.parameters())
