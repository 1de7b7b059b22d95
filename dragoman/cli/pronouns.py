"""dragoman pronouns"""

from pathlib import Path
from typing import Annotated

import typer

from dragoman.cli import options
from dragoman.cli.application import app
from dragoman.cli.destination import check_destination

_Texts = Annotated[
    list[str], typer.Argument(metavar="TEXT...", help="Sentences, shown side by side.")
]
_Out = Annotated[Path, typer.Option("--out", metavar="FILE", help="The HTML file to write.")]


@app.command(short_help="Show what a word such as 'it' attends to, in every head.")
def pronouns(
    model: options.ModelFolder,
    texts: _Texts,
    word: Annotated[str, typer.Option(metavar="WORD", help="The word to look from.")] = "it",
    out: _Out = Path("pronouns.html"),
    page_language: options.PageLanguage = options.PageLanguageName.EN,
    device: options.Device = "auto",
) -> None:
    """Show what a word attends to in every head of the encoder, as Figure 4 of the paper does.

    Writes one HTML file that needs no other: the heads with the clearest preference come first.
    Several sentences stand side by side, and so do several places of the word in one.

    \b
    dragoman pronouns --model models/en-de --out page.html \\
      "The cat saw the dog when it was tired." \\
      "The cat saw the dog when it was kind."
    """
    from dragoman.inspection.pronouns import word_attention
    from dragoman.inspection.pronouns_page import write_pronouns_page
    from dragoman.model.folder import load_transformer
    from dragoman.training.precision import choose_device

    check_destination("--out", out, [model])
    loaded = load_transformer(model, choose_device(device))
    views = [view for text in texts for view in word_attention(loaded, text, word)]
    write_pronouns_page(views, word, loaded.config.source_language, out, page_language.value)
    print(out)
