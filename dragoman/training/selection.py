"""Which weights a training delivers: those of its last checkpoints that validate best."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from dragoman.errors import UserError
from dragoman.training.checkpoints import Checkpoint, WeightsMean, load_checkpoint, step_name
from dragoman.training.moving_average import averages_of

Weights = dict[str, Tensor]


@dataclass(frozen=True)
class Selection:
    """The chosen weights: what they are in words, their nll, and the nll of the others by name."""

    name: str
    nll: float
    weights: Weights
    others: dict[str, float]

    @property
    def description(self) -> str:
        """One line for a person."""
        others = "".join(f", {name} {nll:.4f}" for name, nll in self.others.items())
        return f"{self.name} (nll {self.nll:.4f}{others})"


def select_weights(
    paths: list[Path], averaged: set[int], best: int, measure: Callable[[Weights], float],
    warn: Callable[[str], None],
) -> Selection:  # fmt: skip
    """The best by `measure`, which gives the validation nll of weights, of up to three.

    They are the average of the checkpoints of the steps `averaged` (section 6.1), the checkpoint of
    the step `best`, and that step's moving average where the training kept one. `paths` are the
    checkpoints there are. Each is read once; a damaged one is named through `warn` and left out;
    two weights besides one checkpoint are in memory at once. Raises UserError when none is whole.
    """
    mean, candidates, several = WeightsMean(), {}, {step_name(step) for step in averaged}
    for path in (path for path in paths if path.name in several | {step_name(best)}):
        try:
            checkpoint = load_checkpoint(path)
        except UserError as error:
            warn(f"{error.message}; going on without it")
            continue
        if path.name in several:
            mean.add(path, checkpoint.model)
        if path.name == step_name(best):
            candidates = _of_best(checkpoint, best)
    if not mean.count and not candidates:
        folder = paths[0].parent if paths else "training/checkpoints"
        raise UserError(f"{folder}: no whole checkpoint is left", "train again")
    if mean.count and not (candidates and several == {step_name(best)}):
        candidates[f"the average of the last {mean.count} checkpoints"] = mean.result()
    measured = {name: measure(weights) for name, weights in candidates.items()}
    chosen = min(measured, key=lambda name: _comparable(measured[name]))
    nll = measured.pop(chosen)
    others = dict(sorted(measured.items(), key=lambda item: _comparable(item[1])))
    return Selection(chosen, nll, candidates[chosen], others)


def _comparable(nll: float) -> float:
    return math.inf if math.isnan(nll) else nll


def _of_best(checkpoint: Checkpoint, step: int) -> dict[str, Weights]:
    found = {f"the best checkpoint, step {step:,}": checkpoint.model}
    averages = averages_of(checkpoint.model, checkpoint.optimizer)
    if averages is not None:
        found[f"the moving average at step {step:,}"] = averages
    return found
