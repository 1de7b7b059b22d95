"""Minimum Bayes risk: of many candidates the one that is most like all the others.

Expected utility of a candidate h over samples y_1 ... y_N of the model: 1/N sum_i u(h, y_i), with
sentence chrF as u (Eikema and Aziz 2022, arXiv 2108.04718; Freitag et al. 2022, arXiv 2111.09388).

Shapes: C candidates, P pseudo-references, F different n-grams.
"""

from collections import Counter
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

ORDER, BETA = 6, 2  # chrF2 as sacreBLEU's default: characters to 6-grams, no words, no white space

Floats = npt.NDArray[np.float64]


def sentence_chrf(candidate: str, reference: str) -> float:
    """chrF2 of a sentence, 0 to 100 (Popović 2015), the same as sacreBLEU's `sentence_chrf`."""
    return float(_pairwise_chrf([candidate], [reference])[0, 0])


def expected_utilities(candidates: Sequence[str], references: Sequence[str]) -> list[float]:
    """The mean chrF2 of every candidate over the references, of which equal ones count each."""
    distinct = Counter(references)
    known = list(dict.fromkeys(candidates))
    scores = _pairwise_chrf(known, list(distinct))  # (C, P)
    counts = np.array(list(distinct.values()), dtype=np.float64)
    means = dict(zip(known, (scores @ counts / counts.sum()).tolist(), strict=True))
    return [means[candidate] for candidate in candidates]


def _pairwise_chrf(candidates: list[str], references: list[str]) -> Floats:
    """chrF2 of every candidate against every reference: (C, P)."""
    shape = (len(candidates), len(references))
    precision, recall, orders = np.zeros(shape), np.zeros(shape), np.zeros(shape)
    texts = ["".join(text.split()) for text in [*candidates, *references]]
    for order in range(1, ORDER + 1):
        matches, ours, theirs = _overlaps(texts, len(candidates), order)
        both = (ours[:, None] > 0) & (theirs[None] > 0)  # only orders that both sides have count
        with np.errstate(divide="ignore", invalid="ignore"):
            precision += np.where(both, matches / ours[:, None], 0.0)
            recall += np.where(both, matches / theirs[None], 0.0)
        orders += both
    with np.errstate(divide="ignore", invalid="ignore"):
        precision, recall = precision / orders, recall / orders
        score = (1 + BETA**2) * precision * recall / (BETA**2 * precision + recall)
    return 100 * np.where(np.isfinite(score), score, 0.0)


def _overlaps(texts: list[str], candidates: int, order: int) -> tuple[Floats, Floats, Floats]:
    """Common n-grams (C, P), n-grams of the candidates (C,) and of the references (P,)."""
    grams: dict[str, int] = {}
    counts: list[Counter[int]] = [
        Counter(
            grams.setdefault(text[start : start + order], len(grams))
            for start in range(len(text) - order + 1)
        )
        for text in texts
    ]
    table = np.zeros((len(texts), max(1, len(grams))), dtype=np.int32)  # (C + P, F)
    for row, found in enumerate(counts):
        table[row, list(found)] = list(found.values())
    ours, theirs = table[:candidates], table[candidates:]
    matches = np.array([np.minimum(row, theirs).sum(axis=1) for row in ours], dtype=np.float64)
    return matches, ours.sum(axis=1).astype(np.float64), theirs.sum(axis=1).astype(np.float64)
