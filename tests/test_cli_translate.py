"""`dragoman translate` as a person meets it: lines in, as many lines out, warnings beside."""

import io
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.cli import main, translation_bar
from dragoman.decoding.translation import Translation
from dragoman.decoding.translator import Translator
from dragoman.text.lines import one_line

Dragoman = Callable[..., Any]  # (arguments, stdin) -> status, out, err, lines: conftest.py


def write(path: Path, lines: list[str]) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines), "utf-8", newline="\n")
    return path


ODD = {
    "empty file": b"",
    "one blank line": b"\n",
    "blank between": b"a\n\nb\n",
    "spaces only": b"  \n\t\n\xc2\xa0\n\xe3\x80\x80\n",
    "no last newline": b"the cat\nthe dog",
    "crlf": b"the cat\r\n\r\nthe dog\r\n",
    "lone cr": b"the\rcat\n\r\nthe dog\r",
    "line separator": "the\u2028cat\nthe\u2029dog\n".encode(),
    "next line": "the\x85cat\n\x85\n".encode(),
    "vertical tab, form feed": b"the\x0bcat\nthe\x0cdog\n\x0c\n\x0b\n",
    "file separators": b"the\x1ccat\n\x1d\n\x1e\n",
    "nul": b"the\0cat\n\0\n",
    "bom": "\ufeffthe cat\nthe \ufeffdog\n\ufeff\n".encode(),
    "no-break space": "the\u00a0cat\n".encode(),
    "joiners and marks": "👩\u200d👩\u200d👧 e\u0301 x\u200b\n\u200d\n".encode(),
    "scripts": "قطة\nแมว\n猫在看狗。\nНТ AUTHORITY\\СИСТЕМА\n".encode(),
    "slots and escapes": "\U000f0000 \u2581 \U000f00ff\n".encode(),
    "placeholders": b"Hello {name}, %1$s <b>x</b>\n",
    "symbols": b"<\n&lt;\n1.\n...\n",
    "a long line": b"the cat sees the dog. " * 4600 + b"\nthe cat\n",
    "many lines": b"the cat\n\nthe dog\n" * 1000,
}


@pytest.mark.parametrize("name", ODD)
def test_as_many_lines_come_out_as_went_in(dragoman: Dragoman, model: Path, name: str) -> None:
    text = ODD[name]
    result = dragoman("translate", "--model", model, "--beam", "1", stdin=text)
    sources = text.decode().removeprefix("\ufeff").split("\n")
    if sources[-1] == "":
        sources.pop()
    assert result.status == 0
    assert len(result.lines) == len(sources)
    for source, translation in zip(sources, result.lines, strict=True):
        if not source.strip():
            assert not translation.strip()
    assert b"\r" not in result.out


@given(st.text())
def test_one_line_is_one_line_and_loses_nothing_else(text: str) -> None:
    line = one_line(text)
    assert not set(line) & set("\r\n")
    assert len(line) == len(text)
    assert all(new in (old, " ") for old, new in zip(text, line, strict=True))


def test_several_files_come_out_in_order(dragoman: Dragoman, model: Path, tmp_path: Path) -> None:
    one = write(tmp_path / "one", ["the cat", "", "the dog"])
    two = write(tmp_path / "two", ["the red house sees the bird"])
    both = dragoman("translate", "--model", model, one, two).out
    parts = [dragoman("translate", "--model", model, path).out for path in (one, two)]
    texts = ["--text=the cat", "--text=", "--text=the dog", "--text=the red house sees the bird"]
    assert both == b"".join(parts) == dragoman("translate", "--model", model, *texts).out
    written = dragoman("translate", "--model", model, one, two, "--output", tmp_path / "out")
    assert (written.out, (tmp_path / "out").read_bytes()) == (b"", both)


def test_the_forms_of_output_tell_the_same(dragoman: Dragoman, model: Path) -> None:
    command = ("translate", "--model", model, "--text=the cat", "--text=", "--text={x} y")
    plain = dragoman(*command).lines
    scored = [line.split("\t", 1) for line in dragoman(*command, "--scores").lines]
    best = [line.split("\t", 2) for line in dragoman(*command, "--n-best", "3").lines]
    records = [json.loads(line) for line in dragoman(*command, "--json", "--n-best", "3").lines]
    assert [text for _, text in scored] == plain
    assert [one_line(record["text"]) for record in records] == plain
    assert [number for number, _, _ in best] == ["1", "1", "1", "2", "3", "3", "3"]
    first = {number: (score, text) for number, score, text in reversed(best)}
    assert [first[number] for number in "123"] == [tuple(pair) for pair in scored]
    for record, (score, _) in zip(records, scored, strict=True):
        assert f"{record['score']:.4f}" == score
        found = [candidate["score"] for candidate in record["candidates"]]
        assert found == sorted(found, reverse=True)


def test_warnings_name_the_line_on_stderr(dragoman: Dragoman, model: Path) -> None:
    long = b"the cat sees the dog. " * 20
    result = dragoman("translate", "--model", model, stdin=b"the cat\n" + long + b"\n")
    assert len(result.lines) == 2
    assert "line 2: split into " in result.err
    assert result.err.splitlines()[-1].startswith("line ")


def test_warnings_name_the_file_and_move_no_cursor(
    dragoman: Dragoman, model: Path, tmp_path: Path
) -> None:
    long = "the cat sees the dog. " * 20
    one = write(tmp_path / "one", ["the cat", long])
    two = write(tmp_path / "two", [long, "<a b='\x1b[2J'>" + long])
    result = dragoman("translate", "--model", model, one, "-", two, stdin=long.encode())
    split = [
        line.partition(": split into")[0] for line in result.err.splitlines() if "split" in line
    ]
    assert split == [f"{one}:2", "line 1", f"{two}:1", f"{two}:2"]
    assert "\x1b" not in result.err
    assert r"lost: <a b='\x1b[2J'>" in result.err


def test_the_beam_is_wide_enough_for_n_best(dragoman: Dragoman, model: Path) -> None:
    command = ("translate", "--model", model, "--text=the cat", "--n-best", "6")
    result = dragoman(*command)
    assert len(result.lines) == 6
    assert result.lines == dragoman(*command, "--beam", "6").lines


class Terminal(io.TextIOWrapper):
    """Standard input with somebody before it, who sees each answer before the next line."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("arguments", "typed"), [((), True), (("-",), True), (("FILE",), False)])
def test_only_what_is_typed_is_answered_line_by_line(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...],
    typed: bool,
) -> None:  # fmt: skip
    path = write(tmp_path / "text", ["the cat", "the dog"])
    calls: list[int] = []

    def translate(self: Translator, lines: list[str], *_: Any, **__: Any) -> list[Translation]:
        calls.append(len(lines))
        return [Translation(line, 0.0, []) for line in lines]

    monkeypatch.setattr(Translator, "_translate", translate)
    monkeypatch.setattr(sys, "stdin", Terminal(io.BytesIO(path.read_bytes())))
    names = [str(path) if name == "FILE" else name for name in arguments]
    monkeypatch.setattr(sys, "argv", ["dragoman", "translate", "--model", str(model), *names])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 0
    assert calls == ([1, 1] if typed else [2])


@pytest.mark.parametrize(("to_file", "wanted"), [(True, True), (False, False)])
def test_a_bar_is_shown_where_no_translation_is(
    dragoman: Dragoman, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    to_file: bool, wanted: bool,
) -> None:  # fmt: skip
    """With both streams a terminal, the translations must have gone elsewhere."""
    shown: list[int] = []

    @contextmanager
    def bar(size: int | None) -> Iterator[Callable[[int, int], None]]:
        shown.append(size or 0)
        yield lambda lines, done: None

    monkeypatch.setattr(translation_bar, "translation_bar", bar)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    output = ("--output", tmp_path / "out") if to_file else ()
    assert dragoman("translate", "--model", model, "--text", "the cat", *output).status == 0
    assert shown == [len("the cat\n")] * wanted
