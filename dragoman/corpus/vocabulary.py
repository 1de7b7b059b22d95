"""What of an examined corpus the tokenizer is trained on, by task."""

from typing import Any

import numpy as np

from dragoman.config import DataConfig
from dragoman.corpus.examination import DROPPED, TRAINING, Examined, Roles
from dragoman.corpus.tokenizer import Tokenizer
from dragoman.corpus.treebank import tree_pieces

TOKENIZER_PAIRS = 500_000
"""About how many pairs the tokenizer is trained on at most; its memory grows with them only."""


def learn_tokenizer(examined: Examined, roles: Roles, data: DataConfig, task: str) -> Tokenizer:
    """The tokenizer of the training pairs; of trees the words only, and a piece for each symbol.

    Raises UserError as `Tokenizer.train` does.
    """
    pairs, symbols = examined.texts(_sample(roles == TRAINING, data.seed)), list[str]()
    texts = (text for pair in pairs for text in (pair.source, pair.target))
    if task == "parsing":
        texts = (pair.source for pair in pairs)
        symbols = tree_pieces(pair.target for pair in examined.texts(roles != DROPPED))
    size, coverage = data.vocabulary_size, data.character_coverage
    return Tokenizer.train(texts, size, coverage, data.seed, symbols=symbols, mask=task == "mlm")


def _sample(rows: np.ndarray[Any, np.dtype[np.bool_]], seed: int) -> Any:
    """The rows to train on: all, or about `TOKENIZER_PAIRS` by chance."""
    count = int(np.count_nonzero(rows))
    if count <= TOKENIZER_PAIRS:
        return rows
    chance = np.random.default_rng(seed).random(len(rows), dtype=np.float32)
    return rows & (chance < TOKENIZER_PAIRS / count)
