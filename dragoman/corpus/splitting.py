"""Set held-out pairs aside so that no text of theirs, nor a near-duplicate, is trained on.

Two texts are near-duplicates when `normalize_key` gives the same key: they differ only in case,
digits, placeholders, spaces or punctuation. Pairs that share a source key or a target key are
linked; the connected components of those links are the smallest groups that can be moved to one
side without a leak.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from hashlib import blake2b

import numpy as np
import numpy.typing as npt

from dragoman.corpus.pairs import Pair
from dragoman.text.normalize import normalize_key

LARGEST_SHARE = 5
"""A component larger than the held-out size divided by this stays in training."""

_Digests = npt.NDArray[np.uint64]
_Indices = npt.NDArray[np.int64]


def split_pairs(pairs: Sequence[Pair], size: int, seed: int) -> tuple[list[int], list[int]]:
    """Indices of the held-out pairs and of the training pairs, each in ascending order.

    The two share no source key and no target key. Components are visited in a random order and
    held out while they fit, so every pair of a component small enough has the same chance: the
    held-out texts are short and long as in the corpus. A component larger than a fifth of `size`
    stays in training, so that no family of near-duplicates decides the score. Fewer than `size`
    pairs are held out only when nothing more fits.

    The order is a hash of `seed` and of the keys: the same on every machine, whatever the order of
    `pairs`, and mostly the same after pairs are added. Memory: 8-byte digests of the keys.
    """
    sources = _digests(pairs, lambda pair: pair.source)
    targets = _digests(pairs, lambda pair: pair.target)
    roots = _components(sources, targets)
    sizes = np.bincount(roots, minlength=len(pairs))
    names = np.full(len(pairs), np.iinfo(np.uint64).max, dtype=np.uint64)
    np.minimum.at(names, roots, sources)
    small = np.flatnonzero((sizes > 0) & (sizes <= max(1, size // LARGEST_SHARE)))
    order = small[np.argsort(_mix(names[small] ^ _mix(np.array([seed % 2**64], dtype=np.uint64))))]
    chosen = np.zeros(len(pairs), dtype=bool)
    remaining = size
    for root, component_size in zip(order.tolist(), sizes[order].tolist(), strict=True):
        if component_size <= remaining:
            chosen[root] = True
            remaining -= component_size
        if remaining == 0:
            break
    held_out = chosen[roots]
    return np.flatnonzero(held_out).tolist(), np.flatnonzero(~held_out).tolist()


def remove_overlap(
    training: Iterable[Pair],
    held_out: Sequence[Pair],
    dropped: Callable[[Pair], object] = lambda pair: None,
) -> Iterator[Pair]:
    """Yield the training pairs that share neither a source key nor a target key with `held_out`.

    For validation and test sets that are given; `dropped` is called with every other pair. Memory:
    8-byte digests of the held-out keys.
    """
    sources = {_digest(pair.source) for pair in held_out}
    targets = {_digest(pair.target) for pair in held_out}
    for pair in training:
        if _digest(pair.source) in sources or _digest(pair.target) in targets:
            dropped(pair)
        else:
            yield pair


def _digest(text: str) -> int:
    key = normalize_key(text).encode("utf-8", "surrogatepass")
    return int.from_bytes(blake2b(key, digest_size=8).digest(), "little")


def _digests(pairs: Sequence[Pair], side: Callable[[Pair], str]) -> _Digests:
    return np.fromiter((_digest(side(pair)) for pair in pairs), np.uint64, count=len(pairs))


def _components(sources: _Digests, targets: _Digests) -> _Indices:
    """For each pair one pair of its component, the same for all of the component.

    Union-find with path halving; the links are from each pair to the first one with its key.
    """
    parents = list(range(len(sources)))
    for digests in (sources, targets):
        _, first, inverse = np.unique(digests, return_index=True, return_inverse=True)
        partners = first[inverse]
        linked = np.flatnonzero(partners != np.arange(len(partners)))
        for pair, partner in zip(linked.tolist(), partners[linked].tolist(), strict=True):
            left, right = _find(parents, pair), _find(parents, partner)
            parents[max(left, right)] = min(left, right)
    # A parent is never after its child, so one ascending pass flattens every path.
    for index, parent in enumerate(parents):
        parents[index] = parents[parent]
    return np.array(parents, dtype=np.int64)


def _find(parents: list[int], index: int) -> int:
    while parents[index] != index:
        parents[index] = parents[parents[index]]
        index = parents[index]
    return index


def _mix(values: _Digests) -> _Digests:
    """The finalizer of SplitMix64 (Steele, Lea and Flood 2014): a bijection that spreads bits."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
