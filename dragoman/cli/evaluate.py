"""dragoman evaluate"""

import json
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from dragoman.cli import options
from dragoman.cli.application import app
from dragoman.corpus.pairs import Pair
from dragoman.errors import UserError
from dragoman.text.lines import display_name, one_line, read_lines, write_lines

if TYPE_CHECKING:
    from dragoman.evaluation.comparison import Comparison, System
    from dragoman.evaluation.placeholders import Survival

Text = TypeVar("Text", bound=str | Pair)
# The most characters of a file that is measured, with something for each line.
_LARGEST, _LINE_SIZE = 500_000_000, 50
# Options that mean nothing without --model.
_FOR_MODELS = {"beam", "length_penalty", "source_language", "device", "engine"}

_Baseline = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="The system to compare with. [default: the first]"),
]
_FilesLanguage = Annotated[
    str | None,
    typer.Option(metavar="CODE", help="Of --hypotheses, if no file name such as x.de says."),
]
_Comet = Annotated[
    Path | None,
    typer.Option(metavar="CHECKPOINT", help="Measure COMET as well, with this model.ckpt."),
]
_Bootstrap = Annotated[
    int, typer.Option(metavar="N", min=0, max=100_000, help="Resamples for intervals; 0: none.")
]


_HELP = """\
Measure models and translations against references: BLEU, chrF2 and TER, with signatures.

Every score has a 95% interval. Of several systems, the first (models come before files) or
--baseline is what the others are compared with, by paired bootstrap resampling. Scores by
length follow, and with placeholders such as {name} in the source how many of them stand in the
translations unchanged. --html writes one page with all this and the sentences in which the
systems differ most.

\b
dragoman evaluate --model models/en-de --source test.en --reference test.de
dragoman evaluate --hypotheses old.de --hypotheses new.de --reference test.de
"""


@app.command(short_help="Measure models or translations against references.", help=_HELP)
def evaluate(
    context: typer.Context,
    model: Annotated[
        list[str] | None,
        typer.Option(metavar="[NAME=]DIR", help="A model folder to measure; may be repeated."),
    ] = None,
    source: options.SourceFile = None,
    reference: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="Reference translations, line by line; may be repeated."),
    ] = None,
    data: options.TableFile = None,
    hypotheses: Annotated[
        list[str] | None,
        typer.Option(metavar="[NAME=]FILE", help="Translations to measure; may be repeated."),
    ] = None,
    baseline: _Baseline = None,
    output: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Keep the translations of one model there.")
    ] = None,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a page to look at there.")
    ] = None,
    comet: _Comet = None,
    bootstrap: _Bootstrap = 1000,
    beam: options.Beam = None,
    length_penalty: options.LengthPenalty = None,
    as_json: options.AsJson = False,
    source_language: options.WantedSource = None,
    target_language: _FilesLanguage = None,
    device: options.Device = "auto",
    engine: options.Engine = options.EngineName.AUTO,
    errors: options.ErrorsOption = options.Errors.STRICT,
) -> None:
    """Read the options and measure; what they mean is in the help above."""
    _refuse_for_files(context, model)
    texts = _texts(source, reference or [], data, errors)
    systems = _systems(model or [], hypotheses or [], baseline)
    _check_destinations(output, html, systems, [source, data, *(reference or [])])
    language = target_language or _guessed(reference or [], systems)
    for system in systems:
        if system.is_model:
            language = _translate(system, texts, context.params)
        else:
            system.lines = _read(system, len(texts.references[0]), errors)
    if output is not None:
        write_lines(output, map(one_line, systems[0].lines))
    _report(texts, systems, language or "unknown", (html, comet, bootstrap, as_json))


@dataclass
class _System:
    """What is to be measured, where it comes from, and its translations once they are there."""

    name: str
    path: Path
    is_model: bool
    lines: list[str] = field(default_factory=list)
    seconds: float | None = None


@dataclass(frozen=True)
class _Texts:
    sources: list[str] | None
    references: list[list[str]]
    source_language: str


def _check_destinations(
    output: Path | None, html: Path | None, systems: list[_System], texts: list[Path | None]
) -> None:
    """Raises UserError, before there is work that would be lost."""
    from dragoman.cli.destination import check_destination

    if output is not None and len(systems) > 1:
        raise UserError("--output keeps one system's translations", "measure one alone")
    read = [*texts, *(system.path for system in systems)]
    check_destination("--output", output, read)
    check_destination("--html", html, [*read, output])


def _refuse_for_files(context: typer.Context, model: list[str] | None) -> None:
    """Raises UserError for an option that only a model obeys."""
    given = [
        parameter.opts[0]
        for parameter in context.command.params
        if parameter.name in _FOR_MODELS
        and context.params[parameter.name] not in (None, parameter.default)
    ]
    if given and not model:
        raise UserError(
            f"--hypotheses are translations already; {', '.join(given)} would change nothing",
            "give either a model with its options or --hypotheses",
        )


def _systems(models: list[str], files: list[str], baseline: str | None) -> list[_System]:
    """The systems of a command line under their names, the baseline first. Raises UserError."""
    given = [(text, True) for text in models] + [(text, False) for text in files]
    if not given:
        raise UserError("nothing to measure", "give --model and --source, or --hypotheses")
    parts = [(*_named(text), is_model) for text, is_model in given]
    short = [name or Path(path).resolve().name for name, path, _ in parts]
    systems = []
    for (name, path, is_model), default in zip(parts, short, strict=True):
        if path == "-":
            default = name or "stdin"
        elif not name and short.count(default) > 1:
            default = path
        systems.append(_System(default, Path(path), is_model))
    for number, system in enumerate(systems):
        for other in systems[:number]:
            if other.name == system.name:
                raise UserError(f"two systems are called '{system.name}'", "name them: NAME=PATH")
            if other.path.resolve() == system.path.resolve():
                raise UserError(
                    f"{system.path} is given twice, as '{other.name}' and '{system.name}'",
                    "a system differs from itself in nothing",
                )
    if baseline is None:
        return systems
    first = [system for system in systems if system.name == baseline]
    if not first:
        names = ", ".join(system.name for system in systems)
        raise UserError(f"--baseline {baseline}: no system has that name", f"there are: {names}")
    return first + [system for system in systems if system is not first[0]]


def _named(text: str) -> tuple[str, str]:
    """(name or "", path) of NAME=PATH or PATH; a path that exists is one, whatever is in it."""
    name, equals, path = text.partition("=")
    if not equals or Path(text).exists():
        return "", text
    if not name.strip() or not path:
        raise UserError(f"'{text}': name or path is empty", "write NAME=PATH")
    return name.strip(), path


def _guessed(references: Sequence[Path], systems: Sequence[_System]) -> str | None:
    paths = [*references, *(system.path for system in systems if not system.is_model)]
    return next((code for path in paths if (code := options.guess_language(path))), None)


def _texts(
    source: Path | None, references: list[Path], data: Path | None, errors: options.Errors
) -> _Texts:
    from dragoman.corpus.pairs import read_parallel, read_table

    for number, path in enumerate(references):
        if path.resolve() in [other.resolve() for other in references[:number]]:
            raise UserError(f"{path}: a reference given twice", "give it once")
    code = options.guess_language(source) or "unknown"
    if data is not None:
        if source is not None or references:
            raise UserError("--data holds both sides", "leave --source and --reference out")
        pairs = _whole(read_table(data, errors.value), data)
    elif not references:
        raise UserError("no references", "give --reference, or --data with both sides")
    elif source is not None:
        pairs = _whole(read_parallel(source, references[0], errors.value), source)
    else:
        first = _whole(read_lines(references[0], errors.value), references[0])
        return _Texts(None, _aligned(first, references, errors), code)
    targets = _aligned([pair.target for pair in pairs], references or [data or Path()], errors)
    return _Texts([pair.source for pair in pairs], targets, code)


def _whole(items: Iterable[Text], path: Path) -> list[Text]:
    """All lines or pairs of a file. Raises UserError for one that would fill the memory."""
    found, size = list[Text](), 0
    for number, item in enumerate(items, start=1):
        length = len(item) if isinstance(item, str) else len(item.source) + len(item.target)
        size += length + _LINE_SIZE
        if size > _LARGEST:
            raise UserError(
                f"{display_name(path)}:{number}: too large to be measured: up to here it has more "
                f"than {_LARGEST // 10**6:,} million characters",
                "measure a part of it",
            )
        found.append(item)
    return found


def _aligned(first: list[str], paths: Sequence[Path], errors: options.Errors) -> list[list[str]]:
    """All references; each further one must have as many lines as the first."""
    if not first:
        raise UserError(f"{display_name(paths[0])}: is empty", "there is nothing to score")
    references = [first]
    for path in paths[1:]:
        lines = _whole(read_lines(path, errors.value), path)
        _check_count(display_name(path), len(lines), display_name(paths[0]), len(first))
        references.append(lines)
    return references


def _check_count(name: str, count: int, other: str, expected: int) -> None:
    if count != expected:
        raise UserError(
            f"{name} has {count:,} lines, {other} has {expected:,}",
            "line n of one file must belong to line n of the other; lines end at LF or CRLF only",
        )


def _read(system: _System, expected: int, errors: options.Errors) -> list[str]:
    lines = _whole(read_lines(system.path, errors.value), system.path)
    _check_count(display_name(system.path), len(lines), "the reference", expected)
    return lines


def _translate(system: _System, texts: _Texts, given: dict[str, Any]) -> str:
    """Translate the source with a model; the code of the language that it translates into."""
    if texts.sources is None:
        raise UserError("nothing to measure", "give --model and --source, or --hypotheses")
    from dragoman.cli.loading import load_translator
    from dragoman.cli.translation_run import translate_all

    translator = load_translator(
        system.path,
        given["beam"],
        given["length_penalty"],
        given["device"],
        engine=given["engine"],
    )
    options.check_languages(translator.config, given["source_language"], given["target_language"])
    started = time.monotonic()
    found = translate_all(translator, texts.sources, f"translating with {system.name}")
    system.seconds = time.monotonic() - started
    system.lines = [translation.text for translation in found]
    return translator.config.target_language


def _report(
    texts: _Texts,
    systems: list[_System],
    language: str,
    how: tuple[Path | None, Path | None, int, bool],
) -> None:
    from dragoman.evaluation.comparison import System, compare
    from dragoman.evaluation.placeholders import placeholder_survival

    html, comet, samples, as_json = how
    measured = [System(system.name, system.lines) for system in systems]
    extra = {} if comet is None else {"COMET": _comet(texts, measured, comet)}
    sources = None if texts.sources is None else (texts.sources, texts.source_language)
    comparison = compare(measured, texts.references, language, sources, samples, extra)
    survivals = {
        system.name: placeholder_survival(texts.sources, texts.references[0], system.lines)
        for system in systems
        if texts.sources is not None
    }
    if as_json:
        print(json.dumps(_record(comparison, survivals, systems), ensure_ascii=False))
    else:
        from dragoman.evaluation.table import render

        print(render(comparison, survivals))
    if html is not None:  # last: a full disk takes the scores from nobody
        from dragoman.evaluation.page import write_page

        write_page(html, comparison, measured, texts.references, texts.sources, survivals)


def _comet(texts: _Texts, systems: "list[System]", checkpoint: Path) -> list[list[float]]:
    from dragoman.evaluation.comet import comet_scores

    if texts.sources is None:
        raise UserError("--comet reads the source as well", "give --source")
    lines = [system.translations for system in systems]
    return comet_scores(texts.sources, lines, texts.references[0], checkpoint)


def _record(
    comparison: "Comparison", survivals: "dict[str, Survival]", systems: list[_System]
) -> dict[str, Any]:
    """Everything measured, and where the systems came from."""
    record = comparison.to_json()
    for entry, system, result in zip(record["systems"], systems, comparison.systems, strict=True):
        entry["path"] = str(system.path)
        entry["kind"] = "model" if system.is_model else "file"
        entry["seconds"] = None if system.seconds is None else round(system.seconds, 2)
        entry["sentence_chrf"] = [round(score, 2) for score in result.sentence_chrf]
        survival = survivals.get(system.name)
        entry["placeholders"] = None if survival is None else asdict(survival)
    return record
