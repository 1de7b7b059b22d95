"""What options mean before a command sees them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dragoman.cli import app, options
from dragoman.errors import UserError


@pytest.mark.parametrize(
    ("name", "language"),
    [
        ("train.en", "en"),
        ("data/train.zh-Hans.gz", "zh-Hans"),
        ("train.tok.pt_BR.zst", "pt_BR"),
        ("train.txt", None),
        ("train", None),
        ("corpus.v2", None),
        ("en", None),
    ],
)
def test_a_language_is_guessed_from_a_file_name(name: str, language: str | None) -> None:
    assert options.guess_language(Path(name)) == language


def test_help_fits_eighty_columns(
    dragoman: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERMINAL_WIDTH", "80")
    commands = [
        command.callback.__name__ for command in app.registered_commands if command.callback
    ]
    assert len(commands) > 10
    for arguments in ([], *([name] for name in commands)):
        shown = dragoman(*arguments, "--help")
        assert shown.status == 0
        assert [line for line in shown.lines if len(line) > 80] == []


@pytest.mark.parametrize(
    ("text", "budget"),
    [
        ("90s", (90.0, None)),
        ("10m", (600.0, None)),
        ("1.5h", (5400.0, None)),
        ("1h30m", (5400.0, None)),
        ("5000-steps", (None, 5000)),
        ("100k-steps", (None, 100_000)),
        (None, (None, None)),
    ],
)
def test_budgets(text: str | None, budget: tuple[float | None, int | None]) -> None:
    assert options.parse_budget(text) == budget


@pytest.mark.parametrize("text", ["", "10", "m", "0m", "0-steps", "10 minutes", "-5m", "1d"])
def test_what_is_no_budget(text: str) -> None:
    with pytest.raises(UserError, match="not a budget"):
        options.parse_budget(text)
