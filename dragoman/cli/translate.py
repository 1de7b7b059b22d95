"""dragoman translate"""

import json
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

import typer

from dragoman.cli import options
from dragoman.cli.application import app
from dragoman.errors import UserError
from dragoman.text.display import printable
from dragoman.text.lines import atomic_write, one_line, read_lines

if TYPE_CHECKING:
    from dragoman.decoding.translation import Candidate, Translation
    from dragoman.decoding.translator import Translator
    from dragoman.text.lines import ErrorPolicy

_STDIN = Path("-")


@app.command(short_help="Translate text, line by line.")
def translate(
    model: options.ModelFolders,
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
    settings: options.SearchSettings = None,
    mbr: options.BayesRisk = None,
    prefix: options.PrefixFile = None,
    explain_search: options.ExplainSearch = False,
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
    engine: options.Engine = options.EngineName.AUTO,
    errors: options.ErrorsOption = options.Errors.STRICT,
) -> None:
    """Translate text, line by line: as many lines out as in, a blank line stays blank.

    A line break inside a translation becomes a space. With --n-best every line of output is
    NUMBER<TAB>SCORE<TAB>TEXT; a score is the log-probability divided by the length penalty. With
    --json every line is an object with text, score, candidates, warnings and findings, which are
    the warnings as kind (loop, repetition, copy, short, long, lost_number, lost_placeholder,
    lost_url, split, cut, empty), message and details. Warnings go to stderr with FILE:LINE, or the
    number of the line of stdin or of the --text.

    --explain-search prints under every translation what the beam search did, step by step; with
    --json as "search", beside the log-probability of every token and the attention to the source.

    \b
    dragoman translate --model models/en-de < new.en > new.de
    dragoman translate --model models/en-de --text "Good morning!"
    """
    from dragoman.cli.loading import load_translator

    if text and files:
        raise UserError("--text and files together", "give one of them")
    translator = load_translator(
        model, beam, length_penalty, device, n_best, settings or [], mbr, engine
    )
    options.check_languages(translator.config, source_language, target_language)
    paths = [] if text else files or [_STDIN]
    places: deque[str] = deque()
    lines = _lines(text or [], paths, errors.value, places)
    form = _json_lines if as_json else _table_lines if n_best > 1 else _text_lines
    prefixes = None if prefix is None else read_lines(prefix, errors.value)
    asked = _Asked(n_best, prefixes, explain_search)
    with _output(output) as stream:
        found = _translations(translator, lines, asked, _manner(paths, output))
        for number, translation in enumerate(found, start=1):
            place = places.popleft()
            for warning in translation.warnings:
                print(printable(f"{place}: {warning}"), file=sys.stderr)
            for line in form(number, translation, scores):
                stream.write(line.encode("utf-8", "surrogatepass") + b"\n")
            for trace in [] if as_json else translation.traces:
                for line in trace.render():
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


@dataclass(frozen=True)
class _Asked:
    """What is wanted of every line: candidates, a beginning, an explanation of the search."""

    n_best: int
    prefixes: Iterable[str] | None
    explain: bool


def _translations(
    translator: "Translator", lines: Iterable[str], asked: _Asked, how: _Manner
) -> "Iterator[Translation]":
    from dragoman.training.progress import stage

    n_best, prefixes, explain = asked.n_best, asked.prefixes, asked.explain
    if how.typed and prefixes is None:  # answer every line before the next is typed
        for line in lines:
            yield from translator.translate([line], n_best, (), explain, explain)
        return
    found = translator.translate_stream(lines, n_best, prefixes, explain, explain)
    if how.bar:
        with stage("translating") as advance:
            for translation in found:
                yield translation
                advance(1)
    else:
        yield from found


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
    record: dict[str, Any] = {
        "line": number,
        "text": translation.text,
        "score": translation.score,
        "candidates": [_candidate_record(candidate) for candidate in translation.candidates],
        "warnings": translation.warnings,
        "findings": [finding.to_json() for finding in translation.findings],
    }
    if translation.traces:
        record["source_tokens"] = translation.source_tokens
        record["search"] = [trace.to_json() for trace in translation.traces]
    yield json.dumps(record, ensure_ascii=False)


def _candidate_record(candidate: "Candidate") -> dict[str, Any]:
    record: dict[str, Any] = {
        "text": candidate.text,
        "score": candidate.score,
        "log_prob": candidate.log_prob,
    }
    if candidate.utility is not None:
        record["utility"] = candidate.utility
    if candidate.token_log_probs is not None:
        record["tokens"] = candidate.tokens
        record["token_log_probs"] = candidate.token_log_probs
        record["attention"] = candidate.attention
    return record
