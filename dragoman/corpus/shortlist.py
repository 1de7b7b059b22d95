"""The subwords that may translate a sentence: a lexical shortlist, learned from the corpus.

The output layer then computes these alone (Jean et al. 2015, arXiv 1412.2007, section 3.3; the
shortlists of Marian). They are: for each source subword the target subwords most associated with
it, and the subword itself, since names are copied; and for every sentence the most frequent target
subwords, single bytes and special symbols, so that anything can be written.

Association is p(t | s) of IBM Model 1 (Brown et al. 1993), some iterations of it.

Shapes: V vocabulary, L links (pairs of subwords in one pair of sentences), C candidates.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from dragoman.corpus.store import CorpusStore
from dragoman.corpus.tokenizer import Tokenizer
from dragoman.errors import UserError
from dragoman.text.lines import atomic_write

SHORTLIST: Final = "shortlist.safetensors"
"""The name of the file in a model folder."""
ASSOCIATED, FREQUENT = 50, 1500
"""Candidates of a source subword, and of every sentence, at most.

Fewer frequent ones are hardly faster, since the sentences of a batch bring nearly all of them, and
let the texts depend more on which sentences these are.
"""
_ITERATIONS = 2
_LEAST = 1e-3  # of p(t | s)
# A pair is learned from when a subword of its source has been in fewer pairs so far; of at most so
# many pairs, spread over the corpus, and until there are so many links.
_OCCURRENCES, _PAIRS, _MOST_LINKS = 300, 2_000_000, 60_000_000
_BLOCK = 2048  # pairs looked at together
_WAITING = 4_000_000  # links that are counted together
_TABLE = 15_000_000  # different links kept; beyond, the rarest go
_LARGEST_FILE = 512 * 2**20
_SPECIAL = [Tokenizer.pad_id, Tokenizer.unk_id, Tokenizer.bos_id, Tokenizer.eos_id]

Ids = npt.NDArray[np.int32]
Counts = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Shortlist:
    """Candidates: `fixed` for every sentence, and offsets[s]:offsets[s + 1] of `associated` for s.

    fixed is sorted and begins with the special symbols 0, 1, 2, 3. tokenizer is the SHA-256 of the
    tokenizer whose ids these are.
    """

    fixed: Ids
    offsets: npt.NDArray[np.int64]
    associated: Ids
    tokenizer: str

    def of(self, source: Sequence[int]) -> Ids:
        """The candidates of one subword after the other, repeated where several have them."""
        parts = [self.associated[self.offsets[s] : self.offsets[s + 1]] for s in set(source)]
        return np.concatenate(parts) if parts else self.associated[:0]

    def union(self, sources: Iterable[Sequence[int]]) -> Ids:
        """All candidates of some sentences: (C,) ids, sorted, each once."""
        return np.unique(np.concatenate([self.fixed, *map(self.of, sources)]))

    def save(self, path: Path) -> None:
        """Write it as safetensors, atomically."""
        from safetensors.numpy import save

        tensors = {name: getattr(self, name) for name in ("fixed", "offsets", "associated")}
        content = save(tensors, {"tokenizer": self.tokenizer})
        with atomic_write(path) as stream:
            stream.write(content)


def load_shortlist(folder: Path, tokenizer: Tokenizer) -> Shortlist:
    """The shortlist of a model folder.

    Raises UserError when there is none, when it is damaged, or another tokenizer's.
    """
    from safetensors import SafetensorError, safe_open

    path = folder / SHORTLIST
    if not path.is_file():
        raise UserError(
            f"{folder}: this model has no shortlist",
            "leave search.shortlist out; 'dragoman train' learns one at its end",
        )
    try:
        if path.stat().st_size > _LARGEST_FILE:
            raise ValueError("too large")
        with safe_open(path, framework="numpy") as stream:
            digest = (stream.metadata() or {}).get("tokenizer")
            values = {name: stream.get_tensor(name) for name in stream.keys()}  # noqa: SIM118
        found = Shortlist(**values, tokenizer=str(digest))
        _check(found, tokenizer.vocabulary_size)
    except (SafetensorError, OSError, ValueError, TypeError) as error:
        raise UserError(
            f"{path}: damaged or no shortlist: {error}", "copy the folder again"
        ) from None
    if found.tokenizer != _digest(tokenizer):
        raise UserError(f"{path}: made for another tokenizer", "copy the folder again")
    return found


def _check(shortlist: Shortlist, vocabulary_size: int) -> None:
    """Raises ValueError for anything that `learn_shortlist` would not make."""
    fixed, offsets, associated = shortlist.fixed, shortlist.offsets, shortlist.associated
    kinds = [array.dtype for array in (fixed, offsets, associated)]
    if kinds != [np.int32, np.int64, np.int32] or any(
        array.ndim != 1 for array in (fixed, offsets, associated)
    ):
        raise ValueError("its arrays are of other types")
    if len(offsets) != vocabulary_size + 1 or offsets[0] != 0 or offsets[-1] != len(associated):
        raise ValueError("it is of another vocabulary")
    if (np.diff(offsets) < 0).any() or (np.diff(fixed) <= 0).any():
        raise ValueError("its order is wrong")
    ids = np.concatenate([fixed, associated])
    if ids.min(initial=0) < 0 or ids.max(initial=0) >= vocabulary_size:
        raise ValueError("ids outside of the vocabulary")
    if fixed[:4].tolist() != _SPECIAL:
        raise ValueError("special symbols are missing")


def learn_shortlist(
    store: CorpusStore,
    tokenizer: Tokenizer,
    associated: int = ASSOCIATED,
    frequent: int = FREQUENT,
) -> Shortlist:
    """Learn from the pairs of a store, of a large one from those that suffice for every subword.

    Memory is bounded: at most some 15 million different links, 24 bytes each.
    """
    size = tokenizer.vocabulary_size
    model = _WordModel(store, size)
    for _ in range(_ITERATIONS):
        model.improve()
    own = np.arange(size, dtype=np.int64) * (size + 1)  # s and s itself
    chosen = np.unique(np.concatenate([model.best(associated), own]))
    offsets = np.searchsorted(chosen, np.arange(size + 1, dtype=np.int64) * size)
    common = np.argsort(-model.targets, kind="stable")[:frequent]
    fixed = np.unique(np.concatenate([common, _SPECIAL, tokenizer.byte_ids]))
    return Shortlist(
        fixed.astype(np.int32),
        offsets.astype(np.int64),
        (chosen % size).astype(np.int32),
        _digest(tokenizer),
    )


def _digest(tokenizer: Tokenizer) -> str:
    return hashlib.sha256(tokenizer.to_bytes()).hexdigest()


class _WordModel:
    """IBM Model 1 by expectation maximization: p(t | s) of subwords that stand in one pair.

    Links are keys s * V + t, each once a pair; pad stands for the empty word that every source has.
    The table begins as shares of the pairs with s that have t.
    """

    def __init__(self, store: CorpusStore, size: int) -> None:
        self.size, self._store = size, store
        self.targets = np.zeros(size, dtype=np.int64)  # pairs that each stands in
        self._rows: list[int] = []
        self._keys, counts = self._count()
        self._shares = self._normalized(counts.astype(np.float32))

    def improve(self) -> None:
        """One iteration: what each subword of a target owes to those of its source, summed."""
        sums = np.zeros(len(self._keys), dtype=np.float32)
        for start in range(0, len(self._rows), _BLOCK):
            rows = [self._store[row] for row in self._rows[start : start + _BLOCK]]
            keys, words = self._links(*self._sides(rows))
            order = np.argsort(keys)
            keys, words = keys[order], words[order]
            begins = np.flatnonzero(np.diff(keys, prepend=-1))
            places = np.searchsorted(self._keys, keys[begins])
            places[places == len(self._keys)] = 0
            known = self._keys[places] == keys[begins]
            shares = np.where(known, self._shares[places], 0.0)
            link = np.repeat(shares, np.diff(begins, append=len(keys)))
            totals = np.bincount(words, link)
            owed = np.add.reduceat(link / np.maximum(totals[words], 1e-30), begins)
            sums[places[known]] += owed[known].astype(np.float32)
        self._shares = self._normalized(sums)

    def best(self, most: int) -> Counts:
        """The keys of the likeliest targets of every source, at most so many of each, sorted."""
        likely = self._shares >= _LEAST
        keys, shares = self._keys[likely], self._shares[likely]
        source = keys // self.size
        order = np.lexsort((-shares, source))
        begins = np.searchsorted(source, np.arange(self.size))
        rank = np.arange(len(order)) - begins[source[order]]
        best: Counts = np.sort(keys[order[rank < most]])
        return best

    def _count(self) -> tuple[Counts, Counts]:
        """The links of the pairs that are learned from, and how many of these have each."""
        keys, counts = (np.zeros(0, dtype=np.int64) for _ in range(2))
        pending, waiting, links = list[Counts](), 0, 0
        seen = np.zeros(self.size, dtype=np.int64)
        rows = np.arange(0, len(self._store), max(1, len(self._store) // _PAIRS))
        for block in np.array_split(rows, max(1, len(rows) // _BLOCK)):
            pairs = [self._store[int(row)] for row in block]
            if links > _MOST_LINKS or not pairs:
                break
            chosen = [
                n
                for n, (source, _) in enumerate(pairs)
                if seen[source].min(initial=0) < _OCCURRENCES
            ]
            self._rows += block[chosen].tolist()
            sources, targets = self._sides([pairs[number] for number in chosen])
            seen += np.bincount(sources % self.size, minlength=self.size)
            self.targets += np.bincount(targets % self.size, minlength=self.size)
            pending.append(self._links(sources, targets)[0])
            waiting += len(pending[-1])
            links += len(pending[-1])
            if waiting > _WAITING:
                keys, counts = _merged(keys, counts, pending)
                pending, waiting = [], 0
        return _merged(keys, counts, pending)

    def _sides(self, pairs: list[tuple[Any, Any]]) -> tuple[Counts, Counts]:
        """Keys row * V + id of the sources, pad among each, and of the targets; sorted."""
        empty = np.array([Tokenizer.pad_id])
        sources = [ids for source, _ in pairs for ids in (empty, source)]
        return (
            _distinct(sources, np.repeat(np.arange(len(pairs)), 2), self.size),
            _distinct([target for _, target in pairs], np.arange(len(pairs)), self.size),
        )

    def _links(self, sources: Counts, targets: Counts) -> tuple[Counts, Counts]:
        """(L,) keys s * V + t of the subwords of each pair, and of each link the place of its t."""
        rows = sources // self.size
        count = int(rows[-1]) + 1 if len(rows) else 0
        begins = np.searchsorted(targets, np.arange(count + 1) * self.size)
        widths = np.diff(begins)[rows]
        first = np.repeat(begins[:-1][rows] - np.cumsum(widths) + widths, widths)
        places = first + np.arange(len(first))
        keys = np.repeat(sources % self.size, widths) * self.size + targets[places] % self.size
        return keys, places

    def _normalized(self, values: Any) -> Any:
        """Values of links as shares of their source's sum."""
        source = self._keys // self.size
        sums = np.bincount(source, values, minlength=self.size)
        return (values / np.maximum(sums[source], 1e-30)).astype(np.float32)


def _distinct(lists: list[Any], rows: Counts, size: int) -> Counts:
    """Keys row * V + id of the ids of every list, each once, sorted."""
    if not lists:
        return np.zeros(0, dtype=np.int64)
    lengths = [len(ids) for ids in lists]
    keys: Counts = np.unique(np.repeat(rows, lengths) * size + np.concatenate(lists))
    return keys


def _merged(keys: Counts, counts: Counts, pending: list[Counts]) -> tuple[Counts, Counts]:
    """A table of keys and their counts with more keys counted, in order; rare ones go when full."""
    if not pending:
        return keys, counts
    more, times = np.unique(np.concatenate(pending), return_counts=True)
    keys, counts = np.concatenate([keys, more]), np.concatenate([counts, times])
    order = np.argsort(keys, kind="stable")  # two runs that are in order
    keys, counts = keys[order], counts[order]
    begins = np.flatnonzero(np.diff(keys, prepend=-1))
    keys, counts = keys[begins], np.add.reduceat(counts, begins)
    least = 1
    while len(keys) > _TABLE:
        least += 1
        keys, counts = keys[counts >= least], counts[counts >= least]
    return keys, counts
