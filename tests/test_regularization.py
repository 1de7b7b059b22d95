"""What keeps small data from being learned by heart: each setting reaches the update, exactly."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from dragoman.config import Config, ModelConfig, TrainingConfig
from dragoman.corpus.batches import batches
from dragoman.corpus.prepared import TOKENIZER
from dragoman.corpus.store import CorpusStore, write_store
from dragoman.corpus.tokenizer import Tokenizer
from dragoman.model.adapters import add_adapters, trained_weights
from dragoman.model.transformer import Transformer
from dragoman.training.checkpoints import list_checkpoints, load_checkpoint
from dragoman.training.distributed import Ranks
from dragoman.training.moving_average import AVERAGE
from dragoman.training.objective import batch_loss
from dragoman.training.optimizer import optimizer_tensors
from dragoman.training.trainer import StopRequestedError, Trainer

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, sentences: list[tuple[str, str]]) -> Path:
    """A training's folder with corpus/tokenizer.model and corpus/train.arrow."""
    folder = tmp_path_factory.mktemp("regularization")
    tokenizer = Tokenizer.train([text for pair in sentences for text in pair], 350)
    (folder / "corpus").mkdir()
    tokenizer.save(folder / "corpus" / TOKENIZER)
    rows = tokenizer.encode_pairs(sentences[:60])
    write_store(folder / "corpus" / "train.arrow", rows, tokenizer.vocabulary_size)
    return folder


def make_config(**settings: Any) -> Config:
    """Settings of [model] where the name is one of its, else of [training]."""
    sizes: dict[str, Any] = {"d_model": 8, "d_ff": 12, "heads": 2, "dropout": 0.0}
    training: dict[str, Any] = {
        "batch_tokens": 300, "max_steps": 8, "validations": 2, "warmup_steps": 2,
        "learning_rate": 0.01, "precision": "float32", "label_smoothing": 0.0,
    }  # fmt: skip
    for name, value in settings.items():
        (sizes if name in ModelConfig.model_fields else training)[name] = value
    model = ModelConfig(**sizes, encoder_layers=1, decoder_layers=1)
    return Config(model=model, training=TrainingConfig(**training))


def make_trainer(
    folder: Path, work: Path, config: Config, stop_at: int | None = None, seed: int = 0
) -> tuple[Trainer, list[dict[str, Any]]]:
    """A trainer in `work` on the corpus of `folder`, and the weights that its validations saw."""
    if not (work / "corpus").exists():
        work.mkdir(parents=True, exist_ok=True)
        (work / "corpus").symlink_to(folder / "corpus", target_is_directory=True)
    store = CorpusStore.open(folder / "corpus" / "train.arrow")
    vocabulary = Tokenizer.load(folder / "corpus" / TOKENIZER).vocabulary_size
    torch.manual_seed(seed)
    model = Transformer(config.model, vocabulary)
    if config.training.lora_rank:
        torch.manual_seed(5)  # the base is the same for all, as a file is
        model = Transformer(config.model, vocabulary)
        torch.manual_seed(seed)
        add_adapters(model, config.training.lora_rank, config.training.lora_alpha)
    seen: list[dict[str, Any]] = []

    def validate(model: Transformer) -> dict[str, Any]:
        seen.append({name: tensor.clone() for name, tensor in trained_weights(model).items()})
        return {"nll": 3.0 / len(seen)}

    trainer = Trainer(
        config, model, store, work, Ranks(CPU), validate, lambda event: None,
        lambda: trainer.state.step == stop_at,
    )  # fmt: skip
    return trainer, seen


def everything(trainer: Trainer) -> dict[str, Tensor]:
    moments = optimizer_tensors(trainer.optimizer, trainer.model)
    return dict(trained_weights(trainer.model)) | {f"optimizer {n}": t for n, t in moments.items()}


def refuse(message: str) -> None:
    raise AssertionError(message)


@pytest.mark.parametrize(
    "setting",
    [
        {"dropout": 0.3},
        {"attention_dropout": 0.3},
        {"activation_dropout": 0.3},
        {"label_smoothing": 0.2},
        {"weight_decay": 0.1},
        {"bpe_dropout": 0.3},
        {"r_drop": 5.0, "dropout": 0.3},
    ],
    ids=lambda setting: next(iter(setting)),
)
def test_each_setting_reaches_the_update(
    folder: Path, tmp_path: Path, setting: dict[str, Any]
) -> None:
    without = {} if len(setting) == 1 else {"dropout": setting["dropout"]}
    runs = []
    for name, settings in (("plain", without), ("set", setting)):
        trainer, _ = make_trainer(folder, tmp_path / name, make_config(max_steps=2, **settings))
        trainer.run()
        runs.append(trained_weights(trainer.model))
    assert any(not runs[0][name].allclose(runs[1][name], atol=1e-5) for name in runs[0])


@pytest.mark.parametrize("stop_at", [1, 5])
def test_interrupted_and_resumed_is_uninterrupted_with_all_of_them(
    folder: Path, tmp_path: Path, stop_at: int
) -> None:
    """Another segmentation in every epoch, two passes, moving averages, adapters."""
    config = make_config(
        bpe_dropout=0.2, r_drop=1.0, ema_decay=0.9, dropout=0.2, lora_rank=2, accumulation=2
    )
    whole, _ = make_trainer(folder, tmp_path / "whole", config)
    whole.run()
    assert whole.state.epoch > 0 and whole.state.batch > 0
    first, _ = make_trainer(folder, tmp_path / "parts", config, stop_at)
    with pytest.raises(StopRequestedError):
        first.run()
    second, _ = make_trainer(folder, tmp_path / "parts", config, seed=9)
    assert second.resume(refuse)
    second.run()
    mine, its = everything(second), everything(whole)
    assert mine.keys() == its.keys() and any(AVERAGE in name for name in mine)
    assert [name for name in mine if not mine[name].equal(its[name])] == []


def test_the_moving_average_is_validated_and_saved_and_leaves_training_alone(
    folder: Path, tmp_path: Path
) -> None:
    plain, _ = make_trainer(folder, tmp_path / "plain", make_config())
    plain.run()
    moving, seen = make_trainer(folder, tmp_path / "moving", make_config(ema_decay=0.9))
    moving.run()
    for name, weight in trained_weights(plain.model).items():
        assert weight.equal(trained_weights(moving.model)[name])
    saved = load_checkpoint(list_checkpoints(moving.checkpoints)[-1])
    for name, weight in seen[-1].items():
        assert weight.equal(saved.optimizer[f"{name}/{AVERAGE}"])
        assert not weight.equal(saved.model[name])


def test_switched_off_the_moving_average_is_not_validated(folder: Path, tmp_path: Path) -> None:
    first, _ = make_trainer(folder, tmp_path, make_config(ema_decay=0.9), stop_at=3)
    with pytest.raises(StopRequestedError):
        first.run()
    second, seen = make_trainer(folder, tmp_path, make_config())
    assert second.resume(refuse)
    second.run()
    last = trained_weights(second.model)
    assert all(weight.equal(last[name]) for name, weight in seen[-1].items())


def test_two_passes_without_dropout_are_one(folder: Path) -> None:
    """Tokens count once, and the loss is on the scale of a single pass."""
    torch.manual_seed(1)
    model = Transformer(make_config().model, 350).train()
    store = CorpusStore.open(folder / "corpus" / "train.arrow")
    batch = next(batches(store, 200, seed=1, epoch=0))
    one, two = batch_loss(model, batch, 0.1), batch_loss(model, batch, 0.1, r_drop=5.0)
    assert two.tokens == one.tokens == batch.target_tokens
    assert_close(two.smoothed, one.smoothed, rtol=1e-5, atol=1e-3)
    assert_close(two.nll, one.nll, rtol=1e-5, atol=1e-3)
    gradients = [torch.autograd.grad(loss.smoothed, model.parameters()) for loss in (one, two)]
    for single, double in zip(*gradients, strict=True):
        assert_close(double, single, rtol=1e-3, atol=1e-4)
    model.embedding.dropout_rate = 0.3
    apart = []
    for alpha in (5.0, 1e-9):
        torch.manual_seed(2)
        apart.append(batch_loss(model, batch, 0.1, r_drop=alpha))
    assert bool(apart[0].smoothed > apart[1].smoothed + 1e-3)


def test_batches_have_fewer_rows_where_bpe_dropout_makes_them_longer(
    folder: Path, tmp_path: Path
) -> None:
    """The subwords read, not those stored, are what batch_tokens is about; no row is left out."""
    counts, sizes = {}, {}
    for rate in (0.0, 0.3):
        trainer, _ = make_trainer(folder, tmp_path / str(rate), make_config(bpe_dropout=rate))
        found = [trainer.feed.take(trainer.state)[0] for _ in range(len(trainer.feed))]
        assert sorted(int(row) for batch in found for row in batch.rows) == list(range(60))
        counts[rate] = len(found)
        sizes[rate] = np.mean([max(batch.source.size, batch.target_out.size) for batch in found])
    assert counts[0.3] > counts[0.0]
    assert sizes[0.3] < 1.3 * 300  # of batch_tokens, with what padding the new lengths need
