"""Embeddings (section 3.4) and positions (section 3.5).

Shapes: B batch, T positions, D d_model, V vocabulary.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from dragoman.model.layers import dropout
from dragoman.model.layout import Packed


def sinusoidal_positions(length: int, d_model: int) -> Tensor:
    """PE(pos, 2i) = sin(pos / 10000^(2i/d_model)), PE(pos, 2i+1) = cos(the same): (T, D)."""
    position = torch.arange(length, dtype=torch.float64)[:, None]
    even = torch.arange(0, d_model, 2, dtype=torch.float64)
    angles = position * torch.exp(even * (-math.log(10000.0) / d_model))
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1).float()


class Embedding(nn.Module):
    """Token embedding times sqrt(d_model) plus position, dropout on the sum (section 5.4).

    The one matrix `weight` (V, D) is the source embedding, the target embedding and the
    pre-softmax linear transformation; only the input use is scaled.
    """

    positions: Tensor  # (max_positions, D)

    def __init__(
        self,
        vocabulary_size: int,
        d_model: int,
        max_positions: int,
        learned: bool,
        dropout_rate: float,
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocabulary_size, d_model))
        nn.init.normal_(self.weight, std=d_model**-0.5)
        self.dropout_rate = dropout_rate
        self.compute_dtype = torch.float32
        if learned:
            self.positions = nn.Parameter(torch.empty(max_positions, d_model))
            nn.init.normal_(self.positions, std=d_model**-0.5)
        else:
            self.register_buffer(
                "positions", sinusoidal_positions(max_positions, d_model), persistent=False
            )

    def forward(self, ids: Tensor) -> Tensor:
        """(B, T) -> (B, T, D) in compute_dtype.

        Column t stands at position t; see `at` for columns that all stand at one position.
        """
        return self._sum(ids, self.positions[: ids.shape[1]])

    def at(self, ids: Tensor, position: int | Tensor) -> Tensor:
        """(B, N) ids that stand at one position, or each at its own, (B, N) -> (B, N, D)."""
        return self._sum(ids, self.positions[position])

    def without_positions(self, ids: Tensor) -> Tensor:
        """(B, T) -> (B, T, D) for a model that knows where it is."""
        tokens = self._scaled(ids).to(self.compute_dtype)
        return dropout(tokens, self.dropout_rate if self.training else 0.0)

    def rows(self, packed: Packed) -> Tensor:
        """The same as packed rows: (R, D)."""
        return self._sum(packed.ids, self.positions.index_select(0, packed.positions))

    def _sum(self, ids: Tensor, positions: Tensor) -> Tensor:
        total = (self._scaled(ids) + positions).to(self.compute_dtype)
        return dropout(total, self.dropout_rate if self.training else 0.0)

    def _scaled(self, ids: Tensor) -> Tensor:
        return functional.embedding(ids, self.weight) * math.sqrt(self.weight.shape[1])

    def logits(self, hidden: Tensor) -> Tensor:
        """The tied output layer: (..., D) -> (..., V)."""
        return functional.linear(hidden, self.weight.to(hidden.dtype))
