"""Label-smoothed cross-entropy (section 5.4) that never holds tokens x vocabulary in float32.

Shapes: N rows (tokens), D d_model, V vocabulary.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from dragoman.model import fused
from dragoman.model.kernels import usable

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


def cross_entropy(
    hidden: Tensor, weight: Tensor, labels: Tensor, smoothing: float, ignored: int = -1
) -> Loss:
    """Cross-entropy of softmax(hidden W^T) with labels smoothed by epsilon_ls.

    hidden (N, D), weight (V, D), labels (N); rows whose label is `ignored` count for nothing. The
    target distribution is 1 - epsilon on the label plus epsilon / V on every symbol (Szegedy et al.
    2016), in closed form: loss = logsumexp(z) - (1 - epsilon) z[label] - epsilon mean(z). Gradients
    are computed in the forward pass, block by block, from probabilities in hidden's dtype.
    """
    counts = labels != ignored
    tokens = int(counts.sum())
    if not torch.is_grad_enabled():  # else a parameter would have its gradient computed
        hidden, weight = hidden.detach(), weight.detach()
    smoothed, nll = _chunked_cross_entropy(hidden, weight, labels.clamp_min(0), counts, smoothing)
    return Loss(smoothed, nll, tokens)


class _ChunkedCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, labels: Tensor, counts: Tensor, smoothing: float
    ) -> tuple[Tensor, Tensor]:
        output = weight.to(hidden.dtype)
        symbols = output.sum(0, dtype=torch.float32)  # sum of the output rows, (D,)
        totals = torch.zeros(2, dtype=torch.float64, device=hidden.device)
        gradients, products = [], None
        counted = torch.zeros_like(symbols, dtype=torch.float64)  # sum of the rows that count
        for start in range(0, hidden.shape[0], _BLOCK_ROWS):
            rows = slice(start, start + _BLOCK_ROWS)
            block = _Block(hidden[rows], labels[rows], counts[rows, None], smoothing)
            probabilities = block.softmax(output, totals)
            counted += block.total
            if any(ctx.needs_input_grad):
                gradients.append(block.hidden_gradient(probabilities, output, symbols))
                new = probabilities.t() @ block.kept
                products = new if products is None else products.float().add_(new)
        if products is not None:
            whole = gradients[0] if len(gradients) == 1 else torch.cat(gradients)
            ctx.save_for_backward(whole, products, hidden, labels, counts, counted)
            ctx.smoothing, ctx.dtype = smoothing, weight.dtype
        # The sum of all logits, without them: sum_n sum_v h_n w_v = (sum_n h_n) (sum_v w_v).
        everything = counted @ symbols.double()
        nll, gold = totals
        smoothed = nll + smoothing * gold - smoothing / weight.shape[0] * everything
        smoothed, nll = smoothed.float(), nll.float()
        ctx.mark_non_differentiable(nll)
        return smoothed, nll

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        hidden_gradient, products, hidden, labels, counts, counted = ctx.saved_tensors
        scaled = hidden_gradient * gradient  # a float32 scalar: not rounded to bfloat16 first
        share = counted.to(ctx.dtype) * (ctx.smoothing / products.shape[0])
        if usable(products) and ctx.dtype == torch.float32:
            weight_gradient = fused.less_a_row(products, share, float(gradient))
        else:
            weight_gradient = (products.to(ctx.dtype) - share).mul_(gradient)
        states = hidden.to(ctx.dtype) * (counts[:, None] * (gradient * (ctx.smoothing - 1)))
        return scaled, weight_gradient.index_add_(0, labels, states), None, None, None


_chunked_cross_entropy = cast(Callable[..., tuple[Tensor, Tensor]], _ChunkedCrossEntropy.apply)


class _Block:
    """Some rows of the loss.

    d loss / d z = softmax(z) - (1 - epsilon) onehot(label) - epsilon / V. In the two products that
    carry it on, the second and third term take no pass over V: they are a row of the other factor,
    and the sum of its rows.
    """

    def __init__(self, hidden: Tensor, labels: Tensor, counts: Tensor, smoothing: float) -> None:
        self.hidden, self.labels, self.smoothing = hidden, labels, smoothing
        self.counts = counts.to(hidden.dtype)  # (n, 1), 1 for a row that counts, else 0
        self.kept = hidden * self.counts
        exact = torch.promote_types(hidden.dtype, torch.float32)
        self.total = self.kept.sum(0, dtype=exact)  # (D,)

    def softmax(self, output: Tensor, totals: Tensor) -> Tensor:
        """Probabilities (n, V) in hidden's dtype; adds sums of nll and gold logits to totals."""
        hidden = self.hidden
        probabilities = hidden.new_empty(hidden.shape[0], output.shape[0])
        step = _CPU_ROWS if hidden.device.type == "cpu" else _BLOCK_ROWS
        logits = hidden.new_empty(min(step, hidden.shape[0]), output.shape[0])
        kernels = usable(logits)
        found = torch.empty(2, hidden.shape[0]) if kernels else None  # of each row: nll, gold logit
        for start in range(0, hidden.shape[0], step):
            rows = slice(start, start + step)
            labels, counts = self.labels[rows, None], self.counts[rows].double()
            if found is not None:
                chunk = torch.mm(hidden[rows], output.t(), out=probabilities[rows])
                fused.softmax_(chunk, self.labels[rows], *found[:, rows])
                continue
            chunk = torch.mm(hidden[rows], output.t(), out=logits[: len(labels)])
            torch.softmax(chunk, dim=1, out=probabilities[rows])
            nll = -probabilities[rows].gather(1, labels).double().log()
            if not bool((nll < _EXACT_NLL).all()):  # too small a probability for its dtype
                exact = chunk.log_softmax(dim=1, dtype=torch.float32)
                nll = -exact.gather(1, labels).double()
            totals[0] += (nll * counts).sum()
            totals[1] += (chunk.gather(1, labels).double() * counts).sum()
        if found is not None:
            totals += found.double() @ self.counts[:, 0].double()
        return probabilities

    def hidden_gradient(self, probabilities: Tensor, output: Tensor, symbols: Tensor) -> Tensor:
        """(n, V), (V, D), their sum (D,) -> (n, D)."""
        gradient = probabilities @ output
        gradient -= (1 - self.smoothing) * output.index_select(0, self.labels)
        share = symbols * (self.smoothing / output.shape[0])
        return gradient.sub_(share.to(gradient.dtype)).mul_(self.counts)
