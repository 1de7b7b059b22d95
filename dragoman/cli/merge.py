"""dragoman merge"""

from pathlib import Path
from typing import Annotated

import typer

from dragoman.cli import options
from dragoman.cli.application import app
from dragoman.errors import UserError


@app.command(short_help="Merge an adapter into its model.")
def merge(
    model: options.ModelFolder,
    adapter: Annotated[
        Path,
        typer.Option(metavar="DIR", help="An adapter's folder, DIR/training/adapter of train."),
    ],
    out: options.OutFolder,
) -> None:
    """Merge a low-rank adapter into the model that it was trained on, to an ordinary model folder.

    One model may have many adapters, each a few hundred kilobytes: for every customer or subject
    one, made with train --init-from MODEL --set training.lora_rank=8.

    \b
    dragoman merge --model DIR --adapter NEW/training/adapter --out MERGED
    """
    from dragoman.cli import stages
    from dragoman.cli.destination import whole_folder
    from dragoman.config import Parent
    from dragoman.corpus.shortlist import SHORTLIST, load_shortlist
    from dragoman.model.adapters import load_adapter, merge_adapters, read_adapter_settings
    from dragoman.model.description import KINDS, WEIGHTS, file_digest, title
    from dragoman.model.folder import load_any, save_model
    from dragoman.training.checkpoints import disk_errors

    stages.check_output(out)
    settings = read_adapter_settings(adapter)
    loaded = load_any(model)
    if file_digest(model / WEIGHTS) != settings.base_weights:
        raise UserError(
            f"{adapter}: this adapter was trained on another model, '{settings.base_name}'",
            "an adapter means nothing on other weights: name the model of that training",
        )
    load_adapter(loaded.model, adapter)
    merge_adapters(loaded.model)
    base = Parent(name=settings.base_name, weights=settings.base_weights)
    config = loaded.config.model_copy(update={"parent": base})
    card = (
        f"# {title(config)}\n\n"
        f"The model `{settings.base_name}` (SHA-256 of its weights `{settings.base_weights}`) with "
        f"a merged adapter of rank {settings.rank}.\n\n"
        f"Measure it with: {KINDS[config.task].measure}\n"
    )
    with disk_errors(out), whole_folder(out) as folder:
        if (model / SHORTLIST).is_file():  # of the tokenizer, which stays
            load_shortlist(model, loaded.tokenizer).save(folder / SHORTLIST)
        save_model(folder, config, loaded.tokenizer, dict(loaded.model.state_dict()), card)
    typer.echo(f"merged {adapter} into {model}; model: {out}", err=True)
