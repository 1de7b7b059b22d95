"""How surprised a language model is by text: in nats and bits a token, a word, a character.

A token is the model's own; words and characters are the same to every model, whatever its subwords.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path

import numpy as np
import torch

from dragoman.corpus.batches import Batch
from dragoman.corpus.tokenizer import Tokenizer
from dragoman.decoding.step import pad_rows
from dragoman.model.folder import Loaded, load_any
from dragoman.text.protect import escape_literals
from dragoman.training.objective import batch_loss
from dragoman.training.precision import choose_device

Window = tuple[list[int], int]
"""Ids of which each but the first is predicted, and how many of the last predictions count."""


@dataclass(frozen=True)
class Surprise:
    """The nats of some texts together, and what they are divided by.

    The end of each text counts as one token, one word (as it does in the figures for the Penn
    Treebank) and one character.
    """

    nats: float
    texts: int
    tokens: int
    words: int
    characters: int

    def __add__(self, other: "Surprise") -> "Surprise":
        both = zip(astuple(self), astuple(other), strict=True)
        return Surprise(*(one + more for one, more in both))

    def units(self) -> dict[str, int]:
        """What the nats are divided by, by the name of one."""
        return {"token": self.tokens, "word": self.words, "character": self.characters}

    def render(self) -> str:
        """A table for a person, without a line break at the end."""
        counts = f"{self.texts:,} texts, {self.tokens:,} tokens, {self.words:,} words, "
        lines = [f"{counts}{self.characters:,} characters", "", _row("", "nats", "bits")]
        for name, count in self.units().items():
            nats = self.nats / count
            found = _row(f"a {name}", f"{nats:.4f}", f"{nats / math.log(2):.4f}")
            lines.append(f"{found}   perplexity {perplexity(nats):,.2f}")
        return "\n".join(lines)

    def to_json(self) -> dict[str, float | int]:
        """Plain values: counts, and by unit nats, bits and perplexity."""
        record: dict[str, float | int] = {"nats": self.nats, "texts": self.texts}
        for name, count in self.units().items():
            nats = self.nats / count
            record |= {
                f"{name}s": count,
                f"nats_per_{name}": nats,
                f"bits_per_{name}": nats / math.log(2),
                f"perplexity_per_{name}": perplexity(nats),
            }
        return record


def surprise(nats: float, texts: Sequence[str], tokens: int) -> Surprise:
    """That of texts which came to so many nats and tokens, their ends included."""
    words = sum(len(text.split()) + 1 for text in texts)
    characters = sum(len(text) + 1 for text in texts)
    return Surprise(nats, len(texts), tokens, words, characters)


def _row(*cells: str) -> str:
    return f"{cells[0]:<12}{cells[1]:>10}{cells[2]:>10}"


def perplexity(nats: float) -> float:
    """exp(nats), infinite where that is too large for a float."""
    return math.exp(nats) if nats < 700 else math.inf


class Reader:
    """Measures texts with a loaded language model.

    A text longer than the texts of its training is read in windows of that length, each half of
    one further: so every token is predicted once, from at least half a window where there is so
    much before it.
    """

    def __init__(self, loaded: Loaded) -> None:
        self.config, self.tokenizer, self.model = loaded.config, loaded.tokenizer, loaded.model
        self.window = min(self.config.data.max_tokens, self.config.model.max_positions)

    @classmethod
    def load(cls, folder: str | Path, device: str = "auto") -> "Reader":
        """Load a model folder. Raises UserError for a folder that is no language model."""
        return cls(load_any(Path(folder), ("lm",), choose_device(device)))

    @torch.inference_mode()
    def read(self, texts: Sequence[str]) -> Surprise:
        """What the model finds of the texts together."""
        encoded = self.tokenizer.encode_batch([escape_literals(text) for text in texts])
        rows = [[Tokenizer.bos_id, *ids, Tokenizer.eos_id] for ids in encoded]
        nats = 0.0
        for batch in _batches(
            [window for row in rows for window in windows(row, self.window)],
            self.config.search.batch_tokens,
        ):
            nats += float(batch_loss(self.model, batch, 0.0).nll)
        return surprise(nats, texts, sum(len(row) - 1 for row in rows))


def windows(ids: list[int], size: int) -> Iterator[Window]:
    """The windows of at most `size` predictions in which a text with bos and eos is read."""
    predictions, done = len(ids) - 1, 0
    for start in range(0, predictions, max(1, size // 2)):
        end = min(start + size, predictions)
        yield ids[start : end + 1], end - done
        done = end
        if done == predictions:
            return


def _batches(found: list[Window], tokens: int) -> Iterator[Batch]:
    """Windows of like lengths together; what does not count is no label."""
    found.sort(key=lambda window: -len(window[0]))
    start = 0
    while start < len(found):
        count = max(1, tokens // len(found[start][0]))
        chosen = found[start : start + count]
        labels = [[0] * (len(ids) - 1 - n) + ids[len(ids) - n :] for ids, n in chosen]
        target_in = pad_rows([ids[:-1] for ids, _ in chosen]).numpy()
        source = np.full((len(chosen), 1), Tokenizer.eos_id, dtype=np.int64)
        yield Batch(source, target_in, pad_rows(labels).numpy(), np.arange(len(chosen)))
        start += count
