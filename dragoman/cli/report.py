"""dragoman report"""

from pathlib import Path
from typing import Annotated

import typer

from dragoman.cli.application import app


@app.command()
def report(
    folder: Annotated[
        Path,
        typer.Option("--model", metavar="DIR", help="The folder of a training, finished or not."),
    ],
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="Where to. [default: DIR/training/report.html]"),
    ] = None,
) -> None:
    """Write the HTML report of a training anew, also while it runs.

    One file that needs no other and asks nobody for anything: curves, sample translations, the
    corpus, all settings, the machine. Training writes it at its end. Prints where it is.
    """
    from dragoman.cli.destination import check_destination
    from dragoman.inspection.report import write_report

    work = folder / "training"
    check_destination("--out", out, [folder, work / "config.toml", work / "log.jsonl"])
    print(write_report(folder, out))
