"""Which of several processes this one is, as torchrun tells each in its environment."""

import os
from dataclasses import dataclass
from typing import Self

from dragoman.errors import UserError


class OtherRankFailedError(Exception):
    """Another rank has failed, and has said why."""


@dataclass(frozen=True)
class Launch:
    """A process among `size` that train one model; `local_rank` counts those of its machine."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0

    @classmethod
    def of_environment(cls) -> Self:
        """What RANK, WORLD_SIZE and LOCAL_RANK say; alone without them. Raises UserError."""
        names = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
        if not all(os.environ.get(name) for name in names):
            return cls()
        numbers = [os.environ.get(name, "0") for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK")]
        try:
            rank, size, local_rank = map(int, numbers)
        except ValueError:
            rank = size = local_rank = -1
        if not (0 <= local_rank <= rank < size):
            raise UserError(
                f"RANK, WORLD_SIZE, LOCAL_RANK are {', '.join(numbers)}: these are no ranks",
                "start several processes with torchrun, or unset the three for one",
            )
        return cls(rank, size, local_rank)


ALONE = Launch()
"""The one process of a training."""
