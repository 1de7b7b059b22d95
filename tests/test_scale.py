"""Bulk translation on Ray Data: the same text, whoever dies."""

import os
import signal
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dragoman.cli.loading import find_recipe
from dragoman.decoding.answers import Form
from dragoman.decoding.pipeline import Entry
from dragoman.decoding.recipe import Recipe
from dragoman.decoding.workers import Wanted
from dragoman.errors import UserError
from dragoman.scale import translating
from dragoman.scale.translating import translate_on_cluster

WORDS = "the red old big cat dog house tree bird sees finds draws".split()
LINES = [f"{WORDS[n % 12]} {WORDS[n * 7 % 11]} {n % 40}" for n in range(150)]
Map = Callable[[Callable[[Any], Any], Iterable[Any]], Iterator[Any]]


@pytest.fixture
def recipe(model: Path, monkeypatch: pytest.MonkeyPatch) -> Recipe:
    monkeypatch.setattr(translating, "_LINES", 20)
    monkeypatch.setattr(translating, "_CHARACTERS", 500)
    return find_recipe(model, 1, None, "cpu", settings=["search.max_extra_tokens=0"])[0]


def entries(lines: Iterable[str], prefix: str = "") -> Iterator[Entry]:
    for number, line in enumerate(lines, start=1):
        yield Entry(line, prefix, (), "line ", number)


def written(run: Map, recipe: Recipe, given: Iterable[Entry], form: Form, first: int = 1) -> bytes:
    found, number = b"", first
    for window in translate_on_cluster(run, recipe, Wanted(form), given, first):
        for _, answer in window:
            found += answer.written(number)
            number += 1
    return found


def alone(recipe: Recipe, lines: list[str], form: Form) -> bytes:
    translations = recipe.open(lambda _: None).translate(lines)
    return b"".join(form.render(one).written(n) for n, one in enumerate(translations, start=1))


def test_windows_join_to_the_text_of_one_call(recipe: Recipe) -> None:
    lines = [*LINES, "", "x" * 600, *LINES[:5]]  # one line is a window of its own
    for form in (Form("text"), Form("json")):
        assert written(map, recipe, entries(lines), form) == alone(recipe, lines, form)
    assert written(map, recipe, entries([]), Form()) == b""


def test_an_error_of_reading_comes_after_what_was_read(recipe: Recipe) -> None:
    def broken() -> Iterator[Entry]:
        yield from entries(LINES[:33])
        raise UserError("text:34: invalid UTF-8", "convert it")

    found = []
    with pytest.raises(UserError, match="text:34"):
        for window in translate_on_cluster(map, recipe, Wanted(Form()), broken(), 1):
            found += [entry.text for entry, _ in window]
    assert found == LINES[:33]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of Ray among its own parts
def test_workers_that_are_killed_lose_and_double_nothing(recipe: Recipe, tmp_path: Path) -> None:
    pytest.importorskip("ray.data", reason="Ray is not installed: pip install 'dragoman[scale]'")
    from dragoman.scale.ray_data import RayData

    form = Form("json")
    expected = alone(recipe, LINES, form)
    with RayData("local") as cluster:
        assert written(cluster.map, recipe, entries(LINES), form) == expected

        def run(function: Callable[[Any], Any], rows: Iterable[Any]) -> Iterator[Any]:
            def work(row: Any) -> Any:
                mark = tmp_path / str(row[1])
                if row[1] in (21, 81) and not mark.exists():
                    mark.touch()
                    os.kill(os.getpid(), signal.SIGKILL)
                return function(row)

            return cluster.map(work, rows)

        assert written(run, recipe, entries(LINES), form) == expected
        assert sorted(path.name for path in tmp_path.iterdir()) == ["21", "81"]

        def dies(row: Any) -> Any:
            os.kill(os.getpid(), signal.SIGKILL)

        with pytest.raises(UserError, match="the Ray cluster failed"):
            list(cluster.map(dies, [1]))
