"""What a training run says to the person who waits for it."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dragoman.cli import run as runs
from dragoman.cli import validation
from dragoman.config import SearchConfig, resolve_config
from dragoman.corpus.pairs import Pair


def make_run(folder: Path, assignments: list[str]) -> Any:
    config = resolve_config("tiny", assignments=assignments)
    corpus = SimpleNamespace(folder=folder, training_pairs=1)
    return runs.Run(folder, config, corpus, SimpleNamespace(first=True, rank=0, size=1))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("assignments", "line"),
    [
        (["training.max_steps=40"], "going on from step 1,020 of 40"),
        ([], "going on from step 1,020"),
    ],
)
def test_where_a_run_goes_on_is_said_before_anything_slow(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    assignments: list[str],
    line: str,
) -> None:
    class TooLateError(Exception):
        pass

    def trainer(*_: Any) -> None:
        raise TooLateError

    monkeypatch.setattr(runs, "Trainer", trainer)
    monkeypatch.setattr(runs.CorpusStore, "open", lambda _: None)
    run = make_run(tmp_path, assignments)
    with pytest.raises(TooLateError):
        runs._train(run, None, None)  # type: ignore[arg-type]
    assert "going on" not in capsys.readouterr().err
    for step in (20, 1020):
        (tmp_path / "training" / "checkpoints" / f"step-{step:08}").mkdir(parents=True)
    with pytest.raises(TooLateError):
        runs._train(run, None, None)  # type: ignore[arg-type]
    assert capsys.readouterr().err.splitlines() == [line]


@pytest.mark.parametrize(
    ("steps", "bleu", "learned"), [(10, 93.98, True), (10, 0.3, False), (5000, 0.3, True)]
)
def test_few_updates_are_too_few_only_where_nothing_was_learned(
    steps: int, bleu: float, learned: bool
) -> None:
    config = resolve_config("small", assignments=["training.warmup_steps=1000"])
    assert runs._learned_nothing(config, steps, bleu) is not learned


@pytest.mark.parametrize(
    ("most", "name"), [(99, "part of the 100 validation"), (100, "evaluating")]
)
def test_a_part_of_the_validation_pairs_is_called_one(
    monkeypatch: pytest.MonkeyPatch, most: int, name: str
) -> None:
    names: list[str] = []
    measured = object.__new__(validation.Validation)
    measured._pairs = [Pair(str(number), "x") for number in range(100)]
    measured._at_end, measured._config = most, SimpleNamespace(search=SearchConfig())  # type: ignore[assignment]
    monkeypatch.setattr(measured, "_translator", lambda *_: None)
    monkeypatch.setattr(measured, "_measure", lambda pairs, _: len(pairs))
    monkeypatch.setattr(validation, "translate_all", lambda _, lines, name: names.append(name))
    assert measured.final(None) == most  # type: ignore[arg-type]
    assert name in names[0] and ("part" in names[0]) == (most < 100)
