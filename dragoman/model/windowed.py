"""Self-attention that sees a part of the sequence, without a mask of N x N (section 4).

Restricted self-attention lets a query attend to its `window` neighbors on each side, or before it
where it is causal. On a CPU it is computed in blocks of queries, each with the keys around it; on a
GPU by PyTorch's flex_attention where that is at hand. Time and memory are O(window * N).

Shapes: B batch, H heads, N positions, K width of a head, C blocks, Q queries of a block, M keys
that a block sees.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

Operands = tuple[Tensor, Tensor, Tensor]

# Products of fewer queries than this cost more in calls than they save in scores.
_FEWEST_QUERIES = 64


@dataclass(frozen=True, eq=False)
class Sight:
    """Which keys a query of a self-attention may attend to; takes the place of a mask.

    causal: none that stands later. window: none farther away; None: however far. real: (B, 1, 1,
    N), True where there is a token; None where there is no padding, or where the queries are
    causal: they stand before it. flex: the same for `flex_attention`.
    """

    causal: bool = False
    window: int | None = None
    real: Tensor | None = None
    flex: Any = None

    @staticmethod
    def of(ids: Tensor, causal: bool, window: int | None) -> "Sight":
        """For ids (B, N), padded with 0 at the end."""
        length, real = ids.shape[1], None
        if not causal:
            real = ids != 0
            real = None if ids.device.type == "cpu" and bool(real.all()) else real[:, None, None]
        if window is not None and window >= length - 1:
            window = None
        sight = Sight(causal, window, real)
        if window is None or ids.device.type != "cuda" or compiled_flex() is None:
            return sight
        return Sight(causal, window, real, sight.block_mask(length, ids.device))

    @property
    def wide(self) -> bool:
        """Whether a mask of keys, the same for all queries, says it all: `real`."""
        return not self.causal and self.window is None

    def matrix(self, length: int, device: torch.device) -> Tensor | None:
        """The mask that says the same: (B or 1, 1, N or 1, N), or None for all keys."""
        if self.wide:
            return self.real
        place = torch.arange(length, device=device)
        seen = self._near(place[:, None], place)[None, None]
        return seen if self.real is None else seen & self.real

    def blocks(self, length: int, device: torch.device) -> Tensor:
        """The mask of `in_blocks`: (B or 1, C, Q, M). Every query sees itself, be it padding."""
        assert self.window is not None
        size, before, after, spare = self._sizes(length)
        place = torch.arange(size, device=device)[:, None]
        other = torch.arange(-before, size + after, device=device)
        real = torch.ones(1, length, dtype=torch.bool, device=device)
        real = real if self.real is None else self.real[:, 0, 0]
        real = functional.pad(real, (before, spare + after)).unfold(-1, len(other), size)
        return self._near(place, other) & real[:, :, None] | (place == other)

    def in_blocks(self, operands: Operands) -> Operands:
        """(B, H, N, K) each -> queries (B * C, H, Q, K), keys and values (B * C, H, M, K)."""
        size, before, after, spare = self._sizes(operands[0].shape[-2])

        def blocks(x: Tensor, before: int, after: int) -> Tensor:
            padded = functional.pad(x, (0, 0, before, spare + after))
            cut = padded.unfold(2, before + size + after, size)  # (B, H, C, K, M)
            return cut.permute(0, 2, 1, 4, 3).flatten(0, 1)

        query, key, value = operands
        return blocks(query, 0, 0), blocks(key, before, after), blocks(value, before, after)

    def block_mask(self, length: int, device: torch.device) -> Any:
        """The same for `flex_attention`."""
        from torch.nn.attention.flex_attention import create_block_mask

        real = None if self.real is None else self.real[:, 0, 0]

        def sees(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            near = self._near(query, key)
            return near if real is None else near & real[batch, key] | (query == key)

        batch = None if real is None else len(real)
        compiled = device.type == "cuda"  # or it makes the mask of N x N first
        return create_block_mask(sees, batch, None, length, length, str(device), _compile=compiled)

    def _near(self, query: Tensor, key: Tensor) -> Tensor:
        """Of places, whether the one sees the other."""
        seen: Tensor = key <= query if self.causal else (key == key)
        return seen if self.window is None else seen & ((query - key).abs() <= self.window)

    def _sizes(self, length: int) -> tuple[int, int, int, int]:
        """Queries of a block, keys it sees before and after them, and queries to fill the last."""
        assert self.window is not None
        size = max(self.window, _FEWEST_QUERIES)
        return size, self.window, 0 if self.causal else self.window, -length % size


def from_blocks(output: Tensor, batch: int, length: int) -> Tensor:
    """What attention made of `in_blocks`, (B * C, H, Q, K), as (B, H, N, K)."""
    blocks: Tensor = output.unflatten(0, (batch, -1))
    return blocks.transpose(1, 2).flatten(2, 3)[:, :, :length]


@cache
def compiled_flex() -> Callable[..., Tensor] | None:
    """PyTorch's flex_attention, compiled; None where it or its compiler is missing."""
    try:
        from torch.nn.attention import flex_attention as module
    except ImportError:
        return None
    if find_spec("triton") is None:
        return None
    compiled: Callable[..., Tensor] = torch.compile(module.flex_attention)
    return compiled
