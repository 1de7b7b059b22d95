"""What a training run says to the person who waits for it."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dragoman.cli import run as runs
from dragoman.cli import translation_run
from dragoman.config import resolve_config
from dragoman.corpus.pairs import Pair
from dragoman.evaluation.metrics import Metrics


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
    ("steps", "learned", "too_few"), [(10, True, False), (10, False, True), (5000, False, False)]
)
def test_few_updates_are_too_few_only_where_nothing_was_learned(
    steps: int, learned: bool, too_few: bool
) -> None:
    config = resolve_config("small", assignments=["training.warmup_steps=1000"])
    assert runs._too_few(config, steps, learned) is too_few


@pytest.mark.parametrize(
    ("most", "bleu", "name"),
    [(99, 4.9, "part of the 100 validation"), (100, 5.1, "evaluating")],
)
def test_a_part_of_the_validation_pairs_is_called_one(
    monkeypatch: pytest.MonkeyPatch, most: int, bleu: float, name: str
) -> None:
    names: list[str] = []
    measured = object.__new__(translation_run.TranslationRun)
    measured.pairs = [Pair(str(number), "x") for number in range(100)]
    measured._at_end, measured.config = most, resolve_config("tiny")
    monkeypatch.setattr(measured, "_translator", lambda *_: None)

    def measure(pairs: list[Pair], _: object) -> Metrics:
        return Metrics(bleu, "signature", 50.0, "signature", len(pairs))

    monkeypatch.setattr(measured, "_measure", measure)
    monkeypatch.setattr(
        translation_run, "translate_all", lambda _, lines, name, contexts: names.append(name)
    )
    results = measured.results(None, 1.0)  # type: ignore[arg-type]
    assert f"On {most} validation segments" in results.card
    assert results.learned is (bleu > 5)
    assert name in names[0] and ("part" in names[0]) == (most < 100)
