"""A language model of random weights, for the tests of what it writes and finds probable."""

from typing import Any

import torch
from conftest import SENTENCES

from dragoman.config import Config, DataConfig, ModelConfig
from dragoman.corpus.tokenizer import Tokenizer
from dragoman.model.folder import Loaded
from dragoman.model.stacks import DecoderOnly

TEXTS = [source for source, _ in SENTENCES]


def small(window: int | None = None, width: int = 32) -> Config:
    sizes: dict[str, Any] = {"d_model": width, "d_ff": 24, "heads": 2, "max_positions": 64}
    model = ModelConfig(**sizes, decoder_layers=2, dropout=0.0, window=window)
    return Config(task="lm", model=model, data=DataConfig(max_tokens=16), target_language="en")


def make(config: Config, tokenizer: Tokenizer, seed: int = 1) -> Loaded:
    """Random weights, of which those between the embeddings decide."""
    torch.manual_seed(seed)
    model = DecoderOnly(config.model, tokenizer.vocabulary_size).eval().requires_grad_(False)
    for name, weight in model.named_parameters():
        if weight.dim() > 1 and not name.startswith("embedding"):
            weight.mul_(4)
    return Loaded(config, tokenizer, model)
