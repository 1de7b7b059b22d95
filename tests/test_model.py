"""The model against PyTorch's own layers, and the equivalences that decoding rests on.

Shapes: B batch, S source, T target, N beams, D d_model, V vocabulary.
"""

import math
import random
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.testing import assert_close

from dragoman.config import ModelConfig
from dragoman.model.attention import MultiHeadAttention, causal_mask
from dragoman.model.cache import LayerCache
from dragoman.model.embedding import Embedding, sinusoidal_positions
from dragoman.model.layers import LAYER_NORM_EPSILON, add_dropout, dropout
from dragoman.model.layout import PADDED
from dragoman.model.sequence_model import parameter_count
from dragoman.model.stacks import DecoderOnly, EncoderOnly
from dragoman.model.transformer import DecoderLayer, EncoderLayer, Transformer

VOCABULARY = 23
NORMS = pytest.mark.parametrize("norm", ["post", "pre"])
# Different shapes take different kernels, which sum in another order.
TOLERANCE: dict[str, Any] = {"rtol": 1e-4, "atol": 1e-5}


def make_config(**changes: Any) -> ModelConfig:
    sizes: dict[str, Any] = {"d_model": 16, "d_ff": 24, "heads": 2, "max_positions": 64}
    return ModelConfig(**(sizes | {"encoder_layers": 2, "decoder_layers": 2} | changes))


def randomized(module: nn.Module, seed: int = 0) -> Any:
    """Every parameter random, norms and biases too, so that nothing is right by being 0 or 1."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    return module.eval()


def make_model(seed: int = 0, **changes: Any) -> Transformer:
    torch.manual_seed(seed)
    model: Transformer = randomized(Transformer(make_config(**changes), VOCABULARY), seed)
    return model


def random_ids(rows: int, length: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(4, VOCABULARY, (rows, length), generator=generator)


def padded(ids: Tensor, lengths: list[int]) -> Tensor:
    return ids * (torch.arange(ids.shape[1]) < torch.tensor(lengths)[:, None])


def copy_attention(ours: MultiHeadAttention, theirs: nn.MultiheadAttention) -> None:
    theirs.in_proj_weight.copy_(ours.in_projection.weight)
    theirs.out_proj.weight.copy_(ours.out_projection.weight)
    theirs.in_proj_bias.zero_()
    theirs.out_proj.bias.zero_()


@torch.no_grad()
def copy_layer(ours: EncoderLayer | DecoderLayer, theirs: nn.Module) -> None:
    residuals = [ours.self_residual, ours.feed_forward_residual]
    copy_attention(ours.self_attention, theirs.self_attn)
    if isinstance(ours, DecoderLayer):
        copy_attention(ours.cross_attention, theirs.multihead_attn)
        residuals.insert(1, ours.cross_residual)
    theirs.linear1.load_state_dict(ours.feed_forward.inner.state_dict())
    theirs.linear2.load_state_dict(ours.feed_forward.outer.state_dict())
    for number, residual in enumerate(residuals, 1):
        getattr(theirs, f"norm{number}").load_state_dict(residual.norm.state_dict())


def torch_layer(kind: type[nn.Module], ours: EncoderLayer | DecoderLayer) -> nn.Module:
    theirs = kind(
        16, 2, 24, dropout=0.0, layer_norm_eps=LAYER_NORM_EPSILON, batch_first=True,
        norm_first=ours.self_residual.pre_norm,
    )  # fmt: skip
    copy_layer(ours, theirs)
    return theirs.train()  # dropout is 0; eval would take PyTorch's fused inference path


@NORMS
def test_an_encoder_layer_is_pytorchs(norm: str) -> None:
    ours = randomized(EncoderLayer(make_config(norm=norm)))
    theirs = torch_layer(nn.TransformerEncoderLayer, ours)
    x = torch.randn(3, 6, 16, requires_grad=True)
    real = torch.arange(6) < torch.tensor([6, 4, 1])[:, None]
    mine = ours(x, real[:, None, None, :])
    reference = theirs(x, src_key_padding_mask=~real)
    assert_close(mine, reference, **TOLERANCE)
    weighting = torch.randn(mine.shape)
    (mine_gradient,) = torch.autograd.grad((mine * weighting).sum(), x)
    (reference_gradient,) = torch.autograd.grad((reference * weighting).sum(), x)
    assert_close(mine_gradient, reference_gradient, **TOLERANCE)


@NORMS
def test_a_decoder_layer_is_pytorchs(norm: str) -> None:
    ours = randomized(DecoderLayer(make_config(norm=norm)))
    theirs = torch_layer(nn.TransformerDecoderLayer, ours)
    x, memory = torch.randn(3, 5, 16), torch.randn(3, 7, 16)
    x.requires_grad_()
    memory.requires_grad_()
    real = torch.arange(7) < torch.tensor([7, 3, 5])[:, None]
    causal = causal_mask(5, x.device)
    cache = LayerCache(*ours.cross_attention.project_memory(memory, PADDED))
    mine = ours(x, cache, causal, real[:, None, None, :])
    reference = theirs(x, memory, tgt_mask=~causal[0, 0], memory_key_padding_mask=~real)
    assert_close(mine, reference, **TOLERANCE)
    weighting = torch.randn(mine.shape)
    gradients = torch.autograd.grad((mine * weighting).sum(), [x, memory])
    expected = torch.autograd.grad((reference * weighting).sum(), [x, memory])
    for gradient, its_reference in zip(gradients, expected, strict=True):
        assert_close(gradient, its_reference, **TOLERANCE)


@NORMS
def test_the_whole_model_is_the_paper_assembled_of_pytorchs_layers(norm: str) -> None:
    model = make_model(norm=norm)
    source, target = padded(random_ids(3, 6), [6, 2, 4]), random_ids(3, 5, seed=1)
    embedding = model.embedding.weight

    def embed(ids: Tensor) -> Tensor:
        positions = sinusoidal_positions(ids.shape[1], 16)
        return nn.functional.embedding(ids, embedding) * math.sqrt(16) + positions

    x, y, causal = embed(source), embed(target), ~causal_mask(5, source.device)[0, 0]
    for layer in model.encoder:
        theirs = torch_layer(nn.TransformerEncoderLayer, layer)
        x = theirs(x, src_key_padding_mask=source == 0)
    x = model.encoder_norm(x)
    for layer in model.decoder:
        theirs = torch_layer(nn.TransformerDecoderLayer, layer)
        y = theirs(y, x, tgt_mask=causal, memory_key_padding_mask=source == 0)
    expected = model.decoder_norm(y) @ embedding.T
    assert_close(model(source, target), expected, **TOLERANCE)
    assert isinstance(model.decoder_norm, nn.Identity) == (norm == "post")


@pytest.mark.parametrize(("length", "d_model"), [(1, 2), (50, 6), (1000, 512)])
def test_sinusoidal_positions_are_the_formula_of_section_3_5(length: int, d_model: int) -> None:
    table = sinusoidal_positions(length, d_model)
    assert table.shape == (length, d_model)
    for position in {0, length // 7, length // 3, length - 1}:
        for i in range(d_model // 2):
            angle = position / 10000 ** (2 * i / d_model)
            assert float(table[position, 2 * i]) == pytest.approx(math.sin(angle), abs=1e-6)
            assert float(table[position, 2 * i + 1]) == pytest.approx(math.cos(angle), abs=1e-6)


def test_learned_positions_are_trained_and_sinusoidal_ones_are_not() -> None:
    learned, fixed = (Embedding(9, 4, 7, learned, 0.0) for learned in (True, False))
    assert parameter_count(learned) - parameter_count(fixed) == 7 * 4
    ids = torch.tensor([[3, 3, 5]])
    learned(ids).sum().backward()
    assert learned.positions.grad is not None
    assert learned.positions.grad[:, 0].tolist() == [1, 1, 1, 0, 0, 0, 0]
    expected = learned.weight[ids] * 2 + learned.positions[:3]
    assert_close(learned(ids), expected)
    assert_close(learned.at(ids, 2), learned.weight[ids] * 2 + learned.positions[2])


@NORMS
@pytest.mark.parametrize("positions", ["sinusoidal", "learned"])
def test_a_future_token_changes_nothing_before_it(norm: str, positions: str) -> None:
    model = make_model(norm=norm, positions=positions)
    source, target = random_ids(2, 6), random_ids(2, 8, seed=1)
    before = model(source, target)
    for place in range(8):
        changed = target.clone()
        changed[:, place] = (changed[:, place] - 4 + 7) % (VOCABULARY - 4) + 4
        after = model(source, changed)
        assert torch.equal(before[:, :place], after[:, :place])
        assert not torch.isclose(before[:, place], after[:, place]).all()


@torch.no_grad()
def test_every_source_token_reaches_every_target_position() -> None:
    model = make_model()
    source, target = random_ids(1, 6), random_ids(1, 5, seed=1)
    before = model(source, target)
    for place in range(6):
        changed = source.clone()
        changed[:, place] = (changed[:, place] - 4 + 7) % (VOCABULARY - 4) + 4
        difference = (model(changed, target) - before).abs().amax(dim=-1)
        assert float(difference.min()) > 1e-5


@NORMS
@torch.no_grad()
def test_encoder_only_looks_both_ways_and_decoder_only_back(norm: str) -> None:
    config = make_config(norm=norm, encoder_layers=3, decoder_layers=1)
    encoder = randomized(EncoderOnly(config, VOCABULARY))
    decoder = randomized(DecoderOnly(config, VOCABULARY))
    assert (len(encoder.layers), len(decoder.layers)) == (3, 1)
    ids = random_ids(2, 7)
    states, logits = encoder.hidden(ids, ids), decoder(ids, ids)
    assert (states.shape, logits.shape) == ((2, 7, 16), (2, 7, VOCABULARY))
    for place in range(7):
        changed = ids.clone()
        changed[:, place] = (changed[:, place] - 4 + 7) % (VOCABULARY - 4) + 4
        assert float((encoder.hidden(changed, changed) - states).abs().amax(dim=-1).min()) > 1e-5
        difference = (decoder(changed, changed) - logits).abs().amax(dim=-1)
        assert bool((difference[:, :place] == 0).all())
        assert float(difference[:, place:].min()) > 1e-5
    short, cut = padded(ids, [7, 4]), ids[1:, :4]
    shorter = encoder.hidden(short, short)[1, :4], decoder(short, short)[1, :4]
    assert_close(shorter[0], encoder.hidden(cut, cut)[0], **TOLERANCE)
    assert_close(shorter[1], logits[1, :4], **TOLERANCE)


@NORMS
def test_encoder_only_is_the_encoder(norm: str) -> None:
    model = make_model(norm=norm)
    stack = EncoderOnly(model.config, VOCABULARY).eval()
    names = {"layers": model.encoder, "norm": model.encoder_norm, "embedding": model.embedding}
    for name, part in names.items():
        getattr(stack, name).load_state_dict(part.state_dict())
    source = padded(random_ids(3, 6), [6, 2, 4])
    assert torch.equal(stack.hidden(source, source), model.encode(source))


@NORMS
@settings(deadline=None, max_examples=20)
@given(
    source_lengths=st.lists(st.integers(1, 9), min_size=2, max_size=4),
    target_length=st.integers(1, 7),
    extra=st.integers(0, 3),
)
def test_batches_and_padding_change_nothing(
    norm: str, source_lengths: list[int], target_length: int, extra: int
) -> None:
    model = make_model(norm=norm)
    count, width = len(source_lengths), max(source_lengths) + extra
    source = padded(random_ids(count, width), source_lengths)
    target_lengths = [1 + row % target_length for row in range(count)]
    target = padded(random_ids(count, target_length + extra, seed=1), target_lengths)
    together = model(source, target)
    for row, (s, t) in enumerate(zip(source_lengths, target_lengths, strict=True)):
        alone = model(source[row : row + 1, :s], target[row : row + 1, :t])
        assert_close(together[row, :t], alone[0], **TOLERANCE)


@pytest.mark.parametrize("positions", ["sinusoidal", "learned"])
@NORMS
@pytest.mark.parametrize("seed", [0, 1, 2])
@torch.no_grad()
def test_cached_steps_are_the_full_decode_of_every_beam(
    seed: int, norm: str, positions: str
) -> None:
    """Random tokens, random reorderings of the beams, and sentences that leave on the way."""
    model = make_model(norm=norm, positions=positions, d_k=5, d_v=7)
    chance = random.Random(seed)
    beams, lengths = 3, [5, 2, 4, 1]
    source = padded(random_ids(4, 5), lengths)
    cache = model.start(model.encode(source), source, beams)
    sentences = list(range(4))
    prefixes: list[list[int]] = [[] for _ in range(4 * beams)]
    for step in range(40):  # past the first growth of the buffers
        ids = [chance.randrange(4, VOCABULARY) for _ in prefixes]
        prefixes = [[*prefix, token] for prefix, token in zip(prefixes, ids, strict=True)]
        logits = model.step(torch.tensor(ids).view(-1, beams), cache)
        sources = source[torch.tensor(sentences).repeat_interleave(beams)]
        full = model(sources, torch.tensor(prefixes))[:, -1]
        assert_close(logits.flatten(0, 1), full, **TOLERANCE)
        stay = [place for place in range(len(sentences)) if step % 9 != 5 or chance.random() < 0.6]
        stay = stay or [0]
        rows = [place * beams + chance.randrange(beams) for place in stay for _ in range(beams)]
        sentences = [sentences[place] for place in stay]
        prefixes = [prefixes[row] for row in rows]
        cache.reorder(torch.tensor(rows))
    assert len(sentences) < 4


def test_attention_maps_are_what_the_model_uses() -> None:
    model = make_model(encoder_layers=3)
    source, target = padded(random_ids(2, 6), [6, 4]), random_ids(2, 5, seed=1)
    maps = model.attention_maps(source, target)
    shapes = [(len(part), *part[0].shape) for part in (maps.encoder, maps.decoder, maps.cross)]
    assert shapes == [(3, 2, 2, 6, 6), (2, 2, 2, 5, 5), (2, 2, 2, 5, 6)]
    for weights in (*maps.encoder, *maps.decoder, *maps.cross):
        assert_close(weights.sum(dim=-1), torch.ones(weights.shape[:-1]))
    for weights in (*maps.encoder, *maps.cross):
        assert bool((weights[1, ..., 4:] == 0).all())
    for weights in maps.decoder:
        assert torch.equal(weights, weights.tril())
    theirs = torch_layer(nn.TransformerEncoderLayer, model.encoder[0])
    x = model.encoder[0].self_residual.before(model.embedding(source))
    _, first = theirs.self_attn(x, x, x, key_padding_mask=source == 0, average_attn_weights=False)
    assert_close(maps.encoder[0], first, **TOLERANCE)


@torch.no_grad()
def test_bfloat16_is_near_float32() -> None:
    model = make_model()
    source, target = random_ids(2, 6), random_ids(2, 5, seed=1)
    exact = model(source, target)
    model.embedding.compute_dtype = torch.bfloat16
    rough = model(source, target)
    assert rough.dtype == torch.bfloat16
    # bfloat16 rounds to 1 in 256, a few dozen times over on the way through four layers.
    assert float((rough.float() - exact).norm() / exact.norm()) < 0.05


def test_one_matrix_is_both_embeddings_and_the_output() -> None:
    model = make_model()
    names = [name for name, p in model.named_parameters() if VOCABULARY in p.shape]
    assert names == ["embedding.weight"]
    hidden = torch.randn(2, 3, 16)
    assert_close(model.logits(hidden), hidden @ model.embedding.weight.T, **TOLERANCE)


@pytest.mark.parametrize("rate", [0.1, 0.3, 0.5, 0.9])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_dropout_keeps_its_share_and_the_expectation(rate: float, dtype: torch.dtype) -> None:
    torch.manual_seed(5)
    x = torch.ones(400, 501, dtype=dtype, requires_grad=True)  # no multiple of 8
    output = dropout(x, rate)
    (gradient,) = torch.autograd.grad(output.sum(), x)
    output = output.detach()
    kept = output != 0
    # A multiple of 1/256 on a CPU; 5 standard deviations of 200,400 draws.
    deviation = 5 * math.sqrt(rate * (1 - rate) / x.numel())
    assert abs(float(kept.float().mean()) - (1 - rate)) < 1 / 512 + deviation
    scale = output[kept].unique()
    assert scale.numel() == 1
    assert float(scale) == pytest.approx(1 / (1 - rate), rel=0.03)
    assert abs(float(output.float().mean()) - 1) < 0.02 + deviation / (1 - rate)
    assert torch.equal(gradient, output)  # x is 1: the same mask and scale
    by_column = kept.float().mean(dim=0)
    assert float((by_column - (1 - rate)).abs().max()) < 0.15  # no byte of a draw is special


def test_dropout_of_rate_0_and_in_evaluation_is_the_identity() -> None:
    x = torch.randn(3, 4)
    assert dropout(x, 0.0) is x
    source, target = random_ids(2, 6), random_ids(2, 5, seed=1)
    model = make_model(dropout=0.5, attention_dropout=0.5, activation_dropout=0.5)
    assert torch.equal(model(source, target), model(source, target))
    model.train()
    assert not torch.equal(model(source, target), model(source, target))


@pytest.mark.parametrize("place", ["dropout", "attention_dropout", "activation_dropout"])
def test_each_dropout_setting_does_something(place: str) -> None:
    model = make_model(**({"dropout": 0.0} | {place: 0.5})).train()
    source, target = random_ids(2, 6), random_ids(2, 5, seed=1)
    assert not torch.equal(model(source, target), model(source, target))


@pytest.mark.parametrize("rate", [0.0, 0.4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_dropout_with_its_sum_is_dropout_and_a_sum(rate: float, dtype: torch.dtype) -> None:
    x, y = torch.randn(2, 50, 7, requires_grad=True), torch.randn(2, 7, 50)
    x, y = x.to(dtype), y.to(dtype).requires_grad_().mT  # not contiguous
    torch.manual_seed(7)
    fused = add_dropout(x, y, rate)
    torch.manual_seed(7)
    plain = x + dropout(y, rate)
    tolerance = 2e-2 if dtype == torch.bfloat16 else 1e-6  # bfloat16 is rounded once less often
    assert_close(fused, plain, rtol=tolerance, atol=tolerance)
    weighting = torch.randn(2, 50, 7).to(dtype)
    ours = torch.autograd.grad((fused * weighting).sum(), [x, y])
    theirs = torch.autograd.grad((plain * weighting).sum(), [x, y])
    for mine, its in zip(ours, theirs, strict=True):
        assert torch.equal(mine, its)
