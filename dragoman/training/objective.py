"""The loss of a batch, as training and validation compute it.

Shapes: B batch, S source, T target, D d_model.
"""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from dragoman.config import TrainingConfig
from dragoman.corpus.batches import Batch
from dragoman.model.sequence_model import PAD, SequenceModel
from dragoman.training.compilation import round_width
from dragoman.training.loss import Loss, cross_entropy
from dragoman.training.r_drop import r_drop_loss


def batch_loss(model: SequenceModel, batch: Batch, smoothing: float, r_drop: float = 0.0) -> Loss:
    """Loss of a batch, over its real tokens; with r_drop, its alpha, of two passes in one."""
    device = model.embedding.weight.device
    source, target_in, target_out = (
        torch.from_numpy(ids).to(device, non_blocking=True)
        for ids in (batch.source, batch.target_in, batch.target_out)
    )
    if device.type != "cpu":
        sides, limit = (source, target_in, target_out), model.config.max_positions
        source, target_in, target_out = (round_width(ids, limit) for ids in sides)
    if r_drop:
        source, target_in = source.repeat(2, 1), target_in.repeat(2, 1)
    if device.type == "cpu":
        rows, packed = model.packed_hidden(source, target_in)
        if r_drop:  # row for row the same tokens twice, then the spare rows
            rows, labels = rows[: packed.tokens], target_out[target_out != PAD]
        else:
            labels = packed.pack(target_out)
    else:
        rows = model.hidden(source, target_in).flatten(0, 1)
        labels = target_out.flatten()
    weight = model.embedding.weight
    if r_drop:
        return r_drop_loss(rows, weight, labels, smoothing, r_drop, PAD)
    return cross_entropy(rows, weight, labels, smoothing, PAD)


class Objective(nn.Module):
    """The training loss of a model as a module: what several processes compute in parallel."""

    def __init__(self, model: SequenceModel, settings: TrainingConfig) -> None:
        super().__init__()
        self.model = model
        self._smoothing, self._r_drop = settings.label_smoothing, settings.r_drop
        self.memory_projections = nn.ModuleList()  # filled where the model is shared out

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Sums over the batch's tokens: the smoothed loss and the nll."""
        loss = batch_loss(self.model, batch, self._smoothing, self._r_drop)
        return loss.smoothed, loss.nll


@torch.no_grad()
def validation_nll(model: SequenceModel, batches: Iterator[Batch]) -> float:
    """Unsmoothed loss in nats a token; perplexity is its exponential."""
    total, tokens = 0.0, 0
    for batch in batches:
        loss = batch_loss(model, batch, 0.0)
        total, tokens = total + float(loss.nll), tokens + loss.tokens
    return total / max(tokens, 1)
