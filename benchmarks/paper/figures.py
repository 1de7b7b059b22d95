"""Figures 3, 4 and 5 of the paper, drawn of one's own model.

python benchmarks/paper/figures.py MODEL --out figures

All three are self-attention of the encoder. Figure 3 is one layer seen from one word, which another
word far off belongs to: the layer whose heads look farthest from it. Figure 4 is the two heads that
look most clearly from a pronoun at one other word. Figure 5 is two heads that look neither at the
neighbors nor at the end, but most clearly at one word each. Which they are is printed, with their
weights; whether they mean what those of the paper mean is for the eye. Each is written as
figureN.png, in the paper's manner, and as figureN.html, the page of `dragoman attend`.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dragoman.inspection.attention_maps import sentence_attention
from dragoman.inspection.attention_page import OpeningView, write_attention_page
from dragoman.inspection.labels import GREY, INK, choose_lettering
from dragoman.inspection.pronouns import WordAttention, encoder_by_word, word_attention
from dragoman.model.folder import LoadedModel, load_model

DEPENDENCY = (
    "The heavy rain was making the long way home through the old forest even more difficult.",
    "making",
)
PRONOUN = ("The bakery is small, but its bread is known in the whole town.", "its")
STRUCTURE = "The man who sold us the old boat will never forget how cold the water was that day."
COLORS = "#2f6fdb #d9541e #1f8a5b #7a4fc9 #b8860b #c2185b #00838f #6d4c41".split()


@dataclass(frozen=True)
class Figure:
    """Heads of one layer, (H, W, W), over the words of a text; rows that are not drawn are zero.

    heads are those that are drawn; all numbers from 0.
    """

    number: int
    title: str
    text: str
    words: tuple[str, ...]
    layer: int
    heads: list[int]
    weights: Any


def long_distance(loaded: LoadedModel, text: str, word: str) -> Figure:
    """Figure 3: the layer whose heads look farthest from the word, without the end."""
    view = word_attention(loaded, text, word)[0]
    apart = np.abs(np.arange(len(view.words)) - view.place)
    distances = (view.others * apart).sum(axis=-1)  # (L, H)
    layer = int(distances.mean(axis=1).argmax())
    return _of_view(3, f"What “{word}” looks at", view, layer, list(range(len(distances[layer]))))


def pronoun(loaded: LoadedModel, text: str, word: str) -> Figure:
    """Figure 4: the two heads of one layer that look most clearly from the word at another."""
    view = word_attention(loaded, text, word)[0]
    layer, heads = clearest(view.others.max(axis=-1))
    return _of_view(4, f"What “{word}” looks at", view, layer, heads)


def structure(loaded: LoadedModel, text: str) -> Figure:
    """Figure 5: the two heads of one layer that look most clearly at other words than neighbors."""
    words, weights = encoder_by_word(loaded, text)
    apart = np.abs(np.subtract.outer(np.arange(len(words)), np.arange(len(words))))
    far = weights * (apart > 1)
    far[..., -1] = 0
    layer, heads = clearest(far[..., :-1, :].max(axis=-1).mean(axis=-1))
    return Figure(5, "Two heads of one layer", text, words, layer, heads, weights[layer])


def clearest(clearness: Any) -> tuple[int, list[int]]:
    """The layer of (L, H) with the largest sum of its two largest, and those two heads."""
    order = np.argsort(-clearness, axis=1)[:, :2]
    layer = int(np.take_along_axis(clearness, order, axis=1).sum(axis=1).argmax())
    return layer, order[layer].tolist()


def _of_view(number: int, title: str, view: WordAttention, layer: int, heads: list[int]) -> Figure:
    own = np.zeros((view.weights.shape[1], len(view.words), len(view.words)), dtype=np.float32)
    own[:, view.place] = view.weights[layer]
    return Figure(number, title, view.text, view.words, layer, heads, own)


def description(figure: Figure) -> str:
    """The heads and the strongest links of each, in words."""
    lines = [f"figure {figure.number}: {figure.title}, layer {figure.layer + 1}: {figure.text}"]
    for head in figure.heads:
        weights = figure.weights[head].copy()
        weights[:, -1] = 0
        order = np.argsort(-weights, axis=None)[:5]
        links = [divmod(int(place), len(figure.words)) for place in order]
        shown = ", ".join(
            f"{figure.words[query]} -> {figure.words[key]} {weights[query, key]:.2f}"
            for query, key in links
            if weights[query, key] >= 0.05
        )
        lines.append(f"  head {head + 1}: {shown or 'nothing but the end'}")
    return "\n".join(lines)


def draw(figure: Figure, path: Path) -> None:
    """Words twice, side by side, with a line for every weight of the heads, as in the paper."""
    from matplotlib.figure import Figure as Page

    words, heads = figure.words, figure.heads
    lettering = choose_lettering([*words, figure.title])
    page = Page(figsize=(6.0, 0.9 + 0.27 * len(words)), dpi=150, layout="constrained")
    axes = page.add_subplot()
    axes.set_axis_off()
    axes.set_xlim(-0.6, 1.6)
    axes.set_ylim(len(words) - 0.5, -0.5)
    title = f"{figure.title}: layer {figure.layer + 1}, " + _named(heads)
    axes.set_title(title, color=INK, **lettering.style(10))
    for place, word in enumerate(words):
        attends = bool(figure.weights[heads, place].any())
        for x, side, strong in ((0, "right", attends), (1, "left", True)):
            axes.text(
                x + (-0.03 if x == 0 else 0.03),
                place,
                lettering.draw(word),
                ha=side,
                va="center",
                color=INK if strong else GREY,
                **lettering.style(9),
            )
    for rank, head in enumerate(heads):
        shift = (rank - (len(heads) - 1) / 2) * min(0.12, 0.6 / len(heads))
        for query, key in np.argwhere(figure.weights[head] >= 0.02).tolist():
            weight = float(figure.weights[head, query, key])
            axes.plot(
                [0, 1],
                [query + shift, key + shift],
                color=COLORS[head % len(COLORS)],
                alpha=min(1.0, 0.1 + 0.9 * weight),
                linewidth=0.6 + 2 * weight,
                solid_capstyle="round",
            )
    page.savefig(path)


def _named(heads: Sequence[int]) -> str:
    return "heads " + ", ".join(str(head + 1) for head in sorted(heads))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--out", type=Path, default=Path("figures"))
    parser.add_argument("--dependency", nargs=2, metavar=("TEXT", "WORD"), default=DEPENDENCY)
    parser.add_argument("--pronoun", nargs=2, metavar=("TEXT", "WORD"), default=PRONOUN)
    parser.add_argument("--structure", metavar="TEXT", default=STRUCTURE)
    options = parser.parse_args()
    loaded = load_model(options.model)
    languages = loaded.config.source_language, loaded.config.target_language
    options.out.mkdir(parents=True, exist_ok=True)
    for figure in (
        long_distance(loaded, *options.dependency),
        pronoun(loaded, *options.pronoun),
        structure(loaded, options.structure),
    ):
        name = options.out / f"figure{figure.number}"
        draw(figure, name.with_suffix(".png"))
        head = figure.heads[0] if figure.number != 3 else None
        opening = OpeningView("encoder", figure.layer, head)
        attention = sentence_attention(loaded, figure.text)
        write_attention_page(attention, languages, name.with_suffix(".html"), opening)
        print(description(figure))


if __name__ == "__main__":
    main()
