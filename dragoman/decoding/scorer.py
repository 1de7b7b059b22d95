"""Log-probabilities of given translations, the same that the search reports.

Shapes: B pairs, S source, T target.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from dragoman.corpus.tokenizer import Tokenizer
from dragoman.decoding.search import length_penalty
from dragoman.decoding.step import translation_log_probs
from dragoman.decoding.translator import pad_rows
from dragoman.errors import UserError
from dragoman.model.folder import LoadedModel, load_model
from dragoman.training.precision import choose_device


@dataclass(frozen=True)
class Score:
    """log_prob in nats with end-of-sentence; score = log_prob / length penalty."""

    log_prob: float
    score: float
    tokens: list[str]
    token_log_probs: list[float]


class Scorer:
    """Scores translations with a loaded model, teacher-forced."""

    def __init__(self, loaded: LoadedModel) -> None:
        self.config, self.tokenizer, self.model = loaded.config, loaded.tokenizer, loaded.model

    @classmethod
    def load(cls, folder: str | Path, device: str = "auto") -> "Scorer":
        """Load a model folder. Raises UserError for a folder that is no model."""
        return cls(load_model(Path(folder), choose_device(device)))

    def score(self, sources: Sequence[str], targets: Sequence[str], first: int = 1) -> list[Score]:
        """Score every target as a translation of its source.

        Raises UserError when one is too long; it names the pair, counted from `first`.
        """
        encoded = [
            self.tokenizer.encode_pair(source.strip(), target.strip())
            for source, target in zip(sources, targets, strict=True)
        ]
        limit = self.config.model.max_positions - 1
        for number, pair in enumerate(encoded, first):
            if max(map(len, pair)) > limit:
                raise UserError(
                    f"pair {number:,} has more than {limit} tokens", "split it at sentence ends"
                )
        results: dict[int, Score] = {}
        for numbers in self._batches(encoded):
            scores = self._score_batch([encoded[number] for number in numbers])
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
    def _score_batch(self, pairs: list[tuple[list[int], list[int]]]) -> list[Score]:
        device = self.model.embedding.weight.device
        bos, eos = Tokenizer.bos_id, Tokenizer.eos_id
        source = pad_rows([[*ids, eos] for ids, _ in pairs]).to(device)
        target_in = pad_rows([[bos, *ids] for _, ids in pairs]).to(device)
        target_out = pad_rows([[*ids, eos] for _, ids in pairs]).to(device)
        log_probs = translation_log_probs(self.model(source, target_in))
        chosen = log_probs.gather(2, target_out[..., None])[..., 0].double().cpu()  # (B, T)
        return [
            self._result(ids, chosen[row, : len(ids) + 1].tolist())
            for row, (_, ids) in enumerate(pairs)
        ]

    def _result(self, ids: list[int], log_probs: list[float]) -> Score:
        total = sum(log_probs)
        penalty = length_penalty(len(log_probs), self.config.search.length_penalty)
        pieces = [*self.tokenizer.pieces(ids), "</s>"]
        return Score(total, total / penalty, pieces, log_probs)
