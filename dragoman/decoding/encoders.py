"""What an encoder-only model makes of text: vectors, hidden words, labels.

Shapes: B batch, T positions, D d_model, V vocabulary, C labels.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dragoman.corpus.batches import pad
from dragoman.corpus.tokenizer import Tokenizer
from dragoman.corpus.tokenizer_training import MASK
from dragoman.errors import UserError
from dragoman.model.classifier import Classifier
from dragoman.model.folder import Loaded, load_any
from dragoman.model.stacks import EncoderOnly
from dragoman.text.protect import SLOTS, SPACE_MARK
from dragoman.training.precision import choose_device

Vectors = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Filling:
    """A word that may stand in the place of a mask, and how probable the model holds it."""

    word: str
    probability: float


class TextEncoder:
    """Reads lines with a loaded model; what it gives for one does not depend on the others."""

    def __init__(self, loaded: Loaded) -> None:
        self.config, self.tokenizer = loaded.config, loaded.tokenizer
        self.model = cast(EncoderOnly, loaded.model)
        # Longer texts than training has seen are read in parts; eos is one token of each.
        self._longest = min(self.config.model.max_positions - 1, self.config.data.max_tokens)

    @classmethod
    def load(cls, folder: str | Path, *tasks: str, device: str = "auto") -> "TextEncoder":
        """Load a model folder of one of the tasks. Raises UserError for any other folder."""
        return cls(load_any(Path(folder), tasks, choose_device(device)))

    def embed(self, lines: Sequence[str]) -> Vectors:
        """The mean of the states of each line's tokens: (lines, D)."""
        return self._pooled(lines, lambda states: states)

    def classify(self, lines: Sequence[str]) -> Vectors:
        """The probability of each of the configuration's labels for each line: (lines, C)."""
        head = cast(Classifier, self.model).head
        return self._pooled(lines, lambda states: head(states).softmax(dim=1))

    @torch.inference_mode()
    def fill(self, text: str, best: int = 5) -> list[list[Filling]]:
        """The likeliest words for each mask of a text, best first.

        A mask stands for one subword: of those, the ones that begin a word where there is a space
        before the mask, and else the ones that do not. Probabilities are of all the vocabulary.
        Raises UserError for a text without a mask, and for one that is too long.
        """
        ids, places = self._with_masks(text)
        batch = self._batch([ids])
        logits = self.model(batch, batch)[0]  # (T, V)
        pieces = self.tokenizer.pieces(range(self.tokenizer.vocabulary_size))
        spaced = torch.tensor([piece.startswith(SPACE_MARK) for piece in pieces])
        symbols = torch.arange(len(pieces)) <= max(self.tokenizer.byte_ids)
        spaces = torch.tensor([piece.strip(SPACE_MARK) == "" for piece in pieces])
        found = []
        for place, after_space in places:
            probabilities = logits[place].float().softmax(dim=0).cpu()
            unfit = symbols | spaces | (spaced != after_space)
            likeliest = probabilities.masked_fill(unfit, -1.0).topk(min(best, int((~unfit).sum())))
            found.append(
                [
                    Filling(self.tokenizer.decode([number]).strip(), probability)
                    for probability, number in zip(*(t.tolist() for t in likeliest), strict=True)
                ]
            )
        return found

    def _with_masks(self, text: str) -> tuple[list[int], list[tuple[int, bool]]]:
        """Ids of a text, and where its masks are, each with whether a space belongs to it."""
        encoded, spans = self.tokenizer.encode_source(text.strip())
        if MASK not in spans:
            raise UserError(f"no {MASK} in the text", f'write "The {MASK} sat on the mat."')
        # The pattern of tags makes a slot of every mask, which cuts the text where it stands.
        space, slot = self.tokenizer.encode(SLOTS[spans.index(MASK)])
        assert self.tokenizer.mask_id is not None
        ids: list[int] = []
        places = []
        for number in encoded:
            if number != slot:
                ids.append(number)
                continue
            spaced = ids[-1:] == [space]
            del ids[len(ids) - spaced :]
            places.append((len(ids), spaced))
            ids.append(self.tokenizer.mask_id)
        limit = self.config.model.max_positions - 1
        if len(ids) > limit:
            raise UserError(
                f"the text has {len(ids):,} subwords, the model reads {limit:,}",
                "shorten it",
            )
        return ids, places

    @torch.inference_mode()
    def _pooled(self, lines: Sequence[str], finish: Callable[[Tensor], Tensor]) -> Vectors:
        """What `finish` makes of the mean states (B, D) of lines."""
        encoded = [ids for ids, _ in self.tokenizer.encode_sources([x.strip() for x in lines])]
        parts = [
            (line, ids[start : start + self._longest])
            for line, ids in enumerate(encoded)
            for start in range(0, max(len(ids), 1), self._longest)
        ]
        sums = torch.zeros(len(lines), self.config.model.d_model)
        tokens = torch.zeros(len(lines), 1)
        for numbers in self._batches([len(ids) + 1 for _, ids in parts]):
            batch = self._batch([parts[number][1] for number in numbers])
            rows = torch.tensor([parts[number][0] for number in numbers])
            lengths = (batch != Tokenizer.pad_id).sum(dim=1, keepdim=True).cpu().float()
            sums.index_add_(0, rows, self.model.pooled(batch).cpu() * lengths)
            tokens.index_add_(0, rows, lengths)
        states = (sums / tokens).to(self.model.embedding.weight.device)
        found: Vectors = finish(states).cpu().numpy()
        return found

    def _batches(self, lengths: list[int]) -> Iterator[list[int]]:
        order = sorted(range(len(lengths)), key=lambda number: -lengths[number])
        while order:
            count = max(1, self.config.search.batch_tokens // lengths[order[0]])
            yield order[:count]
            order = order[count:]

    def _batch(self, texts: list[list[int]]) -> Tensor:
        """(B, T), each with its eos, on the model's device."""
        ids, ends = pad([np.array(text, dtype=np.int64) for text in texts])
        ids[np.arange(len(texts)), ends] = Tokenizer.eos_id
        return torch.from_numpy(ids).to(self.model.embedding.weight.device)
