"""What a search may not take now: all but a given prefix, and what would repeat itself.

Shapes: B sentences, N beams, R = B * N rows (those of a sentence are neighbors), V vocabulary.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor


def constrain(log_probs: Tensor, allowed: Sequence[Sequence[int] | None], beam: int) -> Tensor:
    """log_probs (R, V) with -inf for every symbol that its sentence does not allow now.

    None allows every symbol. The argument is left as it is: it belongs to the step function.
    """
    if all(symbols is None for symbols in allowed):
        return log_probs
    constrained = log_probs.clone()
    for row, symbols in enumerate(allowed):
        if symbols is not None:
            rows = slice(row * beam, (row + 1) * beam)
            index = torch.tensor(symbols, dtype=torch.long, device=log_probs.device)
            constrained[rows] = -math.inf
            constrained[rows, index] = log_probs[rows, index]
    return constrained


def forbid_repeats(
    log_probs: Tensor,
    tokens: Sequence[Sequence[int]],
    size: int,
    allowed: Sequence[Sequence[int] | None],
) -> Tensor:
    """log_probs (R, V) with -inf for a symbol that would make a row's last `size` tokens a repeat.

    tokens are those of every row so far (Paulus et al. 2017, arXiv 1705.04304, section 2.5, for
    size 3). A row whose sentence is still held to a prefix, where allowed says what may come, takes
    that. The argument is left as it is.
    """
    forbidden: list[tuple[int, int]] = []
    beam = len(tokens) // max(1, len(allowed))
    for row, line in enumerate(tokens):
        if allowed[row // beam] is None and len(line) >= size:
            last = tuple(line[len(line) - size + 1 :])
            forbidden += [
                (row, line[end])
                for end in range(size - 1, len(line))
                if tuple(line[end - size + 1 : end]) == last
            ]
    if not forbidden:
        return log_probs
    index = torch.tensor(forbidden, device=log_probs.device)
    return log_probs.index_put(
        (index[:, 0], index[:, 1]), log_probs.new_tensor(-math.inf), accumulate=False
    )
