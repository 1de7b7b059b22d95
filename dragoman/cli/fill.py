"""dragoman fill"""

import json
from typing import Annotated

import typer

from dragoman.cli import options
from dragoman.cli.application import app


@app.command(short_help="Find the words that are hidden in a text.")
def fill(
    model: options.ModelFolder,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="With <mask> for what is hidden.")],
    best: Annotated[
        int, typer.Option("--best", metavar="K", min=1, max=1000, help="Words for each mask.")
    ] = 5,
    as_json: options.AsJson = False,
    device: options.Device = "auto",
) -> None:
    """Find the words that are hidden in a text with a model of train --task mlm.

    Every line is MASK<TAB>PROBABILITY<TAB>WORD: the number of the mask, from 1, and the likeliest
    words for it. A mask hides one subword: most words are one. With a space before it, it begins a
    word; without one it goes on with it: <mask><mask> is a word of two.

    \b
    dragoman fill --model models/english "The <mask> sat on the mat."
    """
    from dragoman.decoding.encoders import TextEncoder

    fillings = TextEncoder.load(model, "mlm", device=device).fill(text, best)
    if as_json:
        masks = [[vars(filling) for filling in found] for found in fillings]
        print(json.dumps({"text": text, "masks": masks}, ensure_ascii=False))
        return
    for number, found in enumerate(fillings, start=1):
        for filling in found:
            print(f"{number}\t{filling.probability:.4f}\t{filling.word}")
