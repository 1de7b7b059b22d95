"""What options mean before a command sees them."""

from pathlib import Path

import pytest

from dragoman.cli import options
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
