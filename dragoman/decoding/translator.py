"""Raw text in, raw text out.

Shapes: B sentences, S source.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from dragoman.config import SearchConfig
from dragoman.corpus.tokenizer import Tokenizer
from dragoman.decoding.search import Hypothesis, Limits, beam_search
from dragoman.decoding.step import TransformerStep
from dragoman.model.folder import LoadedModel, load_model
from dragoman.text.segments import split_to_fit
from dragoman.training.precision import choose_device

# Lines read, sorted by length and translated together when a stream is translated.
_WINDOW = 2048


@dataclass(frozen=True)
class Candidate:
    """One translation of a line; score is the length-normalized log-probability."""

    text: str
    score: float
    log_prob: float
    tokens: list[str]


@dataclass(frozen=True)
class Translation:
    """The best translation of a line, its n-best list and what was noticed on the way.

    A line that was split has the sums of its pieces' log-probabilities and scores.
    """

    text: str
    score: float
    candidates: list[Candidate]
    warnings: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class _Piece:
    """A part of a line short enough for the model."""

    ids: tuple[int, ...]
    spans: tuple[str, ...]


class Translator:
    """Translates lines with a loaded model. Results do not depend on a line's neighbors."""

    def __init__(self, loaded: LoadedModel, search: SearchConfig | None = None) -> None:
        self.config, self.tokenizer, self.model = loaded.config, loaded.tokenizer, loaded.model
        self.search = search or loaded.config.search
        self._step = TransformerStep(self.model)
        limit = self.config.model.max_positions - 1
        self._max_source = min(limit, self.config.data.max_tokens)
        self._max_target = limit

    @classmethod
    def load(
        cls, folder: str | Path, device: str = "auto", search: SearchConfig | None = None
    ) -> "Translator":
        """Load a model folder. Raises UserError for a folder that is no model."""
        return cls(load_model(Path(folder), choose_device(device)), search)

    def translate(self, lines: Sequence[str], n_best: int = 1) -> list[Translation]:
        """Translate every line; a blank line stays as it is.

        n_best candidates a line at most, and never more than the beam finds.
        """
        split = [self._pieces(line) for line in lines]
        pieces = list(dict.fromkeys(piece for parts in split for piece in parts))
        found = dict(zip(pieces, self._search(pieces, n_best), strict=True))
        return [
            self._join(line, parts, [found[part] for part in parts], n_best)
            for line, parts in zip(lines, split, strict=True)
        ]

    def translate_stream(self, lines: Iterable[str], n_best: int = 1) -> Iterator[Translation]:
        """Translate an endless stream in order, in constant memory."""
        iterator = iter(lines)
        while window := list(islice(iterator, _WINDOW)):
            yield from self.translate(window, n_best)

    def _pieces(self, line: str) -> list[_Piece]:
        core = line.strip()
        if not core:
            return []
        language = self.config.source_language
        whole = self._encode(core)
        if len(whole.ids) < self._max_source:
            return [whole]
        parts = split_to_fit(core, language, lambda text: len(self._encode(text).ids) < self._max_source)
        return [self._encode(part.strip()) for part in parts if part.strip()]

    def _encode(self, text: str) -> _Piece:
        ids, spans = self.tokenizer.encode_source(text)
        return _Piece(tuple(ids), tuple(spans))

    def _join(
        self, line: str, parts: list[_Piece], found: list[list[Hypothesis]], n_best: int
    ) -> Translation:
        if not parts:
            return Translation(line, 0.0, [Candidate(line, 0.0, 0.0, [])])
        warnings = []
        if len(parts) > 1:
            warnings.append(f"split into {len(parts)} parts: longer than {self._max_source} tokens")
        if not all(hypotheses[0].finished for hypotheses in found):
            warnings.append("cut at the length limit")
        core = line.strip()
        before, after = line[: line.index(core)], line[line.index(core) + len(core) :]
        count = n_best if len(parts) == 1 else 1
        candidates = []
        for rank in range(min(count, len(found[0]))):
            chosen = [hypotheses[rank] for hypotheses in found]
            texts = [
                self.tokenizer.decode_target(hypothesis.tokens, list(part.spans))
                for hypothesis, part in zip(chosen, parts, strict=True)
            ]
            candidates.append(
                Candidate(
                    before + self._separator.join(text.strip() for text in texts) + after,
                    sum(hypothesis.score for hypothesis in chosen),
                    sum(hypothesis.log_prob for hypothesis in chosen),
                    [piece for h in chosen for piece in self.tokenizer.pieces(h.tokens)],
                )
            )
        lost = [span for part in parts for span in part.spans if span not in candidates[0].text]
        if lost:
            warnings.append(f"lost: {', '.join(lost)}")
        return Translation(candidates[0].text, candidates[0].score, candidates, warnings)

    @property
    def _separator(self) -> str:
        language = self.config.target_language.lower().replace("_", "-").split("-")[0]
        return "" if language in ("zh", "ja", "th", "lo", "km", "my") else " "

    def _search(self, pieces: list[_Piece], n_best: int) -> list[list[Hypothesis]]:
        results: list[list[Hypothesis]] = [[] for _ in pieces]
        for numbers in self._batches(pieces, max(self.search.beam, n_best)):
            batch = [pieces[number].ids for number in numbers]
            for number, hypotheses in zip(numbers, self._search_batch(batch, n_best), strict=True):
                results[number] = hypotheses
        return results

    def _batches(self, pieces: list[_Piece], beam: int) -> Iterator[list[int]]:
        """Pieces of about one length together, long ones first, within the token budget."""
        order = sorted(range(len(pieces)), key=lambda number: -len(pieces[number].ids))
        start = 0
        while start < len(order):
            width = (len(pieces[order[start]].ids) + 1) * beam
            count = max(1, self.search.batch_tokens // width)
            yield order[start : start + count]
            start += count

    @torch.inference_mode()
    def _search_batch(self, batch: list[tuple[int, ...]], n_best: int) -> list[list[Hypothesis]]:
        beam = max(self.search.beam, n_best)
        source = pad_rows([[*ids, Tokenizer.eos_id] for ids in batch]).to(
            self.model.embedding.weight.device
        )
        limits = Limits(
            beam,
            self.search.length_penalty,
            [min(len(ids) + 1 + self.search.max_extra_tokens, self._max_target) for ids in batch],
            Tokenizer.bos_id,
            Tokenizer.eos_id,
            n_best,
            min_length=1,
        )
        return beam_search(self._step, self._step.start(source, beam), limits)


def pad_rows(rows: Sequence[Sequence[int]]) -> Tensor:
    """Ids of different lengths -> (B, longest), padded with 0 at the end."""
    padded = np.zeros((len(rows), max(map(len, rows), default=0)), dtype=np.int64)
    for number, row in enumerate(rows):
        padded[number, : len(row)] = row
    return torch.from_numpy(padded)
