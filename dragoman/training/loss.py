"""Label-smoothed cross-entropy (section 5.4) that never holds tokens x vocabulary in float32.

Shapes: N rows (tokens), D d_model, V vocabulary.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

# Rows whose logits are in a CPU's cache at once.
_CPU_ROWS = 256
# Rows whose probabilities are held for the two gradient products.
_BLOCK_ROWS = 4096
# Up to here -log(p) is exact enough for a p of the smallest dtype's range.
_EXACT_NLL = 60.0


@dataclass(frozen=True)
class Loss:
    """Sums over tokens, in nats, never means: accumulation and ranks divide once."""

    smoothed: Tensor
    nll: Tensor
    tokens: int


def cross_entropy(hidden: Tensor, weight: Tensor, labels: Tensor, smoothing: float) -> Loss:
    """Cross-entropy of softmax(hidden W^T) with labels smoothed by epsilon_ls.

    hidden (N, D), weight (V, D), labels (N). The target distribution is 1 - epsilon on the label
    plus epsilon / V on every symbol (Szegedy et al. 2016), in closed form:
    loss = logsumexp(z) - (1 - epsilon) z[label] - epsilon mean(z). Gradients are computed in the
    forward pass, block by block, from probabilities in hidden's dtype.
    """
    smoothed, nll = _ChunkedCrossEntropy.apply(hidden, weight, labels, smoothing)
    return Loss(smoothed, nll, labels.shape[0])


class _ChunkedCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, labels: Tensor, smoothing: float
    ) -> tuple[Tensor, Tensor]:
        output = weight.to(hidden.dtype)
        symbols = output.sum(0, dtype=torch.float32)  # sum of the output rows, (D,)
        totals = torch.zeros(2, dtype=torch.float64, device=hidden.device)
        hidden_gradients, weight_gradient = [], None
        for start in range(0, hidden.shape[0], _BLOCK_ROWS):
            rows = slice(start, start + _BLOCK_ROWS)
            probabilities = _softmax(hidden[rows], output, labels[rows], totals)
            if any(ctx.needs_input_grad):
                share = smoothing / weight.shape[0]
                block = hidden[rows], labels[rows]
                hidden_gradients.append(
                    _hidden_gradient(probabilities, output, symbols * share, block[1], smoothing)
                )
                new = _weight_gradient(probabilities, *block, share, smoothing)
                weight_gradient = new if weight_gradient is None else weight_gradient.add_(new)
        if weight_gradient is not None:
            ctx.save_for_backward(torch.cat(hidden_gradients), weight_gradient.to(weight.dtype))
        # The sum of all logits, without them: sum_n sum_v h_n w_v = (sum_n h_n) (sum_v w_v).
        everything = hidden.sum(0, dtype=torch.float64) @ symbols.double()
        log_normalizers, gold, nll = totals[0] + totals[1], totals[1], totals[0]
        smoothed = log_normalizers - (1 - smoothing) * gold
        smoothed = smoothed - smoothing / weight.shape[0] * everything
        smoothed, nll = smoothed.float(), nll.float()
        ctx.mark_non_differentiable(nll)
        return smoothed, nll

    @staticmethod
    def backward(  # type: ignore[override]
        ctx: Any, gradient: Tensor, _: Tensor
    ) -> tuple[Tensor, Tensor, None, None]:
        hidden_gradient, weight_gradient = ctx.saved_tensors
        scaled = hidden_gradient * gradient.to(hidden_gradient.dtype)
        # In place: a second backward pass through one loss is an error of autograd's anyway.
        return scaled, weight_gradient.mul_(gradient), None, None


def _softmax(hidden: Tensor, output: Tensor, labels: Tensor, totals: Tensor) -> Tensor:
    """Probabilities (n, V) in hidden's dtype; adds nll, gold logits to totals[0], totals[1]."""
    probabilities = hidden.new_empty(hidden.shape[0], output.shape[0])
    step = _CPU_ROWS if hidden.device.type == "cpu" else _BLOCK_ROWS
    logits = hidden.new_empty(min(step, hidden.shape[0]), output.shape[0])
    for start in range(0, hidden.shape[0], step):
        rows = slice(start, start + step)
        chunk = torch.mm(hidden[rows], output.t(), out=logits[: hidden[rows].shape[0]])
        torch.softmax(chunk, dim=1, out=probabilities[rows])
        nll = -probabilities[rows].gather(1, labels[rows, None]).double().log()
        if not bool((nll < _EXACT_NLL).all()):  # too small a probability for its dtype
            exact = chunk.log_softmax(dim=1, dtype=torch.float32)
            nll = -exact.gather(1, labels[rows, None]).double()
        totals[0] += nll.sum()
        totals[1] += chunk.gather(1, labels[rows, None]).sum(dtype=torch.float64)
    return probabilities


# d loss / d z = softmax(z) - (1 - epsilon) onehot(label) - epsilon / V. In the two products below
# the second and third term take no pass over V: they are a row of the other factor, and the sum of
# its rows.


def _hidden_gradient(
    probabilities: Tensor, output: Tensor, shared: Tensor, labels: Tensor, smoothing: float
) -> Tensor:
    """(n, V), (V, D) -> (n, D); shared is epsilon / V times the sum of the output rows."""
    gradient = probabilities @ output
    gradient -= (1 - smoothing) * output.index_select(0, labels)
    return gradient.sub_(shared.to(gradient.dtype))


def _weight_gradient(
    probabilities: Tensor, hidden: Tensor, labels: Tensor, share: float, smoothing: float
) -> Tensor:
    """(n, V), (n, D) -> (V, D) in float32; share is epsilon / V."""
    gradient = (probabilities.t() @ hidden).float()
    states = hidden.float()
    gradient.index_add_(0, labels, states, alpha=smoothing - 1)
    return gradient.sub_(share * states.sum(0))
