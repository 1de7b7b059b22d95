"""dragoman evaluate"""

import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dragoman.cli import options
from dragoman.cli.application import app
from dragoman.errors import UserError
from dragoman.text.lines import one_line, read_lines, write_lines

if TYPE_CHECKING:
    from dragoman.evaluation.metrics import Metrics
    from dragoman.evaluation.placeholders import Survival

# Options that mean nothing beside --hypotheses.
_FOR_MODELS = {"model", "beam", "length_penalty", "source_language", "device"}


@app.command(short_help="Measure a model against references.")
def evaluate(
    context: typer.Context,
    model: Annotated[
        Path | None, typer.Option(metavar="DIR", help="The model folder to measure.")
    ] = None,
    source: options.SourceFile = None,
    reference: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Reference translations, line by line.")
    ] = None,
    data: options.TableFile = None,
    hypotheses: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Translations to measure, not a model.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Keep the translations there.")
    ] = None,
    beam: options.Beam = None,
    length_penalty: options.LengthPenalty = None,
    as_json: options.AsJson = False,
    source_language: options.WantedSource = None,
    target_language: Annotated[
        str | None,
        typer.Option(metavar="CODE", help="Of --hypotheses, if no file name such as x.de says."),
    ] = None,
    device: options.Device = "auto",
    errors: options.ErrorsOption = options.Errors.STRICT,
) -> None:
    """Measure a model, or translations, against references: BLEU and chrF with their signatures.

    With placeholders such as {name} in the source: how many stand in the translations unchanged.

    \b
    dragoman evaluate --model models/en-de --source test.en --reference test.de
    dragoman evaluate --hypotheses new.de --reference test.de
    """
    started = time.monotonic()
    if hypotheses is not None:
        _refuse_beside_hypotheses(context)
    texts = _texts(source, reference, data, errors)
    if hypotheses is not None:
        translations = list(read_lines(hypotheses, errors.value))
        guessed = options.guess_language(reference) or options.guess_language(hypotheses)
        language = target_language or guessed or "unknown"
    elif model is None or texts.sources is None:
        raise UserError("nothing to measure", "give --model and --source, or --hypotheses")
    else:
        from dragoman.cli.loading import load_translator
        from dragoman.cli.validation import translate_all

        translator = load_translator(model, beam, length_penalty, device)
        options.check_languages(translator.config, source_language, target_language)
        language = translator.config.target_language
        found = translate_all(translator, texts.sources, "translating")
        translations = [translation.text for translation in found]
    _report(texts, translations, language, output, as_json, time.monotonic() - started)


def _refuse_beside_hypotheses(context: typer.Context) -> None:
    """Raises UserError for an option that only a model obeys."""
    given = [
        parameter.opts[0]
        for parameter in context.command.params
        if parameter.name in _FOR_MODELS
        and context.params[parameter.name] not in (None, parameter.default)
    ]
    if given:
        raise UserError(
            f"--hypotheses are translations already; {', '.join(given)} would change nothing",
            "give either a model with its options or --hypotheses",
        )


@dataclass(frozen=True)
class _Texts:
    sources: list[str] | None
    references: list[str]


def _texts(
    source: Path | None, reference: Path | None, data: Path | None, errors: options.Errors
) -> _Texts:
    from dragoman.corpus.pairs import read_parallel, read_table

    if data is not None:
        if source is not None or reference is not None:
            raise UserError("--data holds both sides", "leave --source and --reference out")
        pairs = list(read_table(data, errors.value))
    elif reference is None:
        raise UserError("no references", "give --reference, or --data with both sides")
    elif source is None:
        return _Texts(None, list(read_lines(reference, errors.value)))
    else:
        pairs = list(read_parallel(source, reference, errors.value))
    return _Texts([pair.source for pair in pairs], [pair.target for pair in pairs])


def _report(
    texts: _Texts,
    translations: list[str],
    language: str,
    output: Path | None,
    as_json: bool,
    seconds: float,
) -> None:
    from dragoman.evaluation.metrics import evaluate_corpus
    from dragoman.evaluation.placeholders import placeholder_survival

    if output is not None:
        write_lines(output, map(one_line, translations))
    metrics = evaluate_corpus(translations, texts.references, language)
    survival = None
    if texts.sources is not None:
        survival = placeholder_survival(texts.sources, texts.references, translations)
    if as_json:
        record = metrics.to_json() | {"seconds": round(seconds, 2)}
        if survival is not None:
            record |= {"placeholders": asdict(survival)}  # type: ignore[dict-item]
        print(json.dumps(record, ensure_ascii=False))
    else:
        print(render(metrics, survival))
        print(f"{seconds:.1f} seconds")


def render(metrics: "Metrics", survival: "Survival | None") -> str:
    """Scores and placeholder survival as lines for a person."""
    lines = [metrics.render()]
    if survival is not None and survival.share is not None:
        share = 100 * survival.share
        lines.append(f"placeholders kept: {survival.kept:,} of {survival.total:,} ({share:.1f}%)")
    return "\n".join(lines)
