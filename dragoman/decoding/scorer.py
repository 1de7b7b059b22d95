"""Log-probabilities of given translations, the same that the search reports."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from dragoman.corpus.context import Preceding, encode_contexts, fitting
from dragoman.corpus.pairs import Context
from dragoman.decoding.hypothesis import length_penalty
from dragoman.decoding.rescoring import Forced
from dragoman.errors import UserError
from dragoman.model.folder import LoadedModel, load_model
from dragoman.training.precision import choose_device


@dataclass(frozen=True)
class Score:
    """log_prob in nats with end-of-sentence; score = log_prob / length penalty.

    tokens and token_log_probs end with the end of the sentence. On request also attention: a row
    for each of the tokens over source_tokens, the mean of all heads and layers.
    """

    log_prob: float
    score: float
    tokens: list[str]
    token_log_probs: list[float]
    source_tokens: list[str]
    attention: list[list[float]] | None = None


class Scorer:
    """Scores translations with a loaded model, teacher-forced."""

    def __init__(self, loaded: LoadedModel) -> None:
        self.config, self.tokenizer, self.model = loaded.config, loaded.tokenizer, loaded.model

    @classmethod
    def load(cls, folder: str | Path, device: str = "auto") -> "Scorer":
        """Load a model folder. Raises UserError for a folder that is no model."""
        return cls(load_model(Path(folder), choose_device(device)))

    def score(
        self,
        sources: Sequence[str],
        targets: Sequence[str],
        first: int = 1,
        attention: bool = False,
        contexts: Sequence[Context] | None = None,
    ) -> list[Score]:
        """Score every target as a translation of its source; with attention on request.

        contexts holds the context of every source; None: the sources before it, as many as the
        model reads. Raises UserError when a pair is too long; it names it, counted from `first`.
        """
        if contexts is None:
            preceding = Preceding(self.config.data.context_sentences)
            contexts = [preceding.of(source) for source in sources]
        limit = self.config.model.max_positions - 1
        room = min(limit, self.config.data.max_tokens)
        befores = encode_contexts(self.tokenizer, contexts)
        encoded = []
        for source, target, before in zip(sources, targets, befores, strict=True):
            ids, translation = self.tokenizer.encode_pair(source.strip(), target.strip())
            encoded.append(([*fitting(before, room - len(ids)), *ids], translation))
        for number, pair in enumerate(encoded, first):
            if max(map(len, pair)) > limit:
                raise UserError(
                    f"pair {number:,} has more than {limit} tokens", "split it at sentence ends"
                )
        results: dict[int, Score] = {}
        for numbers in self._batches(encoded):
            scores = self._score_batch([encoded[number] for number in numbers], attention)
            results.update(zip(numbers, scores, strict=True))
        return [results[number] for number in range(len(encoded))]

    def _batches(self, encoded: list[tuple[list[int], list[int]]]) -> Iterator[list[int]]:
        order = sorted(range(len(encoded)), key=lambda n: -max(map(len, encoded[n])))
        start = 0
        while start < len(order):
            width = max(map(len, encoded[order[start]])) + 1
            count = max(1, self.config.search.batch_tokens // width)
            yield order[start : start + count]
            start += count

    @torch.inference_mode()
    def _score_batch(
        self, pairs: list[tuple[list[int], list[int]]], attention: bool
    ) -> list[Score]:
        forced = Forced([self.model], [ids for ids, _ in pairs], [ids for _, ids in pairs])
        log_probs = forced.token_log_probs()
        maps = forced.attention() if attention else [None] * len(pairs)
        return [self._result(*found) for found in zip(pairs, log_probs, maps, strict=True)]

    def _result(
        self,
        pair: tuple[list[int], list[int]],
        log_probs: list[float],
        attention: list[list[float]] | None,
    ) -> Score:
        total = sum(log_probs)
        penalty = length_penalty(len(log_probs), self.config.search.length_penalty)
        source, target = ([*self.tokenizer.pieces(ids), "</s>"] for ids in pair)
        return Score(total, total / penalty, target, log_probs, source, attention)
