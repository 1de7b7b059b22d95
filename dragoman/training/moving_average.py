"""An exponential moving average of the weights (Polyak and Juditsky 1992), beside the optimizer.

The averages are entries of the optimizer's state, `AVERAGE` beside Adam's moments: they are saved,
restored and spread over ranks with those, and a weight that is not trained has none.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

AVERAGE = "average"


@torch.no_grad()
def update_average(optimizer: torch.optim.Optimizer, decay: float, step: int) -> None:
    """Take the weights into their average, after update number `step` (from 1), in float32.

    average = d * average + (1 - d) * weight, where d = min(decay, (1 + step) / (10 + step)): while
    there are few updates the random weights at the start are forgotten sooner.
    """
    decay = min(decay, (1 + step) / (10 + step))
    weights, averages = [], []
    for group in optimizer.param_groups:
        for weight in group["params"]:
            state = optimizer.state[weight]
            if not state:  # not updated yet: Adam makes its moments only where there is no state
                continue
            if AVERAGE not in state:
                state[AVERAGE] = weight.detach().float().clone()
            else:
                weights.append(weight.detach().float())
                averages.append(state[AVERAGE])
    if weights:
        torch._foreach_lerp_(averages, weights, 1 - decay)


@contextmanager
def averaged_weights(model: nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """The model with its averaged weights, where there are some; afterwards as it was, to the bit.

    Costs the memory of one more copy of the weights meanwhile.
    """
    kept: list[tuple[Tensor, Tensor]] = []
    with torch.no_grad():
        for parameter in model.parameters():
            # A look into the state must not make an entry of it.
            state = optimizer.state.get(parameter, {})
            if AVERAGE in state:
                kept.append((parameter, parameter.detach().clone()))
                parameter.copy_(state[AVERAGE])
    try:
        yield
    finally:
        with torch.no_grad():
            for changed, weight in kept:
                changed.copy_(weight)


def averages_of(weights: dict[str, Tensor], moments: dict[str, Tensor]) -> dict[str, Tensor] | None:
    """The averages in a checkpoint's optimizer tensors, named like the weights; None: it has none.

    A weight that has no average, since it is never updated, is itself.
    """
    if not any(name.endswith(f"/{AVERAGE}") for name in moments):
        return None
    return {name: moments.get(f"{name}/{AVERAGE}", weight) for name, weight in weights.items()}
