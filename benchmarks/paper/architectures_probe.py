"""What architectures.py finds out without text: speed by length, and copying over a distance.

Copying: a sequence of the decoder is four random symbols, then as many random fillers of other
kinds as the distance is, a mark, and the four symbols again, which alone are to be predicted. The
source is one token and says nothing, so that all must come from the decoder's own past. Every
update has a batch of one distance, all of them in turn; every model gets the same batches.

Shapes: B sequences, T tokens.
"""

import time
from typing import Any

import numpy as np
import torch

from dragoman.config import Config
from dragoman.corpus.batches import Batch
from dragoman.corpus.tokenizer import Tokenizer
from dragoman.model.assembly import build_model
from dragoman.model.sequence_model import SequenceModel, parameter_count
from dragoman.training.objective import batch_loss
from dragoman.training.optimizer import Adam, make_optimizer
from dragoman.training.precision import choose_precision

LENGTHS = (16, 32, 64, 128, 256, 512)
DISTANCES = (2, 4, 8, 16, 32, 64, 128)
_COPIED, _SEQUENCES = 4, 16
# Ids: the special ones, eight symbols, eight fillers, the mark.
_FIRST = Tokenizer.eos_id + 1
_SYMBOLS, _FILLERS, _MARK = _FIRST, _FIRST + 8, _FIRST + 16
VOCABULARY = 64
_RATE, _WARMUP = 2e-3, 50


def tokens_per_second(config: Config, vocabulary_size: int) -> dict[str, float]:
    """Target tokens a second of a training step by the length of both sides; the best of some."""
    torch.manual_seed(1)
    model = build_model(config, vocabulary_size).train()
    model.embedding.compute_dtype = choose_precision("auto", torch.device("cpu"))
    optimizer = make_optimizer(model, config.training)
    chance = np.random.default_rng(1)
    found = {}
    for length in LENGTHS:
        rows = max(1, config.training.batch_tokens // length)
        ids = [chance.integers(_FIRST, vocabulary_size, (rows, length)) for _ in range(3)]
        batch = Batch(ids[0], ids[1], ids[2], np.arange(rows))
        best, begun = float("inf"), time.perf_counter()
        for number in range(6):
            start = time.perf_counter()
            update(model, optimizer, batch)
            if number:  # the first one also prepares
                best = min(best, time.perf_counter() - start)
            if number and time.perf_counter() - begun > 12:
                break
        found[str(length)] = rows * length / best
    return found


def update(model: SequenceModel, optimizer: Adam, batch: Batch) -> float:
    """One update; the loss before it, in nats a token."""
    loss = batch_loss(model, batch, 0.0)
    (loss.smoothed / loss.tokens).backward()
    optimizer.clip(1.0)
    optimizer.step()
    optimizer.zero_grad()
    return float(loss.nll) / loss.tokens


def copying(config: Config, updates: int) -> dict[str, Any]:
    """Train on copying; the share of symbols that are right by distance, of fresh sequences."""
    torch.manual_seed(1)
    sizes = config.model.model_copy(update={"dropout": 0.0})
    model = build_model(config.model_copy(update={"model": sizes}), VOCABULARY).train()
    optimizer = make_optimizer(model, config.training)
    chance, begun = np.random.default_rng(1), time.perf_counter()
    for number in range(updates):
        left = 1 - number / updates
        for group in optimizer.param_groups:
            group["lr"] = _RATE * min(1.0, (number + 1) / _WARMUP, left)
        update(model, optimizer, sequences(DISTANCES[number % len(DISTANCES)], chance))
    model.eval()
    return {
        "parameters": parameter_count(model),
        "updates": updates,
        "seconds": time.perf_counter() - begun,
        "accuracy": {str(distance): accuracy(model, distance) for distance in DISTANCES},
    }


def sequences(distance: int, chance: np.random.Generator, count: int = _SEQUENCES) -> Batch:
    """Sequences to copy in; labels elsewhere than at the copied symbols are padding."""
    symbols = chance.integers(_SYMBOLS, _FILLERS, (count, _COPIED))
    fillers = chance.integers(_FILLERS, _MARK, (count, distance))
    marks = np.full((count, 1), _MARK)
    target_in = np.concatenate([symbols, fillers, marks, symbols[:, :-1]], axis=1)
    target_out = np.zeros_like(target_in)
    target_out[:, -_COPIED:] = symbols
    source = np.full((count, 1), Tokenizer.eos_id)
    return Batch(source, target_in, target_out, np.arange(count))


@torch.inference_mode()
def accuracy(model: SequenceModel, distance: int) -> float:
    """The share of the copied symbols that are the likeliest ones, each after the right ones."""
    batch = sequences(distance, np.random.default_rng(distance), 64)
    logits = model(torch.from_numpy(batch.source), torch.from_numpy(batch.target_in))
    right = logits[:, -_COPIED:].argmax(dim=-1) == torch.from_numpy(batch.target_out[:, -_COPIED:])
    return float(right.float().mean())
