"""Figures 3 to 5 of the paper, of a model of random weights."""

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from dragoman.inspection.pronouns import WordAttention
from dragoman.model.folder import load_model


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "benchmarks" / "paper"))
    return importlib.import_module("figures")


def test_the_clearest_heads_are_of_one_layer(figures: ModuleType) -> None:
    clearness = np.array([[0.9, 0.1, 0.2], [0.5, 0.4, 0.7]])
    assert figures.clearest(clearness) == (1, [2, 0])


def test_the_long_distance_is_that_from_the_word(
    figures: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("it", "makes", "life", "so", "hard", "</s>")
    weights = np.zeros((3, 2, 6), np.float32)
    weights[0, :, 2] = weights[1, :, 5] = 1  # the next word; the end, which does not count
    weights[2, 0, 4] = weights[2, 1, 1] = 1  # a far word, and the word itself
    view = WordAttention(" ".join(words[:-1]), words, 1, weights)
    monkeypatch.setattr(figures, "word_attention", lambda *_: [view])
    found = figures.long_distance(None, view.text, "makes")
    assert found.layer == 2
    assert (found.weights[:, 1] == weights[2]).all()
    assert not found.weights[:, [0, 2, 3, 4, 5]].any()
    assert "\n  head 1: makes -> hard 1.00\n" in figures.description(found)


def test_the_figures_are_written_and_said_in_words(
    figures: ModuleType,
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["figures.py", str(model), "--out", str(tmp_path)])
    figures.main()
    kinds: dict[str, Callable[[bytes], bool]] = {
        "png": lambda content: content.startswith(b"\x89PNG"),
        "html": lambda content: content.startswith(b"<!DOCTYPE html>"),
    }
    for number in (3, 4, 5):
        for kind, right in kinds.items():
            assert right((tmp_path / f"figure{number}.{kind}").read_bytes())
    said = capsys.readouterr().out
    assert [line[:9] for line in said.splitlines() if line[0] == "f"] == [
        f"figure {number}:" for number in (3, 4, 5)
    ]
    figure = figures.structure(load_model(model), figures.STRUCTURE)
    assert figure.weights.sum(axis=-1) == pytest.approx(1, abs=1e-4)
