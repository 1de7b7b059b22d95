"""The labels of sentences: text in a table's second column, numbers in training."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from dragoman.corpus.batches import Batch, IntArray, collate
from dragoman.corpus.prepared import TOKENIZER, TRAIN, VALID
from dragoman.corpus.store import CorpusStore
from dragoman.corpus.tokenizer import Tokenizer
from dragoman.errors import UserError
from dragoman.text.protect import SLOTS, unmask

MOST_LABELS = 500
"""With more of them a table is taken for one of something else."""
_MOST_BYTES = 32 * 1024  # of all labels: they are a part of config.toml


def find_labels(folder: Path) -> list[str]:
    """The labels of a prepared folder, sorted. Raises UserError where they can be none."""
    tokenizer = Tokenizer.load(folder / TOKENIZER)
    found = set[str]()
    for name in (TRAIN, VALID):
        store = CorpusStore.open(folder / name)
        distinct = {store[row][1].tobytes(): row for row in range(len(store))}
        found |= {tokenizer.decode(store[row][1].tolist()) for row in distinct.values()}
    if not 2 <= len(found) <= MOST_LABELS:
        raise UserError(
            f"the data has {len(found):,} different labels; there may be 2 to {MOST_LABELS}",
            "each line is a text, a tab, and its label",
        )
    if sum(len(label.encode()) for label in found) > _MOST_BYTES:
        raise UserError("the labels are long texts", "each line is a text, a tab, and its label")
    for label in found:
        if not {*SLOTS}.isdisjoint(label):
            raise UserError("a label is a placeholder of its text", "name labels in plain words")
    return sorted(unmask(label, []) for label in found)


class LabelNumbers:
    """Makes batches of the rows of a store of texts (source) and their labels (target)."""

    def __init__(self, labels: Sequence[str], tokenizer: Tokenizer) -> None:
        self._numbers = {label: number for number, label in enumerate(labels, start=1)}
        self._tokenizer = tokenizer

    def collate(self, store: CorpusStore, rows: IntArray, epoch: int) -> Batch:
        """target_in (B, S) is the text with eos, target_out (B, 1) the label's number from 1.

        Raises UserError for a label that is none of those given.
        """
        batch = collate(store, rows)
        numbers = [self._number(ids) for ids in batch.target_out.tolist()]
        labels = np.array(numbers, dtype=np.int64)[:, None]
        return Batch(batch.source, batch.source, labels, batch.rows)

    def _number(self, ids: list[int]) -> int:
        label = unmask(self._tokenizer.decode(ids), [])
        if label not in self._numbers:
            raise UserError(
                f"the corpus has a label {label!r} that the settings do not know",
                "put back the labels in training/config.toml, or train into another --out",
            )
        return self._numbers[label]
