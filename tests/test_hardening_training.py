"""Careless and unlucky ways to prepare and to train: each is one error with a hint, or harmless."""

import ast
import errno
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import dragoman
from dragoman import cli
from dragoman.cli import stages
from dragoman.config import resolve_config
from dragoman.corpus.preparation import prepare_corpus
from dragoman.corpus.prepared import COMPLETE, FILES, REPORT, CorpusFiles, load_prepared
from dragoman.corpus.store import CorpusStore, write_store
from dragoman.errors import UserError
from dragoman.training.checkpoints import Checkpoint, load_checkpoint, load_latest, write_checkpoint
from dragoman.training.distributed import Ranks
from dragoman.training.feed import Feed
from dragoman.training.progress import stage


def fail_with(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the command line do nothing but fail."""

    def command(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(cli.typer.main, "get_command", lambda _: type("C", (), {"main": command}))


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (OSError(errno.ENAMETOOLONG, "File name too long", "x/y"), "x/y: File name too long"),
        (OSError(errno.EIO, "Input/output error"), "Input/output error"),
        (OSError(errno.EDQUOT, "Disk quota exceeded", "x"), "no space left on the device"),
        (PermissionError(errno.EACCES, "Permission denied", b"x"), "x: Permission denied"),
        (MemoryError(), "not enough memory"),
        (torch.OutOfMemoryError("CUDA out of memory"), "not enough memory"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), "not enough memory"),
    ],
)
def test_what_the_system_refuses_is_one_error_with_a_hint(
    error: Exception,
    shown: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    fail_with(error, monkeypatch)
    with pytest.raises(SystemExit) as end:
        cli.main()
    first, second = capsys.readouterr().err.splitlines()
    assert end.value.code == 2
    assert first == f"error: {shown}"
    assert second.startswith("hint: ")


@pytest.mark.parametrize("error", [OSError("no number"), RuntimeError("a bug")])
def test_a_mistake_of_ours_is_not_hidden(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    fail_with(error, monkeypatch)
    with pytest.raises(type(error)):
        cli.main()


def test_every_error_has_a_hint() -> None:
    bare = []
    for path in Path(dragoman.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") in (
                "UserError",
                "EveryRankError",
            ):
                starred = any(isinstance(argument, ast.Starred) for argument in node.args)
                if len(node.args) + len(node.keywords) < 2 and not starred:
                    bare.append(f"{path}:{node.lineno}")
    assert not bare


def write(path: Path, lines: list[str]) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines), "utf-8")
    return path


def test_one_text_as_both_sides_is_refused(tmp_path: Path) -> None:
    source = write(tmp_path / "a", [f"line {number}" for number in range(60)])
    target = write(tmp_path / "b", [f"line {number}" for number in range(60)])
    other = write(tmp_path / "c", [f"Zeile {number}" for number in range(60)])

    def prepare(**files: Path) -> None:
        prepare_corpus(
            CorpusFiles("en", "de", **files),  # type: ignore[arg-type]
            tmp_path / "out",
            lambda _: resolve_config("tiny").data,
            stage,
        )

    for files in (
        {"source": source, "target": source},
        {"source": source, "target": target},
        {"source": source, "target": other, "valid_source": other, "valid_target": other},
    ):
        with pytest.raises(UserError, match="holds the same text as the source"):
            prepare(**files)
    assert not (tmp_path / "out").exists()


def test_a_kill_while_a_corpus_is_adopted_leaves_no_complete_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    for folder in (old, new):
        folder.mkdir()
        for name in (*FILES, COMPLETE):
            (folder / name).write_text(folder.name)

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(stages.os, "link", killed)
    with pytest.raises(KeyboardInterrupt):
        stages._adopt(new, old)
    assert not (old / COMPLETE).exists()


CHECKPOINT = Checkpoint(
    {"weight": torch.ones(2, 3)},
    {"weight/step": torch.ones(1)},
    {"counters": {"step": 3, "seconds": 0.1, "best_nll": float("inf")}, "identity": {"seed": 1}},
)


@pytest.mark.parametrize("value", [-5, "x", 4, float("nan"), None, 10**30])
def test_an_edited_state_is_a_damaged_checkpoint(tmp_path: Path, value: Any) -> None:
    whole = write_checkpoint(tmp_path, 2, CHECKPOINT)
    path = write_checkpoint(tmp_path, 3, CHECKPOINT)
    assert load_checkpoint(path).state["counters"] == CHECKPOINT.state["counters"]
    state = json.loads((path / "state.json").read_text())
    state["counters"]["step"] = value
    (path / "state.json").write_text(json.dumps(state))
    with pytest.raises(UserError, match=r"checksum of state\.json"):
        load_checkpoint(path)
    warnings: list[str] = []
    found = load_latest(tmp_path, warnings.append)
    assert found is not None
    assert found.state["step"] == 2
    assert len(warnings) == 1
    assert whole.is_dir()


def test_deep_nesting_is_a_damaged_checkpoint(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path, 3, CHECKPOINT)
    (path / "state.json").write_text("[" * 100_000)
    with pytest.raises(UserError, match="damaged checkpoint"):
        load_checkpoint(path)


def test_a_corpus_of_other_rows_has_another_fingerprint(tmp_path: Path) -> None:
    settings = resolve_config("tiny").training

    def fingerprint(name: str, lengths: list[int]) -> str:
        rows = [(np.full(n, 9), np.full(n + 1, 9)) for n in lengths]
        write_store(tmp_path / name, iter(rows), 300)
        ranks = Ranks(torch.device("cpu"))
        return Feed(CorpusStore.open(tmp_path / name), settings, 300, tmp_path, ranks).fingerprint

    first = fingerprint("a", [3, 4, 5])
    assert fingerprint("b", [3, 4, 5]) == first
    assert len({first, fingerprint("c", [4, 3, 5]), fingerprint("d", [3, 4])}) == 3


@pytest.mark.parametrize(
    "setting",
    [
        "training.weight_decay=inf",
        "training.adam_epsilon=inf",
        "training.gradient_clip=nan",
        "data.max_length_ratio=inf",
        f"training.warmup_steps={10**30}",
        f"training.batch_tokens={10**30}",
        f"training.patience={10**30}",
    ],
)
def test_a_setting_is_a_finite_number_within_reason(setting: str) -> None:
    with pytest.raises(UserError, match=setting.partition("=")[0]):
        resolve_config("tiny", assignments=[setting])


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        (COMPLETE, {"training_pairs": "x"}),
        (COMPLETE, {"pairs": None}),
        (COMPLETE, {"languages": [1, "de"]}),
        (COMPLETE, {"languages": "deep"}),
        (COMPLETE, {"inputs": [3]}),
        (COMPLETE, {"data": []}),
        (REPORT, {"text": 3}),
    ],
)
def test_an_edited_record_of_a_corpus_is_one_error(
    tmp_path: Path, name: str, changes: dict[str, Any]
) -> None:
    record = {"version": 1, "languages": ["en", "de"], "errors": "strict", "inputs": []}
    record |= {"pairs": 3, "training_pairs": 2, "validation_pairs": 1}
    record |= {"data": resolve_config("tiny").data.model_dump()}
    contents: dict[str, Any] = {COMPLETE: record, REPORT: {"text": "3 pairs read"}}
    for file in (*FILES, COMPLETE):
        (tmp_path / file).write_text(json.dumps(contents.get(file, "")))
    assert load_prepared(tmp_path).training_pairs == 2
    (tmp_path / name).write_text(json.dumps(contents[name] | changes))
    with pytest.raises(UserError, match="damaged"):
        load_prepared(tmp_path)
    (tmp_path / COMPLETE).write_text("[" * 100_000)
    with pytest.raises(UserError, match="not a completely prepared corpus"):
        load_prepared(tmp_path)
