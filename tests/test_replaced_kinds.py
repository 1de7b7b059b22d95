"""Recurrent and convolutional encoder-decoders, held to what every model here must do."""

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close
from torch.utils.flop_counter import FlopCounterMode

from dragoman.config import Config, ModelConfig, TrainingConfig, resolve_config
from dragoman.corpus.batches import Batch
from dragoman.corpus.store import CorpusStore, write_store
from dragoman.corpus.tokenizer import Tokenizer
from dragoman.decoding.hypothesis import Hypothesis
from dragoman.decoding.rescoring import Forced
from dragoman.decoding.search import Limits, beam_search
from dragoman.decoding.step import ModelStep, pad_rows
from dragoman.errors import UserError
from dragoman.model import recurrent
from dragoman.model.assembly import build_model
from dragoman.model.cache import RowStates
from dragoman.model.encoder_decoder import AttentionMaps, EncoderDecoder
from dragoman.model.folder import save_model
from dragoman.training.distributed import Ranks
from dragoman.training.objective import batch_loss
from dragoman.training.trainer import StopRequestedError, Trainer
from dragoman.training.utilization import TrainingCost

VOCABULARY = 40
KINDS = ["lstm", "gru", "convolutional"]
DEPTHS = [(1, 1), (2, 3)]
SIZES: dict[str, Any] = {"d_model": 16, "dropout": 0.1, "max_positions": 32}


def settings(kind: str, layers: tuple[int, int] = (2, 2), **more: Any) -> ModelConfig:
    encoder, decoder = layers
    sizes = SIZES | {"kind": kind, "encoder_layers": encoder, "decoder_layers": decoder}
    return ModelConfig(**(sizes | more))


def make(config: ModelConfig, seed: int = 1) -> EncoderDecoder:
    torch.manual_seed(seed)
    model = build_model(Config(model=config), VOCABULARY).eval()
    assert isinstance(model, EncoderDecoder)
    return model


def ids_of(*lengths: int, seed: int = 2) -> Tensor:
    chance = np.random.default_rng(seed)
    return pad_rows([chance.integers(4, VOCABULARY, length).tolist() for length in lengths])


@pytest.mark.parametrize("layers", DEPTHS)
@pytest.mark.parametrize("kind", KINDS)
def test_steps_are_the_teacher_forced_pass(kind: str, layers: tuple[int, int]) -> None:
    """Of several beams that are reordered, while a sentence in the middle leaves."""
    model, beams, steps = make(settings(kind, layers)), 3, 7
    source = ids_of(5, 9, 2)
    with torch.inference_mode():
        cache = model.start(model.encode(source), source, beams)
        assert isinstance(cache, RowStates)
        kept = torch.arange(3)  # sentences
        written = torch.zeros(3 * beams, 0, dtype=torch.int64)
        for step in range(steps):
            ids = torch.randint(4, VOCABULARY, (len(kept), beams))
            written = torch.cat([written, ids.reshape(-1, 1)], dim=1)
            logits = model.step(ids, cache).flatten(0, 1)
            forced = model(source[kept].repeat_interleave(beams, dim=0), written)
            assert_close(logits, forced[:, -1], atol=1e-5, rtol=1e-4)
            stay = torch.tensor([0, 2]) if step == 3 else torch.arange(len(kept))
            rows = stay[:, None] * beams + torch.randint(beams, (len(stay), beams))
            cache.reorder(rows.flatten())
            written, kept = written[rows.flatten()], kept[stay]
        assert cache.step == steps
        assert kept.tolist() == [0, 2]


@pytest.mark.parametrize("kind", KINDS)
def test_padding_changes_nothing(kind: str) -> None:
    model = make(settings(kind, kernel_width=4) if kind == "convolutional" else settings(kind))
    source, target = ids_of(3, 11, 1, 6), ids_of(8, 2, 5, 1, seed=3)
    with torch.inference_mode():
        together = model(source, target)
        for row in range(4):
            ids, labels = source[row : row + 1], target[row : row + 1]
            alone = model(ids[ids != 0][None], labels[labels != 0][None])[0]
            assert_close(together[row, : len(alone)], alone, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_no_place_sees_a_later_token(kind: str) -> None:
    model = make(settings(kind))
    source, target = ids_of(6), ids_of(9, seed=3)
    changed = target.clone()
    changed[:, 5:] = 4 + (changed[:, 5:] - 3) % (VOCABULARY - 4)
    with torch.inference_mode():
        before, after = model(source, target), model(source, changed)
    assert torch.equal(before[:, :5], after[:, :5])
    assert not torch.allclose(before[:, 5], after[:, 5])


@pytest.mark.parametrize("kind", KINDS)
def test_every_source_token_counts_wherever_it_stands(kind: str) -> None:
    model = make(settings(kind))
    source, target = ids_of(7), ids_of(4, seed=3)
    with torch.inference_mode():
        found = model(source, target)
        for place in range(7):
            other = source.clone()
            other[0, place] = 4 + (other[0, place] - 3) % (VOCABULARY - 4)
            assert not torch.allclose(model(other, target)[:, 0], found[:, 0])
        assert not torch.allclose(model(source.flip(1), target)[:, 0], found[:, 0])


@pytest.mark.parametrize("kind", KINDS)
def test_the_search_finds_what_scoring_confirms(kind: str) -> None:
    """Batched or alone, the hypotheses and their log-probabilities are the same."""
    model = make(settings(kind))
    sources = [[5, 6, 7], [8, 9, 10, 11, 12, 13], [14]]

    def search(chosen: list[list[int]]) -> list[list[Hypothesis]]:
        source = pad_rows([[*ids, 3] for ids in chosen])
        step = ModelStep(model)
        limits = Limits(3, 0.6, [8] * len(chosen), bos=2, eos=3, n_best=3)
        return beam_search(step, step.start(source, 3), limits)

    with torch.inference_mode():
        together = search(sources)
        alone = [search([ids])[0] for ids in sources]
    for mine, its in zip(together, alone, strict=True):
        assert [one.tokens for one in mine] == [one.tokens for one in its]
    best = [found[0] for found in together]
    forced = Forced([model], sources, [one.tokens for one in best])
    for one, log_probs in zip(best, forced.token_log_probs(), strict=True):
        places = len(one.tokens) + one.finished
        assert sum(log_probs[:places]) == pytest.approx(one.log_prob, abs=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_attention_weights_are_of_the_tokens_and_add_up(kind: str) -> None:
    model = make(settings(kind))
    source, target = ids_of(3, 6), ids_of(4, 5, seed=3)
    maps = model.attention_maps(source, target)
    layers, heads = model.attends
    assert (len(maps.cross), maps.encoder, maps.decoder) == (layers, [], [])
    for weights in maps.cross:
        assert weights.shape == (2, heads, 5, 6)
        assert_close(weights.sum(dim=-1), torch.ones(2, heads, 5))
        assert not weights[0, ..., 3:].any()


def test_attention_in_parts_is_the_same_with_its_gradients(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source, target = ids_of(5, 4), ids_of(6, 3, seed=3)
    found = []
    for sums in (recurrent._MOST_SUMS, 1):
        monkeypatch.setattr(recurrent, "_MOST_SUMS", sums)
        model = make(settings("gru"))
        logits = model(source, target)
        logits.square().sum().backward()
        found.append([logits, *(parameter.grad for parameter in model.parameters())])
    for whole, parts in zip(*found, strict=True):
        assert_close(whole, parts)


@pytest.mark.parametrize("kind", KINDS)
def test_bfloat16_is_about_the_same(kind: str) -> None:
    """Both of a model in it, and of one in float32 that computes in it."""
    source, target = ids_of(5, 8), ids_of(6, 3, seed=3)
    model = make(settings(kind))
    with torch.inference_mode():
        exact = model(source, target)
        model.embedding.compute_dtype = torch.bfloat16
        mixed = model(source, target)
        rough = model.to(torch.bfloat16)(source, target)
    assert mixed.dtype == rough.dtype == torch.bfloat16
    for found in (mixed, rough):
        assert_close(found.float(), exact, atol=0.1, rtol=0.1)


@pytest.mark.parametrize("layers", DEPTHS)
@pytest.mark.parametrize("kind", KINDS)
def test_the_cost_is_what_pytorch_counts(kind: str, layers: tuple[int, int]) -> None:
    config = settings(kind, layers, dropout=0.0)
    batch, source, target = 3, 7, 5
    model = make(config)
    ids = ids_of(*[source] * batch), ids_of(*[target] * batch, seed=3)
    # In float32 oneDNN's LSTM is one operation, inside of which nothing is counted.
    model.double().embedding.compute_dtype = torch.float64
    with FlopCounterMode(display=False) as counter:
        model(*ids).sum().backward()
    lengths = np.full(batch, source), np.full(batch, target)
    cost = TrainingCost.of(config, VOCABULARY).of_lengths(*lengths)
    if kind != "convolutional":
        # Nothing asks for a gradient of the zeros that the encoder begins with.
        gates, half = {"lstm": 4, "gru": 3}[kind], config.d_model // 2
        cost -= 2 * batch * 2 * layers[0] * gates * half * half
    assert counter.get_total_flops() == cost


@pytest.mark.parametrize("kind", KINDS)
def test_a_deep_untrained_model_is_about_as_bad_as_chance(kind: str) -> None:
    model = make(settings(kind, (6, 6), d_model=128))
    source, target = ids_of(*[12] * 8), ids_of(*[12] * 8, seed=3)
    with torch.inference_mode():
        logits = model(source, target).flatten(0, 1)
    nll = torch.nn.functional.cross_entropy(logits, ids_of(*[12] * 8, seed=4).flatten())
    assert float(nll) < np.log(VOCABULARY) + 0.5


@pytest.mark.parametrize("kind", KINDS)
def test_a_few_updates_lower_the_loss(kind: str) -> None:
    model = make(settings(kind)).train()
    source = ids_of(6, 4, 5, 6, 3)
    bos = torch.full((5, 1), 2)
    target = torch.cat([source, bos * 0], dim=1)
    batch = Batch(
        source.numpy(), torch.cat([bos, source], dim=1).numpy(), target.numpy(), np.arange(5)
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    losses = []
    for _ in range(40):
        loss = batch_loss(model, batch, 0.0)
        losses.append(float(loss.nll) / loss.tokens)
        (loss.smoothed / loss.tokens).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert losses[-1] < 0.5 * losses[0]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> CorpusStore:
    chance = np.random.default_rng(1)
    rows = [chance.integers(4, VOCABULARY, int(chance.integers(1, 9))).tolist() for _ in range(40)]
    path = tmp_path_factory.mktemp("kinds") / "train.arrow"
    write_store(path, [(row, row) for row in rows], VOCABULARY)
    return CorpusStore.open(path)


@pytest.mark.parametrize("kind", KINDS)
def test_interrupted_and_resumed_is_uninterrupted(
    kind: str, store: CorpusStore, tmp_path: Path
) -> None:
    training = TrainingConfig(
        batch_tokens=60, max_steps=8, validations=2, precision="float32", warmup_steps=2
    )
    config = Config(model=settings(kind, (1, 2)), training=training)

    def trainer(folder: Path, seed: int, stop_at: int | None = None) -> Trainer:
        torch.manual_seed(seed)
        model = build_model(config, VOCABULARY)
        ranks = Ranks(torch.device("cpu"))
        made = Trainer(
            config, model, store, folder, ranks, lambda _: {"nll": 3.0}, lambda _: None,
            lambda: made.state.step == stop_at,
        )  # fmt: skip
        return made

    whole = trainer(tmp_path / "whole", 0)
    whole.run()
    first = trainer(tmp_path / "parts", 0, stop_at=5)
    with pytest.raises(StopRequestedError):
        first.run()
    second = trainer(tmp_path / "parts", 7)
    assert second.resume(lambda problem: pytest.fail(problem))
    second.run()
    mine, its = whole.model.state_dict(), second.model.state_dict()
    assert [name for name in mine if not torch.equal(mine[name], its[name])] == []
    assert asdict(whole.state) | {"seconds": 0} == asdict(second.state) | {"seconds": 0}


@pytest.mark.parametrize(
    ("kind", "setting"),
    [
        ("lstm", "heads=8"),
        ("gru", "positions=learned"),
        ("gru", "kernel_width=5"),
        ("convolutional", "d_ff=64"),
        ("transformer", "kernel_width=5"),
        ("lstm", "window=3"),
    ],
)
def test_what_a_kind_does_not_read_is_refused(kind: str, setting: str) -> None:
    name = setting.partition("=")[0]
    with pytest.raises(UserError, match=f"a model of kind {kind} has no {name}"):
        resolve_config("small", assignments=[f"model.kind={kind}", f"model.{setting}"])


@pytest.mark.parametrize("preset", ["tiny", "small", "medium", "paper-big"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_preset_serves_every_kind(preset: str, kind: str) -> None:
    """What of it the kind does not read stays out."""
    config = resolve_config(preset, assignments=[f"model.kind={kind}"]).model
    assert (config.kind, config.d_model) == (kind, resolve_config(preset).model.d_model)


def test_language_models_are_transformers() -> None:
    with pytest.raises(UserError, match="kind lstm is not for the task lm"):
        resolve_config("small", flags={"task": "lm"}, assignments=["model.kind=lstm"])


@pytest.mark.parametrize("kind", KINDS)
def test_the_commands_work_or_say_why_not(
    kind: str, dragoman: Callable[..., Any], sentences: list[tuple[str, str]], tmp_path: Path
) -> None:
    config = Config(model=settings(kind), source_language="en", target_language="de")
    tokenizer = Tokenizer.train((text for pair in sentences for text in pair), 350)
    network = build_model(config, tokenizer.vocabulary_size)
    folder = tmp_path / "model"
    save_model(folder, config, tokenizer, dict(network.state_dict()), "# a card")
    source, target = tmp_path / "a.en", tmp_path / "a.de"
    for path, side in ((source, 0), (target, 1)):
        path.write_text("".join(f"{pair[side]}\n" for pair in sentences[:5]), "utf-8")
    chosen = "--model", folder, "--source", source, "--target", target
    assert f"{kind}, d_model 16" in dragoman("info", folder).out.decode()
    lines = source.read_bytes()
    translated = dragoman(
        "translate", "--model", folder, "--set", "search.max_extra_tokens=2", stdin=lines
    )
    assert (translated.status, len(translated.lines)) == (0, 5)
    assert f"the native engine is used: its kind is {kind}" in translated.err
    scored = dragoman("score", *chosen)
    assert (scored.status, len(scored.lines)) == (0, 5)
    for more in (("--hide",), ("--layer", "1", "--head", "1")):
        aligned = dragoman("align", *chosen, *more)
        assert (aligned.status, len(aligned.lines)) == (0, 5)
    refused = dragoman("attend", "--model", folder, "the cat", "--out", tmp_path / "page.html")
    assert refused.status == 2
    assert f"model.kind is {kind}" in refused.err
    named = dragoman("translate", "--model", folder, "--engine", "ctranslate2", stdin=lines)
    assert (named.status, named.lines) == (2, [])


def test_a_kind_that_lacks_a_part_cannot_be_made() -> None:
    class Half(EncoderDecoder):
        def encode(self, source: Tensor, maps: AttentionMaps | None = None) -> Tensor:
            return self.embedding(source)

    with pytest.raises(TypeError, match="abstract"):
        Half(ModelConfig(), 100)  # type: ignore[abstract]
