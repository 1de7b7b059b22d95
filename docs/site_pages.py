"""What MkDocs does beside the pages: `benchmarks/README.md` becomes a page of the site.

It stands outside of `docs`, where its figures belong; links to it from a page, and from it to a
page or a picture, lead within the site.
"""

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
SOURCE, PAGE = "benchmarks/README.md", "measurements.md"
LOCAL_LINK = re.compile(r"\]\((?!https?:|#|\.\./docs/)([^)#\s]+)")


def on_files(files: Files, config: Any) -> Files:
    """Add the page, and the pictures that it shows."""
    text = (ROOT / SOURCE).read_text(encoding="utf-8")
    folder = (ROOT / SOURCE).parent
    for name in dict.fromkeys(LOCAL_LINK.findall(text)):
        content = (folder / name).read_bytes()
        files.append(File.generated(config, f"measurements/{name}", content=content))
    text = LOCAL_LINK.sub(r"](measurements/\1", text).replace("](../docs/", "](")
    files.append(File.generated(config, PAGE, content=text))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Links to the file become links to the page."""
    return markdown.replace(f"](../{SOURCE}", f"]({PAGE}")
