"""Several models that translate as one: a step function that averages.

Shapes: R rows, V vocabulary, M models.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from dragoman.decoding.log_probs import LogProbs
from dragoman.decoding.search import State, Step


class EnsembleState:
    """The states of all models; reordering reorders each."""

    def __init__(self, states: Sequence[State]) -> None:
        self.states = list(states)

    def reorder(self, rows: Tensor) -> None:
        """Row i of the next step continues row rows[i] (R',) of the last one, in every model."""
        for state in self.states:
            state.reorder(rows)


class EnsembleStep:
    """step(ids (R,), state) -> (log_probs (R, V), state) with the mean of the probabilities."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self.steps = list(steps)

    def __call__(self, ids: Tensor, state: State) -> tuple[LogProbs, State]:
        """One step of all rows in every model."""
        assert isinstance(state, EnsembleState)
        found = [step(ids, own) for step, own in zip(self.steps, state.states, strict=True)]
        mean = mean_probability([log_probs.dense() for log_probs, _ in found])
        return LogProbs(mean), EnsembleState([own for _, own in found])


def mean_probability(log_probs: Sequence[Tensor]) -> Tensor:
    """log of the arithmetic mean of M models' probabilities: M of (..., V) -> (..., V).

    That is the ensemble of Sutskever et al. 2014 (arXiv 1409.3215) as fairseq and tensor2tensor
    average it; the mean of log-probabilities would let one model forbid what all others expect.
    """
    if len(log_probs) == 1:
        return log_probs[0]
    device = log_probs[0].device
    stacked = torch.stack([found.to(device) for found in log_probs])
    return stacked.logsumexp(dim=0) - math.log(len(log_probs))
