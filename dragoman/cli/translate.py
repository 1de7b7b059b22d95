"""dragoman translate"""

import json
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO

import typer

from dragoman.cli import options
from dragoman.cli.application import app
from dragoman.errors import UserError
from dragoman.text.display import printable
from dragoman.text.lines import atomic_write, one_line, read_lines

if TYPE_CHECKING:
    from dragoman.decoding.translator import Translation, Translator
    from dragoman.text.lines import ErrorPolicy

_STDIN = Path("-")


@app.command(short_help="Translate text, line by line.")
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
        int,
        typer.Option(
            metavar="N",
            min=1,
            max=1000,
            help="Print N translations of every line; without --beam, the beam is at least N.",
        ),
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
    --json every line is an object with text, score, candidates and warnings. Warnings go to stderr
    with FILE:LINE, or the number of the line of stdin or of the --text.

    \b
    dragoman translate --model models/en-de < new.en > new.de
    dragoman translate --model models/en-de --text "Good morning!"
    """
    from dragoman.cli.loading import load_translator

    if text and files:
        raise UserError("--text and files together", "give one of them")
    translator = load_translator(model, beam, length_penalty, device, n_best)
    options.check_languages(translator.config, source_language, target_language)
    paths = [] if text else files or [_STDIN]
    places: deque[str] = deque()
    lines = _lines(text or [], paths, errors.value, places)
    form = _json_lines if as_json else _table_lines if n_best > 1 else _text_lines
    with _output(output) as stream:
        found = _translations(translator, lines, n_best, _manner(paths, output))
        for number, translation in enumerate(found, start=1):
            place = places.popleft()
            for warning in translation.warnings:
                print(printable(f"{place}: {warning}"), file=sys.stderr)
            for line in form(number, translation, scores):
                stream.write(line.encode("utf-8", "surrogatepass") + b"\n")
            stream.flush()


def _lines(
    texts: list[str], paths: list[Path], errors: "ErrorPolicy", places: deque[str]
) -> Iterator[str]:
    """The lines to translate; as each is read, its place in words is added to `places`."""
    for number, text in enumerate(texts, start=1):
        places.append(f"line {number}")
        yield text
    for path in paths:
        before = "line " if path == _STDIN else f"{path}:"
        for number, line in enumerate(read_lines(path, errors), start=1):
            places.append(f"{before}{number}")
            yield line


@dataclass(frozen=True)
class _Manner:
    """Whether somebody types the lines, and whether a bar shows how far things are."""

    typed: bool
    bar: bool


def _manner(paths: list[Path], output: Path | None) -> _Manner:
    return _Manner(
        typed=paths == [_STDIN] and sys.stdin is not None and sys.stdin.isatty(),
        bar=sys.stderr.isatty() and (output is not None or not sys.stdout.isatty()),
    )


def _translations(
    translator: "Translator", lines: Iterable[str], n_best: int, how: _Manner
) -> "Iterator[Translation]":
    from dragoman.training.progress import stage

    if how.typed:  # answer every line before the next is typed
        for line in lines:
            yield from translator.translate([line], n_best)
    elif how.bar:
        with stage("translating") as advance:
            for translation in translator.translate_stream(lines, n_best):
                yield translation
                advance(1)
    else:
        yield from translator.translate_stream(lines, n_best)


@contextmanager
def _output(path: Path | None) -> Iterator[BinaryIO]:
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
