"""What a step function finds, kept so that no search has to normalize a whole vocabulary.

Shapes: R rows, V vocabulary, K symbols of each.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from dragoman.model.kernels import kernels, usable

# Symbols whose largest value is looked at first; on a CPU that beats a selection among them all.
_CHUNK = 64
# So many are selected by the kernel: a vector's lanes.
_MOST = 16


@dataclass(frozen=True)
class LogProbs:
    """Log-probabilities logits - log_sums; -inf where a symbol is forbidden."""

    logits: Tensor  # (R, V)
    log_sums: Tensor | None = None  # (R,), float32; None: logits are log-probabilities

    @staticmethod
    def of(logits: Tensor) -> "LogProbs":
        """Of logits (R, V), which are kept: log softmax, in float32."""
        return LogProbs(logits, log_sums(logits))

    def dense(self) -> Tensor:
        """(R, V) in float32."""
        logits = self.logits.float()
        return logits if self.log_sums is None else logits - self.log_sums[:, None]

    def of_symbol(self, symbol: int) -> Tensor:
        """The log-probability of one symbol in every row: (R,), float32."""
        logits = self.logits[:, symbol].float()
        return logits if self.log_sums is None else logits - self.log_sums

    def of_each(self, symbols: Tensor) -> Tensor:
        """The log-probability of each row's symbol (R,): (R,), float32."""
        logits = self.logits.gather(1, symbols[:, None])[:, 0].float()
        return logits if self.log_sums is None else logits - self.log_sums

    def top(self, count: int) -> tuple[Tensor, Tensor]:
        """The `count` likeliest symbols of every row, likeliest first: log-probabilities, symbols.

        (R, K) each; of equals any may come first.
        """
        values, symbols = largest(self.logits, count)
        if self.log_sums is not None:
            values = values.float() - self.log_sums[:, None]
        return values, symbols


def log_sums(logits: Tensor) -> Tensor:
    """log(sum(exp(logits))) of every row, in float32: (R, V) -> (R,)."""
    if not usable(logits) or not logits.is_contiguous():
        return logits.float().logsumexp(dim=1)
    sums = torch.empty(len(logits))
    kernels().call("log_sums", logits.dtype, *logits.shape, logits, sums)
    return sums


def largest(values: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` largest of every row, largest first, and where they stand: (R, V) -> (R, K)."""
    if not usable(values) or not values.is_contiguous() or count > _MOST:
        return _largest_of_chunks(values, count)
    best = torch.empty(len(values), count)
    places = torch.empty(len(values), count, dtype=torch.long)
    kernels().call("largest", values.dtype, *values.shape, count, values, best, places)
    return best, places


def _largest_of_chunks(values: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The same in PyTorch.

    The largest K values lie in the K chunks of the largest maxima, or in the rest of the row.
    """
    chunks = values.shape[1] // _CHUNK
    if values.device.type != "cpu" or chunks <= 4 * count:
        best = values.topk(count, dim=1)
        return best.values, best.indices
    chunked = values[:, : chunks * _CHUNK].unflatten(1, (chunks, _CHUNK))
    chosen = chunked.amax(2).topk(count, dim=1).indices  # (R, K)
    candidates = chunked.gather(1, chosen[..., None].expand(-1, -1, _CHUNK)).flatten(1)
    rest = values[:, chunks * _CHUNK :]
    best = torch.cat([candidates, rest], dim=1).topk(count, dim=1)
    inside = chosen.gather(1, (best.indices // _CHUNK).clamp_(max=count - 1)) * _CHUNK
    inside += best.indices % _CHUNK
    outside = best.indices + (chunks - count) * _CHUNK
    return best.values, torch.where(best.indices < count * _CHUNK, inside, outside)
