"""dragoman attend"""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dragoman.cli import options
from dragoman.cli.application import app
from dragoman.errors import UserError

if TYPE_CHECKING:
    from dragoman.inspection.attention_maps import SentenceAttention


class KindName(StrEnum):
    """Which of the three attentions."""

    ENCODER = "encoder"
    DECODER = "decoder"
    CROSS = "cross"


_Kind = Annotated[
    KindName,
    typer.Option(
        help="encoder: source to source; decoder: translation to its beginning; cross: "
        "translation to source."
    ),
]


@app.command(short_help="Show what every head attends to.")
def attend(
    model: options.ModelFolder,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="A text to translate.")],
    target: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="Its translation. [default: the model's own]"),
    ] = None,
    out: Annotated[
        Path, typer.Option(metavar="FILE", help="Where to: an .html page or a .png picture.")
    ] = Path("attention.html"),
    kind: _Kind = KindName.CROSS,
    layer: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Counted from 1. [default: the last]")
    ] = None,
    head: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Counted from 1. [default: all]")
    ] = None,
    page_language: options.PageLanguage = options.PageLanguageName.EN,
    device: options.Device = "auto",
) -> None:
    """Show what every head of a model attends to in a text and its translation.

    The page needs no other file and asks nobody for anything; it holds every layer, head and kind,
    and begins with those that are named. A picture holds one layer of one kind. Prints where it is.

    \b
    dragoman attend --model models/en-de "The cat slept because it was tired."
    dragoman attend --model models/en-de --out a.png --kind encoder "The cat sat."
    """
    from dragoman.cli.destination import check_destination
    from dragoman.inspection.attention_maps import sentence_attention
    from dragoman.inspection.attention_page import OpeningView, write_attention_page
    from dragoman.model.folder import load_transformer
    from dragoman.training.precision import choose_device
    from dragoman.training.progress import say

    if out.suffix.lower() not in (".html", ".htm", ".png"):
        raise UserError(f"{out}: neither a page nor a picture", "end its name with .html or .png")
    check_destination("--out", out, [model])
    loaded = load_transformer(model, choose_device(device))
    sizes = loaded.config.model
    layers = sizes.encoder_layers if kind is KindName.ENCODER else sizes.decoder_layers
    _check_number("layer", layer, layers)
    _check_number("head", head, sizes.heads)
    if target is not None and not target.strip():
        raise UserError("--target is blank", "leave it out to see the model's own translation")
    attention = sentence_attention(loaded, text, target)
    layer = (layer or layers) - 1
    if out.suffix.lower() == ".png":
        note = _draw(attention, kind, layer, head, out)
        if note:
            say(note)
    else:
        opening = OpeningView(kind.value, layer, None if head is None else head - 1)
        languages = loaded.config.source_language, loaded.config.target_language
        write_attention_page(attention, languages, out, opening, page_language.value)
    print(out)


def _draw(
    attention: "SentenceAttention", kind: KindName, layer: int, head: int | None, out: Path
) -> str:
    """The picture of one layer; a note for the person, or nothing."""
    from dragoman.inspection.plots import attention_png

    weights = attention.weights(kind.value)[layer]
    keys, queries = attention.keys(kind.value), attention.queries(kind.value)
    names = {
        KindName.ENCODER: ("source tokens looked at", "source tokens that look"),
        KindName.DECODER: ("translation tokens looked back at", "the latest token"),
        KindName.CROSS: ("source tokens", "translation tokens"),
    }
    title = f"{kind.value}, layer {layer + 1}: {attention.text}"
    if head is not None:
        return attention_png(weights[head - 1], keys, queries, out, title, names[kind], head)
    return attention_png(weights, keys, queries, out, title, names[kind])


def _check_number(name: str, number: int | None, count: int) -> None:
    if number is not None and number > count:
        raise UserError(f"no {name} {number}", f"the model has {count}, counted from 1")
