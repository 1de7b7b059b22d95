"""From files of pairs to a prepared folder: all that training needs, so that it reads no raw text.

The folder holds ``tokenizer.model``, ``train.arrow`` and ``valid.arrow`` (ids), ``valid.jsonl``
(the validation pairs as text), ``report.json`` (what cleaning dropped) and ``prepared.json``, which
says what all of it was made from. That last file is written last: where it is, the folder is
complete, and where it tells of the same files and settings, nothing is done again.

The corpus passes in chunks of a fixed number of lines, each of which any process may work on; what
comes out does not depend on who does. Chunks wait on disk in ``work/``: a preparation that was
stopped finds the finished ones there, checks their digests and goes on.

Memory: some chunks, and per pair about 30 bytes of digests while the split is made.
"""

import errno
import functools
import itertools
import json
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from dragoman.config import DataConfig
from dragoman.corpus.blocks import Block, with_before
from dragoman.corpus.cleaning import CleaningReport, Usual, learn_usual
from dragoman.corpus.digests import key_digest
from dragoman.corpus.encoding import Encoding, encode_chunk, encode_rows, encoded_columns
from dragoman.corpus.examination import (
    TRAINING,
    VALIDATION,
    Examined,
    Roles,
    examine,
    linking_texts,
    rules_for,
)
from dragoman.corpus.pairs import Pair
from dragoman.corpus.prepared import (
    COMPLETE,
    FILES,
    REPORT,
    TEXT_TASKS,
    TOKENIZER,
    TRAIN,
    VALID,
    VALID_TEXT,
    VERSION,
    WORK,
    CorpusFiles,
    PreparedCorpus,
    fingerprint,
    from_record,
    given_validation,
    is_same_file,
    read_record,
    refuse_same_sides,
)
from dragoman.corpus.processes import OrderedMap
from dragoman.corpus.splitting import split_keys
from dragoman.corpus.store import write_columns, write_store
from dragoman.corpus.tokenizer import Tokenizer
from dragoman.corpus.vocabulary import learn_tokenizer
from dragoman.errors import UserError
from dragoman.text.lines import atomic_write

OVERLAP = "also in the validation data"
TOO_LONG = "too many subwords"
VALIDATION_TOO_LONG = "validation: too many subwords"
# The most pairs, as a share of the corpus, that are set aside: one in so many.
_VALIDATION_SHARE = 20
CHUNK_LINES = 16_384
"""Large enough to cost little by itself, small enough that cores and restarts lose little."""

Advance = Callable[[int], None]
Stage = Callable[[str, int | None], AbstractContextManager[Advance]]
"""Shows a long step: stage(name, total or None) gives a function to call with what was done."""


def prepare_corpus(
    files: CorpusFiles,
    folder: Path,
    settings: Callable[[int], DataConfig],
    stage: Stage,
    run: OrderedMap = map,
) -> PreparedCorpus:
    """Clean, split, train the tokenizer and store the ids, unless `folder` holds just that already.

    Nobody else may write to the folder meanwhile.

    Args:
        settings: the data settings for a corpus of so many cleaned pairs; what cleaning reads of
            them must not depend on the number, which it is asked with 0 for.
        stage: shows the progress of a long step.
        run: where chunks are worked on: `Processes.map`, by default right here.

    Raises:
        UserError: a file that is missing, misaligned or not UTF-8; one text as both sides; too
            few pairs; a full disk.
    """
    inputs = [fingerprint(name, path) for name, path in files.paths().items()]
    refuse_same_sides(files, inputs)
    if (found := _reusable(files, folder, settings, inputs)) is not None:
        return found
    with _disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / COMPLETE).unlink(missing_ok=True)
        work = _open_work(folder / WORK, files, settings(0), inputs)
        preparation = _Preparation(files, work, settings, stage, run)
        record = {
            "version": VERSION,
            "languages": [files.source_language, files.target_language],
            "errors": files.errors,
            "task": files.task,
            "inputs": inputs,
        } | preparation.run()
        _write_json(work / COMPLETE, record)
        for name in (*FILES, COMPLETE):
            os.replace(work / name, folder / name)
        shutil.rmtree(folder / WORK)
    return replace(from_record(folder, record), reused=False)


def _open_work(
    parent: Path, files: CorpusFiles, data: DataConfig, inputs: list[dict[str, Any]]
) -> Path:
    """The folder for the work on just this content; that on any other is deleted."""
    identity = {
        "version": VERSION,
        "chunk": CHUNK_LINES,
        "inputs": [(entry["name"], entry["sha256"]) for entry in inputs],
        "errors": files.errors,
        "rules": [
            *(data.max_tokens, data.max_length_ratio, data.texts, files.task),
            data.context_sentences,
        ],
    }
    name = _name(identity)
    if any(entry["sha256"] is None for entry in inputs):  # a pipe: nobody knows what was in it
        name = secrets.token_hex(8)
    parent.mkdir(exist_ok=True)
    for other in parent.iterdir():
        if other.name != name:
            shutil.rmtree(other)
    (parent / name).mkdir(exist_ok=True)
    for temporary in (parent / name).glob(".*.tmp"):  # of a write that was killed
        temporary.unlink()
    return parent / name


@dataclass(frozen=True, slots=True)
class _Preparation:
    """One preparation in its work folder: what it needs everywhere."""

    files: CorpusFiles
    work: Path
    settings: Callable[[int], DataConfig]
    stage: Stage
    run_chunks: OrderedMap

    @property
    def texts(self) -> bool:
        """Whether there are targets only."""
        return self.files.task in TEXT_TASKS

    def run(self) -> dict[str, Any]:
        """Make every file of the corpus in the work folder; what is in them."""
        report = CleaningReport(unit="texts" if self.texts else "pairs")
        given = given_validation(self.files, report, self.settings(0))
        chunks = self._examine(report)
        examined = Examined(self.work, chunks, report)
        roles = examined.judge()
        data = self._split(examined, roles, given, report)
        count = report.kept
        tokenizer = self._tokenizer(examined, roles, data)
        validation = given or list(examined.texts(roles == VALIDATION))
        with self.stage("encoding", len(validation) + _count(roles)) as advance:
            reason = VALIDATION_TOO_LONG if given else TOO_LONG
            valid = self._store_validation(tokenizer, validation, data, report, reason)
            advance(len(validation))
            train = self._encode(tokenizer, examined.chunks(roles), data, report, advance)
        if not train or not valid:
            raise UserError(
                f"no pair is short enough for training and validation: {report.counts()}",
                "set data.max_tokens higher",
            )
        _write_json(self.work / REPORT, report.to_json() | {"text": report.render()})
        return {
            "pairs": count,
            "training_pairs": train,
            "validation_pairs": valid,
            "data": data.model_dump(),
        }

    def _examine(self, report: CleaningReport) -> int:
        """Chunks of pairs from the files; their number."""
        data = self.settings(0)
        with self.stage("reading and cleaning", None) as advance:
            blocks, usual = self.files.blocks(CHUNK_LINES, data.texts), None
            if self.files.task == "translation":
                if data.context_sentences:
                    blocks = with_before(blocks, data.context_sentences)
                usual, blocks = _learn(blocks, data)
            report.length_ratio = usual.length_ratio if usual else None
            rules = rules_for(self.files.task, usual, data)
            chunks = 0
            task = functools.partial(examine, self.work, rules)
            for lines in self.run_chunks(task, blocks):
                advance(lines)
                chunks += 1
        return chunks

    def _split(
        self,
        examined: Examined,
        roles: Roles,
        given: list[Pair] | None,
        report: CleaningReport,
    ) -> DataConfig:
        """Set validation pairs aside, or leave out what is like those given; the settings."""
        kept = np.flatnonzero(roles)
        if given is not None:
            unlike = np.ones(len(kept), dtype=bool)
            sides = [pair.source for pair in given], [pair.target for pair in given]
            linking = linking_texts(self.files.task, *sides)
            for name, texts in zip(("source_key", "target_key"), linking, strict=True):
                known = np.array([key_digest(text) for text in texts], dtype=np.uint64)
                unlike &= ~np.isin(examined.keys(name, roles), known)
            if not unlike.all():
                examined.drop(roles, unlike, OVERLAP)
        data = self.settings(report.kept)
        if given is None:
            size = min(data.validation_size, max(1, len(kept) // _VALIDATION_SHARE))
            sources, targets = (
                examined.keys(f"{side}_key", roles) for side in ("source", "target")
            )
            roles[kept[split_keys(sources, targets, size, data.seed)]] = VALIDATION
        if not (roles == TRAINING).any() or not (given or (roles == VALIDATION).any()):
            raise _too_few(report)
        return data

    def _tokenizer(self, examined: Examined, roles: Roles, data: DataConfig) -> Tokenizer:
        path = self._tokenizer_path(data)
        if self.files.tokenizer is not None:
            tokenizer = Tokenizer.load(self.files.tokenizer)
        elif path.exists():
            tokenizer = Tokenizer.load(path)
        else:
            with self.stage("training the tokenizer", None):
                tokenizer = learn_tokenizer(examined, roles, data, self.files.task)
        tokenizer.save(path)
        tokenizer.save(self.work / TOKENIZER)
        return tokenizer

    def _tokenizer_path(self, data: DataConfig) -> Path:
        return self.work / f"tokenizer-{_name(data.model_dump())}.model"

    def _store_validation(
        self,
        tokenizer: Tokenizer,
        pairs: list[Pair],
        data: DataConfig,
        report: CleaningReport,
        reason: str,
    ) -> int:
        """Write ids and texts, row by row the same pairs; too long ones go into the report.

        Texts alone are cut into pieces: of one there may be several rows of ids.
        """
        kept, rows = list[Pair](), list[tuple[list[int], list[int]]]()
        encoded = encode_rows(tokenizer, pairs, data.max_tokens, self.texts)
        for pair, found in zip(pairs, encoded, strict=True):
            rows += found
            if found:
                kept.append(pair)
            else:
                report.drop(reason, 0, pair)
                report.kept -= reason == TOO_LONG
        with atomic_write(self.work / VALID_TEXT) as stream:
            for pair in kept:
                record = {name: value for name, value in asdict(pair).items() if value != ()}
                stream.write(json.dumps(record, ensure_ascii=False).encode() + b"\n")
        return write_store(self.work / VALID, rows, tokenizer.vocabulary_size)

    def _encode(
        self,
        tokenizer: Tokenizer,
        chunks: Iterator[tuple[int, Roles]],
        data: DataConfig,
        report: CleaningReport,
        advance: Advance,
    ) -> int:
        """Encode and store the training pairs; their number without the too long ones."""
        path = self._tokenizer_path(data)
        name = _name(data.model_dump())
        encoding = Encoding(self.work, path, name, data.max_tokens, self.texts)
        count = 0
        task = functools.partial(encode_chunk, encoding)
        for rows in self.run_chunks(task, chunks):
            advance(rows)
            count += 1
        columns = encoded_columns(encoding, count, report, TOO_LONG)
        return write_columns(self.work / TRAIN, columns, tokenizer.vocabulary_size)


def _learn(blocks: Iterator[Block], data: DataConfig) -> tuple[Usual | None, Iterator[Block]]:
    """What is usual among the first pairs, and all blocks again."""
    head: list[Block] = []

    def pairs() -> Iterator[Pair]:
        for block in blocks:
            head.append(block)
            yield from block.pairs()

    usual = learn_usual(pairs(), data)
    return usual, itertools.chain(head, blocks)


def _count(roles: Roles) -> int:
    return int(np.count_nonzero(roles == TRAINING))


def _name(identity: dict[str, Any]) -> str:
    return blake2b(json.dumps(identity).encode(), digest_size=8).hexdigest()


def _too_few(report: CleaningReport) -> UserError:
    if not report.total:
        return UserError("the corpus is empty", "give files with at least some pairs")
    return UserError(
        f"too few {report.unit} for training and validation: {report.counts()}",
        "give more, or validation data of your own: --valid-source and --valid-target, or "
        "--valid-text",
    )


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
        and record.get("task", "translation") == files.task
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
        raise UserError(
            f"{folder}: cannot write here: {error.strerror or error}",
            "make the folder writable, or name another",
        ) from None


def _write_json(path: Path, value: dict[str, Any]) -> None:
    with atomic_write(path) as stream:
        stream.write(json.dumps(value, ensure_ascii=False, indent=1).encode() + b"\n")
