"""From files of pairs to a prepared folder: all that training needs, so that it reads no raw text.

The folder holds ``tokenizer.model``, ``train.arrow`` and ``valid.arrow`` (ids), ``valid.jsonl``
(the validation pairs as text), ``report.json`` (what cleaning dropped) and ``prepared.json``, which
says what all of it was made from. That last file is written last: where it is, the folder is
complete, and where it tells of the same files and settings, nothing is done again.

Memory: the cleaned pairs wait in a temporary file, not in memory; per pair some digests are kept.
"""

import errno
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from dragoman.config import DataConfig
from dragoman.corpus.cleaning import CleaningReport, clean_pairs
from dragoman.corpus.pairs import Pair
from dragoman.corpus.prepared import (
    COMPLETE,
    REPORT,
    TOKENIZER,
    TRAIN,
    VALID,
    VALID_TEXT,
    VERSION,
    CorpusFiles,
    PreparedCorpus,
    fingerprint,
    from_record,
    is_same_file,
    read_record,
)
from dragoman.corpus.splitting import remove_overlap, split_pairs
from dragoman.corpus.spool import PairRows, PairSpool
from dragoman.corpus.store import write_store
from dragoman.corpus.tokenizer import Tokenizer
from dragoman.errors import UserError
from dragoman.text.lines import atomic_write

OVERLAP = "also in the validation data"
TOO_LONG = "too many subwords"
VALIDATION_TOO_LONG = "validation: too many subwords"
VALIDATION_EMPTY = "validation: empty side"
# The most pairs, as a share of the corpus, that are set aside: one in so many.
_VALIDATION_SHARE = 20
_CHUNK = 4096

Advance = Callable[[int], None]
Stage = Callable[[str, int | None], AbstractContextManager[Advance]]
"""Shows a long step: stage(name, total or None) gives a function to call with what was done."""


def prepare_corpus(
    files: CorpusFiles,
    folder: Path,
    settings: Callable[[int], DataConfig],
    stage: Stage,
) -> PreparedCorpus:
    """Clean, split, train the tokenizer and store the ids, unless `folder` holds just that already.

    Args:
        settings: the data settings for a corpus of so many cleaned pairs; what cleaning reads of
            them must not depend on the number, which it is asked with 0 for.
        stage: shows the progress of a long step.

    Raises:
        UserError: a file that is missing, misaligned or not UTF-8; too few pairs; a full disk.
    """
    inputs = [fingerprint(name, path) for name, path in files.paths().items()]
    if (found := _reusable(files, folder, settings, inputs)) is not None:
        return found
    with _disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / COMPLETE).unlink(missing_ok=True)
        with PairSpool(folder) as spool:
            return _prepare(files, folder, settings, stage, inputs, spool)


def _prepare(
    files: CorpusFiles,
    folder: Path,
    settings: Callable[[int], DataConfig],
    stage: Stage,
    inputs: list[dict[str, Any]],
    spool: PairSpool,
) -> PreparedCorpus:
    report = CleaningReport()
    given = _given_validation(files, report)
    with stage("reading and cleaning", None) as advance:
        cleaned = clean_pairs(files.pairs(), settings(0), report)
        kept = _without_overlap(cleaned, given, report)
        while chunk := list(itertools.islice(kept, _CHUNK)):
            for pair in chunk:
                spool.append(pair)
            advance(len(chunk))
    count, data = report.kept, settings(report.kept)
    training, validation = _split(spool, given, data, report)
    tokenizer = _make_tokenizer(files, training, data, stage)
    tokenizer.save(folder / TOKENIZER)
    rows = {}
    with stage("encoding", len(training) + len(validation)) as advance:
        for name, pairs in ((VALID, validation), (TRAIN, training)):
            reason = VALIDATION_TOO_LONG if name == VALID and given else TOO_LONG
            encoded = _encode(tokenizer, pairs, advance)
            fitting = _fitting(encoded, data.max_tokens, report, reason)
            rows[name] = _store(folder, name, fitting, tokenizer.vocabulary_size)
    _require_pairs(rows, report)
    _write_json(folder / REPORT, report.to_json() | {"text": report.render()})
    record = {
        "version": VERSION,
        "languages": [files.source_language, files.target_language],
        "errors": files.errors,
        "inputs": inputs,
        "pairs": count,
        "training_pairs": rows[TRAIN],
        "validation_pairs": rows[VALID],
        "data": data.model_dump(),
    }
    _write_json(folder / COMPLETE, record)
    return replace(from_record(folder, record), reused=False)


def _given_validation(files: CorpusFiles, report: CleaningReport) -> list[Pair] | None:
    given = files.validation()
    if given is None:
        return None
    kept = []
    for line, pair in enumerate(given, start=1):
        if pair.source.strip() and pair.target.strip():
            kept.append(pair)
        else:
            report.drop(VALIDATION_EMPTY, line, pair)
    if not kept:
        raise UserError(f"{files.valid_source}: no validation pair", "every line is blank")
    return kept


def _without_overlap(
    pairs: Iterator[Pair], validation: list[Pair] | None, report: CleaningReport
) -> Iterator[Pair]:
    """The pairs unlike every given validation pair; the rest was counted as kept before."""

    def drop(pair: Pair) -> None:
        report.drop(OVERLAP, 0, pair)
        report.kept -= 1

    return pairs if validation is None else remove_overlap(pairs, validation, drop)


def _split(
    spool: PairSpool, validation: list[Pair] | None, data: DataConfig, report: CleaningReport
) -> tuple[Sequence[Pair], Sequence[Pair]]:
    if validation is not None:
        if not len(spool):
            raise _too_few(report)
        return spool, validation
    size = min(data.validation_size, max(1, len(spool) // _VALIDATION_SHARE))
    held_out, training = split_pairs(spool, size, data.seed)
    if not held_out or not training:
        raise _too_few(report)
    return PairRows(spool, training), PairRows(spool, held_out)


def _too_few(report: CleaningReport) -> UserError:
    if not report.total:
        return UserError("the corpus is empty", "give files with at least some pairs")
    return UserError(
        f"too few pairs for training and validation: {_counts(report)}",
        "give more pairs, or validation data of your own with --valid-source and --valid-target",
    )


def _counts(report: CleaningReport) -> str:
    """The report in half a line."""
    dropped = [f"{count:,} {reason}" for reason, count in report.dropped.items()]
    return "; ".join([f"{report.kept:,} of {report.total:,} pairs are left", *dropped])


def _require_pairs(rows: dict[str, int], report: CleaningReport) -> None:
    if not rows[TRAIN] or not rows[VALID]:
        raise UserError(
            f"no pair is short enough for training and validation: {_counts(report)}",
            "set data.max_tokens higher",
        )


def _make_tokenizer(
    files: CorpusFiles, training: Sequence[Pair], data: DataConfig, stage: Stage
) -> Tokenizer:
    if files.tokenizer is not None:
        return Tokenizer.load(files.tokenizer)
    with stage("training the tokenizer", None):
        texts = itertools.chain.from_iterable((pair.source, pair.target) for pair in training)
        return Tokenizer.train(texts, data.vocabulary_size, data.character_coverage, seed=data.seed)


_Encoded = tuple[Pair, list[int], list[int]]


def _encode(tokenizer: Tokenizer, pairs: Iterable[Pair], advance: Advance) -> Iterator[_Encoded]:
    supply = iter(pairs)
    while chunk := list(itertools.islice(supply, _CHUNK)):
        ids = tokenizer.encode_pairs((pair.source, pair.target) for pair in chunk)
        for pair, (source, target) in zip(chunk, ids, strict=True):
            yield pair, source, target
        advance(len(chunk))


def _fitting(
    encoded: Iterable[_Encoded], limit: int, report: CleaningReport, reason: str
) -> Iterator[_Encoded]:
    """What is short enough; the rest goes into the report, where it counted as kept before."""
    for pair, source, target in encoded:
        if max(len(source), len(target)) <= limit:
            yield pair, source, target
        else:
            report.drop(reason, 0, pair)
            report.kept -= reason == TOO_LONG


def _store(folder: Path, name: str, encoded: Iterator[_Encoded], vocabulary_size: int) -> int:
    """Write ids, and for validation data the texts, row by row the same pairs."""
    if name != VALID:
        ids = ((source, target) for _, source, target in encoded)
        return write_store(folder / name, ids, vocabulary_size)
    rows = list(encoded)
    with atomic_write(folder / VALID_TEXT) as stream:
        for pair, _, _ in rows:
            stream.write(json.dumps(asdict(pair), ensure_ascii=False).encode() + b"\n")
    return write_store(folder / name, [(row[1], row[2]) for row in rows], vocabulary_size)


def _reusable(
    files: CorpusFiles,
    folder: Path,
    settings: Callable[[int], DataConfig],
    inputs: list[dict[str, Any]],
) -> PreparedCorpus | None:
    record = read_record(folder)
    if record is None:
        return None
    same = (
        record["languages"] == [files.source_language, files.target_language]
        and record["errors"] == files.errors
        and record["data"] == settings(record["pairs"]).model_dump()
        and len(record["inputs"]) == len(inputs)
        and all(map(is_same_file, record["inputs"], inputs))
    )
    return from_record(folder, record) if same else None


@contextmanager
def _disk_errors(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise UserError(f"{folder}: no space left on the device", "free some space") from None
        raise UserError(f"{folder}: cannot write here: {error.strerror}") from None


def _write_json(path: Path, value: dict[str, Any]) -> None:
    with atomic_write(path) as stream:
        stream.write(json.dumps(value, ensure_ascii=False, indent=1).encode() + b"\n")
