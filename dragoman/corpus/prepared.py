"""A prepared folder as a thing: what it was made from, what is in it, whether it is complete."""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dragoman.config import DataConfig
from dragoman.corpus.blocks import Block, cut_parallel, cut_table, cut_texts
from dragoman.corpus.cleaning import CleaningReport
from dragoman.corpus.context import Preceding, with_contexts
from dragoman.corpus.pairs import Pair, read_parallel, read_table, read_texts
from dragoman.errors import UserError
from dragoman.text.lines import ErrorPolicy

TOKENIZER, TRAIN, VALID, VALID_TEXT, REPORT, COMPLETE = (
    "tokenizer.model",
    "train.arrow",
    "valid.arrow",
    "valid.jsonl",
    "report.json",
    "prepared.json",
)
WORK = "work"
"""The folder of what an unfinished preparation has done."""
FILES = (TOKENIZER, TRAIN, VALID, VALID_TEXT, REPORT)
VERSION = 1
TEXT_TASKS = ("lm", "mlm")
"""The tasks whose corpus has no sources."""
VALIDATION_EMPTY = "validation: empty side"
# SHA-256 of an empty file, which has an error of its own.
_NOTHING = hashlib.sha256().hexdigest()


@dataclass(frozen=True, slots=True)
class CorpusFiles:
    """Where pairs come from: two files aligned by line, or one table (.tsv, .jsonl).

    Or texts, each of which becomes the target of a pair without a source. task: what they are for.
    """

    source_language: str
    target_language: str
    source: Path | None = None
    target: Path | None = None
    table: Path | None = None
    text: Path | None = None
    valid_source: Path | None = None
    valid_target: Path | None = None
    valid_text: Path | None = None
    tokenizer: Path | None = None
    errors: ErrorPolicy = "strict"
    task: str = "translation"

    def paths(self) -> dict[str, Path]:
        """The files that are given, by what they are."""
        named = {
            "source": self.source,
            "target": self.target,
            "table": self.table,
            "text": self.text,
            "valid_source": self.valid_source,
            "valid_target": self.valid_target,
            "valid_text": self.valid_text,
            "tokenizer": self.tokenizer,
        }
        return {name: path for name, path in named.items() if path is not None}

    def pairs(self) -> Iterator[Pair]:
        """The pairs as they stand in the files. Raises UserError."""
        if self.table is not None:
            return read_table(self.table, self.errors)
        if self.source is None or self.target is None:
            raise UserError(
                "no pairs to train on", "give --source and --target, or --data with both sides"
            )
        return read_parallel(self.source, self.target, self.errors)

    def blocks(self, lines: int, texts: str = "lines") -> Iterator[Block]:
        """The same pairs in blocks of so many lines; or the texts. Raises UserError."""
        if self.text is not None:
            return cut_texts(self.text, lines, self.errors, texts)
        if self.table is not None:
            return cut_table(self.table, lines, self.errors)
        if self.source is None or self.target is None:
            raise UserError(
                "no pairs to train on", "give --source and --target, or --data with both sides"
            )
        return cut_parallel(self.source, self.target, lines, self.errors)

    def validation(self, texts: str = "lines") -> Iterator[Pair] | None:
        """The given validation pairs, None where there are none. Raises UserError."""
        if self.valid_text is not None:
            return read_texts(self.valid_text, texts, self.errors)
        if self.valid_source is None and self.valid_target is None:
            return None
        if self.valid_source is None or self.valid_target is None:
            raise UserError(
                "validation data needs both --valid-source and --valid-target", "give the other too"
            )
        return read_parallel(self.valid_source, self.valid_target, self.errors)


@dataclass(frozen=True, slots=True)
class PreparedCorpus:
    """A prepared folder.

    `inputs` are the names of the files it was made from, `pairs` counts what cleaning kept,
    `report` is text for a person.
    """

    folder: Path
    source_language: str
    target_language: str
    inputs: list[str]
    pairs: int
    training_pairs: int
    validation_pairs: int
    data: DataConfig
    report: str
    task: str = "translation"
    reused: bool = True


def given_validation(
    files: CorpusFiles, report: CleaningReport, data: DataConfig
) -> list[Pair] | None:
    """The validation pairs that were given, without empty ones, which the report gets.

    Raises UserError where none is left.
    """
    given = files.validation(data.texts)
    if given is None:
        return None
    if files.task == "translation":
        given = with_contexts(given, Preceding(data.context_sentences))
    kept = []
    for line, pair in enumerate(given, start=1):
        if pair.target.strip() and (files.task in TEXT_TASKS or pair.source.strip()):
            kept.append(pair)
        else:
            report.drop(VALIDATION_EMPTY, line, pair)
    if not kept:
        path = files.valid_text or files.valid_source
        raise UserError(f"{path}: no validation pair", "every line is blank")
    return kept


def load_prepared(folder: Path) -> PreparedCorpus:
    """Open a prepared folder. Raises UserError when it is none or not complete."""
    record = read_record(folder)
    if record is None:
        what = "no such folder" if not folder.is_dir() else "not a completely prepared corpus"
        raise UserError(f"{folder}: {what}", "make it with: dragoman prepare")
    return from_record(folder, record)


def read_record(folder: Path) -> dict[str, Any] | None:
    """What `prepared.json` says; None when the folder is not complete or of another version."""
    try:
        record: dict[str, Any] = json.loads((folder / COMPLETE).read_text(encoding="utf-8"))
        whole = record["version"] == VERSION and all((folder / n).is_file() for n in FILES)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return record if whole else None


def from_record(folder: Path, record: dict[str, Any]) -> PreparedCorpus:
    """The corpus that a record tells of. Raises UserError for a damaged one."""
    try:
        report = json.loads((folder / REPORT).read_text(encoding="utf-8"))["text"]
        source_language, target_language = record["languages"]
        counts = [record[name] for name in ("pairs", "training_pairs", "validation_pairs")]
        texts = (source_language, target_language, report)
        if {*map(type, counts)} != {int} or {*map(type, texts)} != {str}:
            raise ValueError("a count is no number, or a text is none")
        return PreparedCorpus(
            folder,
            source_language,
            target_language,
            [Path(item["path"]).name for item in record["inputs"] if item["name"] != "tokenizer"],
            record["pairs"],
            record["training_pairs"],
            record["validation_pairs"],
            DataConfig.model_validate(record["data"]),
            report,
            record.get("task", "translation"),
        )
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(
            f"{folder / COMPLETE}: damaged: {error}", "delete the folder and prepare it again"
        ) from None


def fingerprint(name: str, path: Path) -> dict[str, Any]:
    """What a file is and its digest; a pipe can be read only once and has none."""
    entry: dict[str, Any] = {"name": name, "path": str(path), "sha256": None}
    if path.is_file():
        with _open_errors(path), path.open("rb") as stream:
            entry["sha256"] = hashlib.file_digest(stream, "sha256").hexdigest()
    return entry


def refuse_same_sides(files: CorpusFiles, inputs: list[dict[str, Any]]) -> None:
    """One file given twice would teach a model to copy. Raises UserError."""
    digests = {entry["name"]: entry["sha256"] for entry in inputs if entry["sha256"] != _NOTHING}
    for source, target, path in (
        ("source", "target", files.target),
        ("valid_source", "valid_target", files.valid_target),
    ):
        if digests.get(source) is not None and digests[source] == digests.get(target):
            raise UserError(
                f"{path}: holds the same text as the source", "give its translation as the target"
            )


def is_same_file(old: dict[str, Any], new: dict[str, Any]) -> bool:
    """Whether two fingerprints are of one content in one role."""
    return new["sha256"] is not None and all(old[key] == new[key] for key in ("name", "sha256"))


@contextmanager
def _open_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(
            f"{path}: cannot be read: {error.strerror}", "check who may read it, and the disk"
        ) from None
