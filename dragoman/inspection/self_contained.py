"""One HTML file that needs no other and asks nobody for anything."""

import base64
import hashlib
import html
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Final

from dragoman.text.languages import plain_code

# What turns or hides the text around it; a page shows the code of it instead.
_UNSEEN: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_CODE: Final = re.compile(r"[a-z]{2,3}(-[a-z0-9]{2,8})*")


@dataclass(frozen=True)
class PageContent:
    """The parts of a page: body is HTML, data what the script finds as JSON in `#data`."""

    language: str
    title: str
    body: str
    style: str
    script: str
    data: Mapping[str, Any]


def self_contained(content: PageContent) -> bytes:
    """The page in UTF-8. Its policy lets nothing run but its own script, and nothing be fetched."""
    style, script = f"\n{content.style}\n", f"\n{content.script}\n"
    policy = (
        f"default-src 'none'; style-src '{_digest(style)}'; script-src '{_digest(script)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    # Inside a script element only "<" can begin its end, or a comment that hides it.
    data = json.dumps(content.data, ensure_ascii=False, separators=(",", ":"))
    data = data.replace("<", "\\u003c")
    page = (
        f'<!DOCTYPE html>\n<html lang="{escape(content.language)}"><head><meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(content.title)}</title>\n<style>{style}</style></head>\n"
        f'<body>{content.body}<script type="application/json" id="data">{data}</script>\n'
        f"<script>{script}</script></body></html>\n"
    )
    return page.encode("utf-8", "backslashreplace")


def page_part(name: str) -> str:
    """The text of a file of `dragoman/inspection/pages`."""
    return (files("dragoman.inspection") / "pages" / name).read_text("utf-8")


def escape(text: str) -> str:
    """Text as HTML, also within quotes; what would turn the text around it stands as its code."""
    return html.escape(_UNSEEN.sub(lambda match: f"\\u{ord(match[0]):04x}", text))


def language_attribute(code: str) -> str:
    """` lang="de"` for a language code, or nothing where it is none, such as `source`."""
    plain = plain_code(code)
    return f' lang="{plain}"' if _CODE.fullmatch(plain) else ""


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
