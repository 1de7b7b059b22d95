"""The Typer application that every command adds itself to."""

from typing import Annotated

import typer

from dragoman import __version__

app = typer.Typer(
    name="dragoman",
    help="Train, measure, run and look inside Transformer translation models of your own.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"dragoman {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """Train, measure, run and look inside Transformer translation models of your own.

    Results go to stdout, everything else to stderr. A mistake ends with status 2.
    """
