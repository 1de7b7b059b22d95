"""Write ``docs/settings.md`` from the settings and presets themselves.

Run by ``make docs``. With ``--check`` nothing is written: the exit status is 1 when the page on
disk is not what the settings are now.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

from pydantic import BaseModel

from dragoman.config import Config
from dragoman.presets import PRESETS, preset_for

PAGE = Path(__file__).with_name("settings.md")
SECTIONS = ("model", "data", "training", "search")
HEADER = """# Settings and presets

Written by `make docs` from the code; do not edit. Weakest first: preset, `--config FILE` (TOML),
flags, `--set section.name=value`. What a run used is in its `config.toml`.
"""


def setting_rows(kind: type[BaseModel]) -> Iterator[str]:
    """A table row for each setting of a section."""
    yield "| name | default | range | what |"
    yield "| --- | --- | --- | --- |"
    for name, field in kind.model_fields.items():
        bounds = ", ".join(
            f"{sign} {getattr(rule, word):,}"
            for rule in field.metadata
            for word, sign in (("ge", "≥"), ("gt", ">"), ("le", "≤"), ("lt", "<"))
            if getattr(rule, word, None) is not None
        )
        literal = getattr(field.annotation, "__args__", ())
        if not bounds and literal and all(isinstance(value, str) for value in literal):
            bounds = ", ".join(literal)
        default = "" if field.default is None else str(field.default)
        yield f"| `{name}` | {default} | {bounds} | {field.description or ''} |"


def preset_rows() -> Iterator[str]:
    """What each preset changes."""
    sizes = {preset_for(pairs): pairs for pairs in (10**9, 999_999, 2_999)}
    for name, sections in PRESETS.items():
        chosen = f" Chosen for up to {sizes[name]:,} pairs." if name in sizes else ""
        yield f"### `{name}`\n"
        paper = "The paper to the letter." if name.startswith("paper") else ""
        fast = "A deep encoder and one decoder layer." if name.endswith("-fast") else ""
        yield f"{paper}{fast}{chosen}".strip()
        yield ""
        for section, values in sections.items():
            shown = ", ".join(f"`{key} = {value}`" for key, value in values.items())
            yield f"- `[{section}]` {shown}"
        yield ""


def render() -> str:
    """The whole page."""
    lines = [HEADER]
    for section in SECTIONS:
        kind = Config.model_fields[section].annotation
        assert isinstance(kind, type) and issubclass(kind, BaseModel)
        lines += [f"## `[{section}]`\n", " ".join((kind.__doc__ or "").split()), ""]
        lines += [*setting_rows(kind), ""]
    return "\n".join([*lines, "## Presets\n", *preset_rows()]).rstrip() + "\n"


def main() -> int:
    """Write the page, or compare with it; the exit status."""
    page = render()
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(page, encoding="utf-8", newline="\n")
        return 0
    return 0 if PAGE.is_file() and PAGE.read_text(encoding="utf-8") == page else 1


if __name__ == "__main__":
    sys.exit(main())
