"""Write ``docs/cli.md`` from the ``--help`` of every command.

Run by ``make docs``. With ``--check`` nothing is written: the exit status is 1 when the page on
disk is not what the commands say now.
"""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

PAGE = Path(__file__).with_name("cli.md")
WIDTH = 100
HEADER = """# The command line

Written by `make docs` from `--help`; do not edit.
"""


def help_pages() -> Iterator[tuple[str, str]]:
    """The name and the help text of ``dragoman`` and of each command below it, in their order."""
    # Read when typer is imported, so set first: the page must not depend on who writes it where.
    os.environ.update(TERM="dumb", NO_COLOR="1", TYPER_USE_RICH="0")
    for variable in ("FORCE_COLOR", "GITHUB_ACTIONS", "PY_COLORS"):
        os.environ.pop(variable, None)
    from typer.main import get_command
    from typer.testing import CliRunner

    from dragoman.cli import app

    waiting = [((), get_command(app))]
    while waiting:
        path, command = waiting.pop(0)
        result = CliRunner().invoke(
            app, [*path, "--help"], prog_name="dragoman", terminal_width=WIDTH
        )
        name = " ".join(("dragoman", *path))
        if result.exit_code:
            raise SystemExit(f"`{name} --help` failed:\n{result.output}") from result.exception
        yield name, result.output
        below = getattr(command, "commands", {})
        waiting[:0] = [((*path, key), value) for key, value in below.items() if not value.hidden]


def render() -> str:
    """The whole page."""
    sections = [HEADER]
    for name, text in help_pages():
        lines = "\n".join(line.rstrip() for line in text.strip("\n").splitlines())
        sections.append(f"## `{name}`\n\n```text\n{lines}\n```\n")
    return "\n".join(sections)


def main() -> int:
    """Write the page, or compare with it; the exit status."""
    page = render()
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(page, encoding="utf-8", newline="\n")
        return 0
    if PAGE.is_file() and PAGE.read_text(encoding="utf-8") == page:
        return 0
    print(f"{PAGE.name} is not what --help says now: run `make docs`", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
