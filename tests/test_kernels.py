"""The compiled kernels compute what PyTorch's operations do.

Shapes: R rows, D features, H heads, K head width, V vocabulary.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from torch.testing import assert_close

from dragoman.config import resolve_config
from dragoman.model import fused, layers, transformer
from dragoman.model.attention import attention
from dragoman.model.kernels import kernels
from dragoman.model.layout import Packed, Ragged
from dragoman.model.transformer import Transformer
from dragoman.training.loss import cross_entropy

pytestmark = pytest.mark.skipif(kernels().library is None, reason=kernels().reason)

KINDS = [torch.float32, torch.bfloat16]
HEADS, WIDTH = 2, 16


def tolerance(kind: torch.dtype) -> dict[str, float]:
    return {"rtol": 1e-4, "atol": 1e-5} if kind == torch.float32 else {"rtol": 2e-2, "atol": 2e-2}


def make_rows(rows: int, width: int, kind: torch.dtype, seed: int = 1) -> Tensor:
    chance = torch.Generator().manual_seed(seed)
    return torch.randn(rows, width, generator=chance).to(kind).requires_grad_()


def pack(lengths: list[int]) -> Packed:
    return Packed((torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]).long())


def rows_of(packed: Packed) -> int:
    return len(packed.ids)


def explicit(queries: Tensor, memory: Tensor | None, ragged: Ragged) -> Tensor:
    """Sentence by sentence, by the explicit formula in float64."""
    if memory is None:
        query, key, value = queries.double().chunk(3, dim=-1)
    else:
        query, (key, value) = queries.double(), memory.double().chunk(2, dim=-1)
    output = torch.zeros_like(query)
    for b in range(len(ragged.query_starts) - 1):
        mine = slice(int(ragged.query_starts[b]), int(ragged.query_starts[b + 1]))
        theirs = slice(int(ragged.key_starts[b]), int(ragged.key_starts[b + 1]))
        operands = [
            x[own].unflatten(-1, (HEADS, WIDTH)).transpose(0, 1)
            for x, own in ((query, mine), (key, theirs), (value, theirs))
        ]
        size = operands[0].shape[1]
        mask = torch.ones(size, size, dtype=torch.bool).tril() if ragged.causal else None
        output[mine] = attention(*operands, mask).transpose(0, 1).flatten(1)
    return output


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("lengths", [[5, 5], [1], [17, 1, 16, 40, 33, 3, 2]])
@pytest.mark.parametrize("causal", [False, True])
def test_attention_to_itself_is_the_explicit_formula(
    kind: torch.dtype, lengths: list[int], causal: bool
) -> None:
    packed = pack(lengths)
    ragged = Ragged.between(packed, packed, causal)
    queries = make_rows(rows_of(packed), 3 * HEADS * WIDTH, kind)
    expected = explicit(queries, None, ragged)
    output = fused.ragged_attention(queries, None, ragged, HEADS, 0.0)
    assert output[packed.tokens :].abs().sum() == 0
    assert_close(output.double(), expected, **tolerance(kind))
    upstream = torch.randn_like(output)
    ours = torch.autograd.grad(output, queries, upstream)[0]
    theirs = torch.autograd.grad(expected, queries, upstream.double())[0]
    assert_close(ours, theirs, **tolerance(kind))


@pytest.mark.parametrize("kind", KINDS)
def test_attention_to_a_memory_is_the_explicit_formula(kind: torch.dtype) -> None:
    source, target = pack([9, 1, 30, 4]), pack([3, 20, 30, 1])
    ragged = Ragged.between(target, source)
    queries = make_rows(rows_of(target), HEADS * WIDTH, kind)
    memory = make_rows(rows_of(source), 2 * HEADS * WIDTH, kind, seed=2)
    expected = explicit(queries, memory, ragged)
    output = fused.ragged_attention(queries, memory, ragged, HEADS, 0.0)
    assert_close(output.double(), expected, **tolerance(kind))
    upstream = torch.randn_like(output)
    ours = torch.autograd.grad(output, (queries, memory), upstream)
    theirs = torch.autograd.grad(expected, (queries, memory), upstream.double())
    for one, other in zip(ours, theirs, strict=True):
        assert_close(one, other, **tolerance(kind))


def test_dropped_weights_are_the_same_in_both_directions() -> None:
    """With one-hot values the output is the weights; the gradient is that of those weights."""
    packed = pack([WIDTH] * 3)
    ragged = Ragged.between(packed, packed)
    queries = make_rows(rows_of(packed), 3 * HEADS * WIDTH, torch.float32)
    with torch.no_grad():
        eye = torch.eye(WIDTH).repeat(4, HEADS)  # key j of a sentence has value e_j
        queries[:, 2 * HEADS * WIDTH :] = eye
    torch.manual_seed(5)
    kept = fused.ragged_attention(queries, None, ragged, HEADS, 0.5)
    weights = fused.ragged_attention(queries, None, ragged, HEADS, 0.0)
    mask = (kept / weights)[: packed.tokens].detach()
    assert_close(mask, (mask > 1).float() * 2)
    assert 0.4 < float((mask > 0).float().mean()) < 0.6
    upstream = torch.randn_like(kept)
    ours = torch.autograd.grad(kept, queries, upstream)[0]
    whole = torch.zeros_like(weights)
    whole[: packed.tokens] = mask
    theirs = torch.autograd.grad(weights * whole, queries, upstream)[0]
    values = 2 * HEADS * WIDTH
    assert_close(ours[:, :values], theirs[:, :values], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rate", [0.1, 0.5])
@pytest.mark.parametrize("rows", [64, 67])
def test_dropout_keeps_its_share_and_its_gradient_the_same_decisions(
    kind: torch.dtype, rate: float, rows: int
) -> None:
    # Beside anything else a small y would be lost in rounding.
    x, y = torch.zeros(rows, 48, dtype=kind, requires_grad=True), make_rows(rows, 48, kind)
    torch.manual_seed(3)
    output = fused.add_dropout(x, y, rate)
    change = (output - x).detach()
    kept = change != 0
    assert abs(float(kept.float().mean()) - (1 - rate)) < 0.05
    expected = torch.where(kept, y.detach().float() / (1 - rate), torch.zeros(()))
    assert_close(change.float(), expected, rtol=5e-2, atol=5e-2)
    upstream = torch.ones_like(output)
    to_x, to_y = torch.autograd.grad(output, (x, y), upstream)
    assert_close(to_x, upstream)
    assert torch.equal(to_y != 0, kept)
    torch.manual_seed(3)
    assert torch.equal(fused.add_dropout(x, y, rate), output)
    assert not torch.equal(fused.add_dropout(x, y, rate), output)


@pytest.mark.parametrize("kind", KINDS)
def test_relu_with_dropout(kind: torch.dtype) -> None:
    x = make_rows(33, 80, kind)
    output = fused.relu_dropout(x, 0.0)
    assert torch.equal(output, x.relu())
    upstream = torch.randn_like(output)
    assert torch.equal(
        torch.autograd.grad(output, x, upstream)[0], torch.where(x > 0, upstream, 0.0)
    )
    dropped = fused.relu_dropout(x, 0.25)
    kept = dropped > 0
    assert bool((x[kept] > 0).all())
    assert_close(dropped[kept], (x[kept] / 0.75).detach(), rtol=1e-2, atol=1e-3)
    assert 0.65 < float(kept.sum() / (x > 0).sum()) < 0.85
    (gradient,) = torch.autograd.grad(dropped, x, torch.ones_like(dropped))
    assert_close(gradient, kept.to(kind) / 0.75, rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize("kind", KINDS)
def test_gate(kind: torch.dtype) -> None:
    x = make_rows(33, 2 * 48, kind)
    with torch.no_grad():
        x[0, :5] = torch.tensor([-200.0, -88.0, -30.0, 30.0, 200.0])
    first, second = x.double().chunk(2, dim=-1)
    ours, theirs = fused.gate(x), functional.silu(first) * second
    assert_close(ours.double(), theirs, **tolerance(kind))
    upstream = torch.randn_like(ours)
    (one,) = torch.autograd.grad(ours, x, upstream)
    (other,) = torch.autograd.grad(theirs, x, upstream.double())
    assert_close(one, other, **tolerance(kind))


@pytest.mark.parametrize("kind", KINDS)
def test_layer_norm(kind: torch.dtype) -> None:
    x = make_rows(37, 64, kind)
    weight = (torch.rand(64) + 0.5).requires_grad_()
    bias = torch.randn(64).requires_grad_()
    ours = fused.layer_norm(x, weight, bias, 1e-6)
    theirs = functional.layer_norm(x.double(), (64,), weight.double(), bias.double(), 1e-6)
    assert_close(ours.double(), theirs, **tolerance(kind))
    upstream = torch.randn_like(ours)
    for one, other in zip(
        torch.autograd.grad(ours, (x, weight, bias), upstream),
        torch.autograd.grad(theirs, (x, weight, bias), upstream.double()),
        strict=True,
    ):
        assert_close(one, other, **tolerance(kind))


@pytest.mark.parametrize("kind", KINDS)
def test_softmax_and_likelihood(kind: torch.dtype) -> None:
    logits = 8 * make_rows(9, 96, kind).detach()
    logits[0, 3] = 200.0
    labels = torch.arange(9)
    expected = logits.double().log_softmax(1)
    gold = logits.float().gather(1, labels[:, None])[:, 0]
    probabilities = logits.clone()
    nll, found = torch.empty(9), torch.empty(9)
    fused.softmax_(probabilities, labels, nll, found)
    assert_close(probabilities.double(), expected.exp(), **tolerance(kind))
    assert_close(nll.double(), -expected.gather(1, labels[:, None])[:, 0], rtol=1e-4, atol=1e-4)
    assert torch.equal(found, gold)


def test_what_is_not_a_number_is_not_hidden() -> None:
    bad = torch.full((1, 16), torch.nan)
    assert bool(fused.relu_dropout(bad, 0.1).isnan().any())
    nll, gold = torch.empty(1), torch.empty(1)
    fused.softmax_(bad.clone(), torch.zeros(1, dtype=torch.int64), nll, gold)
    assert bool(nll.isnan().all())
    assert bool(fused.gate(bad.repeat(1, 2)).isnan().all())
    norm = fused.layer_norm(bad, torch.ones(16), torch.zeros(16), 1e-6)
    assert bool(norm.isnan().all())


def test_a_training_step_is_that_of_pytorch_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loss and gradients of a whole model, with the kernels and without."""
    sizes = ["model.d_model=32", "model.d_ff=48", "model.heads=2", "model.dropout=0.0"]
    torch.manual_seed(1)
    model = Transformer(resolve_config("tiny", None, None, sizes).model, 64).train()
    ids = torch.randint(4, 60, (3, 12))
    ids[0, 5:] = 0
    found = []
    for without in (False, True):
        if without:
            for module in (layers, transformer, sys.modules["dragoman.training.loss"]):
                monkeypatch.setattr(module, "usable", lambda x: False)
        rows, packed = model.packed_hidden(ids, ids)
        loss = cross_entropy(rows, model.embedding.weight, packed.pack(ids), 0.1, 0)
        model.zero_grad()
        loss.smoothed.backward()
        gradients = [parameter.grad for parameter in model.parameters()]
        found.append((loss.smoothed.detach(), loss.nll, gradients))
    for one, other in zip(*found, strict=True):
        assert_close(one, other, rtol=1e-4, atol=1e-5)


def reason_with(changes: dict[str, str]) -> str:
    """Why a new process with this in its environment has no kernels."""
    code = "from dragoman.model.kernels import kernels; print(kernels().reason)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | changes,
    )
    return done.stdout.strip()


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"DRAGOMAN_KERNELS": "off"}, "turned off by DRAGOMAN_KERNELS"),
        ({"PATH": "/nowhere", "CXX": ""}, "no C++ compiler (g++ or clang++) was found"),
    ],
)
def test_without_them_it_says_why(changes: dict[str, str], reason: str) -> None:
    assert reason_with(changes) == reason


def test_a_compiler_that_fails_is_no_error(tmp_path: Path) -> None:
    compiler = tmp_path / "g++"
    script = '[ "$1" = --version ] && exit 0; echo "error: no" >&2; exit 1'
    compiler.write_text(f"#!/bin/sh\n{script}\n")
    compiler.chmod(0o755)
    environment = {"CXX": str(compiler), "DRAGOMAN_CACHE": str(tmp_path / "cache")}
    assert reason_with(environment) == "compiling them failed: error: no"
