"""Readers of parallel text: two aligned files, a tab-separated table, or JSON lines; of text alone.

Every reader is a generator that holds one line at a time, splits lines on LF and CRLF only, and
names file and line in what it raises. Compressed files (gzip, zstandard, xz) are read as they are.
"""

import itertools
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from dragoman.errors import UserError
from dragoman.text.lines import (
    ErrorPolicy,
    display_name,
    iterate_lines,
    open_bytes,
    read_lines,
)

TABLE_SUFFIXES = (".tsv", ".jsonl")
COMPRESSED_SUFFIXES = (".gz", ".zst", ".xz")


Context = tuple[str, ...]
"""Source texts that stand before one in its document, in order."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A source text and its translation, and its context where a model is to read one."""

    source: str
    target: str
    context: Context = ()


def read_parallel(
    source: str | Path, target: str | Path, errors: ErrorPolicy = "strict"
) -> Iterator[Pair]:
    """Yield the pairs of two files aligned by line number.

    Raises UserError, after the pairs both files have, when one file has more lines than the other:
    it names both files, both counts and the first line without a partner.
    """
    if str(source) == "-" and str(target) == "-":
        raise UserError(
            "source and target cannot both be standard input",
            "give a file for one of them, or one .tsv or .jsonl file that holds both sides",
        )
    source_name, target_name = display_name(source), display_name(target)
    with open_bytes(source) as source_stream, open_bytes(target) as target_stream:
        sources = iterate_lines(source_stream, source_name, errors)
        targets = iterate_lines(target_stream, target_name, errors)
        count = 0
        for source_line in sources:
            target_line = next(targets, None)
            if target_line is None:
                longer = count + 1 + sum(1 for _ in sources)
                raise unequal_lines(source_name, longer, target_name, count)
            count += 1
            yield Pair(source_line, target_line)
        excess = sum(1 for _ in targets)
        if excess:
            raise unequal_lines(source_name, count, target_name, count + excess)


def unequal_lines(source: str, source_count: int, target: str, target_count: int) -> UserError:
    """What is wrong with two files of so many lines."""
    longer = source if source_count > target_count else target
    return UserError(
        f"{longer}:{min(source_count, target_count) + 1}: this line has no partner: "
        f"{source} has {_lines(source_count)}, {target} has {_lines(target_count)}",
        "line n of one file must be the translation of line n of the other; lines end at LF or "
        "CRLF only",
    )


def _lines(count: int) -> str:
    return "1 line" if count == 1 else f"{count:,} lines"


def read_table(path: str | Path, errors: ErrorPolicy = "strict") -> Iterator[Pair]:
    """Yield the pairs of one file, its form told by its name: ``.tsv`` or ``.jsonl``.

    A ``.tsv`` line is source TAB target (further columns are ignored; nothing is unescaped). A
    ``.jsonl`` line is an object with the strings "source" and "target", so that a text may hold
    tabs and line breaks. Either may be compressed (``.tsv.gz``). A line that is neither, a blank
    one too, raises UserError with file and line.
    """
    name = display_name(path)
    suffix = table_suffix(path)
    with open_bytes(path) as stream:
        yield from parse_table(iterate_lines(stream, name, errors), suffix, name)


def read_texts(path: str | Path, texts: str, errors: ErrorPolicy = "strict") -> Iterator[Pair]:
    """Yield the texts of one file as targets without a source: see `join_texts`."""
    for text in join_texts(read_lines(path, errors), texts):
        yield Pair("", text)


def join_texts(lines: Iterable[str], texts: str) -> Iterator[str]:
    """The texts that lines make: each one is one ("lines"), or all up to a blank one are."""
    if texts == "lines":
        yield from lines
        return
    for blank, group in itertools.groupby(lines, lambda line: not line.strip()):
        if not blank:
            yield "\n".join(group)


def table_suffix(path: str | Path) -> str:
    """The form of a table, ``.tsv`` or ``.jsonl``, compressed or not. Raises UserError."""
    suffixes = [suffix.lower() for suffix in Path(path).suffixes]
    if suffixes and suffixes[-1] in COMPRESSED_SUFFIXES:
        suffixes.pop()
    if not suffixes or suffixes[-1] not in TABLE_SUFFIXES:
        raise UserError(
            f"{display_name(path)}: cannot tell the form of this file from its name",
            "name it .tsv (source TAB target) or .jsonl "
            '({"source": …, "target": …}), or give two text files',
        )
    return suffixes[-1]


def parse_table(lines: Iterable[str], suffix: str, name: str, first: int = 1) -> Iterator[Pair]:
    """The pairs of lines of a table, the first of which has the number ``first``."""
    parse = _parse_json if suffix == ".jsonl" else _parse_columns
    for number, line in enumerate(lines, start=first):
        yield parse(line, f"{name}:{number}")


def _parse_columns(line: str, place: str) -> Pair:
    source, tab, rest = line.partition("\t")
    if not tab:
        raise UserError(
            f"{place}: no tab on this line",
            "each line holds the source text, one tab, and the target text",
        )
    return Pair(source, rest.partition("\t")[0])


def _parse_json(line: str, place: str) -> Pair:
    hint = 'each line is an object like {"source": "Good day", "target": "Guten Tag"}'
    try:
        record = json.loads(line)
    except RecursionError:
        raise UserError(f"{place}: JSON nested too deeply", hint) from None
    except ValueError as error:
        raise UserError(f"{place}: not JSON: {error}", hint) from None
    if not isinstance(record, dict):
        raise UserError(f"{place}: a JSON {type(record).__name__}, not an object", hint)
    return Pair(_text(record, "source", place), _text(record, "target", place))


def _text(record: dict[str, object], key: str, place: str) -> str:
    value = record.get(key)
    if not isinstance(value, str):
        problem = "is missing" if key not in record else "is not a string"
        raise UserError(f'{place}: "{key}" {problem}', 'both "source" and "target" must be strings')
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise UserError(
            f'{place}: "{key}" holds half of a surrogate pair '
            f"(\\u{ord(value[error.start]):04x}), which is no character",
            "write the character itself, or both halves of its escape",
        ) from None
    return value
