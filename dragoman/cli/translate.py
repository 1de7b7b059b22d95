"""dragoman translate"""

import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO

import typer

from dragoman.cli import options
from dragoman.cli.application import app
from dragoman.errors import UserError

if TYPE_CHECKING:
    from dragoman.decoding.translator import Translation, Translator
    from dragoman.text.lines import ErrorPolicy

# What would end a line in the output, or hide what is before it on a terminal.
_LINE_BREAKS = str.maketrans({"\n": " ", "\r": " "})


def one_line(text: str) -> str:
    """A translation as one line of a file: line breaks inside it become spaces."""
    return text.translate(_LINE_BREAKS)


@app.command()
def translate(
    model: options.ModelFolder,
    files: Annotated[
        list[Path] | None,
        typer.Argument(metavar="FILES", help="Text, one segment a line; else stdin."),
    ] = None,
    text: Annotated[
        list[str] | None, typer.Option(metavar="TEXT", help="Text to translate; may be repeated.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write there instead of stdout.")
    ] = None,
    beam: options.Beam = None,
    length_penalty: options.LengthPenalty = None,
    n_best: Annotated[
        int, typer.Option(metavar="N", min=1, max=1000, help="Print N translations of every line.")
    ] = 1,
    scores: Annotated[bool, typer.Option("--scores", help="Print SCORE<TAB>TEXT.")] = False,
    as_json: options.AsJson = False,
    source_language: options.WantedSource = None,
    target_language: options.WantedTarget = None,
    device: options.Device = "auto",
    errors: options.ErrorsOption = options.Errors.STRICT,
) -> None:
    """Translate text, line by line: as many lines out as in, a blank line stays blank.

    A line break inside a translation becomes a space. With --n-best every line of output is
    NUMBER<TAB>SCORE<TAB>TEXT; a score is the log-probability divided by the length penalty. With
    --json every line is an object with text, score, candidates and warnings. Warnings go to stderr.

    \b
    dragoman translate --model models/en-de < new.en > new.de
    dragoman translate --model models/en-de --text "Good morning!"
    """
    from dragoman.cli.loading import load_translator

    if text and files:
        raise UserError("--text and files together", "give one of them")
    translator = load_translator(model, beam, length_penalty, device)
    if n_best > translator.search.beam:
        raise UserError(
            f"--n-best {n_best} is more than a beam of {translator.search.beam} can find",
            f"add --beam {n_best}",
        )
    options.check_languages(translator.config, source_language, target_language)
    lines = iter(text) if text else _lines(files or [Path("-")], errors.value)
    form = _json_lines if as_json else _table_lines if n_best > 1 else _text_lines
    with _output(output) as stream:
        for number, translation in enumerate(_translations(translator, lines, n_best), start=1):
            for warning in translation.warnings:
                print(f"line {number}: {warning}", file=sys.stderr)
            for line in form(number, translation, scores):
                stream.write(line.encode("utf-8", "surrogatepass") + b"\n")
            stream.flush()


def _lines(files: list[Path], errors: "ErrorPolicy") -> Iterator[str]:
    from dragoman.text.lines import read_lines

    for path in files:
        yield from read_lines(path, errors)


def _translations(
    translator: "Translator", lines: Iterable[str], n_best: int
) -> "Iterator[Translation]":
    from dragoman.training.progress import stage

    if sys.stdin is not None and sys.stdin.isatty():  # somebody types: answer every line
        for line in lines:
            yield from translator.translate([line], n_best)
    elif sys.stderr.isatty() and not sys.stdout.isatty():
        with stage("translating") as advance:
            for translation in translator.translate_stream(lines, n_best):
                yield translation
                advance(1)
    else:
        yield from translator.translate_stream(lines, n_best)


@contextmanager
def _output(path: Path | None) -> Iterator[BinaryIO]:
    from dragoman.text.lines import atomic_write

    if path is None:
        yield sys.stdout.buffer
        return
    with atomic_write(path) as stream:
        yield stream


def _text_lines(_: int, translation: "Translation", scores: bool) -> Iterator[str]:
    line = one_line(translation.text)
    yield f"{translation.score:.4f}\t{line}" if scores else line


def _table_lines(number: int, translation: "Translation", _: bool) -> Iterator[str]:
    for candidate in translation.candidates:
        yield f"{number}\t{candidate.score:.4f}\t{one_line(candidate.text)}"


def _json_lines(number: int, translation: "Translation", _: bool) -> Iterator[str]:
    record = {
        "line": number,
        "text": translation.text,
        "score": translation.score,
        "candidates": [
            {"text": c.text, "score": c.score, "log_prob": c.log_prob}
            for c in translation.candidates
        ],
        "warnings": translation.warnings,
    }
    yield json.dumps(record, ensure_ascii=False)
