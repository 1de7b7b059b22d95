"""dragoman embed"""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dragoman.cli import options
from dragoman.cli.application import app
from dragoman.cli.destination import check_destination
from dragoman.errors import UserError
from dragoman.text.lines import atomic_write, read_lines

if TYPE_CHECKING:
    from dragoman.decoding.encoders import TextEncoder, Vectors

# Lines embedded together; what is embedded is written.
_WINDOW = 2048


@app.command(short_help="Make a vector of every line.")
def embed(
    model: options.ModelFolder,
    file: options.Lines = Path("-"),
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE.npy", help="An array for NumPy, float32.")
    ] = None,
    device: options.Device = "auto",
    errors: options.ErrorsOption = options.Errors.STRICT,
) -> None:
    """Make a vector of every line with a model of train --task mlm or classification.

    The vector is the mean of the encoder's states of the line's subwords. Without --out every line
    is a JSON array; with it, the rows of one array are the lines. Memory does not grow with them.

    \b
    dragoman embed --model models/english new.en --out vectors.npy
    """
    from dragoman.decoding.encoders import TextEncoder

    check_destination("--out", out, [file, model])
    if out is not None and out.exists() and not out.is_file():
        raise UserError(f"{out}: is no file", "its beginning is written last: name a file")
    lines = read_lines(file, errors.value)
    encoder = TextEncoder.load(model, "mlm", "classification", device=device)
    vectors = _vectors(encoder, lines)
    if out is not None:
        _write_array(out, vectors, encoder.config.model.d_model)
        return
    for part in vectors:
        for row in part:
            print("[" + ", ".join(f"{value:.7g}" for value in row) + "]")


def _vectors(encoder: "TextEncoder", lines: Iterator[str]) -> "Iterator[Vectors]":
    while window := list(islice(lines, _WINDOW)):
        yield encoder.embed(window)


def _write_array(path: Path, parts: "Iterator[Vectors]", width: int) -> None:
    """One .npy file of all rows; how many they are is known at the end, and written then."""
    from numpy.lib import format

    rows = 0
    with atomic_write(path) as stream:
        for last in (False, True):
            stream.seek(0)
            # Room is left in it for a number of rows of any size.
            shape = {"descr": "<f4", "fortran_order": False, "shape": (rows, width)}
            format.write_array_header_1_0(stream, shape)
            if not last:
                for part in parts:
                    stream.write(part.astype("<f4").tobytes())
                    rows += len(part)
