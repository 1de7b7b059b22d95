"""Packed rows compute what padded ones do.

Shapes: B batch, T positions, R rows, H heads, K head width.
"""

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from dragoman.config import resolve_config
from dragoman.model.layout import PADDED, Packed
from dragoman.model.sequence_model import PAD
from dragoman.model.transformer import Transformer

SETTINGS = [
    ["model.norm=pre"],
    ["model.norm=post"],
    ["model.d_k=6", "model.d_v=10"],
    ["model.positions=learned"],
    ["model.feed_forward=gated"],
]


def make_ids(lengths: list[int], seed: int = 1) -> Tensor:
    chance = torch.Generator().manual_seed(seed)
    ids = torch.randint(4, 50, (len(lengths), max(lengths)), generator=chance)
    return ids * (torch.arange(max(lengths)) < torch.tensor(lengths)[:, None])


def make_model(settings: list[str]) -> Transformer:
    torch.manual_seed(1)
    sizes = ["model.d_model=32", "model.d_ff=48", "model.heads=4", "model.dropout=0.0"]
    return Transformer(resolve_config("tiny", None, None, sizes + settings).model, 50)


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("lengths", [[5, 5, 5], [1], [7, 1, 4], [70, 3, 64]])
def test_packed_states_and_gradients_are_the_padded_ones(
    settings: list[str], lengths: list[int]
) -> None:
    model = make_model(settings)
    source, target = make_ids(lengths), make_ids(lengths[::-1], seed=2)
    rows, packed = model.packed_hidden(source, target)
    real = target.flatten() != PAD
    expected = model.hidden(source, target).flatten(0, 1)[real]
    assert packed.tokens == int(real.sum()) < len(rows)
    assert_close(rows[: packed.tokens], expected, rtol=1e-4, atol=1e-5)
    factor = torch.randn(expected.shape)
    (rows[: packed.tokens] * factor).sum().backward()
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    (expected * factor).sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        assert_close(gradients[name], parameter.grad, rtol=1e-3, atol=1e-4, msg=name)
    assert bool((gradients["embedding.weight"][PAD] == 0).all())


def test_values_go_to_their_rows_and_spare_rows_are_zero() -> None:
    ids = make_ids([3, 1, 2])
    packed = Packed(ids)
    assert packed.pack(ids)[:6].tolist() == ids[ids != PAD].tolist()
    assert packed.positions[:6].tolist() == [0, 1, 2, 0, 0, 1]
    assert int(packed.pack(ids)[6:].abs().sum()) == 0
    assert len(packed.ids) % 64 == 0


def test_splitting_and_joining_heads_agree_with_the_padded_layout() -> None:
    ids = make_ids([4, 2])
    packed = Packed(ids)
    padded = torch.randn(2, 4, 3 * 2 * 5)
    rows = torch.stack(
        [padded.flatten(0, 1)[:, n][packed.pack(torch.arange(8).view(2, 4))] for n in range(30)],
        dim=1,
    )
    ours, theirs = packed.split_heads(rows, 3, 2), PADDED.split_heads(padded, 3, 2)
    real = (ids != PAD)[None, :, None, :, None]
    assert_close(ours * real, theirs * real)
    joined = packed.join_heads(theirs[0])[: packed.tokens]
    assert_close(joined, PADDED.join_heads(theirs[0])[ids != PAD])


def test_spare_rows_get_no_gradient() -> None:
    packed = Packed(make_ids([3, 1]))
    rows = torch.randn(len(packed.ids), 8, requires_grad=True)
    packed.split_heads(rows, 1, 2).square().sum().backward()
    assert rows.grad is not None
    assert bool((rows.grad[packed.tokens :] == 0).all())
    assert bool((rows.grad[: packed.tokens] != 0).all())
