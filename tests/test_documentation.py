"""What the documents say is so: the commands, the names, the targets and the links exist."""

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
GENERATOR = ROOT / "docs" / "generate_cli.py"
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("benchmarks/**/*.md")])

FENCE = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`[^`\n]+`")
# [text](target), [text](<target> "title"), ![image](target)
LINK = re.compile(r"\]\(<?([^)>\s]+)>?(?:\s+\"[^\"]*\")?\)")
HEADING = re.compile(r"^#+\s+(.*?)\s*#*$", re.MULTILINE)
DOTTED = re.compile(r"`(dragoman(?:\.\w+)+)(?:\(\))?`")


def resolve(name: str) -> object:
    """The thing that a dotted name means: the longest part that imports, then attributes."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        module = ".".join(parts[:length])
        try:
            found: object = importlib.import_module(module)
        except ModuleNotFoundError as error:
            # A library that is missing inside the module is another matter than a wrong name.
            if error.name is None or not f"{module}.".startswith(f"{error.name}."):
                raise
            continue
        for part in parts[length:]:
            # A dataclass or pydantic field without a default is an annotation only.
            declared = getattr(found, "__annotations__", {})
            if not hasattr(found, part) and part in declared:
                return declared[part]
            found = getattr(found, part)
        return found
    raise AttributeError(name)


def anchors(text: str) -> set[str]:
    """The fragments that headings get on the usual hosts of Markdown."""
    titles = HEADING.findall(FENCE.sub("", text))
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def broken_links(page: Path, root: Path) -> list[str]:
    text = CODE.sub("", FENCE.sub("", page.read_text("utf-8")))
    broken = []
    for target in LINK.findall(text):
        if re.match(r"[a-z][a-z0-9+.-]*:", target):  # another site's page may go without our fault
            continue
        path, _, fragment = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        # What lies outside the repository is not in a clone of it.
        exists = file.exists() and file.is_relative_to(root.resolve())
        if not exists or (fragment and fragment not in anchors(file.read_text("utf-8"))):
            broken.append(target)
    return broken


def test_the_command_page_is_what_help_says() -> None:
    hostile = {"COLUMNS": "40", "FORCE_COLOR": "1", "LC_ALL": "C", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, str(GENERATOR), "--check"],
        cwd=ROOT,
        env=os.environ | hostile,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_every_name_in_the_map_of_the_paper_exists() -> None:
    names = sorted(set(DOTTED.findall((ROOT / "docs" / "paper.md").read_text("utf-8"))))
    assert len(names) > 20, "the map of the paper names hardly anything"
    missing = []
    for name in names:
        try:
            resolve(name)
        except AttributeError:
            missing.append(name)
    assert missing == []


def test_a_name_that_does_not_exist_is_seen() -> None:
    assert resolve("dragoman.errors.UserError.__init__")
    for wrong in ("dragoman.errors.NoError", "dragoman.no_such_module.f", "dragoman.errors.a.b"):
        with pytest.raises(AttributeError):
            resolve(wrong)


def test_the_make_targets_in_the_readme_exist() -> None:
    named = set(re.findall(r"(?m)(?:^\s*|`)make ([a-z]+)", (ROOT / "README.md").read_text("utf-8")))
    rules = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    assert {"demo", "test"} <= named
    assert named - rules == set()


def test_the_settings_page_is_current() -> None:
    generator = ROOT / "docs" / "generate_settings.py"
    done = subprocess.run(
        [sys.executable, str(generator), "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, "docs/settings.md is not what the settings are: run `make docs`"


def test_the_names_on_the_python_page_exist() -> None:
    names = re.findall(r"(?m)^::: (\S+)$", (ROOT / "docs" / "api.md").read_text("utf-8"))
    assert len(names) > 5
    assert all(resolve(name) for name in names)


def misnamed(command: list[str]) -> list[str]:
    """The words of a command line that are no command and no option of `dragoman`."""
    from typer.main import get_command

    from dragoman.cli import app

    names: dict[str, Any] = get_command(app).commands  # type: ignore[attr-defined]
    words = [word.partition("=")[0] for word in command]
    if not words or not re.fullmatch("[a-z-]+", words[0]) or words[0].startswith("--"):
        return []
    if words[0] not in names:
        return words[:1]
    known = {"--help"}.union(*(parameter.opts for parameter in names[words[0]].params))
    return [word for word in words if re.match("--[a-z]", word) and word not in known]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_commands_and_options_in_the_text_exist(page: Path) -> None:
    text = FENCE.sub("", page.read_text("utf-8"))
    commands = re.findall(r"`dragoman ([^`]+)`", text)
    assert [wrong for command in commands for wrong in misnamed(command.split())] == []


def test_a_wrong_option_is_seen() -> None:
    assert misnamed(["train", "--out", "x", "--sorce=y", "--help"]) == ["--sorce"]
    assert misnamed(["trian", "--out"]) == ["trian"]
    assert misnamed(["--version"]) == []


def test_the_chinese_readme_keeps_up_with_the_english_one() -> None:
    english, chinese = (
        (ROOT / name).read_text("utf-8") for name in ("README.md", "README.zh-CN.md")
    )
    # Headings by level, rows of tables, items of lists.
    for mark in (r"^(#+) ", r"^(\|)", r"^(-) "):
        outside = [FENCE.sub("", text) for text in (english, chinese)]
        first, second = (re.findall(mark, text, re.MULTILINE) for text in outside)
        assert first == second, mark
    blocks = [[match[0] for match in FENCE.finditer(text)] for text in (english, chinese)]
    assert blocks[0] == blocks[1]
    for what in (CODE, LINK, re.compile(r"\d+\.\d+")):
        # Each language links the other one.
        first, second = (set(what.findall(FENCE.sub("", text))) for text in (english, chinese))
        assert first ^ second <= {"README.md", "README.zh-CN.md"}, what


def test_pictures_of_the_documents_are_small() -> None:
    pictures = [path for path in (ROOT / "docs" / "images").iterdir() if path.is_file()]
    assert [path.name for path in pictures if path.stat().st_size >= 150_000] == []


def test_no_figure_waits_to_be_filled_in() -> None:
    assert re.findall(r".*@@.*", (ROOT / "README.md").read_text("utf-8")) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    assert broken_links(page, ROOT) == []


def test_a_broken_link_is_seen(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# A `b`: c\n[1](page.md) [2](#a-b-c) [3](none.md) [4](#none) ![5](none.png)\n"
        "[0](../../) `[6](none.md)`\n```\n[7](none.md)\n```\n[8](https://example.org/none)\n",
        "utf-8",
    )
    assert broken_links(page, tmp_path) == ["none.md", "#none", "none.png", "../../"]
