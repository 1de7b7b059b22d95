"""What a layer costs by the length of the sentence: Table 1 of the paper, measured.

Shapes: N positions, D width, H heads, K width of a head, R reach of a restricted attention.
"""

import math
import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from dragoman.model.attention import MultiHeadAttention
from dragoman.model.layout import PADDED
from dragoman.model.windowed import Sight

LayerKind = Literal[
    "self-attention", "explicit self-attention", "restricted self-attention", "recurrent",
    "convolutional",
]  # fmt: skip
KINDS: tuple[LayerKind, ...] = get_args(LayerKind)

# The fewest and the most runs of which the fastest counts.
_FEWEST, _MOST = 5, 50


@dataclass(frozen=True)
class LayerSizes:
    """D, H, R and the width of a convolution's kernel (the paper's d, h, r and k)."""

    width: int = 512
    heads: int = 8
    reach: int = 64
    kernel: int = 3


@dataclass(frozen=True)
class LayerCost:
    """What one layer took for one sentence: seconds of its fastest run, bytes at its peak.

    peak_bytes counts what the layer allocated beyond its weights and its input; None: not measured.
    """

    length: int
    seconds: float
    peak_bytes: int | None = None


class SelfAttentionLayer(nn.Module):
    """Multi-head self-attention with its four projections, in full or restricted to a reach.

    explicit: the whole matrix of weights is held in memory, as Equation 1 is written; otherwise it
    is computed as the model does, which from some length on never holds more than a part of it.
    """

    def __init__(self, sizes: LayerSizes, reach: int | None = None, explicit: bool = False) -> None:
        super().__init__()
        width = sizes.width // sizes.heads
        self.inner = MultiHeadAttention(sizes.width, sizes.heads, width, width, 0.0)
        self.reach, self.explicit = reach, explicit

    def forward(self, x: Tensor) -> Tensor:
        """(1, N, D) -> the same."""
        operands = self.inner.project_self(x, PADDED)
        sight = Sight(window=self.reach)
        return self.inner.attend(operands, sight, PADDED, [] if self.explicit else None)


class RecurrentLayer(nn.Module):
    """An LSTM: position after position, each needs the state that the one before it left."""

    def __init__(self, sizes: LayerSizes) -> None:
        super().__init__()
        self.inner = nn.LSTM(sizes.width, sizes.width, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        """(1, N, D) -> the same."""
        states: Tensor = self.inner(x)[0]
        return states


class ConvolutionalLayer(nn.Module):
    """A convolution over `kernel` neighboring positions, from D to D channels."""

    def __init__(self, sizes: LayerSizes) -> None:
        super().__init__()
        self.inner = nn.Conv1d(sizes.width, sizes.width, sizes.kernel, padding="same")

    def forward(self, x: Tensor) -> Tensor:
        """(1, N, D) -> the same."""
        channels: Tensor = self.inner(x.transpose(1, 2))
        return channels.transpose(1, 2)


def make_layer(kind: LayerKind, sizes: LayerSizes) -> nn.Module:
    """A layer of the kind with random weights, (1, N, D) -> (1, N, D), in evaluation mode."""
    makers: dict[LayerKind, Callable[[], nn.Module]] = {
        "self-attention": lambda: SelfAttentionLayer(sizes),
        "explicit self-attention": lambda: SelfAttentionLayer(sizes, explicit=True),
        "restricted self-attention": lambda: SelfAttentionLayer(sizes, sizes.reach),
        "recurrent": lambda: RecurrentLayer(sizes),
        "convolutional": lambda: ConvolutionalLayer(sizes),
    }
    return makers[kind]().eval()


def table_operations(kind: LayerKind, length: int, sizes: LayerSizes) -> int:
    """Table 1's column "complexity per layer" without its O: N^2 D, R N D, N D^2, K N D^2."""
    width = sizes.width
    if kind in ("self-attention", "explicit self-attention"):
        return length**2 * width
    if kind == "restricted self-attention":
        return sizes.reach * length * width
    return (sizes.kernel if kind == "convolutional" else 1) * length * width**2


@torch.inference_mode()
def measure_layer(
    layer: nn.Module,
    width: int,
    lengths: Iterable[int],
    seconds: float = 0.2,
    slowest: float = math.inf,
    memory: bool = False,
) -> list[LayerCost]:
    """Time the layer on one random sentence of each length, shortest first, on its own device.

    A length is run for about `seconds`, at least five times and once more before; the fastest run
    counts. Stops after the first length that takes longer than `slowest`. memory: peaks too.
    """
    weight = next(layer.parameters())
    costs = []
    for length in sorted(lengths):
        x = torch.randn(1, length, width, device=weight.device, dtype=weight.dtype)
        layer(x)
        fastest, spent, runs = math.inf, 0.0, 0
        while runs < _FEWEST or (runs < _MOST and spent < seconds):
            taken = _time(layer, x)
            fastest, spent, runs = min(fastest, taken), spent + taken, runs + 1
        costs.append(LayerCost(length, fastest, peak_memory(layer, x) if memory else None))
        if fastest > slowest:
            break
    return costs


def _time(layer: nn.Module, x: Tensor) -> float:
    on_gpu = x.device.type == "cuda"
    if on_gpu:
        torch.cuda.synchronize(x.device)
    start = time.perf_counter()
    layer(x)
    if on_gpu:
        torch.cuda.synchronize(x.device)
    return time.perf_counter() - start


@torch.inference_mode()
def peak_memory(layer: nn.Module, x: Tensor) -> int:
    """The most bytes that a run of the layer has allocated at one time, its result included."""
    if x.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(x.device)
        before = torch.cuda.memory_allocated(x.device)
        layer(x)
        return torch.cuda.max_memory_allocated(x.device) - before
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # it would write on the terminal
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
        layer(x)
    results = record.profiler.kineto_results if record.profiler else None
    events = [event for event in results.events() if event.name() == "[memory]"] if results else []
    live = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        live += event.nbytes()
        peak = max(peak, live)
    return peak


def fit_exponent(lengths: Sequence[int], values: Sequence[float]) -> float:
    """The p of values ~ c * lengths^p by least squares of the logarithms.

    Raises ValueError for fewer than two lengths.
    """
    if len(lengths) < 2:
        raise ValueError("an exponent needs two lengths")
    slope, _ = np.polyfit(np.log(lengths), np.log(values), 1)
    return float(slope)
