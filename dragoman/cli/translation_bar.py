"""The bar of `dragoman translate`: share of the text, lines, lines a second, time left."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from dragoman.training.progress import console

Advance = Callable[[int, int], None]
"""To be called with the lines and the bytes that are done; no lines: they were done before."""


@contextmanager
def translation_bar(size: int | None) -> Iterator[Advance]:
    """Show how far a translation is; size: bytes of all the text, where that is known."""
    columns: list[ProgressColumn] = [SpinnerColumn(), TextColumn("translating")]
    if size:
        columns += [BarColumn(bar_width=20), TaskProgressColumn()]
    columns += [_Lines(), TimeRemainingColumn() if size else TimeElapsedColumn()]
    with Progress(*columns, console=console(), transient=True) as progress:
        task = progress.add_task("", total=size or None, lines=0)

        def advance(lines: int, done: int) -> None:
            if lines:
                count = progress.tasks[0].fields["lines"] + lines
                progress.update(task, advance=done, lines=count)
            else:
                progress.reset(task, total=size or None, completed=done, lines=0)

        yield advance


class _Lines(ProgressColumn):
    def render(self, task: Any) -> Text:
        lines, seconds = task.fields["lines"], task.elapsed
        rate = f", {lines / seconds:,.0f} lines/s" if lines and seconds else ""
        return Text(f"{lines:,} lines{rate}")
