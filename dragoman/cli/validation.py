"""What a training run asks of its task: how a model is measured, and what is made of it at the end.

`dragoman.cli.tasks` chooses the child.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.nn.utils import parametrize

from dragoman.config import Config, Coverage
from dragoman.corpus.batches import batches
from dragoman.corpus.context import read_contexts
from dragoman.corpus.coverage import measure_coverage
from dragoman.corpus.pairs import Pair
from dragoman.corpus.prepared import VALID, VALID_TEXT
from dragoman.corpus.store import CorpusStore
from dragoman.corpus.tokenizer import Tokenizer
from dragoman.decoding.perplexity import perplexity
from dragoman.errors import UserError
from dragoman.model.sequence_model import SequenceModel
from dragoman.training.feed import make_collate
from dragoman.training.objective import validation_nll


@dataclass(frozen=True)
class Results:
    """What a task found of the finished model.

    values: for the log, scores of 0 to 100 by their names in `dragoman.training.progress.SCORES`;
    shown: lines for a terminal; card: the same as Markdown for the model card; learned: whether the
    model does better than one that has learned nothing.
    """

    values: dict[str, Any]
    shown: str
    card: str
    learned: bool = True


class TaskRun:
    """One training run's task on the first rank, with the validation data of a prepared folder.

    For the model card, in Markdown with DIR for the model's folder: `purpose` ends the sentence "A
    Transformer that", `usage` is what follows "Use". `rows` and `tokens` are what the corpus and
    the speed of the training are counted in.
    """

    purpose = usage = ""
    rows, tokens = "pairs", "target tokens"

    def __init__(self, config: Config, tokenizer: Tokenizer, corpus: Path) -> None:
        self.config, self.tokenizer = config, tokenizer
        self.store = CorpusStore.open(corpus / VALID)
        self.pairs = read_contexts(corpus / VALID_TEXT)
        self._collate = make_collate(config, corpus)
        if not self.pairs or not len(self.store):
            raise UserError(
                f"{corpus / VALID_TEXT}: {len(self.pairs):,} rows, but {len(self.store):,} in "
                f"{VALID}",
                "the prepared corpus is damaged: prepare it anew",
            )

    def __call__(self, model: SequenceModel) -> dict[str, Any]:
        """What a validation event holds: nll (nats a token), perplexity, the task's own scores."""
        nll = self.nll(model)
        # Every step of a search has other shapes: in float32 no product is compiled for them.
        model.embedding.compute_dtype = torch.float32
        with parametrize.cached():  # adapters' sums are made once, not at every step
            return {"nll": nll, "perplexity": perplexity(nll), **self.scores(model)}

    def nll(self, model: SequenceModel) -> float:
        """Unsmoothed loss on all the validation data, in nats a token."""
        size = self.config.training.batch_tokens
        with parametrize.cached():
            return validation_nll(
                model, batches(self.store, size, seed=0, epoch=0, collate=self._collate)
            )

    def scores(self, model: SequenceModel) -> dict[str, Any]:
        """Further fields of a validation event, `samples` (dicts of texts) among them."""
        return {}

    def results(self, model: SequenceModel, nll: float) -> Results:
        """What is said of the finished model, which has that nll on the validation data."""
        found = f"perplexity {perplexity(nll):.3f} a subword"
        return Results({}, f"validation {found}", f"- {found} (all validation data)")

    def coverage(self) -> Coverage:
        """How long the validation data is in subwords a character: the measure of new data."""
        found = measure_coverage(self.store, self.tokenizer)
        return Coverage(source=found.source.length or None, target=found.target.length or None)

    def save_parts(self, folder: Path, model: SequenceModel, train: CorpusStore) -> None:
        """Write what the model's folder has beside its weights, which are written after it."""

    def convert(self, folder: Path) -> None:
        """Make the whole model folder ready for use, and say what came of it."""


def spread(pairs: Sequence[Pair], count: int) -> list[Pair]:
    """At most so many of the pairs, evenly from all over."""
    if len(pairs) <= count:
        return list(pairs)
    return [pairs[number * len(pairs) // count] for number in range(count)]
