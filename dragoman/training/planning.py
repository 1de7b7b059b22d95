"""Which preset a time budget is enough for, by this machine's own speed.

Shapes: B sentences, S source, T target.
"""

import time
from dataclasses import dataclass

import numpy as np
import torch

from dragoman.config import Config, resolve_config
from dragoman.corpus.batches import Batch
from dragoman.corpus.tokenizer import Tokenizer
from dragoman.model.assembly import build_model
from dragoman.presets import preset_for
from dragoman.training.objective import batch_loss
from dragoman.training.optimizer import make_optimizer
from dragoman.training.precision import choose_precision

# Below so many updates a smaller model ends better: a large one has hardly left its warm-up.
ENOUGH_UPDATES = 1200
# Of a budget, what measuring one preset's speed may take.
_SHARE, _LONGEST = 0.01, 5.0
_SENTENCE = 16  # tokens of a sentence to measure with, about the mean of everyday text
_SMALLER = {"medium": "small", "small": "tiny"}


@dataclass(frozen=True)
class Plan:
    """The preset for a corpus and a time, and how many updates that makes."""

    preset: str
    updates: int


def plan_for_time(
    pairs: int, seconds: float, device: torch.device, task: str = "translation"
) -> Plan:
    """The largest preset, up to the one for so many pairs, that gets enough updates in the time."""
    # A classifier is the encoder of a masked language model, whatever its labels.
    flags = {"task": "mlm" if task == "classification" else task}
    preset = preset_for(pairs)
    while True:
        limit = min(_SHARE * seconds, _LONGEST)
        rate = updates_per_second(resolve_config(preset, flags=flags), device, limit)
        updates = int(seconds * rate)
        if updates >= ENOUGH_UPDATES or preset not in _SMALLER:
            return Plan(preset, updates)
        preset = _SMALLER[preset]


def updates_per_second(config: Config, device: torch.device, seconds: float) -> float:
    """Real updates of a fresh model on made-up sentences, for about so long; two at least."""
    settings = config.training
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        model = build_model(config, config.data.vocabulary_size).to(device).train()
        model.embedding.compute_dtype = choose_precision(settings.precision, device)
        optimizer = make_optimizer(model, settings)
        batch = _made_up(settings.batch_tokens, config.data.vocabulary_size)
        done, begun = -1, 0.0  # the first update also warms up caches, and does not count
        while done < 1 or time.perf_counter() - begun < seconds:
            loss = batch_loss(model, batch, settings.label_smoothing)
            (loss.smoothed / loss.tokens).backward()
            optimizer.clip(settings.gradient_clip)
            optimizer.step()
            optimizer.zero_grad()
            float(loss.nll)  # waits for a GPU
            done += 1
            if done == 0:
                begun = time.perf_counter()
    return done / (time.perf_counter() - begun)


def _made_up(tokens: int, vocabulary_size: int) -> Batch:
    chance = np.random.default_rng(1)
    shape = max(tokens // _SENTENCE, 1), _SENTENCE
    source, target = (
        chance.integers(Tokenizer.eos_id + 1, vocabulary_size, shape) for _ in range(2)
    )
    return Batch(source, target, target, np.arange(shape[0]))
