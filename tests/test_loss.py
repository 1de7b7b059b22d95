"""The loss (section 5.4) against PyTorch's cross-entropy, value and gradients.

Shapes: N rows, D d_model, V vocabulary.
"""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import cross_entropy as torch_cross_entropy
from torch.testing import assert_close

from dragoman.training.loss import cross_entropy

# Around the rows of one chunk of logits and of one product for the weight's gradient.
ROWS = [1, 2, 255, 256, 257, 511, 513, 4095, 4096, 4097, 8193]


def example(rows: int, vocabulary: int = 13, width: int = 6) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(rows)
    hidden = torch.randn(rows, width, generator=generator)
    weight = torch.randn(vocabulary, width, generator=generator)
    return hidden, weight, torch.randint(vocabulary, (rows,), generator=generator)


def reference(
    hidden: Tensor, weight: Tensor, labels: Tensor, smoothing: float, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Loss and gradients of PyTorch in float64."""
    leaves = [tensor.double().requires_grad_() for tensor in (hidden, weight)]
    loss = torch_cross_entropy(
        leaves[0] @ leaves[1].T, labels, label_smoothing=smoothing, reduction="sum"
    )
    hidden_gradient, weight_gradient = torch.autograd.grad(loss * scale, leaves)
    return loss.detach(), hidden_gradient, weight_gradient


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.6])
@pytest.mark.parametrize("rows", ROWS)
def test_loss_and_gradients_are_pytorchs(rows: int, smoothing: float) -> None:
    hidden, weight, labels = example(rows)
    expected, hidden_gradient, weight_gradient = reference(
        hidden, weight, labels, smoothing, scale=0.37
    )
    nll, _, _ = reference(hidden, weight, labels, 0.0, scale=1.0)
    hidden.requires_grad_()
    weight.requires_grad_()
    loss = cross_entropy(hidden, weight, labels, smoothing)
    (loss.smoothed * 0.37).backward()
    assert loss.tokens == rows
    assert_close(loss.smoothed.detach().double(), expected, rtol=1e-6, atol=1e-5)
    assert_close(loss.nll.double(), nll, rtol=1e-6, atol=1e-5)
    assert hidden.grad is not None and weight.grad is not None
    assert_close(hidden.grad.double(), hidden_gradient, rtol=1e-4, atol=1e-6)
    assert_close(weight.grad.double(), weight_gradient, rtol=1e-4, atol=rows * 1e-7 + 1e-6)


@settings(deadline=None, max_examples=40)
@given(
    rows=st.integers(1, 20),
    vocabulary=st.integers(1, 30),
    width=st.integers(1, 8),
    smoothing=st.floats(0, 0.99),
)
def test_every_shape(rows: int, vocabulary: int, width: int, smoothing: float) -> None:
    hidden, weight, labels = example(rows, vocabulary, width)
    expected = reference(hidden, weight, labels, smoothing, scale=1.0)
    loss = cross_entropy(hidden.requires_grad_(), weight.requires_grad_(), labels, smoothing)
    gradients = torch.autograd.grad(loss.smoothed, [hidden, weight])
    for ours, theirs in zip([loss.smoothed.detach(), *gradients], expected, strict=True):
        assert_close(ours.double(), theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("rows", [3, 300])
def test_bfloat16_is_near(rows: int) -> None:
    """The products are in bfloat16 (8 bits), the softmax and the sums in float32."""
    hidden, weight, labels = example(rows)
    hidden = hidden.bfloat16()
    expected, hidden_gradient, weight_gradient = reference(hidden, weight, labels, 0.1, scale=1.0)
    loss = cross_entropy(hidden.requires_grad_(), weight.requires_grad_(), labels, 0.1)
    gradients = torch.autograd.grad(loss.smoothed, [hidden, weight])
    assert loss.smoothed.dtype == torch.float32
    assert gradients[0].dtype == torch.bfloat16 and gradients[1].dtype == torch.float32
    assert_close(loss.smoothed.detach().double(), expected, rtol=1e-2, atol=1e-2)
    assert_close(gradients[0].double(), hidden_gradient, rtol=5e-2, atol=5e-2)
    assert_close(gradients[1].double(), weight_gradient, rtol=5e-2, atol=5e-2 * rows**0.5)


@pytest.mark.parametrize("rows", [5, 300])
def test_without_gradients_the_value_is_the_same(rows: int) -> None:
    hidden, weight, labels = example(rows)
    with torch.no_grad():
        quiet = cross_entropy(hidden, weight, labels, 0.1)
    loud = cross_entropy(hidden.requires_grad_(), weight.requires_grad_(), labels, 0.1)
    assert not quiet.smoothed.requires_grad and loud.smoothed.requires_grad
    assert torch.equal(quiet.smoothed, loud.smoothed.detach())
    assert torch.equal(quiet.nll, loud.nll)


def test_the_inputs_stay_as_they_are() -> None:
    hidden, weight, labels = example(300)
    before = hidden.clone(), weight.clone(), labels.clone()
    loss = cross_entropy(hidden.requires_grad_(), weight.requires_grad_(), labels, 0.1)
    loss.smoothed.backward()
    for tensor, copy in zip((hidden, weight, labels), before, strict=True):
        assert torch.equal(tensor.detach(), copy)


def test_large_logits_neither_overflow_nor_vanish() -> None:
    hidden, weight, labels = example(7)
    hidden = hidden * 1e3
    expected = reference(hidden, weight, labels, 0.1, scale=1.0)
    loss = cross_entropy(hidden.requires_grad_(), weight.requires_grad_(), labels, 0.1)
    gradients = torch.autograd.grad(loss.smoothed, [hidden, weight])
    for ours, theirs in zip([loss.smoothed.detach(), *gradients], expected, strict=True):
        assert bool(ours.isfinite().all())
        assert_close(ours.double(), theirs, rtol=1e-3, atol=1e-2)
