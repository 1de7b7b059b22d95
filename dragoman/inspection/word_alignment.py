"""Word alignments of given translations: by attention to the source, or by hiding source words.

Letters: B pairs, T target subwords and their end, S source subwords and their end, N target words,
M source words.
"""

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from dragoman.corpus.pairs import Pair
from dragoman.corpus.tokenizer import Tokenizer
from dragoman.decoding.alignment import attended_words
from dragoman.decoding.rescoring import Forced
from dragoman.decoding.step import pad_rows
from dragoman.errors import UserError
from dragoman.model.encoder_decoder import AttentionMaps
from dragoman.model.folder import LoadedModel, load_model
from dragoman.text.languages import UNSPACED, base_code
from dragoman.text.protect import Masked, mask_pair, unmask
from dragoman.training.precision import choose_device

# Of ASCII alone, as the tools that read alignments count words.
_WORD = re.compile(r"\S+", re.ASCII)

Places = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class AlignmentHead:
    """Whose attention to the source is looked at: a layer and a head of it, both from 1.

    head 0 is the mean of the layer's heads. The weights of a target subword are those of the step
    that writes it, or with reading of the step after, which reads it (Chen et al. 2020, arXiv
    2004.14837).
    """

    layer: int
    head: int
    reading: bool

    def __str__(self) -> str:
        head = f"head {self.head}" if self.head else "mean of the heads"
        return f"layer {self.layer}, {head}, {'reading' if self.reading else 'writing'}"


@dataclass(frozen=True, slots=True)
class WordAlignment:
    """The words of a pair and the links between their places, (source, target) from 0, sorted."""

    source: tuple[str, ...]
    target: tuple[str, ...]
    links: tuple[tuple[int, int], ...]

    @property
    def size(self) -> tuple[int, int]:
        """How many words each side has."""
        return len(self.source), len(self.target)

    @property
    def pharaoh(self) -> str:
        """The links as text: `0-0 1-2`."""
        return " ".join(f"{source}-{target}" for source, target in self.links)


@dataclass(frozen=True, slots=True)
class _Side:
    """One side of a pair as units of subwords that stay together.

    A unit is a word, or a protected span of several words, or a subword in a language without
    spaces; starts are where the subwords of each begin, places which words it holds.
    """

    ids: list[int]
    starts: list[int]
    words: tuple[str, ...]
    places: list[range]


_Sides = tuple[_Side, _Side]


class WordAligner:
    """Links the words of translations to those of their sources with a loaded model.

    Words are what ASCII white space separates; in a language that writes none (Chinese, Japanese,
    Thai, ...) each subword is a word. A pair is aligned alike whatever pairs stand beside it.
    """

    def __init__(self, loaded: LoadedModel) -> None:
        self.config, self.tokenizer, self.model = loaded.config, loaded.tokenizer, loaded.model
        languages = self.config.source_language, self.config.target_language
        self._unspaced = [base_code(language) in UNSPACED for language in languages]

    @classmethod
    def load(cls, folder: Path, device: str = "auto") -> "WordAligner":
        """Load a model folder. Raises UserError for a folder that is no model."""
        return cls(load_model(folder, choose_device(device)))

    def heads(self) -> list[AlignmentHead]:
        """All there are: every head of every layer and their mean, writing and reading."""
        layers, heads = self.model.attends
        return [
            AlignmentHead(*both, reading)
            for both in itertools.product(range(1, layers + 1), range(heads + 1))
            for reading in (False, True)
        ]

    def checked(self, head: AlignmentHead) -> AlignmentHead:
        """The same head. Raises UserError when the model has no such one."""
        layers, heads = self.model.attends
        if head not in self.heads():
            raise UserError(
                f"this model has no {head}",
                f"it has layers 1 to {layers} and heads 1 to {heads}; 0 is their mean",
            )
        return head

    def align(
        self, pairs: Sequence[Pair], head: AlignmentHead | None = None
    ) -> list[WordAlignment | None]:
        """The links of every pair, one for each target word, by a head's attention.

        Without a head by hiding each source word in turn: a target word is linked to the one
        without which it is least probable. A blank side has no links. None: a side is longer than
        the model's positions.
        """
        if head is not None:
            by_head = self.align_by_all(pairs, [head])
            return [None if found is None else found[0] for found in by_head]
        sides = self._split(pairs)
        return [
            _alignment(both, self._hidden(both)) if self._fits(both) else None for both in sides
        ]

    def align_by_all(
        self, pairs: Sequence[Pair], heads: Sequence[AlignmentHead]
    ) -> list[list[WordAlignment] | None]:
        """The links of every pair by each of the heads; see `align`."""
        sides = self._split(pairs)
        found: list[list[WordAlignment] | None] = [
            [_alignment(both, np.zeros(0, dtype=np.int64))] * len(heads)
            if self._fits(both)
            else None
            for both in sides
        ]
        for numbers in self._batches(sides):
            places = self._attended([sides[number] for number in numbers], heads)
            for number, by_head in zip(numbers, places, strict=True):
                found[number] = [_alignment(sides[number], places) for places in by_head]
        return found

    def _fits(self, sides: _Sides) -> bool:
        return max(len(side.ids) for side in sides) < self.config.model.max_positions

    def _batches(self, sides: list[_Sides]) -> Iterator[list[int]]:
        """Numbers of the pairs that have words on both sides, of like length together."""
        lengths = [max(len(side.ids) for side in both) + 1 for both in sides]
        usable = [
            n for n, both in enumerate(sides) if all(s.ids for s in both) and self._fits(both)
        ]
        order = sorted(usable, key=lambda number: -lengths[number])
        start = 0
        while start < len(order):
            count = max(1, self.config.search.batch_tokens // lengths[order[start]])
            yield order[start : start + count]
            start += count

    @torch.inference_mode()
    def _attended(self, pairs: list[_Sides], heads: Sequence[AlignmentHead]) -> list[list[Places]]:
        """(N,) units for each pair and each head."""
        device = self.model.embedding.weight.device
        source = pad_rows([[*side.ids, Tokenizer.eos_id] for side, _ in pairs]).to(device)
        target_in = pad_rows([[Tokenizer.bos_id, *side.ids] for _, side in pairs]).to(device)
        maps = AttentionMaps([], [], [])
        self.model.decode(target_in, self.model.encode(source), source, maps)
        found: list[list[Places]] = [[] for _ in pairs]
        for head in heads:
            layer = maps.cross[head.layer - 1]  # (B, H, T, S)
            weights = layer[:, head.head - 1] if head.head else layer.mean(dim=1)
            rows = weights[:, int(head.reading) :].float().cpu().numpy()
            for number, (side, other) in enumerate(pairs):
                own = rows[number, : len(other.ids), : len(side.ids)]
                found[number].append(attended_words(own, side.starts, other.starts))
        return found

    def _hidden(self, sides: _Sides) -> Places:
        """(N,) units by what hiding each of the M costs."""
        source, target = sides
        if not source.ids or not target.ids:
            return np.zeros(0, dtype=np.int64)
        variants = []
        for start, end in itertools.pairwise([*source.starts, len(source.ids)]):
            hidden = [Tokenizer.pad_id] * (end - start)  # which nothing attends to
            variants.append([*source.ids[:start], *hidden, *source.ids[end:]])
        width = 1 + max(len(source.ids), len(target.ids))
        count = max(1, self.config.search.batch_tokens // width)
        rows: list[list[float]] = []
        for start in range(0, len(variants), count):
            part = variants[start : start + count]
            rows += Forced([self.model], part, [target.ids] * len(part)).token_log_probs()
        log_probs = np.asarray(rows)[:, :-1]
        places: Places = np.add.reduceat(log_probs, target.starts, axis=1).argmin(axis=0)
        return places

    def _split(self, pairs: Sequence[Pair]) -> list[_Sides]:
        """Every pair as the ids that the tokenizer gives it, and where its words stand in them."""
        masked = list(itertools.chain.from_iterable(_masked(pair) for pair in pairs))
        words = [side.text.split(" ") if side.text else [] for side in masked]
        encoded = iter(self.tokenizer.encode_batch([word for side in words for word in side]))
        sides = [
            self._side(units, [next(encoded) for _ in units], side.spans, self._unspaced[n % 2])
            for n, (units, side) in enumerate(zip(words, masked, strict=True))
        ]
        return list(zip(sides[::2], sides[1::2], strict=True))

    def _side(
        self, units: list[str], encoded: list[list[int]], spans: list[str], unspaced: bool
    ) -> _Side:
        ids = list(itertools.chain.from_iterable(encoded))
        if unspaced:
            count = len(ids)
            places = [range(place, place + 1) for place in range(count)]
            return _Side(ids, list(range(count)), tuple(self.tokenizer.pieces(ids)), places)
        held = [_WORD.findall(unmask(unit, spans)) for unit in units]
        starts = [0, *itertools.accumulate(map(len, encoded))][:-1]
        ends = [0, *itertools.accumulate(map(len, held))]
        places = [range(*both) for both in itertools.pairwise(ends)]
        return _Side(ids, starts, tuple(itertools.chain.from_iterable(held)), places)


def _masked(pair: Pair) -> tuple[Masked, Masked]:
    """Both sides with one space between words, so that no subword reaches over two of them."""
    source, target = (
        " ".join(_WORD.findall(side)) if side.strip() else "" for side in (pair.source, pair.target)
    )
    return mask_pair(source, target)


def _alignment(sides: _Sides, attended: npt.NDArray[Any]) -> WordAlignment:
    source, target = sides
    links = {
        link
        for unit, place in enumerate(attended.tolist())
        for link in itertools.product(source.places[place], target.places[unit])
    }
    return WordAlignment(source.words, target.words, tuple(sorted(links)))
