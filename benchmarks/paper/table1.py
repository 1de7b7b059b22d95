"""The paper's Table 1 measured: time and memory of layers by the length of the sentence.

python benchmarks/paper/table1.py --out FOLDER

One layer of each kind, of the same width, reads one random sentence of each length, forward and
backward (--forward: forward only), in float32. Printed as Markdown: the exponents of time and
memory in the length n and of time in the width d (least squares of the logarithms; in n over the
lengths from --fit-from on, in d at the length --fit-from), each beside the exponent that the
counted multiplications of the same layers give. These include the projections of attention, which
the table of the paper leaves out, so the exponent of self-attention in n is below 2 where n is not
far above d. FOLDER gets table1.md, table1.png and table1.svg.

"self-attention" is computed as the model does, which from some length on never holds the whole
matrix of weights; "explicit self-attention" holds it, as Equation 1 is written. Restricted
self-attention sees the --reach positions on either side, block by block. A kind is not measured at
greater lengths once a run takes longer than --slowest seconds.
"""

import argparse
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from dragoman.inspection.layer_costs import (
    LayerCost,
    LayerSizes,
    fit_exponent,
    make_layer,
    measure_layer,
)
from dragoman.text.lines import write_lines

# The weights of explicit attention take 4 h n² bytes, several times over.
_LONGEST_EXPLICIT = 4096


class GatedLayer(nn.Module):
    """A recurrent layer of gated recurrent units."""

    def __init__(self, sizes: LayerSizes) -> None:
        super().__init__()
        self.inner = nn.GRU(sizes.width, sizes.width, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        """(1, N, D) -> the same."""
        states: Tensor = self.inner(x)[0]
        return states


class SeparableLayer(nn.Module):
    """A separable convolution: `kernel` positions of each channel, then all channels of each."""

    def __init__(self, sizes: LayerSizes) -> None:
        super().__init__()
        width = sizes.width
        self.by_channel = nn.Conv1d(width, width, sizes.kernel, padding="same", groups=width)
        self.by_position = nn.Conv1d(width, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        """(1, N, D) -> the same."""
        channels: Tensor = self.by_position(self.by_channel(x.transpose(1, 2)))
        return channels.transpose(1, 2)


class WithBackward(nn.Module):
    """A layer whose forward pass is followed by its backward pass, to the weights and to x."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer.train()

    def forward(self, x: Tensor) -> Tensor:
        """(1, N, D) -> the gradient of x, the same."""
        with torch.inference_mode(False), torch.enable_grad():
            leaf = x.clone().requires_grad_()
            self.layer(leaf).sum().backward()
            self.layer.zero_grad(set_to_none=True)
            assert leaf.grad is not None
            return leaf.grad


@dataclass(frozen=True)
class Kind:
    """A row: what Table 1 says of it, how it is made, the multiplications of its forward pass."""

    name: str
    complexity: str
    sequential: str
    path: str
    make: Callable[[LayerSizes], nn.Module]
    multiplications: Callable[[int, LayerSizes], int]
    longest: int | None = None


def _attention(positions: int, length: int, sizes: LayerSizes) -> int:
    """Four projections, then scores and averages over so many positions for each of N."""
    return 4 * length * sizes.width**2 + 2 * length * positions * sizes.width


def _dense(matrices: int) -> Callable[[int, LayerSizes], int]:
    return lambda length, sizes: matrices * length * sizes.width**2


KINDS = (
    Kind(
        "self-attention", "n² d", "1", "1",
        lambda sizes: make_layer("self-attention", sizes),
        lambda length, sizes: _attention(length, length, sizes),
    ),
    Kind(
        "explicit self-attention", "n² d", "1", "1",
        lambda sizes: make_layer("explicit self-attention", sizes),
        lambda length, sizes: _attention(length, length, sizes),
        _LONGEST_EXPLICIT,
    ),
    Kind(
        "restricted self-attention", "r n d", "1", "n / r",
        lambda sizes: make_layer("restricted self-attention", sizes),
        lambda length, sizes: _attention(3 * sizes.reach, length, sizes),
    ),
    Kind(
        "recurrent, LSTM", "n d²", "n", "n",
        lambda sizes: make_layer("recurrent", sizes),
        _dense(8),
    ),
    Kind("recurrent, GRU", "n d²", "n", "n", GatedLayer, _dense(6)),
    Kind(
        "convolutional", "k n d²", "1", "log_k n",
        lambda sizes: make_layer("convolutional", sizes),
        lambda length, sizes: sizes.kernel * length * sizes.width**2,
    ),
    Kind(
        "separable convolutional", "k n d + n d²", "1", "log_k n",
        SeparableLayer,
        lambda length, sizes: length * sizes.width * (sizes.kernel + sizes.width),
    ),
)  # fmt: skip


@dataclass(frozen=True)
class Measured:
    """The costs of a kind by length, and its seconds by width at one length."""

    kind: Kind
    sizes: LayerSizes
    by_length: list[LayerCost]
    by_width: dict[int, float]
    fit_from: int

    def upper(self) -> list[LayerCost]:
        """The lengths that exponents are fitted over."""
        return [cost for cost in self.by_length if cost.length >= self.fit_from]

    def exponents(self) -> list[float]:
        """Of time in n, counted in n, of memory in n, of time in d, counted in d."""
        upper, count = self.upper(), self.kind.multiplications
        lengths = [cost.length for cost in upper]
        widths = list(self.by_width)
        resized = [replace(self.sizes, width=width) for width in widths]
        return [
            _exponent(lengths, [cost.seconds for cost in upper]),
            _exponent(lengths, [count(length, self.sizes) for length in lengths]),
            _exponent(lengths, [cost.peak_bytes or 0 for cost in upper]),
            _exponent(widths, list(self.by_width.values())),
            _exponent(widths, [count(self.fit_from, sizes) for sizes in resized]),
        ]


def _exponent(sizes: Sequence[int], values: Sequence[float]) -> float:
    return fit_exponent(sizes, values) if len(sizes) > 1 else math.nan


def measure(kind: Kind, sizes: LayerSizes, options: argparse.Namespace) -> Measured:
    """The costs of one kind."""

    def layer(sizes: LayerSizes) -> nn.Module:
        made = kind.make(sizes)
        return made if options.forward else WithBackward(made)

    lengths = [n for n in options.lengths if kind.longest is None or n <= kind.longest]
    costs = measure_layer(
        layer(sizes), sizes.width, lengths, options.seconds, options.slowest, memory=True
    )
    by_width = {}
    for width in options.widths:
        resized = replace(sizes, width=width)
        (cost,) = measure_layer(layer(resized), width, [options.fit_from], options.seconds)
        by_width[width] = cost.seconds
    return Measured(kind, sizes, costs, by_width, options.fit_from)


def exponent_table(results: Sequence[Measured]) -> str:
    """Markdown: Table 1 and the exponents measured beside those counted."""
    lines = [
        "| layer | complexity | sequential operations | longest path | time in n | counted "
        "| memory in n | time in d | counted |",
        "| --- | --- | --- | --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for result in results:
        kind = result.kind
        said = [
            kind.name,
            *(f"O({text})" for text in (kind.complexity, kind.sequential, kind.path)),
        ]
        fitted = [f"{exponent:.2f}" for exponent in result.exponents()]
        lines.append(f"| {' | '.join([*said, *fitted])} |")
    return "\n".join(lines)


def cost_table(results: Sequence[Measured]) -> str:
    """Markdown: milliseconds and megabytes of every length."""
    lengths = sorted({cost.length for result in results for cost in result.by_length})
    lines = [f"| layer | {' | '.join(f'{length:,}' for length in lengths)} |"]
    lines.append(f"| --- |{' ---: |' * len(lengths)}")
    for result in results:
        cells = {cost.length: _cell(cost) for cost in result.by_length}
        row = [result.kind.name, *(cells.get(length, "") for length in lengths)]
        lines.append(f"| {' | '.join(row)} |")
    return "\n".join(lines)


def _cell(cost: LayerCost) -> str:
    return (
        f"{_three_digits(1000 * cost.seconds)} ms, {_three_digits((cost.peak_bytes or 0) / 1e6)} MB"
    )


def _three_digits(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def draw(results: Sequence[Measured], title: str) -> Figure:
    """Time and memory by length, both logarithmic."""
    figure = Figure(figsize=(11, 4.8), layout="constrained")
    left, right = figure.subplots(1, 2)
    for result in results:
        lengths = [cost.length for cost in result.by_length]
        milliseconds = [1000 * cost.seconds for cost in result.by_length]
        megabytes = [(cost.peak_bytes or 0) / 1e6 for cost in result.by_length]
        left.plot(lengths, milliseconds, "o-", markersize=3, label=result.kind.name)
        right.plot(lengths, megabytes, "o-", markersize=3)
    ticks = sorted({cost.length for result in results for cost in result.by_length})
    for axes, what in ((left, "milliseconds"), (right, "megabytes at the peak")):
        axes.set(xscale="log", yscale="log", xlabel="n, positions", ylabel=what)
        axes.set_xticks(ticks, [str(tick) for tick in ticks])
        axes.minorticks_off()
        axes.grid(alpha=0.3)
    left.legend(fontsize=8)
    figure.suptitle(title, fontsize=11)
    return figure


def describe(options: argparse.Namespace) -> str:
    """What was measured, in a line."""
    passes = "forward" if options.forward else "forward and backward"
    return (
        f"{passes}, d = {options.width}, {options.heads} heads, r = {options.reach}, "
        f"k = {options.kernel}, {torch.get_num_threads()} threads; exponents: n from "
        f"{options.fit_from:,} on, d of {', '.join(map(str, options.widths))} at n = "
        f"{options.fit_from:,}"
    )


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--width", type=int, default=512, help="d")
    parser.add_argument("--heads", type=int, default=8, help="h")
    parser.add_argument("--reach", type=int, default=64, help="r")
    parser.add_argument("--kernel", type=int, default=3, help="k")
    lengths = [64, 128, 256, 512, 1024, 2048, 4096, 8192]
    parser.add_argument("--lengths", type=int, nargs="+", default=lengths)
    parser.add_argument("--widths", type=int, nargs="+", default=[128, 256, 512, 1024])
    parser.add_argument("--fit-from", type=int, default=1024, metavar="LENGTH")
    parser.add_argument("--forward", action="store_true", help="no backward pass")
    parser.add_argument("--seconds", type=float, default=0.3, help="for each length of each kind")
    parser.add_argument("--slowest", type=float, default=3.0)
    return parser.parse_args()


def main() -> None:
    options = parse()
    torch.manual_seed(1)
    sizes = LayerSizes(options.width, options.heads, options.reach, options.kernel)
    results = [measure(kind, sizes, options) for kind in KINDS]
    title = describe(options)
    text = f"{exponent_table(results)}\n\n{cost_table(results)}\n\n{title}"
    options.out.mkdir(parents=True, exist_ok=True)
    write_lines(options.out / "table1.md", text.split("\n"))
    for name in ("table1.png", "table1.svg"):
        draw(results, title).savefig(options.out / name, dpi=130)
    print(text)


if __name__ == "__main__":
    main()
