"""The page of an attention map: a large panel for the mean of the heads, small ones for each.

Letters: H heads, T target positions, S source positions. Lengths are inches.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from dragoman.inspection.labels import FAINT, GREY, INK, Lettering, shorten

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import ListedColormap

_GAP = 0.22
_MARGIN = 0.3
_DPI = 150

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle in inches, its top measured from the top of the page."""

    left: float
    top: float
    width: float
    height: float
    cell: float = 0.0


@dataclass(frozen=True, slots=True)
class _Extent:
    """The size of a map and of what stands around it; ``span`` is its width or its heading's."""

    left: float
    top: float
    width: float
    span: float
    height: float
    bottom: float


class AttentionSheet:
    """The page of an attention map: a large panel for the mean, small ones for the heads."""

    def __init__(
        self, columns: list[str], rows: list[str], heads: int, lettering: Lettering
    ) -> None:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        self.columns, self.rows, self.lettering = columns, rows, lettering
        self.figure = Figure(dpi=_DPI)
        self._colors = _color_map()
        canvas: Any = FigureCanvasAgg(self.figure)
        self._renderer = canvas.get_renderer()
        longest = max(len(columns), len(rows))
        limit = min(8.5, 6.0 + 0.08 * max(0, longest - 30))
        self.cell = min(0.42 if longest > 4 else 0.7, limit / longest)
        self.head_cell = min(self.cell, max(0.5 * self.cell, 1.7 / longest))
        self.turned = {cell: self._turn(cell) for cell in (self.cell, self.head_cell)}
        self._arrange(heads)

    def _arrange(self, heads: int) -> None:
        """Choose how many heads stand side by side, right of the mean or below it."""
        large = self._extent(self.cell, narrowest=1.15)
        small = self._extent(self.head_cell, narrowest=0.55)
        mean_width = large.left + large.span
        mean_height = large.top + large.height + large.bottom
        best = math.inf
        for across in range(1, max(heads, 1) + 1):
            down = math.ceil(heads / across)
            width = small.left + across * (small.span + _GAP) if heads else 0.0
            height = down * (small.height + small.top) + small.bottom if heads else 0.0
            used = mean_width * mean_height + width * height * heads / (down * across or 1)
            beside = (mean_width + 1.5 * _GAP + width, max(mean_height, height))
            below = (max(mean_width, width), mean_height + _GAP + height)
            for right, (total, tall) in ((True, beside), (False, below)):
                waste = 1 - used / (total * tall)
                cost = waste + 0.25 * abs(math.log(total / tall / 1.9))
                if cost < best:
                    best, self.across, self.right = cost, across, right
                    self.width, self.height = max(total + 2 * _MARGIN, 7.0), tall
        top = 0.85
        self.height += top + _MARGIN
        self.figure.set_size_inches(self.width, self.height)
        self.mean_box = Box(
            _MARGIN + large.left, top + large.top, large.width, large.height, self.cell
        )
        left = _MARGIN + small.left
        start = top
        if self.right:
            left += mean_width + 1.5 * _GAP
        else:
            start += mean_height + _GAP
        self.head_boxes = [
            Box(
                left + (number % self.across) * (small.span + _GAP),
                start + small.top + (number // self.across) * (small.height + small.top),
                small.width,
                small.height,
                self.head_cell,
            )
            for number in range(heads)
        ]

    def _extent(self, cell: float, narrowest: float) -> _Extent:
        size = _point_size(cell)
        wide = self._text_width(self.rows[:: _label_step(len(self.rows), cell)], size)
        high = self._text_width(self.columns[:: _label_step(len(self.columns), cell)], size)
        return _Extent(
            left=wide + 0.1,
            top=0.3,
            width=len(self.columns) * cell,
            span=max(len(self.columns) * cell, narrowest),
            height=len(self.rows) * cell,
            bottom=(high if self.turned[cell] else size / 60) + 0.12,
        )

    def _turn(self, cell: float) -> bool:
        step = _label_step(len(self.columns), cell)
        return self._text_width(self.columns[::step], _point_size(cell)) > cell * step * 0.92

    def _text_width(self, texts: Sequence[str], size: float) -> float:
        from matplotlib.font_manager import FontProperties

        font = FontProperties(family=list(self.lettering.families), size=size)
        measure = self._renderer.get_text_width_height_descent
        return float(max(measure(text, font, ismath=False)[0] for text in texts)) / _DPI

    def _axes(self, box: Box) -> "Axes":
        return self.figure.add_axes(
            (
                box.left / self.width,
                1 - (box.top + box.height) / self.height,
                box.width / self.width,
                box.height / self.height,
            )
        )

    def panel(
        self, box: Box, values: FloatArray, peak: float, name: str, outer: tuple[bool, bool]
    ) -> None:
        """Draw one map, (T, S), with row labels and column labels where ``outer`` says so."""
        axes = self._axes(box)
        axes.imshow(
            values, cmap=self._colors, vmin=0, vmax=peak, aspect="auto", interpolation="nearest"
        )
        cell = box.cell
        style = self.lettering.style(_point_size(cell))
        step = _label_step(len(self.columns), cell)
        axes.set_xticks(range(0, len(self.columns), step))
        labels = self.columns[::step] if outer[1] else []
        axes.set_xticklabels(
            labels or [""] * len(axes.get_xticks()),
            rotation=90 if self.turned[cell] else 0,
            **style,
        )
        step = _label_step(len(self.rows), cell)
        axes.set_yticks(range(0, len(self.rows), step))
        labels = self.rows[::step] if outer[0] else []
        axes.set_yticklabels(labels or [""] * len(axes.get_yticks()), **style)
        axes.tick_params(length=2 if any(outer) else 0, width=0.5, color=GREY, pad=2)
        axes.tick_params(left=outer[0], bottom=outer[1], labelcolor=INK)
        for spine in axes.spines.values():
            spine.set(color=FAINT, linewidth=0.8)
        axes.set_title(name, loc="left", color=GREY, pad=4, **self.lettering.style(9))
        if cell >= 0.36 and values.size <= 144:
            self._write_values(axes, values, peak)

    def _write_values(self, axes: "Axes", values: FloatArray, peak: float) -> None:
        for (row, column), value in np.ndenumerate(values):
            if value >= 0.05:
                color = "white" if value > 0.5 * peak else INK
                text = f"{value:.2f}".removeprefix("0")
                style = self.lettering.style(7)
                axes.text(column, row, text, ha="center", va="center", color=color, **style)

    def header(self, title: str, subtitle: str, peak: float) -> None:
        """Write the title and draw the scale of colors below it."""
        letters = int((self.width - 2 * _MARGIN) / 0.1)
        shown = self.lettering.draw(shorten(" ".join(title.split()), letters))
        left, height = _MARGIN / self.width, self.height
        style = self.lettering.style(13)
        self.figure.text(left, 1 - 0.44 / height, shown, color=INK, va="baseline", **style)
        style = self.lettering.style(9)
        self.figure.text(left, 1 - 0.70 / height, subtitle, color=GREY, va="baseline", **style)
        axes = self._axes(Box(self.width - _MARGIN - 1.3, 0.6, 1.3, 0.11))
        axes.imshow(np.linspace(0, 1, 256)[None], cmap=self._colors, aspect="auto")
        axes.set_yticks([])
        axes.set_xticks([0, 255])
        axes.set_xticklabels(["0", f"{peak:.2f}"], color=GREY, **self.lettering.style(8))
        right = (self.width - _MARGIN - 1.4) / self.width
        style = {**self.lettering.style(9), "ha": "right", "va": "baseline", "color": GREY}
        self.figure.text(right, 1 - 0.70 / height, "weight", **style)
        axes.tick_params(length=0, pad=2)
        for spine in axes.spines.values():
            spine.set(color=FAINT, linewidth=0.8)


def _color_map() -> "ListedColormap":
    """Return a map from white to indigo, even in perceived lightness.

    A path in OKLCH with lightness falling linearly (Ottosson 2020, "A perceptual color space for
    image processing").
    """
    from matplotlib.colors import ListedColormap

    place = np.linspace(0.0, 1.0, 256)
    lightness = 0.995 - 0.755 * place
    chroma = 0.165 * np.sin(np.pi * place**0.85) ** 0.9
    hue = np.radians(70 - 150 * place)
    green_red, blue_yellow = chroma * np.cos(hue), chroma * np.sin(hue)
    long = (lightness + 0.3963377774 * green_red + 0.2158037573 * blue_yellow) ** 3
    middle = (lightness - 0.1055613458 * green_red - 0.0638541728 * blue_yellow) ** 3
    short = (lightness - 0.0894841775 * green_red - 1.2914855480 * blue_yellow) ** 3
    linear = np.stack(
        [
            4.0767416621 * long - 3.3077115913 * middle + 0.2309699292 * short,
            -1.2684380046 * long + 2.6097574011 * middle - 0.3413193965 * short,
            -0.0041960863 * long - 0.7034186147 * middle + 1.7076147010 * short,
        ],
        axis=-1,
    ).clip(0, 1)
    encoded = np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055)
    return ListedColormap(encoded, name="attention")


def _point_size(cell: float) -> float:
    return min(10.0, max(6.0, 8.0 + (cell - 0.14) * 10))


def _label_step(count: int, cell: float) -> int:
    return min(count, math.ceil(_point_size(cell) * 1.15 / 72 / cell))
