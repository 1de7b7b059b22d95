"""Raw text in, raw text out.

Shapes: B sentences, S source.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from dragoman.config import SearchConfig
from dragoman.corpus.tokenizer import Tokenizer
from dragoman.decoding.search import Hypothesis, Limits, beam_search
from dragoman.decoding.step import TransformerStep
from dragoman.model.folder import LoadedModel, load_model
from dragoman.text.languages import UNSPACED, base_code
from dragoman.text.protect import count_spans
from dragoman.text.segments import split_to_fit
from dragoman.training.precision import choose_device

# Lines read, sorted by length and translated together when a stream is translated.
_WINDOW = 2048
_WINDOW_CHARACTERS = 1_000_000


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

    text: str
    ids: tuple[int, ...]
    spans: tuple[str, ...]


@dataclass(frozen=True)
class _Line:
    """A line as pieces and the white space before, between and after them."""

    text: str
    pieces: list[_Piece]
    gaps: list[str]


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

        n_best candidates a line, or as many as the beam finds: never more than its width. Raises
        TypeError for a single string.
        """
        if isinstance(lines, str):  # a sequence of strings too, of one character each
            raise TypeError("translate takes a list of lines, not one string")
        split = [self._split(line) for line in lines]
        pieces = list(dict.fromkeys(piece for line in split for piece in line.pieces))
        n_best = min(n_best, self.search.beam)
        found = self._search_all(pieces, n_best)
        return [self._join(line, [found[piece] for piece in line.pieces], n_best) for line in split]

    def translate_stream(self, lines: Iterable[str], n_best: int = 1) -> Iterator[Translation]:
        """Translate an endless stream in order, in constant memory."""
        window, characters = list[str](), 0
        for line in lines:
            window.append(line)
            characters += len(line)
            if len(window) == _WINDOW or characters > _WINDOW_CHARACTERS:
                yield from self.translate(window, n_best)
                window, characters = [], 0
        yield from self.translate(window, n_best)

    def _split(self, line: str) -> _Line:
        core = line.strip()
        if not core:
            return _Line(line, [], [line])
        start = line.index(core)
        before, after = line[:start], line[start + len(core) :]
        parts = [core]
        if not self._fits(core):
            parts = split_to_fit(core, self.config.source_language, self._fits)
        gaps, pieces = [before], []
        for part in parts:
            text = part.strip()
            if text:
                pieces.append(self._encode(text))
                gaps.append(part[len(part.rstrip()) :])
            else:
                gaps[-1] += part
        gaps[-1] += after
        return _Line(line, pieces, gaps)

    def _fits(self, text: str) -> bool:
        return len(self._encode(text).ids) <= self._max_source

    def _encode(self, text: str) -> _Piece:
        ids, spans = self.tokenizer.encode_source(text)
        return _Piece(text, tuple(ids), tuple(spans))

    def _join(self, line: _Line, found: list[list[Hypothesis]], n_best: int) -> Translation:
        if not line.pieces:
            return Translation(line.text, 0.0, [Candidate(line.text, 0.0, 0.0, [])])
        warnings = []
        count = n_best
        if len(line.pieces) > 1:
            count = 1
            warnings.append(
                f"split into {len(line.pieces)} parts: longer than {self._max_source} tokens"
            )
        if not all(hypotheses[0].finished for hypotheses in found):
            warnings.append("cut at the length limit")
        ranks = range(min(count, len(found[0])))
        candidates = [self._candidate(line, [h[rank] for h in found]) for rank in ranks]
        best = candidates[0]
        if not best.text.strip():
            best = Candidate(line.text, best.score, best.log_prob, best.tokens)
            candidates[0] = best
            warnings.append("no translation found: the source is copied")
        if best.text == line.text:
            return Translation(best.text, best.score, candidates, warnings)
        lost = [
            s for piece, h in zip(line.pieces, found, strict=True) for s in self._lost(piece, h[0])
        ]
        if lost:
            warnings.append(f"lost: {', '.join(lost)}")
        return Translation(best.text, best.score, candidates, warnings)

    def _candidate(self, line: _Line, chosen: list[Hypothesis]) -> Candidate:
        text = line.gaps[0]
        last = len(chosen) - 1
        for number, (hypothesis, piece) in enumerate(zip(chosen, line.pieces, strict=True)):
            gap = line.gaps[number + 1]
            if number < last:
                gap = self._between(gap)
            decoded = self.tokenizer.decode_target(hypothesis.tokens, list(piece.spans))
            text += decoded.strip() + gap
        return Candidate(
            text,
            sum(hypothesis.score for hypothesis in chosen),
            sum(hypothesis.log_prob for hypothesis in chosen),
            [token for h in chosen for token in self.tokenizer.pieces(h.tokens)],
        )

    def _between(self, gap: str) -> str:
        """The space between two sentences, as the target language writes it."""
        if gap in ("", " "):
            return "" if base_code(self.config.target_language) in UNSPACED else " "
        return gap

    def _search_all(self, pieces: list[_Piece], n_best: int) -> dict[_Piece, list[Hypothesis]]:
        """Hypotheses of every piece, best first; one that keeps more protected spans is better."""
        plain = [piece for piece in pieces if not piece.spans]
        marked = [piece for piece in pieces if piece.spans]
        found = dict(zip(plain, self._search(plain, n_best), strict=True))
        # The whole beam for these, whatever n_best, so that the first result does not depend on it.
        for piece, hypotheses in zip(marked, self._search(marked, self.search.beam), strict=True):
            found[piece] = sorted(hypotheses, key=lambda h: len(self._lost(piece, h)))
        return found

    def _lost(self, piece: _Piece, hypothesis: Hypothesis) -> list[str]:
        text = self.tokenizer.decode_target(hypothesis.tokens, list(piece.spans))
        return list((count_spans(piece.text) - count_spans(text)).elements())

    def _search(self, pieces: list[_Piece], n_best: int) -> list[list[Hypothesis]]:
        results: list[list[Hypothesis]] = [[] for _ in pieces]
        for numbers in self._batches(pieces):
            batch = [pieces[number].ids for number in numbers]
            for number, hypotheses in zip(numbers, self._search_batch(batch, n_best), strict=True):
                results[number] = hypotheses
        return results

    def _batches(self, pieces: list[_Piece]) -> Iterator[list[int]]:
        """Pieces of about one length together, long ones first, within the token budget."""
        order = sorted(range(len(pieces)), key=lambda number: -len(pieces[number].ids))
        start = 0
        while start < len(order):
            width = (len(pieces[order[start]].ids) + 1) * self.search.beam
            count = max(1, self.search.batch_tokens // width)
            yield order[start : start + count]
            start += count

    @torch.inference_mode()
    def _search_batch(self, batch: list[tuple[int, ...]], n_best: int) -> list[list[Hypothesis]]:
        beam = self.search.beam
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
