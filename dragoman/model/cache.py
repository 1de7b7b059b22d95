"""What incremental decoding keeps between steps.

Shapes: B sentences, N beams of a sentence, H heads, S source, C = steps * N cached slots, K d_k.

The beams of a sentence are query positions of one attention: at step t beam j writes its key and
value to slot t * N + j, and a mask says which slots are its ancestors. Reordering beams moves rows
of that mask and never a key or a value.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


class LayerCache:
    """One decoder layer: its own keys and values, growing, and those of the memory, fixed."""

    def __init__(self, memory_key: Tensor, memory_value: Tensor) -> None:
        self.memory_key = memory_key  # (B, H, S, K)
        self.memory_value = memory_value
        self._key: Tensor | None = None
        self._value: Tensor | None = None
        self._used = 0

    def append(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Add a step's (B, H, N, K) keys and values; return all so far, (B, H, C, K) each."""
        used, new = self._used, self._used + key.shape[2]
        self._key = _with_room(self._key, key, new)
        self._value = _with_room(self._value, value, new)
        self._key[:, :, used:new] = key
        self._value[:, :, used:new] = value
        self._used = new
        return self._key[:, :, :new], self._value[:, :, :new]

    def keep(self, sentences: Tensor) -> None:
        """Keep only these sentences, (B',)."""
        self.memory_key = self.memory_key.index_select(0, sentences)
        self.memory_value = self.memory_value.index_select(0, sentences)
        if self._key is not None and self._value is not None:
            self._key = self._key.index_select(0, sentences)
            self._value = self._value.index_select(0, sentences)


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
    step: int = 0

    @property
    def beams(self) -> int:
        """Beams of one sentence."""
        return self.ancestors.shape[1]

    def advance(self) -> Tensor:
        """Give every beam its new slot; the mask for this step, (B, 1, N, C + N)."""
        batch, beams, _ = self.ancestors.shape
        own = torch.eye(beams, dtype=torch.bool, device=self.ancestors.device)
        self.ancestors = torch.cat([self.ancestors, own.expand(batch, beams, beams)], dim=2)
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
