"""Compiled layers compute what plain ones do; a compiler that fails changes nothing."""

import copy

import pytest
import torch
from torch.testing import assert_close

from dragoman.config import ModelConfig
from dragoman.model.sequence_model import PAD
from dragoman.model.transformer import Transformer
from dragoman.training.compilation import compile_layers, round_width
from dragoman.training.loss import Loss, cross_entropy


def make_model(dropout: float = 0.0) -> Transformer:
    torch.manual_seed(3)
    sizes = {"d_model": 8, "d_ff": 12, "heads": 2, "encoder_layers": 1, "decoder_layers": 1}
    return Transformer(ModelConfig(**sizes, max_positions=64, dropout=dropout), 30)


def make_ids(rows: int, width: int) -> torch.Tensor:
    ids = torch.randint(4, 30, (rows, width), generator=torch.Generator().manual_seed(width))
    ids[0, width // 2 :] = PAD
    return ids


def padded_loss(model: Transformer, source: torch.Tensor, target: torch.Tensor) -> Loss:
    rows = model.hidden(source, target).flatten(0, 1)
    return cross_entropy(rows, model.embedding.weight, target.flatten(), 0.1, PAD)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_compiled_layers_compute_what_plain_ones_do() -> None:
    """In several shapes, forward and backward; compiled to graphs without a C++ compiler."""
    plain = make_model().train()
    compiled = copy.deepcopy(plain)
    before = torch.get_rng_state()
    assert compile_layers(compiled, torch.float32, "aot_eager") == ""
    assert torch.equal(torch.get_rng_state(), before)
    assert all(parameter.grad is None for parameter in compiled.parameters())
    assert compiled.training and compiled.state_dict().keys() == plain.state_dict().keys()
    for rows, source_width, target_width in ((2, 5, 8), (4, 16, 3)):
        source, target = make_ids(rows, source_width), make_ids(rows, target_width)
        losses = [padded_loss(model, source, target) for model in (plain, compiled)]
        assert_close(losses[1].smoothed, losses[0].smoothed)
        for loss in losses:
            loss.smoothed.backward()
    for name, parameter in plain.named_parameters():
        assert_close(compiled.get_parameter(name).grad, parameter.grad, msg=name)
    with torch.no_grad():  # and the plain ones are what translates
        assert torch.equal(
            compiled.eval()(source, target).isfinite(), plain.eval()(source, target).isfinite()
        )
        assert torch.equal(compiled(source, target), plain(source, target))


@pytest.mark.slow
def test_a_compiler_that_fails_leaves_the_model_as_it_was() -> None:
    model = make_model(dropout=0.1)
    problem = compile_layers(model, torch.float32, "no-such-backend")
    assert "no-such-backend" in problem and "\n" not in problem
    assert not any("forward" in vars(module) for module in model.modules())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert model.embedding.compute_dtype == torch.float32


@pytest.mark.parametrize(("width", "rounded"), [(1, 8), (8, 8), (9, 16), (17, 20), (20, 20)])
def test_wider_padding_changes_no_loss(width: int, rounded: int) -> None:
    model, source, target = make_model(), make_ids(3, width + 3), make_ids(3, width)
    wide = round_width(target, 20)
    assert wide.shape == (3, rounded) and torch.equal(wide[:, :width], target)
    found = padded_loss(model, round_width(source, 64), wide)
    expected = padded_loss(model, source, target)
    assert found.tokens == expected.tokens == int((target != PAD).sum())
    assert_close(found.smoothed, expected.smoothed)
    assert_close(found.nll, expected.nll)
