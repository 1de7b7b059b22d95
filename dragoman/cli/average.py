"""dragoman average"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dragoman.cli import options
from dragoman.cli.application import app
from dragoman.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

    from dragoman.config import Config


@app.command(short_help="Average the weights of checkpoints.")
def average(
    out: options.OutFolder,
    folders: Annotated[
        list[Path] | None,
        typer.Argument(metavar="CHECKPOINTS", help="Checkpoint folders of one training."),
    ] = None,
    checkpoints: Annotated[
        Path | None, typer.Option(metavar="DIR", help="The folder that checkpoints are in.")
    ] = None,
    last: Annotated[
        int, typer.Option(metavar="N", min=1, help="How many of its newest to average.")
    ] = 5,
) -> None:
    """Average the weights of checkpoints into a model folder (section 6.1 of the paper).

    \b
    dragoman average --checkpoints en-de/training/checkpoints --out averaged
    """
    from dragoman.cli import stages
    from dragoman.cli.destination import whole_folder
    from dragoman.config import read_config
    from dragoman.corpus.tokenizer import Tokenizer
    from dragoman.model.description import KINDS, title
    from dragoman.model.folder import save_model
    from dragoman.training.checkpoints import average_checkpoints, disk_errors, list_checkpoints

    if (checkpoints is None) == (not folders):
        raise UserError("which checkpoints?", "give --checkpoints DIR or checkpoint folders")
    paths = list(folders or [])
    if checkpoints is not None:
        paths = list_checkpoints(checkpoints)[-last:]
        if not paths:
            raise UserError(
                f"{checkpoints}: no checkpoint in this folder",
                "name training/checkpoints in the folder that train was given as --out",
            )
    if len({path.resolve().parent for path in paths}) > 1:
        raise UserError("these checkpoints are of different trainings", "name those of one folder")
    if list_checkpoints(paths[-1]):
        raise UserError(f"{paths[-1]}: a folder of checkpoints", "name it after --checkpoints")
    stages.check_output(out)
    work = paths[-1].resolve().parent.parent
    settings = work / "config.toml"
    if not settings.is_file():
        raise UserError(
            f"{settings}: no such file",
            "checkpoints must be where train left them, in DIR/training/checkpoints",
        )
    config = _without_shortlist(read_config(settings))
    tokenizer = Tokenizer.load(work / "corpus" / "tokenizer.model")
    names = ", ".join(path.name for path in paths)
    card = (
        f"# {title(config)}\n\nThe average of the checkpoints {names}.\n\n"
        f"Measure it with: {KINDS[config.task].measure}\n"
    )
    weights = _whole(config, tokenizer.vocabulary_size, work, average_checkpoints(paths))
    with disk_errors(out), whole_folder(out) as folder:
        save_model(folder, config, tokenizer, weights, card)
    typer.echo(f"averaged {names}; model: {out}", err=True)


def _without_shortlist(config: "Config") -> "Config":
    """One is learned at the end of a training, of which this is the middle."""
    search = config.search.model_copy(update={"shortlist": False})
    return config.model_copy(update={"search": search})


def _whole(
    config: "Config", vocabulary_size: int, work: Path, weights: dict[str, "Tensor"]
) -> dict[str, "Tensor"]:
    """Merged with the model that training began with, where checkpoints hold adapters only."""
    if not config.training.lora_rank:
        return weights
    from dragoman.cli.parent import PARENT
    from dragoman.model.adapters import load_trained_weights, merge_adapters
    from dragoman.training.fine_tuning import initial_model

    model = initial_model(config, vocabulary_size, work / PARENT)
    load_trained_weights(model, weights)
    merge_adapters(model)
    return dict(model.state_dict())
