"""Curves of a training as pieces of HTML: lines in inline SVG, words and scales as text around it.

The plot is stretched to whatever width there is, so nothing that must keep its shape is drawn in
it: dots are round line caps of fixed width, labels are HTML. Letters: N points.
"""

import json
import math
from dataclasses import dataclass
from html import escape

import numpy as np

from dragoman.inspection.training_log import FloatArray

# The largest number of points of a line: a screen shows no more, and the page stays small.
_POINTS = 400
_WIDTH, _HEIGHT = 1000.0, 300.0


@dataclass(frozen=True, slots=True)
class Line:
    """A curve: steps and values, both (N,); `tone` is its color's number in the style sheet.

    dots: few values, each marked. faint: the noise behind another line, not in the legend.
    exponential: perplexity is shown beside the value.
    """

    name: str
    steps: FloatArray
    values: FloatArray
    tone: int
    dots: bool = False
    faint: bool = False
    exponential: bool = False

    def thinned(self) -> "Line":
        """At most so many points: the means of equally many neighbors."""
        if len(self.steps) <= _POINTS:
            return self
        parts = np.array_split(np.arange(len(self.steps)), _POINTS)
        steps = np.array([self.steps[part].mean() for part in parts])
        values = np.array([self.values[part].mean() for part in parts])
        return Line(self.name, steps, values, self.tone, self.dots, self.faint, self.exponential)


@dataclass(frozen=True, slots=True)
class Chart:
    """Some lines over the same steps.

    unit: what the values are. from_zero: the scale begins at 0. mark: a step to mark, with words.
    """

    title: str
    unit: str
    lines: list[Line]
    from_zero: bool = True
    mark: tuple[float, str] | None = None

    def render(self, last_step: float, clock: tuple[FloatArray, FloatArray]) -> str:
        """The figure as HTML. clock: (steps, seconds) of the run, both (N,)."""
        lines = [line.thinned() for line in self.lines if line.values.size]
        low, high = _range(lines, self.from_zero)
        ticks = nice_ticks(low, high, 4)
        low, high = min(low, ticks[0]), max(high, ticks[-1])

        def place(steps: FloatArray, values: FloatArray) -> tuple[FloatArray, FloatArray]:
            across = steps / last_step * _WIDTH
            return across, (high - values) / ((high - low) or 1.0) * _HEIGHT

        drawn = [_grid((high - tick) / ((high - low) or 1.0) * _HEIGHT) for tick in ticks]
        if self.mark:
            across = self.mark[0] / last_step * _WIDTH
            drawn.append(f'<path class="mark" d="M{across:.1f} 0V{_HEIGHT:.0f}"/>')
        drawn += [_draw(line, *place(line.steps, line.values)) for line in lines]
        shown = [line for line in lines if not line.faint]
        return f"""<figure class="chart" data-last="{last_step:.0f}">
<figcaption>{escape(self.title)} <span class="unit">{escape(self.unit)}</span></figcaption>
{_legend(shown)}<div class="frame"><div class="scale" aria-hidden="true">{_labels(ticks, low, high)}
</div><div class="plot" tabindex="0" role="img" aria-label="{escape(self.describe())}">
<svg viewBox="0 0 {_WIDTH:.0f} {_HEIGHT:.0f}" preserveAspectRatio="none" aria-hidden="true">
{"".join(drawn)}</svg><div class="cursor" hidden></div></div>
<div class="axis" aria-hidden="true">step</div>
<div class="steps" aria-hidden="true">{_step_labels(last_step)}</div></div>
<p class="readout" aria-live="polite">{escape(self.mark[1]) if self.mark else "&nbsp;"}</p>
<script type="application/json">{_data(shown, clock)}</script>
</figure>
"""

    def describe(self) -> str:
        """The chart in words, for who cannot see it."""
        parts = [
            f"{line.name} from {figure(line.values[0])} at step {line.steps[0]:,.0f} to "
            f"{figure(line.values[-1])} at step {line.steps[-1]:,.0f}, lowest "
            f"{figure(line.values.min())}, highest {figure(line.values.max())}"
            for line in self.lines
            if line.values.size and not line.faint
        ]
        return f"{self.title} ({self.unit}): {'; '.join(parts)}. Arrow keys read single values."


def nice_ticks(low: float, high: float, count: int) -> list[float]:
    """About so many round numbers from at or below `low` to at or above `high`."""
    if not high > low:
        high = low + (abs(low) or 1.0)
    raw = (high - low) / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(base * power for base in (1.0, 2.0, 2.5, 5.0, 10.0) if base * power >= raw * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [number * step for number in range(first, last + 1)]


def figure(value: float) -> str:
    """A number for a person: four significant digits, thousands with commas."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    if abs(value) < 1e-3:
        return f"{value:.2e}"
    return f"{value:.4g}"


def tick_label(tick: float) -> str:
    """A round number as short as it can be written, thousands with commas."""
    if tick and not 1e-4 <= abs(tick) < 1e9:
        return f"{tick:.4g}"
    return f"{tick:,.10f}".rstrip("0").rstrip(".")


def _range(lines: list[Line], from_zero: bool) -> tuple[float, float]:
    if not lines:
        return 0.0, 1.0
    # The noise behind a line may leave the plot; what it hides is its first outliers.
    values = np.concatenate([line.values for line in lines if not line.faint])
    low, high = float(values.min()), float(values.max())
    return (min(0.0, low) if from_zero else low), high


def _grid(height: float) -> str:
    return f'<path class="grid" d="M0 {height:.1f}H{_WIDTH:.0f}"/>'


def _draw(line: Line, across: FloatArray, down: FloatArray) -> str:
    points = " ".join(f"{x:.1f} {y:.1f}" for x, y in zip(across, down, strict=True))
    kind = f"line tone{line.tone}" + (" faint" if line.faint else "")
    drawn = f'<path class="{kind}" d="M{points}"/>'
    if line.dots or len(across) == 1:
        dots = "".join(f"M{x:.1f} {y:.1f}h0" for x, y in zip(across, down, strict=True))
        drawn += f'<path class="dots tone{line.tone}" d="{dots}"/>'
    return drawn + "\n"


def _legend(lines: list[Line]) -> str:
    if len(lines) < 2:
        return ""
    items = "".join(
        f'<li><span class="swatch tone{line.tone}"></span>{escape(line.name)}</li>'
        for line in lines
    )
    return f'<ul class="legend">{items}</ul>\n'


def _labels(ticks: list[float], low: float, high: float) -> str:
    span = (high - low) or 1.0
    return "".join(
        f'<span style="top:{100 * (high - tick) / span:.1f}%">{tick_label(tick)}</span>'
        for tick in ticks
    )


def _step_labels(last_step: float) -> str:
    ticks = [tick for tick in nice_ticks(0.0, last_step, 6) if tick <= last_step * 1.001]
    return "".join(
        f'<span style="left:{100 * tick / last_step:.1f}%"{" class=odd" if place % 2 else ""}>'
        f"{tick_label(tick)}</span>"
        for place, tick in enumerate(ticks)
        if tick == int(tick)
    )


def _data(lines: list[Line], clock: tuple[FloatArray, FloatArray]) -> str:
    """What the script reads values from; nothing in it can end the script element."""
    content = {
        "lines": [
            {
                "name": line.name,
                "tone": line.tone,
                "exponential": line.exponential,
                "steps": [round(float(step)) for step in line.steps],
                "values": [float(f"{value:.5g}") for value in line.values],
                "seconds": [round(float(s)) for s in np.interp(line.steps, *clock)],
            }
            for line in lines
        ]
    }
    return json.dumps(content, separators=(",", ":")).replace("<", "\\u003c")
