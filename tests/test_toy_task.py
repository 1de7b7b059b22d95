"""A task that must be learned: words of ten letters, backwards, through all of the library."""

import random
from pathlib import Path
from typing import Any

import pytest
import torch

from dragoman.config import Config, ModelConfig, TrainingConfig
from dragoman.corpus.batches import batches
from dragoman.corpus.store import CorpusStore, write_store
from dragoman.corpus.tokenizer import Tokenizer
from dragoman.decoding.native import NativeEngine
from dragoman.decoding.translator import Translator
from dragoman.model.folder import LoadedModel, load_model, save_model
from dragoman.model.transformer import Transformer
from dragoman.training.checkpoints import average_checkpoints, list_checkpoints
from dragoman.training.distributed import Ranks
from dragoman.training.objective import validation_nll
from dragoman.training.trainer import Trainer

HELD_OUT = 500


def made_up_words(count: int) -> list[str]:
    chance = random.Random(1)
    found: dict[str, None] = {}
    while len(found) < count:
        length = chance.randint(3, 8)
        found["".join(chance.choice("abcdefghij") for _ in range(length))] = None
    return list(found)


def make_store(path: Path, tokenizer: Tokenizer, strings: list[str]) -> CorpusStore:
    pairs = [tokenizer.encode_pair(word, word[::-1]) for word in strings]
    write_store(path, pairs, tokenizer.vocabulary_size)
    return CorpusStore.open(path)


@pytest.mark.slow
def test_reversing_words_is_learned(tmp_path: Path) -> None:
    strings = made_up_words(12_000)
    held_out, training = strings[:HELD_OUT], strings[HELD_OUT:]
    assert not set(held_out) & set(training)
    tokenizer = Tokenizer.train(training, 300)
    store = make_store(tmp_path / "train.arrow", tokenizer, training)
    validation = make_store(tmp_path / "valid.arrow", tokenizer, held_out)
    sizes: dict[str, Any] = {"d_model": 64, "d_ff": 128, "heads": 4, "max_positions": 32}
    config = Config(
        source_language="word",
        target_language="back",
        model=ModelConfig(**sizes, encoder_layers=2, decoder_layers=2, dropout=0.0),
        training=TrainingConfig(
            batch_tokens=600,
            learning_rate=5e-3,
            warmup_steps=100,
            max_steps=900,
            validations=4,
            average_checkpoints=2,
            precision="float32",
        ),
    )

    def validate(model: Transformer) -> dict[str, Any]:
        return {"nll": validation_nll(model, batches(validation, 8000, seed=0, epoch=0))}

    torch.manual_seed(config.training.seed)
    model = Transformer(config.model, tokenizer.vocabulary_size)
    cpu = torch.device("cpu")
    events: list[dict[str, Any]] = []
    trainer = Trainer(config, model, store, tmp_path / "run", Ranks(cpu), validate, events.append)
    trainer.run()
    weights = average_checkpoints(list_checkpoints(trainer.checkpoints)[-2:])
    save_model(tmp_path / "model", config, tokenizer, weights, "words, backwards")
    loaded: LoadedModel = load_model(tmp_path / "model")
    translations = Translator(NativeEngine(loaded)).translate(held_out)
    right = sum(
        translation.text == word[::-1]
        for translation, word in zip(translations, held_out, strict=True)
    )
    assert right >= 0.99 * HELD_OUT, events[-1]
