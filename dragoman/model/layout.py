"""How a batch's positions lie in memory: padded to a rectangle, or packed without padding.

Shapes: B batch, T positions, N real tokens, R rows (N and some spare), H heads, K head width,
P parts of a projection (query, key, value).

Everything but attention works on one position at a time and does not care. Packed, padding costs
no matrix product, and products of a few row counts, all multiples of one number, serve batches of
every shape: a CPU's library compiles a product anew for each.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, cast

import torch
from torch import Tensor
from torch.nn import functional

_MULTIPLE = 64


class Layout(Protocol):
    """Goes between the rows of a matrix product and the heads of attention."""

    def split_heads(self, x: Tensor, parts: int, heads: int) -> Tensor:
        """(..., P * H * K) -> (P, B, H, T, K), contiguous."""

    def join_heads(self, x: Tensor) -> Tensor:
        """(B, H, T, K) -> (..., H * K)."""


class Padded:
    """x is (B, T, features)."""

    def split_heads(self, x: Tensor, parts: int, heads: int) -> Tensor:
        """(B, T, P * H * K) -> (P, B, H, T, K)."""
        # One copy here costs less than one for each operand on the way into the products.
        return x.view(*x.shape[:2], parts, heads, -1).permute(2, 0, 3, 1, 4).contiguous()

    def join_heads(self, x: Tensor) -> Tensor:
        """(B, H, T, K) -> (B, T, H * K)."""
        return x.transpose(1, 2).flatten(2)


PADDED = Padded()


class Packed:
    """x is (R, features): the real tokens of ids (B, T), then at least one spare row.

    Padding reads the first spare row, whose gradient stays zero: no loss depends on it.
    """

    def __init__(self, ids: Tensor, multiple: int = _MULTIPLE) -> None:
        self.batch, self.length = ids.shape
        flat = ids.flatten()
        real = flat.nonzero()[:, 0]  # (N,)
        self.tokens = len(real)
        rows = (self.tokens // multiple + 1) * multiple
        self._place = torch.full((len(flat),), self.tokens)  # row of each position
        self._place[real] = torch.arange(self.tokens)
        self._real = torch.zeros(rows, dtype=torch.long)  # position of each row
        self._real[: self.tokens] = real
        self.ids = self.pack(ids)  # (R,)
        self.positions = self._real % self.length  # (R,)
        self._indices: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}
        self._lengths = (ids != 0).sum(dim=1)

    @property
    def starts(self) -> Tensor:
        """The first row of each sentence and, at the end, the first spare row: (B + 1,)."""
        return functional.pad(self._lengths.cumsum(0), (1, 0))

    def pack(self, values: Tensor) -> Tensor:
        """One value a position -> one a row, zero in the spare ones: (B, T) -> (R,)."""
        packed = values.flatten()[self._real]
        packed[self.tokens :] = 0
        return packed

    def pack_states(self, states: Tensor) -> Tensor:
        """(B, T, features) -> (R, features); the spare rows are anything."""
        return states.flatten(0, 1).index_select(0, self._real)

    def split_heads(self, x: Tensor, parts: int, heads: int) -> Tensor:
        """(R, P * H * K) -> (P, B, H, T, K)."""
        to_heads, to_rows = self._index(parts, heads)
        spare = self.tokens * parts * heads
        chosen = _gather(x.unflatten(-1, (parts * heads, -1)), to_heads, to_rows, spare)
        return chosen.view(parts, self.batch, heads, self.length, -1)

    def join_heads(self, x: Tensor) -> Tensor:
        """(B, H, T, K) -> (R, H * K)."""
        heads = x.shape[1]
        to_heads, to_rows = self._index(1, heads)
        chosen = _gather(x, to_rows, to_heads, None)
        return chosen.view(len(self._real), heads * x.shape[-1])

    def _index(self, parts: int, heads: int) -> tuple[Tensor, Tensor]:
        """Where (P, B, H, T) finds its (R, P, H), and the other way, as flat indices."""
        if (parts, heads) not in self._indices:
            part, head = torch.arange(parts), torch.arange(heads)
            place = self._place.view(1, self.batch, 1, self.length)
            to_heads = place * (parts * heads) + part[:, None, None, None] * heads
            to_heads = to_heads + head[:, None]
            sentence, position = self._real // self.length, self._real % self.length
            to_rows = (part[:, None] * self.batch + sentence[:, None, None]) * heads + head
            to_rows = to_rows * self.length + position[:, None, None]
            self._indices[parts, heads] = to_heads.flatten(), to_rows.flatten()
        return self._indices[parts, heads]


@dataclass(frozen=True)
class Ragged:
    """Of packed rows, which keys a query may attend to: those of its own sentence.

    causal: of these, none that stands later. Takes the place of a mask.
    """

    query_starts: Tensor  # (B + 1,) int64
    key_starts: Tensor
    causal: bool
    tokens: int  # rows of queries that are not spare
    keys: int

    @staticmethod
    def between(queries: "Packed", keys: "Packed", causal: bool = False) -> "Ragged":
        """For queries and keys of the same sentences."""
        return Ragged(queries.starts, keys.starts, causal, queries.tokens, keys.tokens)


class _Gather(torch.autograd.Function):
    """Rows of K features by index; the gradient is gathered too, by the inverse index.

    Cheaper than the scattered sum that autograd would make of it. Gradient rows from `spare` on
    have no counterpart and are zero.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, index: Tensor, inverse: Tensor, spare: int | None) -> Tensor:
        ctx.shape, ctx.spare = x.shape, spare
        ctx.save_for_backward(inverse)
        return x.reshape(-1, x.shape[-1]).index_select(0, index)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        (inverse,) = ctx.saved_tensors
        gathered = gradient.reshape(-1, gradient.shape[-1]).index_select(0, inverse)
        if ctx.spare is not None:
            gathered[ctx.spare :] = 0
        return gathered.view(ctx.shape), None, None, None


_gather = cast(Callable[..., Tensor], _Gather.apply)
