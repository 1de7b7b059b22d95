"""The documentation as a site: it builds without a warning, and asks nobody for anything."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
# What a browser fetches by itself; a link that a person may follow is another matter.
FETCHED = re.compile(
    r"<(?:script|img|iframe|source|embed)\b[^>]*\bsrc=[\"']?((?:https?:)?//[^\"'\s>]+)"
    r"|<link\b(?![^>]*\brel=[\"']?(?:canonical|next|prev))[^>]*"
    r"\bhref=[\"']?((?:https?:)?//[^\"'\s>]+)"
    r"|url\([\"']?((?:https?:)?//[^)\"']+)"
    r"|@import\s+[\"']((?:https?:)?//[^\"']+)"
)


def fetched(folder: Path) -> Iterator[str]:
    for path in folder.rglob("*"):
        if path.suffix in {".html", ".css"}:
            for groups in FETCHED.findall(path.read_text("utf-8")):
                yield f"{path.relative_to(folder)}: {''.join(groups)}"


@pytest.mark.slow
def test_the_site_builds_and_asks_no_other_host(tmp_path: Path) -> None:
    pytest.importorskip("material", reason="mkdocs-material is not installed")
    pytest.importorskip("mkdocstrings", reason="mkdocstrings is not installed")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "guide" / "index.html").is_file()
    assert list(fetched(tmp_path)) == []


def test_what_a_page_fetches_is_seen(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(
        '<a href="https://example.org/1">1</a><link href="https://example.org/2" rel="stylesheet">'
        '<script src="//example.org/3"></script><img alt="" src="4.png">'
        '<link rel="canonical" href="https://example.org/5">',
        "utf-8",
    )
    (tmp_path / "a.css").write_text("@font-face{src:url(https://example.org/6)}", "utf-8")
    assert len(list(fetched(tmp_path))) == 3
