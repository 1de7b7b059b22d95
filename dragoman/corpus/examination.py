"""The first pass over a corpus: block by block into chunks of pairs with what is known of each.

A chunk holds the pairs without a `fault`, in order, and for each its line, its digests and its
`verdict`. What needs all pairs (duplicates, the split) is decided from the digests alone.
"""

import math
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dragoman.config import DataConfig
from dragoman.corpus.blocks import Block
from dragoman.corpus.chunks import is_whole, read_chunk, write_chunk
from dragoman.corpus.cleaning import (
    DUPLICATE,
    EXAMPLES,
    LENGTH_RATIO,
    UNTRANSLATED,
    CleaningReport,
    Usual,
    fault,
    longest_text,
    verdict,
)
from dragoman.corpus.digests import Digests, first_rows, key_digest, pair_digest
from dragoman.corpus.pairs import Pair
from dragoman.corpus.prepared import TEXT_TASKS

DROPPED, TRAINING, VALIDATION = range(3)
"""What a row is for: its role."""
Roles = npt.NDArray[np.uint8]

_VERDICTS = ("", UNTRANSLATED, LENGTH_RATIO)


@dataclass(frozen=True, slots=True)
class Rules:
    """What pairs are judged by: see `fault` and `verdict`, which only translation has."""

    usual: Usual
    longest: int
    limit: float
    task: str = "translation"


def rules_for(task: str, usual: Usual | None, data: DataConfig) -> Rules:
    """The rules of a task: those on translations for them only, and no text is too long."""
    if task == "translation":
        return Rules(usual or Usual(1.0, False), longest_text(data), data.max_length_ratio)
    longest = sys.maxsize if task in TEXT_TASKS else longest_text(data)
    return Rules(Usual(1.0, copying=True), longest, math.inf, task)


def linking_texts(task: str, sources: list[str], targets: list[str]) -> tuple[list[str], list[str]]:
    """The texts whose likeness links rows, so that a split does not separate them.

    Both sides of translations; for other tasks the one side that a model reads, twice.
    """
    if task == "translation":
        return sources, targets
    return (targets, targets) if task in TEXT_TASKS else (sources, sources)


def examine(folder: Path, rules: Rules, block: Block) -> int:
    """Write the chunk of a block, unless it is there; the number of lines. Raises UserError."""
    path = _path(folder, block.number)
    if is_whole(path):
        return block.line_count()
    report = CleaningReport()
    pairs: list[Pair] = []
    lines: list[int] = []
    count = 0
    for count, pair in enumerate(block.pairs(), start=1):
        line = 0 if block.suffix == "paragraphs" else block.first + count - 1
        judged = Pair(pair.target, pair.target) if rules.task in TEXT_TASKS else pair
        if reason := fault(judged, rules.longest):
            report.drop(reason, line, pair)
        else:
            pairs.append(pair)
            lines.append(line)
    sources, targets = [pair.source for pair in pairs], [pair.target for pair in pairs]
    verdicts = [_VERDICTS.index(verdict(pair, rules.usual, rules.limit)) for pair in pairs]
    # The same pair in another context is another example.
    whole = ["\n".join((*pair.context, pair.source)) for pair in pairs]
    keys = [list(map(key_digest, texts)) for texts in linking_texts(rules.task, sources, targets)]
    columns = {
        "source": pa.array(sources, pa.string()),
        "target": pa.array(targets, pa.string()),
        "context": pa.array([pair.context for pair in pairs], pa.list_(pa.string())),
        "line": pa.array(lines, pa.int64()),
        "verdict": pa.array(verdicts, pa.uint8()),
        "pair": pa.array(map(pair_digest, whole, targets), pa.uint64()),
        "source_key": pa.array(keys[0], pa.uint64()),
        "target_key": pa.array(keys[1], pa.uint64()),
    }
    examples = {
        reason: [[line, pair.source, pair.target] for line, pair in found]
        for reason, found in report.examples.items()
    }
    notes = {"lines": count, "dropped": report.dropped, "examples": examples}
    write_chunk(path, columns, notes)
    return count


def read_pairs(folder: Path, number: int, wanted: npt.NDArray[np.bool_]) -> list[Pair]:
    """The wanted rows of a chunk."""
    batch, _ = read_chunk(_path(folder, number), ("source", "target", "context"))
    sources, targets, contexts = (column.filter(pa.array(wanted)) for column in batch.columns)
    texts = (column.to_numpy(zero_copy_only=False).tolist() for column in (sources, targets))
    return list(map(Pair, *texts, map(tuple, contexts.to_pylist())))


class Examined:
    """The chunks of a whole corpus as one sequence of rows."""

    def __init__(self, folder: Path, chunks: int, report: CleaningReport) -> None:
        self.folder = folder
        self._starts = np.zeros(chunks + 1, dtype=np.int64)
        self._report = report
        for number in range(chunks):
            batch, notes = read_chunk(_path(folder, number), ("verdict",))
            self._starts[number + 1] = self._starts[number] + batch.num_rows
            report.total += notes["lines"]
            for reason, dropped in notes["dropped"].items():
                found = [(line, Pair(*texts)) for line, *texts in notes["examples"][reason]]
                report.count(reason, dropped, found)

    def __len__(self) -> int:
        return int(self._starts[-1])

    def judge(self) -> Roles:
        """(rows,) `TRAINING` or `DROPPED`, by verdict or as a duplicate; the report has them."""
        verdicts: Roles = np.zeros(len(self), dtype=np.uint8)
        digests: Digests = np.zeros(len(self), dtype=np.uint64)
        for number, part in self._parts():
            batch, _ = read_chunk(_path(self.folder, number), ("verdict", "pair"))
            verdicts[part] = batch.column(batch.schema.get_field_index("verdict")).to_numpy()
            digests[part] = batch.column(batch.schema.get_field_index("pair")).to_numpy()
        again = first_rows(digests) != np.arange(len(self))
        verdicts[again] = len(_VERDICTS)
        for code, reason in enumerate((*_VERDICTS[1:], DUPLICATE), start=1):
            self._count(reason, verdicts == code)
        self._report.kept = int(np.count_nonzero(verdicts == 0))
        return np.where(verdicts == 0, np.uint8(TRAINING), np.uint8(DROPPED))

    def keys(self, name: str, roles: Roles) -> Digests:
        """The digests `source_key` or `target_key` of the rows that are not dropped."""
        found: Digests = np.zeros(int(np.count_nonzero(roles)), dtype=np.uint64)
        done = 0
        for number, part in self._parts():
            batch, _ = read_chunk(_path(self.folder, number), (name,))
            keys = batch.column(0).to_numpy()[roles[part] != DROPPED]
            found[done : done + len(keys)] = keys
            done += len(keys)
        return found

    def drop(self, roles: Roles, kept: npt.NDArray[np.bool_], reason: str) -> None:
        """Take rows away that counted as kept; `kept` is of the rows that are not dropped."""
        dropped = np.zeros(len(roles), dtype=bool)
        dropped[roles != DROPPED] = ~kept
        roles[dropped] = DROPPED
        self._count(reason, dropped)
        self._report.kept -= int(np.count_nonzero(dropped))

    def texts(self, wanted: npt.NDArray[np.bool_]) -> Iterator[Pair]:
        """The pairs of the wanted rows, in order, a chunk in memory at a time."""
        for number, part in self._parts():
            if wanted[part].any():
                yield from read_pairs(self.folder, number, wanted[part])

    def chunks(self, roles: Roles) -> Iterator[tuple[int, Roles]]:
        """The number of each chunk and the roles of its rows."""
        return ((number, roles[part]) for number, part in self._parts())

    def _parts(self) -> Iterable[tuple[int, slice]]:
        starts = self._starts.tolist()
        return enumerate(map(slice, starts[:-1], starts[1:]))

    def _count(self, reason: str, dropped: npt.NDArray[np.bool_]) -> None:
        if number := int(np.count_nonzero(dropped)):
            rows = np.flatnonzero(dropped)[:EXAMPLES]
            self._report.count(reason, number, list(map(self._example, rows.tolist())))

    def _example(self, row: int) -> tuple[int, Pair]:
        number = int(np.searchsorted(self._starts, row, side="right")) - 1
        place = row - int(self._starts[number])
        batch, _ = read_chunk(_path(self.folder, number), ("line", "source", "target"))
        found = batch.slice(place, 1).to_pylist()[0]
        return found["line"], Pair(found["source"], found["target"])


def _path(folder: Path, number: int) -> Path:
    return folder / f"pairs-{number:06d}.arrow"
