"""Checkpoints: whole or not there, whatever happens; averages; the lock of a folder."""

import errno
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor
from torch.testing import assert_close

from dragoman.errors import UserError
from dragoman.training import checkpoints as checkpoints_module
from dragoman.training.checkpoints import (
    Checkpoint,
    average_checkpoints,
    disk_errors,
    folder_lock,
    list_checkpoints,
    load_checkpoint,
    load_latest,
    prune_checkpoints,
    write_checkpoint,
)

FILES = ["model.safetensors", "optimizer.safetensors", "state.json"]


def make_checkpoint(seed: int) -> Checkpoint:
    generator = torch.Generator().manual_seed(seed)
    model = {name: torch.randn(3, 4, generator=generator) for name in ("b", "a/weight")}
    return Checkpoint(model, {"a/step": torch.tensor(float(seed))}, {"counters": {"seed": seed}})


def same(one: Checkpoint, other: Checkpoint) -> bool:
    def equal(left: dict[str, Tensor], right: dict[str, Tensor]) -> bool:
        return left.keys() == right.keys() and all(torch.equal(left[k], right[k]) for k in left)

    return (
        equal(one.model, other.model)
        and equal(one.optimizer, other.optimizer)
        and one.state["counters"] == other.state["counters"]
    )


def refuse(message: str) -> None:
    raise AssertionError(message)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "checkpoints"
    assert list_checkpoints(folder) == [] and load_latest(folder, refuse) is None
    checkpoint = make_checkpoint(1)
    # A view and a tensor that is not contiguous are saved as what they show.
    checkpoint.model["view"] = torch.arange(12.0).view(3, 4).T[1:]
    path = write_checkpoint(folder, 7, checkpoint)
    found = load_latest(folder, refuse)
    assert found is not None and same(found, checkpoint)
    assert found.state["step"] == 7
    assert sorted(entry.name for entry in path.iterdir()) == FILES
    assert list(folder.iterdir()) == [path]


def test_the_newest_comes_last(tmp_path: Path) -> None:
    for step in (900, 1000, 99_999_999, 2):
        write_checkpoint(tmp_path, step, make_checkpoint(step))
    found = load_latest(tmp_path, refuse)
    assert found is not None and found.state["step"] == 99_999_999
    assert [path.name for path in list_checkpoints(tmp_path)][:2] == [
        "step-00000002", "step-00000900",
    ]  # fmt: skip


def test_a_kill_at_any_moment_leaves_a_whole_checkpoint(tmp_path: Path) -> None:
    """The folder is copied before every line of the writer: what a kill there would leave."""
    folder, copies = tmp_path / "run", tmp_path / "copies"
    old, new = make_checkpoint(1), make_checkpoint(2)
    write_checkpoint(folder, 1, old)
    count = 0

    def before_each_line(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        if frame.f_code.co_filename != checkpoints_module.__file__:
            return None
        if event == "line":
            shutil.copytree(folder, copies / str(count))
            count += 1
        return before_each_line

    previous = sys.gettrace()
    sys.settrace(before_each_line)
    try:
        write_checkpoint(folder, 2, new)
    finally:
        sys.settrace(previous)
    assert count > 15
    seen_new = False
    for number in range(count):
        left = copies / str(number)
        found = load_latest(left, refuse)
        assert found is not None
        assert same(found, new) if seen_new else same(found, old) or same(found, new)
        seen_new = same(found, new)  # once there, it stays
        # What lies about does not disturb the next one, and does not stay.
        write_checkpoint(left, 2, new)
        found = load_latest(left, refuse)
        assert found is not None and same(found, new)
        assert len(list(left.iterdir())) == 2
    assert seen_new


def test_a_failure_while_writing_leaves_nothing_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_checkpoint(tmp_path, 1, make_checkpoint(1))
    for name in ("save_file", "sync_folder", "_digest"):
        with monkeypatch.context() as patch:

            def fail(*_: object) -> None:
                raise KeyboardInterrupt

            patch.setattr(checkpoints_module, name, fail)
            with pytest.raises(KeyboardInterrupt):
                write_checkpoint(tmp_path, 2, make_checkpoint(2))
        assert [path.name for path in tmp_path.iterdir()] == ["step-00000001"]


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-5])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-3] ^= 4
    path.write_bytes(content)


def write(content: bytes) -> Callable[[Path], None]:
    return lambda path: path.write_bytes(content) and None


DAMAGES: list[tuple[str, Callable[[Path], None]]] = [
    *((name, damage) for name in FILES for damage in (truncate, write(b""), Path.unlink)),
    *((name, flip) for name in FILES[:2]),
    *((FILES[2], write(text)) for text in (b"[]", b"null", b"{}", b'{"sha256": 3}', b"\xff")),
]


@pytest.mark.parametrize(("name", "damage"), DAMAGES)
def test_a_damaged_newest_checkpoint_falls_back_to_the_one_before(
    tmp_path: Path, name: str, damage: Callable[[Path], None]
) -> None:
    write_checkpoint(tmp_path, 1, make_checkpoint(1))
    damaged = write_checkpoint(tmp_path, 2, make_checkpoint(2))
    damage(damaged / name)
    warnings: list[str] = []
    found = load_latest(tmp_path, warnings.append)
    assert found is not None and same(found, make_checkpoint(1))
    assert len(warnings) == 1 and str(damaged) in warnings[0] and "damaged" in warnings[0]
    with pytest.raises(UserError, match="damaged checkpoint"):
        load_checkpoint(damaged)


def test_when_all_are_damaged_it_is_an_error(tmp_path: Path) -> None:
    for step in (1, 2):
        flip(write_checkpoint(tmp_path, step, make_checkpoint(step)) / FILES[0])
    warnings: list[str] = []
    with pytest.raises(UserError, match="none of the 2 checkpoints is whole"):
        load_latest(tmp_path, warnings.append)
    assert len(warnings) == 2
    assert len(list_checkpoints(tmp_path)) == 2


def test_damaged_ones_go_when_one_before_is_whole(tmp_path: Path) -> None:
    for step in (1, 2):
        write_checkpoint(tmp_path, step, make_checkpoint(step))
    flip(tmp_path / "step-00000002" / FILES[0])
    found = load_latest(tmp_path, lambda warning: None)
    assert found is not None and found.state["step"] == 1
    assert [path.name for path in list_checkpoints(tmp_path)] == ["step-00000001"]


def test_a_pickle_is_not_opened(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path, 1, make_checkpoint(1))
    torch.save({"weight": torch.ones(2)}, path / FILES[0])
    state = json.loads((path / FILES[2]).read_text("utf-8"))
    state["sha256"][FILES[0]] = checkpoints_module._digest(path / FILES[0])
    (path / FILES[2]).write_text(json.dumps(state), "utf-8")
    with pytest.raises(UserError, match="damaged checkpoint"):
        load_checkpoint(path)


def test_pruning_keeps_what_is_named(tmp_path: Path) -> None:
    for step in range(1, 7):
        write_checkpoint(tmp_path, step, make_checkpoint(step))
    prune_checkpoints(tmp_path, {2, 4, 17})
    kept = [int(path.name.removeprefix("step-")) for path in list_checkpoints(tmp_path)]
    assert kept == [2, 4]
    prune_checkpoints(tmp_path, set())
    assert list_checkpoints(tmp_path) == []


@pytest.mark.parametrize("count", [1, 2, 5])
def test_the_average_is_the_arithmetic_mean(tmp_path: Path, count: int) -> None:
    all_of_them = [make_checkpoint(seed) for seed in range(count)]
    paths = [write_checkpoint(tmp_path, seed, one) for seed, one in enumerate(all_of_them)]
    mean = average_checkpoints(paths)
    assert mean.keys() == all_of_them[0].model.keys()
    for name, weight in mean.items():
        expected = torch.stack([one.model[name].double() for one in all_of_them]).mean(0)
        assert weight.dtype == torch.float32
        assert_close(weight, expected.float(), rtol=1e-7, atol=1e-8)


def test_what_does_not_fit_together_is_not_averaged(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path, 1, make_checkpoint(1))
    state: dict[str, Any] = {"counters": {}}
    names = write_checkpoint(tmp_path, 2, Checkpoint({"b": torch.ones(3, 4)}, {}, state))
    shapes = {"b": torch.ones(3, 4), "a/weight": torch.ones(4, 3)}
    shape = write_checkpoint(tmp_path, 3, Checkpoint(shapes, {}, state))
    for other, said in ((names, "names"), (shape, "shape")):
        with pytest.raises(UserError, match=said) as caught:
            average_checkpoints([path, other])
        assert str(other) in caught.value.message
    flip(path / FILES[0])
    with pytest.raises(UserError, match="damaged"):
        average_checkpoints([path])
    with pytest.raises(UserError, match="no checkpoints"):
        average_checkpoints([])


def test_a_folder_has_one_holder(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    with folder_lock(folder):
        with pytest.raises(UserError, match="another training") as caught, folder_lock(folder):
            pass
        assert str(folder) in caught.value.message and caught.value.hint
        with folder_lock(tmp_path / "other"):
            pass
    with folder_lock(folder):  # free again, after an error too
        pass


FULL = [
    OSError(errno.ENOSPC, "No space left on device"),
    OSError(errno.EDQUOT, "Disk quota exceeded"),
    SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)"),
]


@pytest.mark.parametrize("error", FULL, ids=["ENOSPC", "EDQUOT", "safetensors"])
def test_a_full_disk_is_said_and_costs_no_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    write_checkpoint(tmp_path, 1, make_checkpoint(1))

    def half_written(tensors: dict[str, Tensor], path: Path) -> None:
        save_file(tensors, path)
        truncate(path)
        raise error

    monkeypatch.setattr(checkpoints_module, "save_file", half_written)
    with pytest.raises(UserError, match="the disk is full") as caught:
        write_checkpoint(tmp_path, 2, make_checkpoint(2))
    assert "--resume" in caught.value.hint
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000001"]
    assert load_latest(tmp_path, refuse) is not None


def test_a_folder_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("", "utf-8")
    with pytest.raises(UserError, match="cannot write here"):
        write_checkpoint(file / "checkpoints", 1, make_checkpoint(1))
    with pytest.raises(UserError, match="cannot write here"), folder_lock(file):
        pass
    with pytest.raises(UserError, match="cannot write here"), disk_errors(tmp_path):
        raise OSError(errno.EROFS, "Read-only file system")
