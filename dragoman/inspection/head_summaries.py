"""What kind of reader a head is, in a few numbers.

Letters: L layers, H heads, Q queries, M keys.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float32]


@dataclass(frozen=True)
class HeadSummaries:
    """Of every head, (L, H): means over the queries.

    strongest is the largest weight, entropy that of the weights in nats, mark the share on the key
    that is no word: the end of the source, the start of the translation. Where queries and keys are
    the same positions also distance, in positions, and the shares on the position before, the same
    one and the one after, of the queries that have such a position; else None.
    """

    strongest: FloatArray
    entropy: FloatArray
    mark: FloatArray
    distance: FloatArray | None = None
    previous: FloatArray | None = None
    same: FloatArray | None = None
    following: FloatArray | None = None


def summarize_heads(weights: FloatArray, mark: int, same_positions: bool) -> HeadSummaries:
    """The summaries of weights (L, H, Q, M) whose rows add up to 1; mark is a place of M."""
    logarithms = np.log(weights, out=np.zeros_like(weights), where=weights > 0)
    general = (
        weights.max(axis=-1).mean(axis=-1),
        -(weights * logarithms).sum(axis=-1).mean(axis=-1),
        weights[..., mark].mean(axis=-1),
    )
    if not same_positions:
        return HeadSummaries(*general)
    places = np.arange(weights.shape[-1], dtype=np.float32)
    apart = np.abs(places[:, None] - places)  # (Q, M)
    return HeadSummaries(
        *general,
        (weights * apart).sum(axis=-1).mean(axis=-1),
        _diagonal(weights, -1),
        _diagonal(weights, 0),
        _diagonal(weights, 1),
    )


def _diagonal(weights: FloatArray, offset: int) -> FloatArray:
    """The mean of a diagonal, (L, H, Q, Q) -> (L, H); nothing where it has no place."""
    chosen = np.diagonal(weights, offset, axis1=-2, axis2=-1)
    if not chosen.shape[-1]:
        return np.zeros(weights.shape[:2], dtype=np.float32)
    mean: FloatArray = chosen.mean(axis=-1)
    return mean
