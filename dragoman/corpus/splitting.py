"""Set held-out pairs aside so that no text of theirs, nor a near-duplicate, is trained on.

Two texts are near-duplicates when `normalize_key` gives the same key: they differ only in case,
digits, placeholders, spaces or punctuation. Pairs that share a source key or a target key are
linked; the connected components of those links are the smallest groups that can be moved to one
side without a leak.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from dragoman.corpus.digests import Digests, components, first_rows, key_digest
from dragoman.corpus.pairs import Pair

LARGEST_SHARE = 5
"""A component larger than the held-out size divided by this stays in training."""

_SLICE = 1 << 20
_HIGHEST = np.iinfo(np.uint64).max


def split_pairs(pairs: Sequence[Pair], size: int, seed: int) -> tuple[list[int], list[int]]:
    """Indices of the held-out pairs and of the training pairs, each in ascending order.

    See `split_keys`.
    """
    sources, targets = (
        np.fromiter(map(key_digest, texts), np.uint64, count=len(pairs))
        for texts in ((pair.source for pair in pairs), (pair.target for pair in pairs))
    )
    held_out = split_keys(sources, targets, size, seed)
    return np.flatnonzero(held_out).tolist(), np.flatnonzero(~held_out).tolist()


def split_keys(sources: Digests, targets: Digests, size: int, seed: int) -> npt.NDArray[np.bool_]:
    """(pairs,) whether each pair is held out, from the `key_digest` of its source and target.

    Held out and kept pairs share no source key and no target key. Components are visited in a
    random order and held out while they fit, so every pair of a component small enough has the
    same chance: the held-out texts are short and long as in the corpus. A component larger than a
    fifth of `size` stays in training, so that no family of near-duplicates decides the score.
    Fewer than `size` pairs are held out only when nothing more fits.

    The order is a hash of `seed` and of the keys: the same on every machine, whatever the order of
    the pairs, and mostly the same after pairs are added. Memory: about 30 bytes a pair.
    """
    roots = components(first_rows(sources), first_rows(targets))
    sizes = np.bincount(roots, minlength=len(roots)).astype(np.int32)
    names = np.full(len(roots), _HIGHEST, dtype=np.uint64)
    np.minimum.at(names, roots, sources)
    shuffle = _mix(np.array([seed % 2**64], dtype=np.uint64))
    for start in range(0, len(names), _SLICE):
        part = names[start : start + _SLICE]
        part[:] = _mix(part ^ shuffle)
    small = (sizes > 0) & (sizes <= max(1, size // LARGEST_SHARE))
    chosen = np.zeros(len(roots), dtype=bool)
    remaining, share, below = size, max(2 * size, 1000) / max(len(roots), 1), 0
    while remaining and below < int(_HIGHEST):
        # The hashes are even: so many roots are below the limit; if all are taken, take more.
        limit = min(int(share * 2.0**64), int(_HIGHEST))
        rows = np.flatnonzero(small & (names <= limit) & (names >= below))
        rows = rows[np.argsort(names[rows], kind="stable")]
        for root, component_size in zip(rows.tolist(), sizes[rows].tolist(), strict=True):
            if component_size <= remaining:
                chosen[root] = True
                remaining -= component_size
            if not remaining:
                break
        below, share = limit + 1, 4 * share
    return chosen[roots]


def _mix(values: Digests) -> Digests:
    """The finalizer of SplitMix64 (Steele, Lea and Flood 2014): a bijection that spreads bits."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
