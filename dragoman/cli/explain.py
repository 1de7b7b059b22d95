"""dragoman explain"""

from pathlib import Path
from typing import Annotated

import typer

from dragoman.cli import options
from dragoman.cli.application import app
from dragoman.cli.destination import check_destination

_Text = Annotated[str, typer.Argument(metavar="TEXT", help="A sentence of the source language.")]
_Out = Annotated[Path, typer.Option("--out", metavar="FILE", help="The HTML file to write.")]


@app.command(short_help="Walk through the Transformer with a sentence of your own.")
def explain(
    model: options.ModelFolder,
    text: _Text,
    out: _Out = Path("explained.html"),
    page_language: options.PageLanguage = options.PageLanguageName.EN,
) -> None:
    """Write a page that shows step by step how a model translates a sentence.

    One HTML file that needs no other and asks nobody for anything, for readers who know nothing
    of machine learning: from subwords, positions, queries, keys and values to beam search, each
    step with the numbers of this model and this sentence; where the parameters are; and why length
    costs n², for which three small layers are timed on this machine for a few seconds. Prints
    where it is.

    \b
    dragoman explain --model models/en-de "The cat sat on the mat" --out page.html
    """
    from dragoman.inspection.explain_costs import measure_lengths
    from dragoman.inspection.explain_numbers import explain_sentence
    from dragoman.inspection.explain_page import write_explain_page
    from dragoman.model.folder import load_transformer

    check_destination("--out", out, [model])
    loaded = load_transformer(model)
    explained = explain_sentence(loaded, text)
    sizes = loaded.config.model
    write_explain_page(
        out, loaded, explained, measure_lengths(sizes.d_model, sizes.heads), page_language.value
    )
    print(out)
