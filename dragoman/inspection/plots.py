"""Attention maps and training curves as PNG files.

Letters: H heads, T target positions, S source positions. Figures are made without pyplot, so that
threads may draw at the same time.
"""

import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from dragoman.errors import UserError
from dragoman.inspection.labels import (
    FAINT,
    GREY,
    INK,
    Lettering,
    choose_lettering,
    shorten,
    token_labels,
)
from dragoman.inspection.sheet import AttentionSheet
from dragoman.inspection.training_log import FloatArray, TrainingLog, read_training_log
from dragoman.text.lines import atomic_write
from dragoman.training.progress import SCORES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

_BLUE, _ORANGE, _GREEN, _VIOLET = "#2f6fdb", "#d9541e", "#1f8a5b", "#7a4fc9"
_DPI = 150


def attention_png(
    weights: npt.ArrayLike,
    source_pieces: Sequence[str],
    target_pieces: Sequence[str],
    path: Path,
    title: str = "",
    names: tuple[str, str] = ("source tokens", "target tokens"),
    head: int = 1,
) -> str:
    """Draw attention weights, (H, T, S) or (T, S), as a PNG: the mean of the heads and each head.

    Rows are target pieces, columns source pieces, in reading order from top left. Cells carry their
    value when there are few. Long sentences label every n-th piece. names are what columns and rows
    hold; head is the number of a single map.

    Returns a note for the person when a label cannot be drawn as it is written, else ``""``.
    Raises UserError when matplotlib is missing or the file cannot be written, ValueError when the
    shape of the weights is not that of the pieces.
    """
    maps = np.asarray(weights, dtype=np.float64)
    maps = maps[None] if maps.ndim == 2 else maps
    shape = (len(target_pieces), len(source_pieces))
    if maps.ndim != 3 or maps.shape[1:] != shape or maps.size == 0:
        raise ValueError(f"weights {np.shape(weights)} for {shape[0]} x {shape[1]} pieces")
    _need_matplotlib()
    title = title or "Attention"
    columns, rows = token_labels(source_pieces), token_labels(target_pieces)
    lettering = choose_lettering([*columns, *rows, title, "␣"])
    columns = [lettering.draw(label) for label in columns]
    rows = [lettering.draw(label) for label in rows]
    heads = [] if len(maps) == 1 else list(maps)
    sheet = AttentionSheet(columns, rows, len(heads), lettering)
    peak = float(np.nanmax(maps)) or 1.0
    average = f"head {head}" if not heads else f"mean of {len(heads)} heads"
    sheet.panel(sheet.mean_box, maps.mean(axis=0), peak, average, outer=(True, True))
    for number, (values, box) in enumerate(zip(heads, sheet.head_boxes, strict=True)):
        below = number + sheet.across >= len(heads)
        outer = (number % sheet.across == 0, below)
        sheet.panel(box, values, peak, f"head {number + 1}", outer=outer)
    sheet.header(title, f"columns: {names[0]} ({shape[1]}), rows: {names[1]} ({shape[0]})", peak)
    _save(sheet.figure, Path(path))
    return lettering.note


def curve_png(log_path: Path, path: Path, title: str = "") -> str:
    """Draw the course of a training run from its ``log.jsonl`` as a PNG.

    Three panels over the steps, with the time on top: loss and validation nll (nats a token; the
    perplexity on the right), scores, learning rate. The validation with the lowest nll is marked.

    Returns a note for the person when the title cannot be drawn as it is written, else ``""``.
    Raises UserError for a missing, broken (``file:line``) or empty log, when matplotlib is missing
    or the file cannot be written.
    """
    log = read_training_log(Path(log_path))
    _need_matplotlib()
    from matplotlib.figure import Figure

    title = " ".join(title.split()) or "Training"
    lettering = choose_lettering([title])
    scored = any(log.has("validation", name) for name in SCORES)
    ratios = [3.0, 1.8, 0.9] if scored else [3.0, 0.9]
    figure = Figure(figsize=(9.0, 1.2 + 1.15 * sum(ratios)), dpi=_DPI, layout="constrained")
    panels = list(figure.subplots(len(ratios), 1, sharex=True, squeeze=True, height_ratios=ratios))
    for axes in panels:
        _plain(axes, lettering)
    best = log.best()
    _draw_loss(panels[0], log, best, lettering)
    if scored:
        _draw_scores(panels[1], log, lettering)
    _draw_rate(panels[-1], log, lettering)
    for axes in panels:
        axes.set_xlim(0, log.last_step * 1.02)
        if best:
            axes.axvline(best[0], color=GREY, linewidth=0.9, linestyle=(0, (2, 2)), zorder=1)
    panels[-1].set_xlabel("step", color=GREY, **lettering.style(9))
    _time_on_top(panels[0], log, lettering)
    shown = lettering.draw(shorten(title, 80))
    figure.suptitle(shown, x=0.012, ha="left", color=INK, **lettering.style(13))
    _save(figure, Path(path))
    return lettering.note


def running_median(values: FloatArray) -> FloatArray:
    """Return the median of a window around each value, (N,) -> (N,), shorter at the ends."""
    reach = min(len(values) // 40 + 1, 50)
    padded = np.pad(values, reach, constant_values=np.nan)
    windows = np.lib.stride_tricks.sliding_window_view(padded, 2 * reach + 1)
    return np.asarray(np.nanmedian(windows, axis=1))


def _plain(axes: "Axes", lettering: Lettering) -> None:
    for side, spine in axes.spines.items():
        spine.set(color=FAINT, visible=side in ("left", "bottom"))
    axes.grid(axis="y", color=FAINT, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(color=FAINT, labelcolor=GREY, labelsize=8, length=3)


def _draw_loss(
    axes: "Axes", log: TrainingLog, best: tuple[float, float] | None, lettering: Lettering
) -> None:
    steps, loss = log.column("train", "loss")
    if steps.size:
        axes.plot(steps, loss, color=_BLUE, alpha=0.22, linewidth=0.8)
        axes.plot(steps, running_median(loss), color=_BLUE, linewidth=1.8, label="training loss")
    steps, nll = log.column("validation", "nll")
    if steps.size:
        axes.plot(
            steps, nll, "o-", color=_ORANGE, linewidth=1.8, markersize=3.5, label="validation nll"
        )
    axes.set_ylabel("nats per token", color=GREY, **lettering.style(9))
    if best:
        label = (
            f"best: step {best[0]:,.0f}, nll {best[1]:.3f}, perplexity {_perplexity(best[1]):.2f}"
        )
        axes.plot(
            *best,
            "o",
            color="white",
            markeredgecolor=_ORANGE,
            markeredgewidth=2,
            markersize=9,
            zorder=5,
            linestyle="none",
            label=label,
        )
    low, high = axes.get_ylim()
    axes.set_ylim(max(0.0, low - 0.05 * (high - low)), high)
    _perplexity_scale(axes, lettering)
    legend = axes.legend(loc="upper right", labelcolor=INK, fontsize=9, framealpha=1)
    legend.get_frame().set(facecolor="white", edgecolor="none")


def _perplexity_scale(axes: "Axes", lettering: Lettering) -> None:
    low, high = axes.get_ylim()
    if high > 40:  # a run that diverged: e to such a power tells nobody anything
        return
    right = axes.secondary_yaxis("right", functions=(_perplexity, _nats))
    ticks = [float(base * 10**power) for power in range(7) for base in (1, 2, 5)]
    shown = [tick for tick in ticks if low <= math.log(tick) <= high]
    if len(shown) < 3:
        span = _perplexity((low, high))
        shown = [tick for tick in _locator(5).tick_values(*span) if span[0] <= tick <= span[1]]
    right.set_yticks(shown, [f"{tick:,.6g}" for tick in shown])
    right.minorticks_off()
    right.set_ylabel("perplexity", color=GREY, **lettering.style(9))
    right.tick_params(color=FAINT, labelcolor=GREY, labelsize=8, length=3)
    right.spines["right"].set(color=FAINT)


def _draw_scores(axes: "Axes", log: TrainingLog, lettering: Lettering) -> None:
    found = [name for name in SCORES if log.has("validation", name)]
    for name, color in zip(found, (_GREEN, _VIOLET, _ORANGE), strict=False):
        steps, scores = log.column("validation", name)
        axes.plot(steps, scores, "o-", color=color, linewidth=1.8, markersize=3.5)
        index = int(scores.argmax())
        axes.plot(steps[index], scores[index], "o", color="white", markeredgecolor=color, zorder=5)
        axes.annotate(
            f"{SCORES[name]} {scores[index]:.1f}",
            (steps[index], scores[index]),
            xytext=(-6, 6),
            textcoords="offset points",
            ha="right",
            color=color,
            **lettering.style(9),
        )
    axes.set_ylim(0, axes.get_ylim()[1] * 1.12)
    axes.set_ylabel("score", color=GREY, **lettering.style(9))


def _draw_rate(axes: "Axes", log: TrainingLog, lettering: Lettering) -> None:
    steps, rate = log.column("train", "learning_rate")
    axes.plot(steps, rate, color=GREY, linewidth=1.5)
    axes.fill_between(steps, rate, color=GREY, alpha=0.12, linewidth=0)
    axes.set_ylim(0, float(rate.max()) * 1.15 if rate.size and rate.max() > 0 else 1.0)
    axes.set_ylabel("learning\nrate", color=GREY, **lettering.style(9))
    axes.yaxis.set_major_locator(_locator(3))
    axes.yaxis.set_major_formatter(lambda value, _position: f"{value:.3g}")
    axes.xaxis.set_major_formatter(lambda value, _position: f"{value:,.0f}")
    axes.xaxis.set_major_locator(_locator(9, integer=True))


def _locator(bins: int, integer: bool = False) -> "MaxNLocator":
    from matplotlib.ticker import MaxNLocator

    return MaxNLocator(bins, integer=integer)


def _time_on_top(axes: "Axes", log: TrainingLog, lettering: Lettering) -> None:
    steps, seconds = log.clock()
    total = float(seconds[-1])
    unit, name = (3600.0, "hours") if total > 4 * 3600 else (60.0, "minutes")
    if total < 90:
        unit, name = 1.0, "seconds"
    ticks = [tick for tick in _locator(8).tick_values(0, total / unit) if 0 <= tick <= total / unit]
    top = axes.secondary_xaxis("top")
    top.set_xticks(np.interp([tick * unit for tick in ticks], seconds, steps))
    top.set_xticklabels([f"{tick:g}" for tick in ticks])
    top.set_xlabel(name, color=GREY, **lettering.style(9))
    top.tick_params(color=FAINT, labelcolor=GREY, labelsize=8, length=3)
    top.spines["top"].set(color=FAINT)


def _perplexity(nats: npt.ArrayLike) -> FloatArray:
    return np.exp(np.clip(np.asarray(nats, dtype=np.float64), -50, 50))


def _nats(perplexity: npt.ArrayLike) -> FloatArray:
    return np.log(np.clip(np.asarray(perplexity, dtype=np.float64), 1e-20, None))


def _need_matplotlib() -> None:
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise UserError(
            "drawing needs matplotlib, which is not installed",
            "install it with: pip install matplotlib",
        ) from None


def _save(figure: "Figure", path: Path) -> None:
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=_DPI)
    with atomic_write(path) as stream:
        stream.write(picture.getvalue())
