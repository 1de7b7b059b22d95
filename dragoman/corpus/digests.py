"""64-bit digests in place of texts, and what equal ones tell, for more texts than memory holds.

Two different texts of 20 million have the same digest once in 90,000 corpora. Memory beside the
digests themselves: 4 bytes a row, and what sorting about a million of them takes.
"""

from hashlib import blake2b

import numpy as np
import numpy.typing as npt

from dragoman.text.normalize import normalize_key

Digests = npt.NDArray[np.uint64]
Rows = npt.NDArray[np.int32] | npt.NDArray[np.int64]

_PART = 1 << 20
_TOP_BITS = 16


def pair_digest(source: str, target: str) -> int:
    """Of both texts as they are; neither holds NUL, which tells where the source ends."""
    return _digest(f"{source}\0{target}".encode())


def key_digest(text: str) -> int:
    """Of the text's `normalize_key`: the same for near-duplicates."""
    return _digest(normalize_key(text).encode("utf-8", "surrogatepass"))


def _digest(content: bytes) -> int:
    return int.from_bytes(blake2b(content, digest_size=8).digest(), "little")


def row_numbers(count: int) -> Rows:
    """0 to `count` - 1, in four bytes each where they are enough."""
    return np.arange(count, dtype=np.int32) if count < 2**31 else np.arange(count, dtype=np.int64)


def first_rows(digests: Digests) -> Rows:
    """(rows,) for each row the first one that has its digest."""
    count = len(digests)
    first = row_numbers(count)
    bits = min(_TOP_BITS, max(0, (count - 1) // _PART).bit_length())
    # A view of the highest two bytes: rows of equal digests fall into one part.
    tops = digests.astype("<u8", copy=False).view("<u2")[3::4]
    for part in range(1 << bits):
        rows = np.flatnonzero(tops >> np.uint16(_TOP_BITS - bits) == part) if bits else first
        values = digests[rows]
        order = np.argsort(values, kind="stable")
        values = values[order]
        begins = np.ones(len(rows), dtype=bool)
        begins[1:] = values[1:] != values[:-1]
        group = np.maximum.accumulate(np.where(begins, np.arange(len(rows)), 0))
        ordered = rows[order]
        first[ordered] = ordered[group]
    return first


def components(*links: Rows) -> Rows:
    """(rows,) the least row of each row's connected component; each of `links` ties rows to others.

    Hooking and pointer jumping (Shiloach and Vishkin 1982), all rows at once. `links[n][row]` is at
    most `row`.
    """
    parents = row_numbers(len(links[0]))
    for link in links:
        left: Rows = np.flatnonzero(link != np.arange(len(link), dtype=link.dtype))
        right = link[left]
        while len(left):
            first, second = parents[left], parents[right]
            apart = first != second
            left, right, first, second = left[apart], right[apart], first[apart], second[apart]
            np.minimum.at(parents, np.maximum(first, second), np.minimum(first, second))
            while True:
                jumped = parents[parents]
                if np.array_equal(jumped, parents):
                    break
                parents = jumped
    return parents
