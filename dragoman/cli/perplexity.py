"""dragoman perplexity"""

import json
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dragoman.cli import options
from dragoman.cli.application import app
from dragoman.errors import UserError

if TYPE_CHECKING:
    from dragoman.decoding.perplexity import Surprise

# Texts read together.
_TEXTS = 1024


@app.command(short_help="Say how well a language model predicts text.")
def perplexity(
    model: options.ModelFolder,
    files: Annotated[
        list[Path] | None, typer.Argument(metavar="FILES", help="Text, a text a line; else stdin.")
    ] = None,
    as_json: options.AsJson = False,
    device: options.Device = "auto",
    errors: options.ErrorsOption = options.Errors.STRICT,
) -> None:
    """Say how well a language model predicts text: in nats and bits a token, a word, a character.

    Tokens are the model's own subwords: compare models of different ones by words or characters.
    The end of a text counts as one of each. Texts are what they were in training: a line each, or
    with data.texts = paragraphs all lines up to a blank one. Blank ones are left out.

    A text longer than the longest of the training is read in windows of that length, each half of
    one further: every token is predicted once, from half a window or more of what stands before it.

    \b
    dragoman perplexity --model models/lm test.en
    """
    from dragoman.corpus.pairs import read_texts
    from dragoman.decoding.perplexity import Reader
    from dragoman.training.progress import stage

    reader = Reader.load(model, device)
    texts = (
        pair.target
        for path in files or [Path("-")]
        for pair in read_texts(path, reader.config.data.texts, errors.value)
        if pair.target.strip()
    )
    found: Surprise | None = None
    with stage("reading") as advance:
        while chunk := list(islice(texts, _TEXTS)):
            read = reader.read(chunk)
            found = read if found is None else found + read
            advance(len(chunk))
    if found is None:
        raise UserError("there is no text to read", "give a file with a text a line")
    print(json.dumps(found.to_json()) if as_json else found.render())
