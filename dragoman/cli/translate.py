"""dragoman translate"""

import select
import sys
from collections.abc import Iterator
from concurrent.futures import BrokenExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dragoman.cli import options
from dragoman.cli.application import app
from dragoman.errors import UserError
from dragoman.text.display import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from dragoman.cli.translation_bar import Advance
    from dragoman.cli.translation_input import Input
    from dragoman.decoding.answers import Answer
    from dragoman.decoding.pipeline import Entry
    from dragoman.decoding.recipe import Recipe
    from dragoman.decoding.translator import Translator
    from dragoman.decoding.workers import Wanted

    Write = Callable[[list[bytes]], None]
    Window = list[tuple[Entry, Answer]]

# A write of so much to a pipe is done as a whole or not at all.
_ATOMIC = getattr(select, "PIPE_BUF", 512)

_HELP = """\
Translate text, line by line: as many lines out as in, a blank line stays blank.

A line break inside a translation becomes a space. With --n-best every line of output is
NUMBER<TAB>SCORE<TAB>TEXT; a score is the log-probability divided by the length penalty. With
--json every line is an object with text, score, candidates, warnings and findings, which are
the warnings as kind (loop, repetition, copy, short, long, lost_number, lost_placeholder,
lost_url, split, cut, empty), message and details. Warnings go to stderr with FILE:LINE, or the
number of the line of stdin or of the --text.

Input may be endless. With --output, a job that was interrupted goes on where it stopped when the
same command is run again; until it is done, its work is in FILE.partial and FILE.journal.

--explain-search prints under every translation what the beam search did, step by step; with
--json as "search", beside the log-probability of every token and the attention to the source.

\b
dragoman translate --model models/en-de < new.en > new.de
dragoman translate --model models/en-de --text "Good morning!"
dragoman translate --model models/en-de large.en --output large.de
dragoman translate --model models/de-en mono.de --output mono.en --ray auto
"""

_Files = Annotated[
    list[Path] | None,
    typer.Argument(metavar="FILES", help="Text, one segment a line; else stdin."),
]
_Texts = Annotated[
    list[str] | None, typer.Option(metavar="TEXT", help="Text to translate; may be repeated.")
]
_OutputFile = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Write there instead of stdout; can be gone on with."),
]
_NBest = Annotated[
    int,
    typer.Option(
        metavar="N",
        min=1,
        max=1000,
        help="Print N translations of every line; without --beam, the beam is at least N.",
    ),
]


@app.command(short_help="Translate text, line by line.", help=_HELP)
def translate(
    model: options.ModelFolders,
    files: _Files = None,
    text: _Texts = None,
    output: _OutputFile = None,
    beam: options.Beam = None,
    length_penalty: options.LengthPenalty = None,
    settings: options.SearchSettings = None,
    mbr: options.BayesRisk = None,
    prefix: options.PrefixFile = None,
    explain_search: options.ExplainSearch = False,
    n_best: _NBest = 1,
    scores: Annotated[bool, typer.Option("--scores", help="Print SCORE<TAB>TEXT.")] = False,
    as_json: options.AsJson = False,
    source_language: options.WantedSource = None,
    target_language: options.WantedTarget = None,
    device: options.Device = "auto",
    engine: options.Engine = options.EngineName.AUTO,
    threads: options.Threads = None,
    ray: options.RayAddress = None,
    errors: options.ErrorsOption = options.Errors.STRICT,
) -> None:
    """Read the options and translate; what they mean is in the help above."""
    from dragoman.cli.destination import check_destination
    from dragoman.cli.loading import find_recipe, natively
    from dragoman.cli.translation_input import STDIN, Input
    from dragoman.decoding.answers import Form
    from dragoman.decoding.workers import Wanted
    from dragoman.training.progress import say

    if text and files:
        raise UserError("--text and files together", "give one of them")
    if ray is not None and threads is not None:
        raise UserError("--ray and --threads exclude each other", "the cluster has its own cores")
    given = Input(text or [], [] if text else files or [STDIN], prefix, errors.value)
    check_destination("--output", output, [*given.paths, prefix, *model])
    recipe, description = find_recipe(
        model, beam, length_penalty, device, n_best, settings or [], mbr, engine
    )
    options.check_languages(description.config, source_language, target_language)
    given.context = description.config.data.context_sentences
    if prefix is not None or explain_search:
        recipe = natively(recipe, "--prefix" if prefix is not None else "--explain-search")
    recipe = replace(recipe, choice=replace(recipe.choice, threads=threads))
    translator = recipe.open(say, description)
    form = Form("json" if as_json else "table" if n_best > 1 else "text", scores)
    _Job(recipe, translator, given, Wanted(form, n_best, explain_search), ray).run(output)


class _Job:
    """One run of the command: its input through the workers to its output."""

    def __init__(
        self,
        recipe: "Recipe",
        translator: "Translator",
        given: "Input",
        wanted: "Wanted",
        ray: str | None,
    ) -> None:
        self._recipe, self._translator, self._given = recipe, translator, given
        self._wanted, self._ray = wanted, ray

    def run(self, output: Path | None) -> None:
        """Translate to a file or to stdout. Raises UserError, and Exit(1) when a worker dies."""
        try:
            if output is None:
                self._translate(_to_stdout, 0, not sys.stdout.isatty())
            else:
                self._to_file(output)
        except BrokenExecutor:
            print("error: a worker process died, often for want of memory", file=sys.stderr)
            print("hint: run it with fewer --threads; --output keeps what is done", file=sys.stderr)
            raise typer.Exit(1) from None

    def _to_file(self, output: Path) -> None:
        from dragoman.decoding.journal import FileJob
        from dragoman.training.progress import say

        with FileJob(output, self._identity()) as job:
            if job.note is not None:
                say(printable(job.note))
            write = lambda answers: job.write(b"".join(answers), len(answers))  # noqa: E731
            self._translate(write, job.lines, True)

    def _identity(self) -> dict[str, Any]:
        """What must be the same for a file to be gone on with."""
        from dragoman import __version__
        from dragoman.model.description import describe

        engine = self._translator.engine
        precision = getattr(getattr(engine, "fast", None), "precision", None)
        return {
            "input": self._given.identity(),
            "model": [describe(folder).weights_digest() for folder in self._recipe.folders],
            "version of Dragoman": __version__,
            "engine": [type(engine).__name__, precision],
            "kind of output": repr(self._wanted),
            "search": self._recipe.search.model_dump(exclude={"batch_tokens"}),
        }

    def _translate(self, write: "Write", done: int, free: bool) -> None:
        """Translate what is not done; free: whether the terminal is free for a bar."""
        from dragoman.decoding.pipeline import Pace, Pipeline
        from dragoman.decoding.workers import Workers

        given = self._given
        if self._ray is not None:
            self._translate_on_cluster(self._ray, write, done, free)
            return
        threads = self._recipe.choice.threads
        alone = given.typed or len(given.texts) == 1
        workers = Workers(self._recipe, self._translator, self._wanted, threads, alone)
        pace = Pace(not given.stored, given.prefix is None, done + 1)
        with (
            Pipeline(given.entries(done), workers, pace) as pipeline,
            _bar(given.size, free) as advance,
        ):
            self._write_all(pipeline, write, advance, done)

    def _translate_on_cluster(self, address: str, write: "Write", done: int, free: bool) -> None:
        from dragoman.scale.ray_data import RayData
        from dragoman.scale.translating import translate_on_cluster

        entries = self._given.entries(done)
        with RayData(address) as cluster, _bar(self._given.size, free) as advance:
            windows = translate_on_cluster(
                cluster.map, self._recipe, self._wanted, entries, done + 1
            )
            self._write_all(windows, write, advance, done)

    def _write_all(
        self, windows: "Iterable[Window]", write: "Write", advance: "Advance", done: int
    ) -> None:
        from dragoman.cli.translation_input import line_size

        number = done
        for window in windows:
            if number == done:
                advance(0, self._given.skipped)
            answers, warnings = [], []
            for entry, answer in window:
                number += 1
                answers.append(answer.written(number))
                warnings += [f"{entry.place}: {warning}" for warning in answer.warnings]
            write(answers)
            for warning in warnings:
                print(printable(warning), file=sys.stderr)
            advance(len(window), sum(line_size(entry.text) for entry, _ in window))


def _to_stdout(answers: list[bytes]) -> None:
    """Write whole lines at a time, so that an interrupt leaves none in half."""
    stream, block = sys.stdout.buffer, b""
    for answer in answers:
        if block and len(block) + len(answer) > _ATOMIC:
            stream.write(block)
            stream.flush()
            block = b""
        block += answer
    stream.write(block)
    stream.flush()


@contextmanager
def _bar(size: int | None, free: bool) -> Iterator["Advance"]:
    if not free or not sys.stderr.isatty():
        yield lambda lines, done: None
        return
    from dragoman.cli.translation_bar import translation_bar

    with translation_bar(size) as advance:
        yield advance
