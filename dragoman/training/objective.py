"""The loss of a batch, as training and validation compute it.

Shapes: B batch, S source, T target, N rows, D d_model, V vocabulary or labels.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from dragoman.config import TrainingConfig
from dragoman.corpus.batches import Batch
from dragoman.model.classifier import Classifier
from dragoman.model.sequence_model import PAD, SequenceModel
from dragoman.model.stacks import EncoderOnly
from dragoman.training.compilation import round_width
from dragoman.training.loss import Loss, cross_entropy
from dragoman.training.r_drop import r_drop_loss

_MULTIPLE = 64  # of the rows of a masked language model's output layer


@dataclass(frozen=True)
class Outputs:
    """What the output layer reads, (N, D); its weight, (V, D); and the labels, (N,).

    Rows whose label is `ignored` count for nothing.
    """

    rows: Tensor
    weight: Tensor
    labels: Tensor
    ignored: int = PAD


def batch_outputs(model: SequenceModel, batch: Batch) -> Outputs:
    """What a model makes of a batch, up to its output layer."""
    source, target_in, target_out = _on_device(model, batch)
    if isinstance(model, Classifier):
        labels = target_out[:, 0] - 1
        return Outputs(model.pooled(target_in), model.head.weight, labels, -1)
    if target_in.device.type == "cpu":
        rows, packed = model.packed_hidden(source, target_in)
        labels = packed.pack(target_out)
    else:
        rows = model.hidden(source, target_in).flatten(0, 1)
        labels = target_out.flatten()
    if isinstance(model, EncoderOnly):
        rows, labels = _only_with_labels(rows, labels)
    return Outputs(rows, model.embedding.weight, labels)


def batch_loss(model: SequenceModel, batch: Batch, smoothing: float, r_drop: float = 0.0) -> Loss:
    """Loss of a batch, over its real tokens; with r_drop, its alpha, of two passes in one."""
    if not r_drop:
        out = batch_outputs(model, batch)
        return cross_entropy(out.rows, out.weight, out.labels, smoothing, out.ignored)
    source, target_in, target_out = _on_device(model, batch)
    source, target_in = source.repeat(2, 1), target_in.repeat(2, 1)
    if target_in.device.type == "cpu":  # row for row the same tokens twice, then the spare rows
        rows, packed = model.packed_hidden(source, target_in)
        rows, labels = rows[: packed.tokens], target_out[target_out != PAD]
    else:
        rows = model.hidden(source, target_in).flatten(0, 1)
        labels = target_out.flatten()
    return r_drop_loss(rows, model.embedding.weight, labels, smoothing, r_drop, PAD)


def _on_device(model: SequenceModel, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
    device = model.embedding.weight.device
    source, target_in, target_out = (
        torch.from_numpy(ids).to(device, non_blocking=True)
        for ids in (batch.source, batch.target_in, batch.target_out)
    )
    if device.type == "cpu":
        return source, target_in, target_out
    limit = model.config.max_positions
    return round_width(source, limit), round_width(target_in, limit), round_width(target_out, limit)


def _only_with_labels(rows: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """The rows that have a label, and some more: there are only a few numbers of rows."""
    chosen = labels.nonzero()[:, 0]
    spare = -len(chosen) % _MULTIPLE
    labels = functional.pad(labels[chosen], (0, spare), value=PAD)
    return rows.index_select(0, functional.pad(chosen, (0, spare))), labels


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


@torch.no_grad()
def predictions(model: SequenceModel, batches: Iterator[Batch]) -> tuple[Tensor, Tensor]:
    """The labels of all batches and what the model holds likeliest in their place, (N,) each."""
    labels, likeliest = [], []
    for batch in batches:
        out = batch_outputs(model, batch)
        counted = out.labels != out.ignored
        logits = functional.linear(out.rows[counted], out.weight.to(out.rows.dtype))
        labels.append(out.labels[counted].cpu())
        likeliest.append(logits.argmax(dim=1).cpu())
    return torch.cat(labels), torch.cat(likeliest)
