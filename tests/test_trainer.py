"""The training loop: exact resume, exact accumulation, early stopping, and what goes wrong."""

import math
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from dragoman.config import Config, ModelConfig, TrainingConfig
from dragoman.corpus.batches import batches, plan_batches
from dragoman.corpus.store import CorpusStore, write_store
from dragoman.errors import UserError
from dragoman.model.transformer import Transformer
from dragoman.training import feed as feed_module
from dragoman.training import trainer as trainer_module
from dragoman.training.checkpoints import average_checkpoints, list_checkpoints
from dragoman.training.distributed import Ranks
from dragoman.training.objective import validation_nll
from dragoman.training.optimizer import optimizer_tensors
from dragoman.training.schedule import learning_rate
from dragoman.training.trainer import StopRequestedError, Trainer

VOCABULARY, ROWS = 40, 60
CPU = torch.device("cpu")
Events = list[dict[str, Any]]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> CorpusStore:
    """Invented pairs; only row 17 is longer than 9 source tokens."""
    chance = np.random.default_rng(1)
    pairs = []
    for row in range(ROWS):
        length = 14 if row == 17 else int(chance.integers(1, 9))
        source = chance.integers(4, VOCABULARY, length).tolist()
        pairs.append((source, source[: int(chance.integers(1, 9))]))
    path = tmp_path_factory.mktemp("trainer") / "train.arrow"
    write_store(path, pairs, VOCABULARY)
    return CorpusStore.open(path)


def make_config(**training: Any) -> Config:
    sizes: dict[str, Any] = {"d_model": 8, "d_ff": 12, "heads": 2, "max_positions": 32}
    model = ModelConfig(**sizes, encoder_layers=1, decoder_layers=1, positions="learned")
    settings: dict[str, Any] = {
        "batch_tokens": 60, "max_steps": 20, "validations": 4, "warmup_steps": 5,
        "learning_rate": 0.01, "precision": "float32", "average_checkpoints": 2,
    }  # fmt: skip
    return Config(model=model, training=TrainingConfig(**(settings | training)))


def constant_validation(model: Transformer) -> dict[str, Any]:
    return {"nll": 3.0}


def make_trainer(
    store: CorpusStore,
    folder: Path,
    config: Config,
    validate: Callable[[Transformer], dict[str, Any]] = constant_validation,
    stop_at: int | None = None,
    seed: int = 0,
) -> tuple[Trainer, Events]:
    torch.manual_seed(seed)
    events: Events = []
    trainer = Trainer(
        config,
        Transformer(config.model, VOCABULARY),
        store,
        folder,
        Ranks(CPU),
        validate,
        events.append,
        lambda: trainer.state.step == stop_at,
    )
    return trainer, events


def everything(trainer: Trainer) -> dict[str, Tensor]:
    weights = {name: tensor.clone() for name, tensor in trainer.model.state_dict().items()}
    moments = optimizer_tensors(trainer.optimizer, trainer.model)
    return weights | {f"optimizer {name}": tensor.clone() for name, tensor in moments.items()}


def assert_identical(one: Trainer, other: Trainer) -> None:
    mine, its = everything(one), everything(other)
    assert mine.keys() == its.keys()
    assert [name for name in mine if not torch.equal(mine[name], its[name])] == []


def refuse(message: str) -> None:
    raise AssertionError(message)


def noisy_validation(model: Transformer) -> dict[str, Any]:
    """Draws random numbers and leaves the model in another mode and precision."""
    model.eval()
    model.embedding.compute_dtype = torch.bfloat16
    return {"nll": float(torch.rand(()))}


@pytest.mark.parametrize("accumulation", [1, 3])
@pytest.mark.parametrize("stop_at", [1, 5, 13])
def test_interrupted_and_resumed_is_uninterrupted(
    store: CorpusStore, tmp_path: Path, stop_at: int, accumulation: int
) -> None:
    config = make_config(accumulation=accumulation, patience=100)
    whole, _ = make_trainer(store, tmp_path / "whole", config, noisy_validation)
    whole.run()
    first, _ = make_trainer(store, tmp_path / "parts", config, noisy_validation, stop_at)
    with pytest.raises(StopRequestedError):
        first.run()
    assert first.state.step == stop_at
    # Another process: other weights to begin with, other random numbers drawn.
    second, _ = make_trainer(store, tmp_path / "parts", config, noisy_validation, seed=99)
    assert second.resume(refuse)
    assert_identical(first, second)
    second.run()
    assert_identical(whole, second)
    ours, theirs = asdict(second.state), asdict(whole.state)
    assert ours.pop("seconds") > 0 and theirs.pop("seconds") > 0
    assert ours == theirs
    assert theirs["epoch"] >= 1 and theirs["batch"] > 0  # it ended within a later epoch


def test_a_damaged_checkpoint_costs_time_and_nothing_else(
    store: CorpusStore, tmp_path: Path
) -> None:
    config = make_config()
    whole, _ = make_trainer(store, tmp_path, config)
    whole.run()
    newest = list_checkpoints(whole.checkpoints)[-1] / "model.safetensors"
    newest.write_bytes(newest.read_bytes()[:100])
    warnings: list[str] = []
    again, _ = make_trainer(store, tmp_path, config, seed=99)
    assert again.resume(warnings.append)
    assert len(warnings) == 1 and again.state.step < 20
    again.run()
    assert_identical(whole, again)


def test_there_is_nothing_to_resume_in_a_new_folder(store: CorpusStore, tmp_path: Path) -> None:
    trainer, _ = make_trainer(store, tmp_path, make_config())
    assert not trainer.resume(refuse)


def test_validation_leaves_training_as_it_was(store: CorpusStore, tmp_path: Path) -> None:
    noisy, _ = make_trainer(store, tmp_path / "1", make_config(patience=100), noisy_validation)
    plain, _ = make_trainer(store, tmp_path / "2", make_config(validations=1))
    noisy.run()
    plain.run()
    assert_identical(noisy, plain)


def test_resuming_with_another_batch_size_says_so_and_starts_the_epoch_again(
    store: CorpusStore, tmp_path: Path
) -> None:
    first, _ = make_trainer(store, tmp_path, make_config(), stop_at=3)
    with pytest.raises(StopRequestedError):
        first.run()
    second, _ = make_trainer(store, tmp_path, make_config(batch_tokens=90))
    warnings: list[str] = []
    assert second.resume(warnings.append)
    assert len(warnings) == 1 and "batch_tokens" in warnings[0]
    assert (second.state.step, second.state.batch) == (3, 0)
    second.run()


@pytest.mark.parametrize(("wish", "then"), [("auto", "bfloat16"), ("float32", "float32")])
def test_precision_after_resume(store: CorpusStore, tmp_path: Path, wish: str, then: str) -> None:
    """What 'auto' measured stays; a setting that the person changes is obeyed."""
    config = make_config(precision="bfloat16")
    first, _ = make_trainer(store, tmp_path, config, stop_at=3)
    with pytest.raises(StopRequestedError):
        first.run()
    second, _ = make_trainer(store, tmp_path, make_config(precision=wish))
    assert second.resume(refuse)
    assert second.precision == getattr(torch, then)


def test_accumulated_batches_are_one_large_batch(
    store: CorpusStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of unequal lengths, weighted by tokens; Adam's first moment is the gradient / 10."""
    rows = np.arange(ROWS)
    moments: list[dict[str, Tensor]] = []
    for name, parts in (("one", [rows]), ("many", [rows[:3], rows[3:29], rows[29:30], rows[30:]])):
        monkeypatch.setattr(feed_module, "plan_batches", lambda *_, parts=parts: parts)
        config = make_config(accumulation=len(parts), max_steps=1, gradient_clip=0.0)
        dry = config.model_copy(update={"model": config.model.model_copy(update={"dropout": 0.0})})
        trainer, _ = make_trainer(store, tmp_path / name, dry)
        trainer.run()
        assert trainer.state.tokens == int((store.target_lengths + 1).sum())
        state = optimizer_tensors(trainer.optimizer, trainer.model)
        moments.append({key: value for key, value in state.items() if key.endswith("exp_avg")})
    assert len(moments[0]) == len(list(trainer.model.parameters()))
    for key, moment in moments[0].items():
        assert_close(moments[1][key], moment, rtol=1e-4, atol=1e-8)


def test_a_loss_that_is_no_number_names_its_batch(store: CorpusStore, tmp_path: Path) -> None:
    """Only row 17 has a source token at position 12, whose vector is made NaN."""
    config = make_config()
    trainer, _ = make_trainer(store, tmp_path, config)
    with torch.no_grad():
        trainer.model.embedding.positions[12] = math.nan
    lengths = store.source_lengths, store.target_lengths
    plan = plan_batches(*lengths, 60, config.training.seed, 0)
    (number,) = [number for number, rows in enumerate(plan) if 17 in rows]
    with pytest.raises(UserError) as caught:
        trainer.run()
    message = caught.value.message
    assert f"step {number + 1}, epoch 0, batch {number}:" in message
    assert "nan" in message and "17" in message.partition("corpus rows")[2]
    assert "learning_rate" in caught.value.hint
    finite = {name: p for name, p in trainer.model.named_parameters() if "positions" not in name}
    assert all(bool(parameter.isfinite().all()) for parameter in finite.values())
    assert trainer.state.step == number


def test_early_stopping_waits_for_patience_and_keeps_the_best(
    store: CorpusStore, tmp_path: Path
) -> None:
    losses = iter([5.0, 4.0, 4.5, 4.0, 4.1, 1.0])
    config = make_config(max_steps=40, validations=20, patience=3)
    trainer, events = make_trainer(store, tmp_path, config, lambda model: {"nll": next(losses)})
    trainer.run()
    validations = [event for event in events if event["event"] == "validation"]
    assert [event["nll"] for event in validations] == [5.0, 4.0, 4.5, 4.0, 4.1]
    assert [event["best"] for event in validations] == [True, True, False, False, False]
    assert [event["step"] for event in validations] == [2, 4, 6, 8, 10]
    assert (trainer.state.step, trainer.state.best_step, trainer.state.best_nll) == (10, 4, 4.0)
    steps = [int(path.name.removeprefix("step-")) for path in list_checkpoints(trainer.checkpoints)]
    assert steps == [4, 8, 10]  # the best, and the two that are averaged
    assert trainer.averaged_steps == {8, 10}
    average = average_checkpoints(list_checkpoints(trainer.checkpoints)[-2:])
    assert average.keys() == trainer.model.state_dict().keys()
    # Resumed, it is as finished as it was.
    again, _ = make_trainer(store, tmp_path, config, lambda model: {"nll": next(losses)})
    assert again.resume(refuse)
    again.run()
    assert again.state.step == 10 and next(losses) == 1.0


def test_validations_are_spread_evenly_and_the_last_is_at_the_end(
    store: CorpusStore, tmp_path: Path
) -> None:
    trainer, events = make_trainer(store, tmp_path, make_config(max_steps=10, validations=4))
    trainer.run()
    steps = [event["step"] for event in events if event["event"] == "validation"]
    assert steps == [3, 5, 8, 10]


def test_without_a_limit_a_run_is_so_many_epochs(store: CorpusStore, tmp_path: Path) -> None:
    config = make_config(max_steps=None, epochs=3, validations=1)
    trainer, _ = make_trainer(store, tmp_path, config)
    trainer.run()
    assert trainer.state.tokens == 3 * int((store.target_lengths + 1).sum())


def test_a_time_budget_ends_the_run_and_the_schedule(
    store: CorpusStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]

    def clock() -> float:
        now[0] += 0.25
        return now[0]

    monkeypatch.setattr(trainer_module, "time", SimpleNamespace(monotonic=clock))
    config = make_config(max_steps=None, budget_seconds=30.0, patience=100, warmup_steps=1)
    trainer, events = make_trainer(store, tmp_path, config)
    trainer.run()
    assert 30 <= trainer.state.seconds < 32
    rates = [event["learning_rate"] for event in events if event["event"] == "train"]
    assert len(rates) > 5 and rates == sorted(rates, reverse=True)
    assert rates[-1] < 0.15 * rates[0]


def test_every_update_has_the_rate_of_the_schedule_and_a_clipped_gradient(
    store: CorpusStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_config(schedule="paper", gradient_clip=0.01, max_steps=12)
    trainer, _ = make_trainer(store, tmp_path, config)
    rates, norms = [], []
    step, kept = trainer.optimizer.step, config.training.adam_beta1

    def means() -> list[Tensor]:
        states = (trainer.optimizer.state.get(p, {}) for p in trainer.model.parameters())
        return [state["exp_avg"].clone() for state in states if state]

    def watched_step() -> None:
        rates.append(trainer.optimizer.param_groups[0]["lr"])
        before = means()
        step()
        # Adam's mean tells which gradient it took: mean = kept mean + (1 - kept) gradient.
        after = means()
        before = before or [torch.zeros_like(new) for new in after]
        taken = [(new - kept * old) / (1 - kept) for new, old in zip(after, before, strict=True)]
        norms.append(float(torch.nn.utils.get_total_norm(taken)))

    monkeypatch.setattr(trainer.optimizer, "step", watched_step)
    trainer.run()
    assert rates == [learning_rate(config.training, 8, n, (n - 1) / 12) for n in range(1, 13)]
    assert norms == pytest.approx([0.01] * 12, rel=1e-3)


def test_timed_checkpoints(
    store: CorpusStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[int] = []
    original = trainer_module.write_checkpoint

    def watched_write(folder: Path, step: int, checkpoint: Any) -> Path:
        written.append(step)
        return original(folder, step, checkpoint)

    monkeypatch.setattr(trainer_module, "write_checkpoint", watched_write)
    config = make_config(max_steps=6, validations=2, checkpoint_minutes=1e-12)
    trainer, _ = make_trainer(store, tmp_path, config, stop_at=4)
    with pytest.raises(StopRequestedError):
        trainer.run()
    assert written == [1, 2, 3, 4]  # each once: a whole checkpoint is never written over


def test_validation_nll_is_the_mean_over_tokens(store: CorpusStore, tmp_path: Path) -> None:
    trainer, _ = make_trainer(store, tmp_path, make_config())
    model = trainer.model.eval()
    total, tokens = 0.0, 0
    with torch.no_grad():
        for row in range(ROWS):
            source, target = (ids.astype(np.int64) for ids in store[row])
            logits = model(
                torch.from_numpy(np.append(source, 3))[None],
                torch.from_numpy(np.insert(target, 0, 2))[None],
            )
            labels = torch.from_numpy(np.append(target, 3))
            total += float(torch.nn.functional.cross_entropy(logits[0], labels, reduction="sum"))
            tokens += len(labels)
    for size in (30, 100_000):
        found = validation_nll(model, batches(store, size, seed=0, epoch=0))
        assert found == pytest.approx(total / tokens, rel=1e-5)
