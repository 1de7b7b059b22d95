"""Checkpoints that survive a kill at any moment.

A checkpoint is a folder ``step-00001000`` with ``model.safetensors``, ``optimizer.safetensors`` and
``state.json`` (counters, random state, checksums of the two files and of itself). It is written
under another name, synced and renamed: what has the right name is whole. Loading still verifies the
checksums and falls back to the one before.
"""

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from dragoman.errors import UserError

CHECKPOINTS = "checkpoints"
LOCK = "lock"
_FILES = ("model.safetensors", "optimizer.safetensors")
_ONE_TRAINING = "name whole checkpoints of one training"


@dataclass(frozen=True)
class Checkpoint:
    """What training needs to go on as if it had never stopped."""

    model: dict[str, Tensor]
    optimizer: dict[str, Tensor]
    state: dict[str, Any]


def write_checkpoint(folder: Path, step: int, checkpoint: Checkpoint) -> Path:
    """Write ``folder/step-N`` so that it is either whole or not there. Raises UserError."""
    final = folder / step_name(step)
    partial = folder / f".partial-{final.name}"
    with disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        try:
            save_file(_plain(checkpoint.model), partial / _FILES[0])
            save_file(_plain(checkpoint.optimizer), partial / _FILES[1])
            sums = {name: _sync_and_digest(partial / name) for name in _FILES}
            state = checkpoint.state | {"step": step}
            sums |= {"state": _state_digest(state)}
            text = json.dumps(state | {"sha256": sums})
            (partial / "state.json").write_text(text, encoding="utf-8")
            _sync_and_digest(partial / "state.json")
            sync_folder(partial)
            shutil.rmtree(final, ignore_errors=True)
            partial.rename(final)
            sync_folder(folder)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
    return final


def step_name(step: int) -> str:
    """The name of a checkpoint's folder."""
    return f"step-{step:08d}"


def checkpoint_step(path: Path) -> int:
    """The step that a checkpoint folder is of."""
    return int(path.name.removeprefix("step-"))


def list_checkpoints(folder: Path) -> list[Path]:
    """The checkpoint folders, oldest first."""
    return sorted(folder.glob("step-" + 8 * "[0-9]")) if folder.is_dir() else []


def load_latest(folder: Path, warn: Callable[[str], None]) -> Checkpoint | None:
    """The newest checkpoint that is whole; None when there is none at all.

    Each damaged one is named through `warn` and deleted once one before it is found whole, so that
    what is written next is the newest. Raises UserError when none is whole.
    """
    paths = list_checkpoints(folder)
    damaged: list[Path] = []
    for path in reversed(paths):
        try:
            checkpoint = load_checkpoint(path)
        except UserError as error:
            warn(f"{error.message}; looking at the one before")
            damaged.append(path)
            continue
        for useless in (*damaged, *folder.glob(".partial-*")):
            shutil.rmtree(useless, ignore_errors=True)
        return checkpoint
    if paths:
        raise UserError(
            f"{folder}: none of the {len(paths)} checkpoints is whole",
            "train again into another --out; the corpus beside them can be reused: --prepared",
        )
    return None


def load_checkpoint(path: Path) -> Checkpoint:
    """Read and verify one checkpoint folder. Raises UserError when it is damaged."""
    try:
        state = json.loads((path / "state.json").read_text(encoding="utf-8"))
        for name in _FILES:
            if _digest(path / name) != state["sha256"][name]:
                raise UserError(
                    f"{path / name}: damaged checkpoint (checksum differs)", _ONE_TRAINING
                )
        if state["sha256"].get("state", own := _state_digest(state)) != own:
            raise ValueError("the checksum of state.json differs")
        return Checkpoint(load_file(path / _FILES[0]), load_file(path / _FILES[1]), state)
    except (OSError, ValueError, KeyError, TypeError, RecursionError, SafetensorError) as error:
        raise UserError(f"{path}: damaged checkpoint ({error})", _ONE_TRAINING) from None


def prune_checkpoints(folder: Path, keep: set[int]) -> None:
    """Delete every checkpoint but those of the given steps."""
    for path in list_checkpoints(folder):
        if checkpoint_step(path) not in keep:
            shutil.rmtree(path, ignore_errors=True)


def average_checkpoints(paths: list[Path]) -> dict[str, Tensor]:
    """The mean of the weights of several checkpoints (section 6.1), summed in float64."""
    mean = WeightsMean()
    for path in paths:
        mean.add(path, load_checkpoint(path).model)
    return mean.result()


class WeightsMean:
    """The mean of weights that come one after the other; two of them are in memory at once."""

    def __init__(self) -> None:
        self.count = 0
        self._total: dict[str, Tensor] = {}

    def add(self, path: Path, weights: dict[str, Tensor]) -> None:
        """Take in one more, read from `path`. Raises UserError when it is not like the first."""
        total = self._total
        if total and total.keys() != weights.keys():
            raise UserError(
                f"{path}: its weights have other names than the first checkpoint's", _ONE_TRAINING
            )
        for name, weight in weights.items():
            if name in total and total[name].shape != weight.shape:
                raise UserError(
                    f"{path}: weight {name} has another shape than the first one's", _ONE_TRAINING
                )
            total[name] = weight.double() + total[name] if name in total else weight.double()
        self.count += 1

    def result(self) -> dict[str, Tensor]:
        """The mean in float32. Raises UserError when there was none."""
        if not self.count:
            raise UserError("no checkpoints to average", _ONE_TRAINING)
        return {name: (weight / self.count).float() for name, weight in self._total.items()}


@contextmanager
def folder_lock(folder: Path) -> Iterator[None]:
    """Hold the folder for one training. Raises UserError when another process holds it."""
    import fcntl

    with disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        handle = (folder / LOCK).open("w")
    with handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UserError(
                f"{folder}: another training is using this folder",
                "wait for it, stop it, or train into another --out folder",
            ) from None
        yield


@contextmanager
def disk_errors(folder: Path) -> Iterator[None]:
    """Turn a full disk or a read-only folder into a UserError."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        number = error.errno if isinstance(error, OSError) else None
        full = number in (errno.ENOSPC, errno.EDQUOT) or "No space left" in str(error)
        if full:
            raise UserError(
                f"{folder}: the disk is full", "free some space, then go on with --resume"
            ) from None
        raise UserError(
            f"{folder}: cannot write here: {error}",
            "make the folder writable, then go on with --resume; or name another --out",
        ) from None


def sync_folder(folder: Path) -> None:
    """Make a rename inside the folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _plain(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}


def _sync_and_digest(path: Path) -> str:
    with path.open("rb") as stream:
        os.fsync(stream.fileno())
    return _digest(path)


def _state_digest(state: dict[str, Any]) -> str:
    """Of all that is in state.json but the checksums."""
    rest = {name: value for name, value in state.items() if name != "sha256"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def _digest(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
