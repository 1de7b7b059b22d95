"""How well labels were told: accuracy and macro-F1."""

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class LabelScores:
    """Shares of 1.

    accuracy: of the labels that are right. f1: for each label that occurs, the harmonic mean of
    precision and recall, 2 TP / (2 TP + FP + FN). macro_f1: their mean, every label counting alike.
    majority: the accuracy of always saying the most frequent label.
    """

    accuracy: float
    macro_f1: float
    f1: dict[Hashable, float]
    majority: float
    count: int


def score_labels(predicted: Sequence[Hashable], labels: Sequence[Hashable]) -> LabelScores:
    """Scores of predicted labels against the true ones, one of each a sentence, at least one.

    A label occurs that is in either of the two, as scikit-learn's f1_score has it.
    """
    said, true = Counter(predicted), Counter(labels)
    hits = Counter(p for p, label in zip(predicted, labels, strict=True) if p == label)
    # 2 TP + FP + FN: what was said of a label and what is true of it, together.
    f1 = {label: 2 * hits[label] / (said[label] + true[label]) for label in said | true}
    count = len(labels)
    return LabelScores(
        accuracy=hits.total() / count,
        macro_f1=sum(f1.values()) / len(f1),
        f1=f1,
        majority=max(true.values()) / count,
        count=count,
    )
