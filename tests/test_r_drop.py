"""R-Drop against plain autograd over whole logits, value and gradients.

Shapes: N rows of one pass, D d_model, V vocabulary.
"""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import cross_entropy as torch_cross_entropy
from torch.nn.functional import kl_div
from torch.testing import assert_close

from dragoman.training import r_drop
from dragoman.training.loss import cross_entropy
from dragoman.training.r_drop import r_drop_loss

# Around the rows of one chunk of logits and of one block of gradients.
ROWS = [1, 127, 128, 129, 2047, 2049]


def example(
    rows: int, vocabulary: int = 13, width: int = 6, apart: float = 0.5
) -> tuple[Tensor, Tensor, Tensor]:
    """Two passes in float64 that differ a little, an output matrix, labels with some ignored."""
    generator = torch.Generator().manual_seed(rows)
    hidden = torch.randn(rows, width, generator=generator, dtype=torch.float64)
    other = hidden + apart * torch.randn(rows, width, generator=generator, dtype=torch.float64)
    weight = torch.randn(vocabulary, width, generator=generator, dtype=torch.float64)
    labels = torch.randint(vocabulary, (rows,), generator=generator)
    labels[2::5] = -1
    return torch.cat([hidden, other]), weight, labels


def reference(
    hidden: Tensor, weight: Tensor, labels: Tensor, smoothing: float, alpha: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Half of Equation 4, and its gradients, as PyTorch's own functions give them in float64."""
    leaves = [tensor.detach().double().requires_grad_() for tensor in (hidden, weight)]
    one, other = (leaves[0] @ leaves[1].T).chunk(2)
    entropies = sum(
        torch_cross_entropy(
            logits, labels, label_smoothing=smoothing, reduction="sum", ignore_index=-1
        )
        for logits in (one, other)
    )
    kept = labels != -1
    p, q = one[kept].log_softmax(1), other[kept].log_softmax(1)
    divergence = kl_div(q, p, reduction="sum", log_target=True)
    divergence = divergence + kl_div(p, q, reduction="sum", log_target=True)
    loss = (entropies + alpha * divergence / 2) / 2
    gradients = torch.autograd.grad(loss, leaves)
    return loss.detach(), gradients[0], gradients[1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("smoothing", "alpha"), [(0.0, 5.0), (0.1, 1.0), (0.1, 0.0)])
@pytest.mark.parametrize("rows", ROWS)
def test_loss_and_gradients_are_autograds(
    rows: int, smoothing: float, alpha: float, dtype: torch.dtype
) -> None:
    hidden, weight, labels = example(rows)
    expected = reference(hidden, weight, labels, smoothing, alpha)
    leaves = [tensor.to(dtype).requires_grad_() for tensor in (hidden, weight)]
    loss = r_drop_loss(leaves[0], leaves[1], labels, smoothing, alpha, -1)
    (loss.smoothed * 0.37).backward()
    assert loss.tokens == int((labels != -1).sum())
    exact = {"rtol": 1e-11, "atol": 1e-11} if dtype == torch.float64 else {"rtol": 1e-4}
    near = exact if dtype == torch.float64 else {"rtol": 2e-4, "atol": 2e-6 * rows**0.5 + 2e-6}
    assert_close(loss.smoothed.detach().double(), expected[0], **({"atol": 1e-4} | exact))
    for leaf, gradient in zip(leaves, expected[1:], strict=True):
        assert leaf.grad is not None
        assert_close(leaf.grad.double(), 0.37 * gradient, **near)


@settings(deadline=None, max_examples=40)
@given(
    rows=st.integers(1, 12),
    vocabulary=st.integers(1, 20),
    width=st.integers(1, 8),
    smoothing=st.floats(0, 0.99),
    alpha=st.floats(0, 20),
)
def test_every_shape(
    rows: int, vocabulary: int, width: int, smoothing: float, alpha: float
) -> None:
    hidden, weight, labels = example(rows, vocabulary, width)
    expected = reference(hidden, weight, labels, smoothing, alpha)
    leaves = [hidden.requires_grad_(), weight.requires_grad_()]
    loss = r_drop_loss(hidden, weight, labels, smoothing, alpha, -1)
    gradients = torch.autograd.grad(loss.smoothed, leaves)
    for ours, theirs in zip([loss.smoothed.detach(), *gradients], expected, strict=True):
        assert_close(ours, theirs, rtol=1e-9, atol=1e-9)


def test_equal_passes_are_one_pass() -> None:
    """Without a difference the divergence is nothing, and its gradient too."""
    hidden, weight, labels = example(300, apart=0.0)
    single = hidden[:300].float().requires_grad_()
    plain = cross_entropy(single, weight.float(), labels, 0.1)
    plain.smoothed.backward()
    both = hidden.float().requires_grad_()
    loss = r_drop_loss(both, weight.float(), labels, 0.1, 5.0, -1)
    loss.smoothed.backward()
    assert loss.tokens == plain.tokens
    assert_close(loss.smoothed, plain.smoothed, rtol=1e-6, atol=1e-4)
    assert_close(loss.nll, plain.nll, rtol=1e-6, atol=1e-4)
    assert single.grad is not None and both.grad is not None
    assert_close(both.grad[:300] + both.grad[300:], single.grad, rtol=1e-4, atol=1e-5)


def test_bfloat16_is_near() -> None:
    hidden, weight, labels = example(300)
    expected, hidden_gradient, weight_gradient = reference(hidden, weight, labels, 0.1, 1.0)
    low, master = hidden.bfloat16().requires_grad_(), weight.float().requires_grad_()
    loss = r_drop_loss(low, master, labels, 0.1, 1.0, -1)
    loss.smoothed.backward()
    assert low.grad is not None and low.grad.dtype == torch.bfloat16
    assert master.grad is not None and master.grad.dtype == torch.float32
    assert_close(loss.smoothed.detach().double(), expected, rtol=1e-2, atol=0.1)
    for ours, theirs in ((low.grad, hidden_gradient), (master.grad, weight_gradient)):
        assert float((ours.double() - theirs).norm() / theirs.norm()) < 0.02


def test_large_logits_neither_overflow_nor_vanish() -> None:
    hidden, weight, labels = example(7)
    expected = reference(hidden * 1e3, weight, labels, 0.1, 1.0)
    leaves = [(hidden * 1e3).float().requires_grad_(), weight.float().requires_grad_()]
    loss = r_drop_loss(leaves[0], leaves[1], labels, 0.1, 1.0, -1)
    gradients = torch.autograd.grad(loss.smoothed, leaves)
    for ours, theirs in zip([loss.smoothed.detach(), *gradients], expected, strict=True):
        assert bool(ours.isfinite().all())
        assert_close(ours.double(), theirs, rtol=1e-3, atol=1e-1)


def test_without_gradients_the_same_value_and_nothing_kept() -> None:
    hidden, weight, labels = example(200)
    leaves = [hidden.requires_grad_(), weight.requires_grad_()]
    loud = r_drop_loss(leaves[0], leaves[1], labels, 0.1, 2.0, -1)
    with torch.no_grad():
        quiet = r_drop_loss(leaves[0], leaves[1], labels, 0.1, 2.0, -1)
    assert loud.smoothed.requires_grad and not quiet.smoothed.requires_grad
    assert torch.equal(quiet.smoothed, loud.smoothed.detach())


def test_rows_must_come_in_pairs() -> None:
    hidden, weight, labels = example(5)
    with pytest.raises(ValueError, match="not twice"):
        r_drop_loss(hidden[1:], weight, labels, 0.1, 1.0, -1)


def test_no_float32_tensor_is_as_large_as_tokens_times_vocabulary(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The largest logits that are at work at once are one chunk of each pass."""
    seen: list[int] = []
    original = torch.Tensor.softmax

    def watched(self: Tensor, dim: int) -> Tensor:
        seen.append(self.shape[0] * self.shape[1])
        return original(self, dim)

    monkeypatch.setattr(torch.Tensor, "softmax", watched)
    hidden, weight, labels = example(1000)
    r_drop_loss(hidden.float(), weight.float(), labels, 0.1, 1.0, -1)
    assert sum(seen) == 2000 and max(seen) == 2 * r_drop._CPU_ROWS
