"""`dragoman attend` as a person meets it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Dragoman = Callable[..., Any]  # (arguments, stdin) -> status, out, err, lines: conftest.py


def test_a_page_is_written_and_named(dragoman: Dragoman, model: Path, tmp_path: Path) -> None:
    out = tmp_path / "a.html"
    result = dragoman("attend", "--model", model, "the red cat", "--out", out, "--lang", "zh")
    assert (result.status, result.lines) == (0, [str(out)])
    page = out.read_text("utf-8")
    assert '<html lang="zh-Hans">' in page
    assert "the red cat" in page


def test_the_page_has_a_name_of_its_own(
    dragoman: Dragoman, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = dragoman("attend", "--model", model.resolve(), "the cat", "--target", "Katze")
    assert (result.status, result.lines) == (0, ["attention.html"])
    assert ">Katze</dd>" in (tmp_path / "attention.html").read_text("utf-8")


@pytest.mark.parametrize("kind", ["encoder", "decoder", "cross"])
@pytest.mark.parametrize("head", [(), ("--head", "2")])
def test_a_picture_of_every_kind(
    dragoman: Dragoman, model: Path, tmp_path: Path, kind: str, head: tuple[str, ...]
) -> None:
    out = tmp_path / "a.PNG"
    options = ("--kind", kind, "--layer", "1", *head, "--target", "rot Katze")
    result = dragoman("attend", "--model", model, "the red cat", "--out", out, *options)
    assert result.status == 0
    assert out.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("the cat", "--out", "a.pdf"), "a.pdf: neither a page nor a picture"),
        (("the cat", "--layer", "2"), "no layer 2"),
        (("the cat", "--head", "3"), "no head 3"),
        (("  ",), "blank"),
        (("the cat", "--target", ""), "--target is blank"),
        (("the cat", "--out", "missing/a.html"), "its folder does not exist"),
    ],
)
def test_a_mistake_is_said_in_two_lines(
    dragoman: Dragoman,
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    result = dragoman("attend", "--model", model.resolve(), *arguments)
    error, hint = result.err.splitlines()
    assert result.status == 2
    assert error.startswith("error: ")
    assert message in error
    assert hint.startswith("hint: ")
    assert list(tmp_path.iterdir()) == []
