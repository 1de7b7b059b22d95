"""What incremental decoding keeps between steps.

Shapes: B sentences, N beams of a sentence, H heads, S source, C = steps * N cached slots, K d_k;
of a model with a window, C counts the steps that it sees. T positions of a text.

The beams of a sentence are query positions of one attention: at step t beam j writes its key and
value to slot t * N + j, and a mask says which slots are its ancestors. Reordering beams moves rows
of that mask and never a key or a value.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


class Past:
    """The keys and values of one layer's self-attention so far."""

    def __init__(self) -> None:
        self._key: Tensor | None = None
        self._value: Tensor | None = None
        self._used = 0

    def append(self, key: Tensor, value: Tensor, slots: int) -> tuple[Tensor, Tensor]:
        """Add a step's (B, H, N, K) keys and values; return the last slots, (B, H, C, K) each."""
        used, new = self._used, self._used + key.shape[2]
        self._key = _with_room(self._key, key, new)
        self._value = _with_room(self._value, value, new)
        self._key[:, :, used:new] = key
        self._value[:, :, used:new] = value
        self._used = new
        return self._key[:, :, new - slots : new], self._value[:, :, new - slots : new]

    def keep(self, sentences: Tensor) -> None:
        """Keep only these sentences, (B',)."""
        if self._key is not None and self._value is not None:
            self._key = self._key.index_select(0, sentences)
            self._value = self._value.index_select(0, sentences)


class LayerCache(Past):
    """One decoder layer: its own keys and values, growing, and those of the memory, fixed."""

    def __init__(self, memory_key: Tensor, memory_value: Tensor) -> None:
        super().__init__()
        self.memory_key = memory_key  # (B, H, S, K)
        self.memory_value = memory_value

    def keep(self, sentences: Tensor) -> None:
        """Keep only these sentences, (B',)."""
        super().keep(sentences)
        self.memory_key = self.memory_key.index_select(0, sentences)
        self.memory_value = self.memory_value.index_select(0, sentences)


def _with_room(buffer: Tensor | None, new: Tensor, slots: int) -> Tensor:
    if buffer is not None and buffer.shape[2] >= slots:
        return buffer
    batch, heads, beams, width = new.shape
    capacity = max(2 * slots, 16 * beams)
    grown = new.new_empty(batch, heads, capacity, width)
    if buffer is not None:
        grown[:, :, : buffer.shape[2]] = buffer
    return grown


@dataclass
class DecoderCache:
    """The caches of all layers, the source mask and the ancestry of the beams."""

    layers: list[LayerCache]
    source_mask: Tensor | None  # (B, 1, 1, S); None: no padding
    ancestors: Tensor  # (B, N, C), True where a slot belongs to the beam's own past
    window: int | None = None  # steps before its own that a step sees; None: all
    step: int = 0

    @property
    def beams(self) -> int:
        """Beams of one sentence."""
        return self.ancestors.shape[1]

    def advance(self) -> Tensor:
        """Give every beam its new slot; the mask for this step, (B, 1, N, C + N)."""
        batch, beams, _ = self.ancestors.shape
        own = torch.eye(beams, dtype=torch.bool, device=self.ancestors.device)
        past = self.ancestors
        if self.window is not None:
            past = past[:, :, -self.window * beams :]
        self.ancestors = torch.cat([past, own.expand(batch, beams, beams)], dim=2)
        self.step += 1
        return self.ancestors[:, None]

    def reorder(self, rows: Tensor) -> None:
        """Row i of the next step continues row rows[i] of the last.

        Rows are grouped: every N rows are the beams of one sentence, and all N must come from one
        sentence. Sentences none of whose rows are named leave the cache.
        """
        beams = self.beams
        sentences = rows[::beams] // beams
        if not torch.equal(sentences, torch.arange(len(self.ancestors), device=rows.device)):
            for layer in self.layers:
                layer.keep(sentences)
            if self.source_mask is not None:
                self.source_mask = self.source_mask.index_select(0, sentences)
        self.ancestors = self.ancestors.flatten(0, 1).index_select(0, rows)
        self.ancestors = self.ancestors.unflatten(0, (-1, beams))


@dataclass
class RowStates:
    """What a decoder without self-attention keeps: a few states of every row, whatever its past.

    sentences: what all beams of a sentence read, (B, ...) each; rows: the states, (B * N, ...)
    each.
    """

    beams: int
    sentences: tuple[Tensor, ...]
    rows: tuple[Tensor, ...]
    step: int = 0

    def reorder(self, rows: Tensor) -> None:
        """Row i of the next step continues row rows[i]; sentences that are not named leave."""
        if len(rows) < len(self.rows[0]):
            kept = rows[:: self.beams] // self.beams
            self.sentences = tuple(tensor.index_select(0, kept) for tensor in self.sentences)
        self.rows = tuple(tensor.index_select(0, rows) for tensor in self.rows)


@dataclass
class TextCache:
    """What a language model keeps of texts that it goes on with; C slots, some of them padding."""

    layers: list[Past]
    slots: Tensor  # (B, C), the position of what is in each slot; -1: padding
    window: int | None  # tokens before its own that a token sees; None: all
    lengths: Tensor  # (B,), tokens so far

    def advance(self, real: Tensor) -> tuple[Tensor, Tensor]:
        """Make room for T more positions, real (B, T) or padding at the end of a row.

        Their positions in the texts, (B, T), and what each may see, (B, 1, T, C + T).
        """
        positions = self.lengths[:, None] + torch.arange(real.shape[1], device=real.device)
        self.slots = torch.cat([self.slots, positions.where(real, -1)], dim=1)
        self.lengths = self.lengths + real.sum(dim=1)
        ago = positions[:, :, None] - self.slots[:, None]  # (B, T, C + T)
        mask = (ago >= 0) & (self.slots >= 0)[:, None]
        if self.window is not None:
            mask &= ago <= self.window
        return positions, mask[:, None]

    def keep(self, texts: Tensor) -> None:
        """Keep only these texts, (B',)."""
        self.slots, self.lengths = self.slots[texts], self.lengths[texts]
        for layer in self.layers:
            layer.keep(texts)
