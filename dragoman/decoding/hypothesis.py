"""What every search finds, whatever engine runs it; loads no torch."""

from collections.abc import Sequence
from dataclasses import dataclass

Prefix = Sequence[Sequence[int]]
"""The symbols allowed at the first, second, ... place of a translation; after it, all are."""


@dataclass(frozen=True)
class Hypothesis:
    """A candidate translation: tokens without end-of-sentence, log-probability with it.

    score = log_prob / length_penalty(tokens + end), and what the settings add to it. finished is
    False where the length limit cut the hypothesis off before its end.

    On request also token_log_probs, one a token and one for the end, and attention: a row for each
    of them of weights over the source's tokens and its end, the mean of all heads and layers.
    utility is the expected one of minimum Bayes risk, where that was asked for.
    """

    tokens: list[int]
    log_prob: float
    score: float
    finished: bool = True
    token_log_probs: list[float] | None = None
    attention: list[list[float]] | None = None
    utility: float | None = None


def length_penalty(length: int, alpha: float) -> float:
    """((5 + length) / 6)^alpha, Wu et al. 2016 (arXiv 1609.08144), Equation 14."""
    return float(((5 + length) / 6) ** alpha)
