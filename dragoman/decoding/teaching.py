"""A teacher's translations for a student: made once, kept line by line, chosen to learn from.

Sequence-level knowledge distillation (Kim and Rush 2016, arXiv 1606.07947): the student learns the
translations that the teacher's beam search finds, which are more regular than a person's.
"""

import json
import os
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Final

from dragoman.decoding.translator import Translator
from dragoman.errors import UserError
from dragoman.text.lines import ErrorPolicy, atomic_write, read_lines, write_lines

JOURNAL, IDENTITY, PAIRS, VALID_SOURCE, VALID_TARGET = (
    "teacher.jsonl",
    "teacher.json",
    "pairs.jsonl",
    "valid.source",
    "valid.target",
)
CHUNK = 1024
"""Lines translated between two writes: what a kill loses at most."""
UNFIT: Final = (
    "repetition",
    "loop",
    "copy",
    "cut",
    "empty",
    "short",
    "long",
    "lost_placeholder",
    "lost_url",
    "lost_number",
)
"""The findings (`dragoman.decoding.safeguards`) that a student is not to learn from."""


@dataclass(frozen=True)
class Sources:
    """Files to translate, one after the other, and their references where there are some."""

    sources: list[Path]
    references: list[Path]
    errors: ErrorPolicy = "strict"

    def lines(self) -> Iterator[tuple[str, str | None]]:
        """Every source line and its reference. Raises UserError where the files do not fit."""
        if self.references and len(self.references) != len(self.sources):
            raise UserError(
                f"{len(self.sources)} source files and {len(self.references)} target files",
                "give as many --target as --source, or none",
            )
        for number, path in enumerate(self.sources):
            source = read_lines(path, self.errors)
            if not self.references:
                yield from ((line, None) for line in source)
                continue
            reference = self.references[number]
            other = read_lines(reference, self.errors)
            count = 0
            for line in source:
                partner = next(other, None)
                if partner is None:
                    raise _uneven(path, reference, count + 1)
                count += 1
                yield line, partner
            if next(other, None) is not None:
                raise _uneven(reference, path, count + 1)


def _uneven(longer: Path, shorter: Path, line: int) -> UserError:
    return UserError(
        f"{longer}:{line}: this line has no partner in {shorter}",
        "line n of one file must be the translation of line n of the other",
    )


def check_identity(folder: Path, identity: dict[str, Any]) -> None:
    """Keep what the translations in a folder are made from, or compare with it.

    Raises UserError when they are translations of other text, or by other teachers.
    """
    path = folder / IDENTITY
    content = json.dumps(identity, indent=1, sort_keys=True)
    if not path.exists():
        with atomic_write(path) as stream:
            stream.write(content.encode() + b"\n")
        return
    try:
        kept = dict(json.loads(path.read_text("utf-8")))
    except (OSError, ValueError, TypeError, RecursionError):
        kept = {}
    if kept != json.loads(content):
        changed = [name for name, value in identity.items() if kept.get(name) != value]
        raise UserError(
            f"{folder}: holds translations with other {' and '.join(changed) or 'settings'}",
            "name another --out, or delete this folder",
        )


def translate_sources(
    translator: Callable[[], Translator],
    sources: Sources,
    folder: Path,
    advance: Callable[[int], None],
) -> int:
    """Translate every line that the journal in `folder` does not hold yet; the number of lines.

    translator is asked for one only if there is something to do. advance is told of every line, the
    ones found done too.
    """
    journal = folder / JOURNAL
    done = _complete_lines(journal)
    lines = (line for line, _ in sources.lines())
    skipped = sum(1 for _ in islice(lines, done))
    if skipped < done:
        raise UserError(
            f"{journal}: {done:,} translations of {skipped:,} lines", "delete it and run again"
        )
    advance(done)
    teacher = None
    with journal.open("ab") as stream:
        while chunk := list(islice(lines, CHUNK)):
            teacher = teacher or translator()
            # Lines of a corpus are no document: each is translated without those before it.
            for translation in teacher.translate(chunk, contexts=[()] * len(chunk)):
                record = {
                    "text": translation.text,
                    "findings": [finding.kind for finding in translation.findings],
                }
                stream.write(json.dumps(record).encode() + b"\n")
            stream.flush()
            os.fsync(stream.fileno())
            done += len(chunk)
            advance(len(chunk))
    return done


def _complete_lines(journal: Path) -> int:
    """How many translations are there; half a line that a kill left is cut off."""
    if not journal.exists():
        return 0
    count = whole = 0
    with journal.open("rb") as stream:
        for line in stream:
            if line.endswith(b"\n"):
                count += 1
                whole += len(line)
    if whole < journal.stat().st_size:
        os.truncate(journal, whole)
    return count


@dataclass
class TeachingReport:
    """What came of the teacher's translations."""

    lines: int = 0
    blank: int = 0
    kept: int = 0
    references: int = 0
    held_out: int = 0
    left_out: Counter[str] = field(default_factory=Counter)

    def render(self) -> str:
        """One line for a person."""
        text = f"teacher: {self.lines:,} lines, {self.kept:,} translations kept"
        if self.left_out:
            kinds = ", ".join(f"{kind} {count:,}" for kind, count in self.left_out.most_common())
            text += f", {self.left_out.total():,} left out ({kinds})"
        if self.blank:
            text += f", {self.blank:,} blank"
        if self.references:
            text += f"; {self.references:,} references mixed in"
        if self.held_out:
            text += f"; {self.held_out:,} references held out for validation"
        return text


def write_lesson(folder: Path, sources: Sources, held_out: int, seed: int) -> TeachingReport:
    """Write PAIRS to train on, from the journal and the references.

    Of the lines with references at most one in 20, `held_out` at most, chosen by chance, are no
    part of it: they go to VALID_SOURCE and VALID_TARGET. Raises UserError when lines are missing,
    or when nothing is fit to learn from.
    """
    report = TeachingReport(lines=_complete_lines(folder / JOURNAL))
    apart = set[int]()
    if sources.references and held_out:
        count = min(held_out, report.lines // 20)
        apart = set(random.Random(seed).sample(range(report.lines), count))
    valid: list[tuple[str, str]] = []
    with atomic_write(folder / PAIRS) as stream:

        def write(source: str, target: str) -> None:
            pair = {"source": source, "target": target}
            stream.write(json.dumps(pair, ensure_ascii=False).encode() + b"\n")

        translations = _translations(folder / JOURNAL)
        for number, (source, reference) in enumerate(sources.lines()):
            translation = next(translations, None)
            if translation is None:
                raise _damaged(folder / JOURNAL, f"line {number + 1:,} is not translated")
            if not source.strip():
                report.blank += 1
                continue
            if number in apart and reference and reference.strip():
                valid.append((source, reference))
                continue
            text, findings = translation
            unfit = next((kind for kind in UNFIT if kind in findings), None)
            if unfit is None:
                report.kept += 1
                write(source, text)
            else:
                report.left_out[unfit] += 1
            if reference and reference.strip():
                report.references += 1
                write(source, reference)
    if next(translations, None) is not None:
        raise _damaged(folder / JOURNAL, "it has more lines than the sources")
    if not report.kept:
        raise UserError(
            f"no translation is fit to learn from: {report.render()}", "take a better teacher"
        )
    report.held_out = len(valid)
    for name, side in ((VALID_SOURCE, 0), (VALID_TARGET, 1)) if valid else ():
        write_lines(folder / name, [pair[side] for pair in valid])
    return report


def _translations(journal: Path) -> Iterator[tuple[str, list[str]]]:
    with journal.open("rb") as stream:
        for number, line in enumerate(stream, start=1):
            try:
                record = json.loads(line)
                text, findings = record["text"], record["findings"]
                if not isinstance(text, str) or not isinstance(findings, list):
                    raise TypeError
            except (ValueError, KeyError, TypeError):
                raise _damaged(journal, f"line {number:,} is no translation") from None
            yield text, findings


def _damaged(journal: Path, problem: str) -> UserError:
    return UserError(f"{journal}: damaged: {problem}", "delete it and run again")
