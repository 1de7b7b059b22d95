"""A model that has learned a small language aligns its words, and knows which head does."""

from pathlib import Path
from typing import Any

import pytest
import torch

from dragoman.config import Config, ModelConfig, TrainingConfig
from dragoman.corpus.pairs import Pair
from dragoman.corpus.store import CorpusStore, write_store
from dragoman.corpus.tokenizer import Tokenizer
from dragoman.inspection.word_alignment import WordAligner
from dragoman.inspection.word_alignment_choice import measure_heads
from dragoman.inspection.word_alignment_gold import alignment_error, parse_gold
from dragoman.model.folder import LoadedModel
from dragoman.model.transformer import Transformer
from dragoman.training.distributed import Ranks
from dragoman.training.trainer import Trainer

# the red cat sees the dog -> rot Katze sieht Hund; the articles may be linked to any noun.
GOLD = parse_gold("1-0 2-1 3-2 5-3 0p1 0p0 4p3", "line")


@pytest.mark.slow
def test_the_words_of_a_learned_language_are_aligned(
    tmp_path: Path, sentences: list[tuple[str, str]]
) -> None:
    tokenizer = Tokenizer.train([text for pair in sentences for text in pair], 350)
    write_store(tmp_path / "train", tokenizer.encode_pairs(sentences), tokenizer.vocabulary_size)
    store = CorpusStore.open(tmp_path / "train")
    sizes: dict[str, Any] = {"d_model": 64, "d_ff": 128, "heads": 4, "dropout": 0.1}
    config = Config(
        source_language="en",
        target_language="de",
        model=ModelConfig(**sizes, encoder_layers=1, decoder_layers=2),
        training=TrainingConfig(
            batch_tokens=400,
            learning_rate=5e-3,
            warmup_steps=50,
            max_steps=300,
            validations=1,
            precision="float32",
        ),
    )
    torch.manual_seed(config.training.seed)
    model = Transformer(config.model, tokenizer.vocabulary_size)
    ranks = Ranks(torch.device("cpu"))
    work = tmp_path / "run"
    Trainer(config, model, store, work, ranks, lambda _: {"nll": 0.0}, lambda _: None).run()
    aligner = WordAligner(LoadedModel(config, tokenizer, model.eval()))
    pairs = [Pair(*pair) for pair in sentences[::8]]
    gold = [GOLD] * len(pairs)
    hidden = [frozenset(found.links) for found in aligner.align(pairs) if found]
    assert alignment_error(hidden, gold).rate < 0.1
    rates = {one.head: one.error.rate for one in measure_heads(aligner, pairs, gold)}
    chosen = measure_heads(aligner, pairs)[0].head
    assert rates[chosen] < 0.15
    assert rates[chosen] <= min(rates.values()) + 0.05
