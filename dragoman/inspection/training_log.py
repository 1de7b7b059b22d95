"""The history of a training run, read back from its ``log.jsonl`` (docs/training-log.md).

Letters: N events.
"""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dragoman.errors import UserError
from dragoman.text.lines import read_lines

FloatArray = npt.NDArray[np.float64]
Record = dict[str, Any]
_EVENTS = ("start", "train", "validation", "end")


@dataclass(slots=True)
class TrainingLog:
    """The events of a log by kind, in order of steps."""

    records: dict[str, list[Record]]

    def column(self, event: str, name: str) -> tuple[FloatArray, FloatArray]:
        """Return (steps, values) of one field where it is a finite number, both (N,)."""
        rows = [
            (record["step"], value)
            for record in self.records[event]
            if (value := number(record, name)) is not None
        ]
        table = np.array(rows, dtype=np.float64).reshape(-1, 2)
        return table[:, 0], table[:, 1]

    def has(self, event: str, name: str) -> bool:
        """Whether a field was ever logged with a finite number."""
        return bool(self.column(event, name)[0].size)

    @property
    def last_step(self) -> float:
        """The last step there is an event of, at least 1."""
        return float(max(1, *(row["step"] for rows in self.records.values() for row in rows)))

    def best(self) -> tuple[float, float] | None:
        """Return (step, nll) of the validation with the lowest nll."""
        steps, values = self.column("validation", "nll")
        if not values.size:
            return None
        index = int(values.argmin())
        return float(steps[index]), float(values[index])

    def clock(self) -> tuple[FloatArray, FloatArray]:
        """Return (steps, seconds) of all events, both (N,), rising."""
        rows = {
            row["step"]: seconds
            for rows in self.records.values()
            for row in rows
            if (seconds := number(row, "seconds")) is not None
        }
        table = np.array([(0.0, 0.0), *sorted(rows.items())], dtype=np.float64)
        return table[:, 0], np.maximum.accumulate(table[:, 1])


def number(record: Record, name: str) -> float | None:
    """A field as a finite float; None where it is no such thing."""
    value = record.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        value = float(value)
    except OverflowError:
        return None
    return value if math.isfinite(value) else None


def read_training_log(path: Path) -> TrainingLog:
    """Read a log. What a resumed run did again replaces what it did before.

    A last line cut short by a kill is left out. Raises UserError for a missing, broken
    (``file:line``) or empty log.
    """
    records: dict[str, list[Record]] = {event: [] for event in _EVENTS}
    broken: UserError | None = None
    for line_number, line in enumerate(read_lines(path, errors="replace"), start=1):
        if broken:
            raise broken
        if not line.strip():
            continue
        try:
            record = json.loads(line)
            event = record["event"]
            step = number(record, "step")
            if event not in records or (step is None and event in ("start", "end")):
                continue
            if step is None:
                raise ValueError
        except (ValueError, TypeError, KeyError, RecursionError):
            broken = UserError(
                f"{path}:{line_number}: not a line of a training log",
                "each line is a JSON object with an event and a step; remove the broken line",
            )
            continue
        _drop_repeated(records, event, step)
        records[event].append(record | {"step": step})
    if not records["train"] and not records["validation"]:
        raise UserError(f"{path}: no training step in this log yet", "train for a while first")
    return TrainingLog(records)


def _drop_repeated(records: dict[str, list[Record]], event: str, step: float) -> None:
    """A resumed run goes on from its checkpoint, before the last steps that it logged."""
    for kind, rows in records.items():
        # A start tells of the machine: each one stays, also two from the same checkpoint.
        again = kind == event and event != "start"
        while rows and rows[-1]["step"] >= step + (not again):
            rows.pop()
