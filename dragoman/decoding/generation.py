"""A language model goes on with texts: greedily or by chance, token by token from its cache.

Shapes: B texts, T tokens, V vocabulary.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, cast

import torch

from dragoman.corpus.tokenizer import Tokenizer
from dragoman.decoding.log_probs import LogProbs
from dragoman.decoding.sampling import Narrowing, draw, seed_of
from dragoman.decoding.step import FORBIDDEN, pad_rows
from dragoman.errors import UserError
from dragoman.model.folder import Loaded, load_any
from dragoman.model.stacks import DecoderOnly
from dragoman.text.protect import escape_literals, unmask
from dragoman.training.precision import choose_device

_BROKEN = "\ufffd"
# Texts that are written together.
_TEXTS = 256


@dataclass(frozen=True)
class Wish:
    """What to write: so many texts of a prompt, each of at most so many tokens.

    temperature 0: always the likeliest token; else drawn as `Narrowing` says, by the seed and the
    prompt alone. A text ends before the first of the stop strings in it.
    """

    max_tokens: int = 200
    samples: int = 1
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 1
    stop: Sequence[str] = ()


@dataclass
class Writing:
    """What was written after a prompt; log_prob is the model's, in nats, of all the tokens.

    ended: by the model, before a stop string, or by the limit of tokens; None: not yet.
    """

    prompt: str
    tokens: list[int] = field(default_factory=list)
    log_prob: float = 0.0
    text: str = ""
    ended: Literal["end", "stop", "length"] | None = None

    @property
    def settled(self) -> str:
        """The part of the text that more tokens do not change, but for stop strings."""
        return self.text if self.ended else self.text.rstrip(_BROKEN)


Watch = Callable[[Writing], None]


class Writer:
    """Goes on with texts by a loaded language model."""

    def __init__(self, loaded: Loaded) -> None:
        self.config, self.tokenizer = loaded.config, loaded.tokenizer
        self.model = cast(DecoderOnly, loaded.model)

    @classmethod
    def load(cls, folder: str | Path, device: str = "auto") -> "Writer":
        """Load a model folder. Raises UserError for a folder that is no language model."""
        return cls(load_any(Path(folder), ("lm",), choose_device(device)))

    def write(
        self, prompts: Sequence[str], wish: Wish, watch: Watch | None = None
    ) -> list[list[Writing]]:
        """`wish.samples` texts for each prompt, which do not depend on the other prompts.

        watch(text) is told of every text whenever it has grown. Raises UserError when a prompt
        and what is to follow are longer than the model can be.
        """
        encoded = [self.tokenizer.encode(escape_literals(prompt)) for prompt in prompts]
        self._check_lengths(encoded, wish)
        texts = [Writing(prompt) for prompt in prompts for _ in range(wish.samples)]
        starts = [ids for ids in encoded for _ in range(wish.samples)]
        chances = [
            random.Random(f"{seed_of(wish.seed, ids)} {number}")
            for ids in encoded
            for number in range(wish.samples)
        ]
        for first in range(0, len(texts), _TEXTS):
            some = slice(first, first + _TEXTS)
            self._go_on(texts[some], starts[some], chances[some], wish, watch)
        return [texts[n : n + wish.samples] for n in range(0, len(texts), wish.samples)]

    @torch.inference_mode()
    def _go_on(
        self,
        texts: list[Writing],
        starts: list[list[int]],
        chances: list[random.Random],
        wish: Wish,
        watch: Watch | None,
    ) -> None:
        """Write texts that begin with these tokens to their ends."""
        device, cache = self.model.embedding.weight.device, self.model.start(len(texts))
        open_ = list(range(len(texts)))
        ids = pad_rows([[Tokenizer.bos_id, *start] for start in starts])
        while open_:
            states = self.model.step_states(ids.to(device), cache)  # (B, T, D)
            last = (ids != Tokenizer.pad_id).sum(dim=1) - 1
            logits = self.model.logits(states[torch.arange(len(ids)), last.to(device)])
            logits[:, FORBIDDEN] = -torch.inf
            uniform = [chances[number].random() for number in open_]
            symbols, log_probs = _choose(LogProbs.of(logits), wish, uniform)
            for number, symbol, log_prob in zip(open_, symbols, log_probs, strict=True):
                self._grow(texts[number], starts[number], symbol, log_prob, wish)
                if watch is not None:
                    watch(texts[number])
            kept = [row for row, number in enumerate(open_) if texts[number].ended is None]
            if len(kept) < len(open_):
                open_ = [open_[row] for row in kept]
                cache.keep(torch.tensor(kept, dtype=torch.long, device=device))
            ids = torch.tensor([symbols[row] for row in kept], dtype=torch.long)[:, None]

    def _grow(
        self, writing: Writing, start: list[int], symbol: int, log_prob: float, wish: Wish
    ) -> None:
        """One more token of a text, or its end."""
        writing.log_prob += log_prob
        if symbol == Tokenizer.eos_id:
            writing.ended = "end"
            return
        writing.tokens.append(symbol)
        # Decoded with the prompt: the first subword of a text alone would lose its space.
        whole = self.tokenizer.decode([*start, *writing.tokens])
        text = unmask(whole[len(self.tokenizer.decode(start)) :], [])
        places = [place for stop in wish.stop if (place := text.find(stop)) >= 0]
        writing.text = text[: min(places)] if places else text
        if places:
            writing.ended = "stop"
        elif len(writing.tokens) >= wish.max_tokens:
            writing.ended = "length"

    def _check_lengths(self, encoded: Sequence[Sequence[int]], wish: Wish) -> None:
        longest, limit = max(map(len, encoded), default=0), self.config.model.max_positions
        if longest + wish.max_tokens > limit:
            raise UserError(
                f"a prompt of {longest:,} tokens and {wish.max_tokens:,} more are too long: this "
                f"model has {limit:,} positions",
                "ask for fewer tokens, or give the end of the prompt only",
            )


def _choose(found: LogProbs, wish: Wish, uniform: list[float]) -> tuple[list[int], list[float]]:
    """The next token of every text and its log-probability."""
    if wish.temperature == 0:
        values, symbols = found.top(1)
        return symbols[:, 0].tolist(), values[:, 0].tolist()
    narrowing = Narrowing(wish.temperature, wish.top_k, wish.top_p)
    return draw(found.dense(), narrowing, uniform)


def unsettled(text: str, stop: Sequence[str]) -> int:
    """How much of a text's end may yet turn out to begin a stop string, in characters."""
    longest = 0
    for one in stop:
        lengths = range(min(len(one) - 1, len(text)), longest, -1)
        longest = next((n for n in lengths if text.endswith(one[:n])), longest)
    return longest
