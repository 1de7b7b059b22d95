"""Batches of about as many tokens each, of rows of about the same length (paper, section 5.1).

Letters: B rows, S source tokens, T target tokens.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np
import numpy.typing as npt

from dragoman.corpus.digests import Rows, row_numbers
from dragoman.corpus.store import CorpusStore, Ids
from dragoman.corpus.tokenizer import Tokenizer

IntArray = npt.NDArray[np.int64]
# Where rows are few for the size of a batch, coarser steps of source length leave less padding.
_STEPS = (1, 2, 3)

Lengths = npt.NDArray[np.uint16] | npt.NDArray[np.int32] | npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Padded ids of some rows.

    source: (B, S), each row ends with eos; target_in: (B, T), each row starts with bos;
    target_out: (B, T), each row ends with eos; rows: (B,) their numbers in the store. Padding is 0.
    """

    source: IntArray
    target_in: IntArray
    target_out: IntArray
    rows: IntArray

    @property
    def target_tokens(self) -> int:
        """The number of real tokens in `target_out`, eos included, padding left out."""
        return int(np.count_nonzero(self.target_out))


class EpochPlan(Sequence[IntArray]):
    """The batches of one epoch in the order of training: row numbers, not the rows themselves.

    It holds two arrays, in about 5 bytes a row: `rows`, (rows,), batch after batch, and `bounds`,
    (batches, 2), where each batch begins and ends in them. An item is the rows of a batch, (B,);
    a slice is a plan.
    """

    def __init__(self, rows: Rows, bounds: IntArray) -> None:
        self._rows, self._bounds = rows, bounds

    def __len__(self) -> int:
        return len(self._bounds)

    @overload
    def __getitem__(self, number: int) -> IntArray: ...
    @overload
    def __getitem__(self, number: slice) -> "EpochPlan": ...
    def __getitem__(self, number: int | slice) -> "IntArray | EpochPlan":
        if isinstance(number, slice):
            return EpochPlan(self._rows, self._bounds[number])
        start, stop = self._bounds[number]
        return self._rows[start:stop].astype(np.int64)


def plan_batches(
    source_lengths: Lengths,
    target_lengths: Lengths,
    max_tokens: int,
    seed: int,
    epoch: int,
    pool: int = 1_000_000,
) -> EpochPlan:
    """Puts every row into exactly one batch; the same arguments give the same plan.

    Rows are dealt at random into pools, sorted by length within each, and cut into batches whose
    order is then shuffled. Memory: the plan, and what sorting one pool takes.

    Args:
        source_lengths: (rows,) ids of each source, without eos.
        target_lengths: (rows,) ids of each target, without bos and eos.
        max_tokens: the most tokens, padding and eos included, that either side of a batch may
            hold; a row that is longer is a batch of its own.
        seed: not negative, as `epoch`; both together make the order.
        epoch: the number of the pass over the data.
        pool: about how many rows are sorted together.
    """
    if max_tokens < 1 or pool < 1:
        raise ValueError("max_tokens and pool must be at least 1")
    count = len(source_lengths)
    chance = np.random.default_rng([seed, epoch])
    shuffled = row_numbers(count)
    chance.shuffle(shuffled)
    starts = [np.zeros(1, dtype=np.int64)]
    done = 0
    for rows in np.array_split(shuffled, max(1, -(-count // pool))):  # views: sorted in place
        source = source_lengths[rows].astype(np.int64) + 1
        target = target_lengths[rows].astype(np.int64) + 1
        fewest, best = None, None
        for step in _STEPS:
            order = _order(source, target, step)
            ends = _cut(np.maximum(source, target)[order], max_tokens)
            if fewest is None or len(ends) < len(fewest):
                fewest, best = ends, order
        assert fewest is not None
        rows[:] = rows[best]
        starts.append(fewest + done)
        done += len(rows)
    edges = np.concatenate(starts)
    bounds = np.stack([edges[:-1], edges[1:]], axis=1)
    return EpochPlan(shuffled, bounds[chance.permutation(len(bounds))])


def _order(source: IntArray, target: IntArray, step: int) -> IntArray:
    """Sorts rows by source length, in steps, then by target length.

    The target order turns round at each step: a batch that spans two of them holds targets that
    are alike, not the longest beside the shortest.
    """
    band = source // step
    above = int(target.max(initial=0)) + 1
    turned = np.where(band % 2 == 0, target, above - target)
    return np.argsort(band * (above + 1) + turned, kind="stable")


def _cut(longest: IntArray, max_tokens: int) -> IntArray:
    """Where each batch ends: as many rows as fit, counted with the padding to their longest."""
    ends = []
    start = 0
    while start < len(longest):
        # No more rows fit than do at the first one's length.
        window = longest[start : start + max(1, max_tokens // int(longest[start]))]
        sizes = np.maximum.accumulate(window) * np.arange(1, len(window) + 1)
        start += max(1, int(np.searchsorted(sizes, max_tokens, side="right")))
        ends.append(start)
    return np.array(ends, dtype=np.int64)


Resample = Callable[[int, Ids, Ids], tuple[Ids, Ids]]
"""resample(row, source, target) gives other ids of the same two texts."""


def collate(store: CorpusStore, rows: IntArray, resample: Resample | None = None) -> Batch:
    """Reads rows of a store into one padded batch, with bos and eos in place.

    `resample`, such as `Resampler.in_epoch` gives, cuts each pair into subwords anew.
    """
    pairs = [store[int(row)] for row in rows]
    if resample is not None:
        pairs = [resample(int(row), *pair) for row, pair in zip(rows, pairs, strict=True)]
    source, source_ends = pad([pair[0] for pair in pairs])
    target, target_ends = pad([pair[1] for pair in pairs])
    target_in = np.roll(target, 1, axis=1)
    target_in[:, 0] = Tokenizer.bos_id
    every = np.arange(len(pairs))
    source[every, source_ends] = Tokenizer.eos_id
    target[every, target_ends] = Tokenizer.eos_id
    return Batch(source, target_in, target, np.asarray(rows, dtype=np.int64))


def pad(sequences: Sequence[Ids | IntArray]) -> tuple[IntArray, IntArray]:
    """The ids with at least one padding after each: (B, longest + 1); where each ends: (B,)."""
    ends = np.array([len(ids) for ids in sequences], dtype=np.int64)
    width = int(ends.max(initial=0)) + 1
    padded = np.full((len(sequences), width), Tokenizer.pad_id, dtype=np.int64)
    if sequences:
        padded[np.arange(width) < ends[:, None]] = np.concatenate(sequences)
    return padded, ends


Collate = Callable[[CorpusStore, IntArray, int], Batch]
"""collate(store, rows, epoch) makes a batch of rows of a store as a task wants them."""


def collate_pairs(store: CorpusStore, rows: IntArray, epoch: int) -> Batch:
    """`collate`, the same in every epoch."""
    return collate(store, rows)


def collate_texts(store: CorpusStore, rows: IntArray, epoch: int) -> Batch:
    """Rows of a store of texts, each to be predicted from what stands before it.

    A row holds its bos and eos itself, where it is the beginning and the end of a text: see
    `dragoman.corpus.encoding`. The sources are empty.
    """
    texts = [store[int(row)][1] for row in rows]
    source = np.full((len(texts), 1), Tokenizer.eos_id, dtype=np.int64)
    target_in, _ = pad([ids[:-1] for ids in texts])
    target_out, _ = pad([ids[1:] for ids in texts])
    numbers = np.asarray(rows, dtype=np.int64)
    return Batch(source, target_in[:, :-1], target_out[:, :-1], numbers)


def batches(
    store: CorpusStore,
    max_tokens: int,
    seed: int,
    epoch: int,
    start: int = 0,
    collate: Collate = collate_pairs,
) -> Iterator[Batch]:
    """The batches of one epoch; `start` leaves out that many, as one who resumes needs it."""
    if start < 0:
        raise ValueError("start must not be negative")
    plan = plan_batches(store.source_lengths, store.target_lengths, max_tokens, seed, epoch)
    for rows in plan[start:]:
        yield collate(store, rows, epoch)
