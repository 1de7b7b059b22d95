"""R-Drop (Liang et al. 2021, arXiv 2106.14448): two dropout passes that must agree.

Like the cross-entropy it never holds tokens x vocabulary in float32, and computes its gradients in
the forward pass.

Shapes: N rows (tokens of one pass), D d_model, V vocabulary.
"""

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor

from dragoman.training.loss import Loss

# Pairs of rows whose logits are at work at once (on a CPU: in its cache), and for which the
# gradients by the logits are held for the two products that carry them on.
_CPU_ROWS, _GPU_ROWS, _BLOCK_ROWS = 128, 1024, 2048


def r_drop_loss(
    hidden: Tensor, weight: Tensor, labels: Tensor, smoothing: float, alpha: float, ignored: int
) -> Loss:
    """Label-smoothed cross-entropy of two passes and alpha times their symmetric divergence.

    hidden (2 N, D): the rows of one pass, then those of the other, with other dropout; weight
    (V, D); labels (N); rows whose label is `ignored` count for nothing. The sums are half of the
    paper's, its Equation 4: (CE(p) + CE(q)) / 2 + alpha (KL(p || q) + KL(q || p)) / 4. So a token
    counts once, and the loss and the gradient norm are on the scale of a single pass; Adam does not
    see the factor. nll is the mean of the two passes.
    """
    if hidden.shape[0] != 2 * labels.shape[0]:
        raise ValueError(f"{hidden.shape[0]} rows are not twice {labels.shape[0]}")
    counts = labels != ignored
    if not torch.is_grad_enabled():
        hidden, weight = hidden.detach(), weight.detach()
    smoothed, nll = _r_drop(hidden, weight, labels.clamp_min(0), counts, smoothing, alpha)
    return Loss(smoothed, nll, int(counts.sum()))


class _RDrop(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        labels: Tensor,
        counts: Tensor,
        smoothing: float,
        alpha: float,
    ) -> tuple[Tensor, Tensor]:
        rows, output = labels.shape[0], weight.to(hidden.dtype)
        passes = hidden.view(2, rows, -1)
        totals = torch.zeros(2, dtype=torch.float64, device=hidden.device)
        wanted = any(ctx.needs_input_grad)
        hidden_gradient = torch.empty_like(passes) if wanted else None
        weight_gradient: Tensor | None = None
        for start in range(0, rows, _BLOCK_ROWS):
            block = slice(start, start + _BLOCK_ROWS)
            states = passes[:, block]
            gradients = _logit_gradients(
                states, output, labels[block], counts[block], (smoothing, alpha), totals
            )
            if hidden_gradient is not None:
                hidden_gradient[:, block] = gradients @ output
                new = (gradients.flatten(0, 1).t() @ states.flatten(0, 1)).to(weight.dtype)
                weight_gradient = new if weight_gradient is None else weight_gradient.add_(new)
        if hidden_gradient is not None:
            if weight_gradient is None:
                weight_gradient = torch.zeros_like(weight)
            ctx.save_for_backward(hidden_gradient.view_as(hidden), weight_gradient)
        smoothed, nll = totals.to(torch.promote_types(hidden.dtype, torch.float32))
        ctx.mark_non_differentiable(nll)
        return smoothed, nll

    @staticmethod
    def backward(
        ctx: Any, gradient: Tensor, _: Tensor
    ) -> tuple[Tensor, Tensor, None, None, None, None]:
        hidden_gradient, weight_gradient = ctx.saved_tensors
        # A float32 scalar: not rounded to bfloat16 first.
        return hidden_gradient * gradient, weight_gradient.mul_(gradient), None, None, None, None


_r_drop = cast(Callable[..., tuple[Tensor, Tensor]], _RDrop.apply)


def _logit_gradients(
    states: Tensor,
    output: Tensor,
    labels: Tensor,
    counts: Tensor,
    strengths: tuple[float, float],
    totals: Tensor,
) -> Tensor:
    """Adds loss and nll to totals and gives d loss / d logits, (2, n, V) in the states' dtype.

    With d = z_p - z_q, a row's logits in the two passes apart, and E_p d its mean under p:
    KL(p || q) + KL(q || p) = E_p d - E_q d, whose gradient is p (d - E_p d) + p - q by z_p and
    q (E_q d - d) + q - p by z_q: normalizers cancel.
    """
    smoothing, alpha = strengths
    rows, symbols = labels.shape[0], output.shape[0]
    gradients = states.new_empty(2, rows, symbols)
    exact = torch.promote_types(states.dtype, torch.float32)
    step = _CPU_ROWS if states.device.type == "cpu" else _GPU_ROWS
    for start in range(0, rows, step):
        part = slice(start, start + step)
        gold, kept = labels[part, None].expand(2, -1, 1), counts[part, None].to(exact)
        logits = (states[:, part] @ output.t()).to(exact)  # (2, n, V)
        chosen = logits.gather(2, gold)
        nll = logits.logsumexp(dim=2, keepdim=True) - chosen
        smoothed = nll + smoothing * (chosen - logits.mean(dim=2, keepdim=True))
        apart = logits[0] - logits[1]
        p, q = probabilities = logits.softmax(dim=2)
        mean_p, mean_q = ((one * apart).sum(dim=1, keepdim=True) for one in (p, q))
        divergence = mean_p - mean_q
        loss = smoothed.sum(0) / 2 + alpha / 4 * divergence
        totals[0] += (loss * kept).sum(dtype=torch.float64)
        totals[1] += (nll.sum(0) / 2 * kept).sum(dtype=torch.float64)
        difference = p - q
        # (1/2 + alpha/4 (d - E_p d)) p + alpha/4 (p - q), and so for q with d and p - q negated.
        gradient = torch.stack([apart - mean_p, mean_q - apart]).mul_(alpha / 4).add_(0.5)
        gradient.mul_(probabilities).sub_(smoothing / (2 * symbols))
        gradient[0].add_(difference, alpha=alpha / 4)
        gradient[1].sub_(difference, alpha=alpha / 4)
        gradient.scatter_add_(2, gold, torch.full_like(chosen, (smoothing - 1) / 2))
        gradients[:, part] = gradient.mul_(kept)
    return gradients
