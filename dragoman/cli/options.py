"""Options that several commands share, and what they mean."""

import re
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dragoman.corpus.pairs import COMPRESSED_SUFFIXES
from dragoman.errors import UserError
from dragoman.text.languages import plain_code

if TYPE_CHECKING:
    from dragoman.corpus.prepared import CorpusFiles


class EngineName(StrEnum):
    """What runs the model."""

    AUTO = "auto"
    NATIVE = "native"
    CTRANSLATE2 = "ctranslate2"


class Errors(StrEnum):
    """What to do with bytes that are not UTF-8."""

    STRICT = "strict"
    REPLACE = "replace"


class TaskName(StrEnum):
    """What a model is trained for."""

    TRANSLATION = "translation"
    LM = "lm"
    MLM = "mlm"
    CLASSIFICATION = "classification"
    PARSING = "parsing"


class PageLanguageName(StrEnum):
    """What a page speaks to its reader."""

    EN = "en"
    ZH = "zh"


SourceFile = Annotated[
    Path | None, typer.Option("--source", metavar="FILE", help="Source text, one segment a line.")
]
TargetFile = Annotated[
    Path | None,
    typer.Option("--target", metavar="FILE", help="Its translation, line by line."),
]
TableFile = Annotated[
    Path | None,
    typer.Option(
        "--data",
        metavar="FILE",
        help='Both sides, or texts and labels: .tsv, or .jsonl with "source" and "target".',
    ),
]
Engine = Annotated[
    EngineName,
    typer.Option(
        help="What runs the model: auto is ctranslate2 on a CPU, native on a GPU and for all that "
        "ctranslate2 cannot do."
    ),
]
Threads = Annotated[
    int | None,
    typer.Option(
        "--threads", metavar="N", min=1, max=1024, help="Cores to translate on. [default: all]"
    ),
]
OutFolder = Annotated[Path, typer.Option("--out", metavar="DIR", help="The folder to make.")]
PreparedFolder = Annotated[
    Path | None,
    typer.Option("--prepared", metavar="DIR", help="A folder of dragoman prepare, not files."),
]
Budget = Annotated[
    str | None,
    typer.Option(
        "--budget",
        metavar="LENGTH",
        help="Time for everything (90s, 10m, 2h) or updates (5000-steps, 100k-steps).",
    ),
]
Resume = Annotated[
    bool, typer.Option("--resume", help="Go on with the training in --out; needs nothing else.")
]
ValidSource = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Validation source; else validation pairs are set aside."),
]
ValidTarget = Annotated[
    Path | None,
    typer.Option(
        "--valid-target",
        "--valid-text",
        metavar="FILE",
        help="Validation target, line by line; of --text, validation text.",
    ),
]
TextFile = Annotated[
    Path | None,
    typer.Option("--text", metavar="FILE", help="Text, a text a line; a treebank for parsing."),
]
Task = Annotated[
    TaskName | None,
    typer.Option("--task", help="What the model is to do. [default: translation; with --text lm]"),
]
SourceLanguage = Annotated[
    str | None,
    typer.Option(metavar="CODE", help="Such as en; else from a file name such as train.en."),
]
TargetLanguage = Annotated[
    str | None,
    typer.Option(metavar="CODE", help="Such as de; else from a file name such as train.de."),
]
TokenizerFile = Annotated[
    Path | None,
    typer.Option("--tokenizer", metavar="FILE", help="An existing tokenizer.model to use."),
]
InitialModel = Annotated[
    Path | None,
    typer.Option(
        "--init-from",
        metavar="DIR",
        help="Go on from this model folder on new data, at a tenth of the learning rate.",
    ),
]
InitialEncoder = Annotated[
    Path | None,
    typer.Option(
        "--init-encoder-from",
        metavar="DIR",
        help="A new translation model with the tokenizer and encoder of this one of --task mlm.",
    ),
]
Preset = Annotated[
    str | None,
    typer.Option(
        "--preset",
        metavar="NAME",
        help="tiny, small, medium, small-fast, medium-fast, paper-base or paper-big; else by "
        "corpus size.",
    ),
]
ConfigFile = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help="Settings in a TOML file.")
]
Assignments = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="SECTION.NAME=VALUE",
        help="One setting, such as training.warmup_steps=8000; may be repeated.",
    ),
]
ErrorsOption = Annotated[
    Errors, typer.Option("--errors", help="Invalid UTF-8: stop, or put U+FFFD in its place.")
]
Workers = Annotated[
    int | None,
    typer.Option(
        "--workers",
        metavar="N",
        min=1,
        max=1024,
        help="Processes that work at once. [default: one for each core]",
    ),
]
RayAddress = Annotated[
    str | None,
    typer.Option(
        "--ray",
        metavar="ADDRESS",
        help="Work on a Ray cluster: auto, local or HOST:PORT. All see folders as the same ones.",
    ),
]
Device = Annotated[str, typer.Option("--device", metavar="NAME", help="auto, cpu, cuda or cuda:N.")]
ModelFolder = Annotated[
    Path, typer.Option("--model", metavar="DIR", help="A model folder that train has written.")
]
ModelFolders = Annotated[
    list[Path],
    typer.Option(
        "--model", metavar="DIR", help="A model folder; several of one tokenizer: an ensemble."
    ),
]
SearchSettings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="search.NAME=VALUE",
        help="One search setting, as search.sample=true; may be repeated.",
    ),
]
BayesRisk = Annotated[
    int | None,
    typer.Option(
        "--mbr", metavar="N", min=2, max=1000, help="Minimum Bayes risk over N samples (chrF)."
    ),
]
PrefixFile = Annotated[
    Path | None,
    typer.Option(
        "--prefix", metavar="FILE", help="What each translation begins with; a line may be blank."
    ),
]
ExplainSearch = Annotated[
    bool,
    typer.Option("--explain-search", help="Show what the search kept and pruned at every step."),
]
Lines = Annotated[
    Path,
    typer.Argument(
        metavar="FILE", help="Text, one segment a line. [default: stdin]", show_default=False
    ),
]
PageLanguage = Annotated[PageLanguageName, typer.Option("--lang", help="The language of the page.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]

Beam = Annotated[
    int | None,
    typer.Option(
        "--beam",
        metavar="N",
        min=1,
        max=1000,
        help="Beam size; 1 is greedy. [default: the model's]",
    ),
]
LengthPenalty = Annotated[
    float | None,
    typer.Option(
        "--length-penalty",
        metavar="ALPHA",
        min=0,
        max=10,
        help="((5 + length) / 6)^ALPHA divides. [default: the model's]",
    ),
]
WantedSource = Annotated[
    str | None,
    typer.Option("--source-language", metavar="CODE", help="Refuse a model of another one."),
]
WantedTarget = Annotated[
    str | None,
    typer.Option("--target-language", metavar="CODE", help="Refuse a model of another one."),
]

UNKNOWN = ("source", "target")
"""What languages are called that nobody named."""
_NO_LANGUAGE = frozenset(
    "txt tsv csv ptb mrg src tgt trg ref raw tok bpe spm out hyp log dat lst low sys xml sgm "
    "md".split()
)
_LANGUAGE = re.compile(r"[A-Za-z]{2,3}(?:[-_][A-Za-z0-9]{2,8})*")


def guess_language(path: Path | None) -> str | None:
    """The language that a file name ends with: train.en, train.de.gz, train.zh-Hans."""
    if path is None:
        return None
    suffixes = path.suffixes
    while suffixes and suffixes[-1].lower() in COMPRESSED_SUFFIXES:
        suffixes.pop()
    code = suffixes[-1].removeprefix(".") if suffixes else ""
    known = _LANGUAGE.fullmatch(code) and code.lower() not in _NO_LANGUAGE
    return code if known else None


def languages(
    source: str | None,
    target: str | None,
    settings: dict[str, Any],
    files: tuple[Path | None, Path | None, Path | None],
    text: Path | None = None,
) -> tuple[str, str]:
    """Source and target language: from flags, else settings, else file names; of a text one."""
    if text is not None:
        source = target = source or target
        files = text, text, None
    return (
        source or settings.get("source_language") or guess_language(files[0]) or UNKNOWN[0],
        target or settings.get("target_language") or guess_language(files[1]) or UNKNOWN[1],
    )


def corpus_files(
    languages: tuple[str, str],
    files: tuple[Path | None, Path | None, Path | None],
    validation: tuple[Path | None, Path | None],
    tokenizer: Path | None,
    errors: Errors = Errors.STRICT,
    task: str = "translation",
    text: Path | None = None,
) -> "CorpusFiles":
    """The files of a command line, checked. Raises UserError for a mixture that means nothing."""
    from dragoman.corpus.prepared import TEXT_TASKS, CorpusFiles

    source, target, table = files
    if task in (*TEXT_TASKS, "parsing"):
        if text is None or any((*files, validation[0])):
            what = "a treebank" if task == "parsing" else "text alone"
            raise UserError(
                f"--task {task} learns from {what}", "give --text, and --valid-text if any"
            )
        return CorpusFiles(
            *languages,
            text=text,
            valid_text=validation[1],
            tokenizer=tokenizer,
            errors=errors.value,
            task=task,
        )
    if text is not None:
        raise UserError(f"--task {task} does not learn from --text", "give --task lm")
    if table is not None and (source is not None or target is not None):
        raise UserError("--data holds both sides", "give either --data or --source and --target")
    if table is None and (source is None or target is None):
        raise UserError("no pairs given", "give --source and --target, or --data with both sides")
    return CorpusFiles(
        *languages,
        source=source,
        target=target,
        table=table,
        valid_source=validation[0],
        valid_target=validation[1],
        tokenizer=tokenizer,
        errors=errors.value,
        task=task,
    )


def check_languages(model: Any, source: str | None, target: str | None) -> None:
    """Refuse a model of other languages than a person asked for. Raises UserError."""
    for wanted, own in ((source, model.source_language), (target, model.target_language)):
        if wanted is not None and plain_code(wanted) != plain_code(own):
            pair = f"{model.source_language}->{model.target_language}"
            raise UserError(f"this model is {pair}", f"it cannot do '{wanted}'")


_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}


def parse_budget(text: str | None) -> tuple[float | None, int | None]:
    """(seconds, steps) of a budget such as 90s, 10m, 2h, 1h30m, 5000-steps, 100k-steps."""
    if text is None:
        return None, None
    steps = re.fullmatch(r"(\d+(?:\.\d+)?)(k?)[- ]?steps?", text.strip().lower())
    if steps and 0 < (count := float(steps[1]) * (1000 if steps[2] else 1)) <= 1e12:
        return None, max(1, round(count))
    parts = re.findall(r"(\d+(?:\.\d+)?)([smh])", text.strip().lower())
    written = "".join(number + unit for number, unit in parts)
    seconds = sum(float(number) * _UNITS[unit] for number, unit in parts)
    if not parts or written != text.strip().lower() or not 0 < seconds <= 1e9:
        raise UserError(f"--budget {text}: not a budget", "write 90s, 10m, 2h or 5000-steps")
    return seconds, None
