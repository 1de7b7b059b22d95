"""An encoder that gives one answer a sentence.

Shapes: B batch, T positions, D d_model, C labels.
"""

from torch import Tensor

from dragoman.config import ModelConfig
from dragoman.model.layers import Linear
from dragoman.model.stacks import EncoderOnly


class Classifier(EncoderOnly):
    """Scores labels by a linear map of the mean state of a sentence's tokens.

    The map needs no bias of its own: the last normalization has one, which the mean keeps.
    """

    def __init__(self, config: ModelConfig, vocabulary_size: int, labels: int) -> None:
        super().__init__(config, vocabulary_size)
        self.head = Linear(config.d_model, labels, bias=False)

    def label_logits(self, ids: Tensor) -> Tensor:
        """(B, T) -> (B, C)."""
        logits: Tensor = self.head(self.pooled(ids))
        return logits
