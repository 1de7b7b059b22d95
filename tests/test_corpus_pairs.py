import gzip
import json
import lzma
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.corpus.pairs import Pair, read_parallel, read_table
from dragoman.errors import UserError

# A text without line ends of its own; a trailing CR would be part of a CRLF. No BOM at the start.
TEXT = st.text(st.characters(exclude_characters="\n", exclude_categories=["Cs"])).filter(
    lambda text: not text.endswith("\r") and not text.startswith("\ufeff")
)


def write(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@given(rows=st.lists(st.tuples(TEXT, TEXT)), end=st.sampled_from(["\n", "\r\n"]))
def test_parallel_files_give_back_their_lines(
    rows: list[tuple[str, str]], end: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("parallel")
    source = write(folder / "a", "".join(row[0] + end for row in rows))
    target = write(folder / "b", "".join(row[1] + "\n" for row in rows))
    assert list(read_parallel(source, target)) == [Pair(*row) for row in rows]


@pytest.mark.parametrize("odd", ["\u2028", "\u0085", "\v", "\f", "\r", "\x1c", "\0"])
def test_odd_breaks_on_one_side_do_not_shift_the_pairs(tmp_path: Path, odd: str) -> None:
    source = write(tmp_path / "a", f"one{odd}more\ntwo\n")
    target = write(tmp_path / "b", "eins\nzwei\n")
    assert list(read_parallel(source, target)) == [
        Pair(f"one{odd}more", "eins"),
        Pair("two", "zwei"),
    ]


def test_blank_lines_and_a_missing_last_line_end(tmp_path: Path) -> None:
    source = write(tmp_path / "a", "x\n\n y")
    target = write(tmp_path / "b", "\n \nz\n")
    assert list(read_parallel(source, target)) == [Pair("x", ""), Pair("", " "), Pair(" y", "z")]


@pytest.mark.parametrize(
    ("source", "target", "longer", "first", "counts"),
    [
        ("1\n2\n3\n", "1\n", "a.en", 2, ("3 lines", "1 line")),
        ("1\n2\n", "1\n2\n3\n4\n5\n", "b.de", 3, ("2 lines", "5 lines")),
        ("", "1\n", "b.de", 1, ("0 lines", "1 line")),
    ],
)
def test_unequal_counts_name_files_counts_and_line(
    tmp_path: Path, source: str, target: str, longer: str, first: int, counts: tuple[str, str]
) -> None:
    a, b = write(tmp_path / "a.en", source), write(tmp_path / "b.de", target)
    pairs = []
    with pytest.raises(UserError) as caught:
        pairs.extend(read_parallel(a, b))
    assert caught.value.message.startswith(f"{tmp_path / longer}:{first}: ")
    assert f"{a} has {counts[0]}, {b} has {counts[1]}" in caught.value.message
    assert caught.value.hint


def test_invalid_utf8_is_placed_and_can_be_replaced(tmp_path: Path) -> None:
    source = write(tmp_path / "a", b"ok\nok\ncaf\xe9\n")
    target = write(tmp_path / "b", "1\n2\n3\n")
    with pytest.raises(UserError, match=r"a:3: .*byte 4"):
        list(read_parallel(source, target))
    assert list(read_parallel(source, target, "replace"))[2] == Pair("caf\ufffd", "3")


def test_a_missing_file_and_twice_stdin_are_clear_errors(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nowhere"):
        list(read_parallel(tmp_path / "nowhere", write(tmp_path / "b", "x\n")))
    with pytest.raises(UserError, match="standard input"):
        list(read_parallel("-", "-"))


def test_compressed_files_read_like_plain_ones(tmp_path: Path) -> None:
    source = write(tmp_path / "a", gzip.compress(b"one\ntwo\n"))
    target = write(tmp_path / "b", lzma.compress(b"eins\nzwei\n"))
    expected = [Pair("one", "eins"), Pair("two", "zwei")]
    assert list(read_parallel(source, target)) == expected
    table = write(tmp_path / "t.TSV.gz", gzip.compress(b"one\teins\ntwo\tzwei\tnote\n"))
    assert list(read_table(table)) == expected


@given(rows=st.lists(st.tuples(st.text(st.characters(exclude_categories=["Cs"])), TEXT)))
def test_json_lines_round_trip_any_text(
    rows: list[tuple[str, str]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    lines = [json.dumps({"source": source, "target": target}) for source, target in rows]
    path = write(tmp_path_factory.mktemp("json") / "t.jsonl", "\n".join(lines))
    assert list(read_table(path)) == [Pair(*row) for row in rows]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("", "not JSON"),
        ('{"source": "a"', "not JSON"),
        ("[" * 100_000, "nested too deeply"),
        ('["a", "b"]', "list, not an object"),
        ('{"source": "a"}', '"target" is missing'),
        ('{"source": "a", "target": null}', '"target" is not a string'),
        ('{"source": "x\\ud83d", "target": "b"}', r"\\ud83d"),
        ('{"source": "a", "target": 1' + "0" * 5000 + "}", "not JSON"),
    ],
)
def test_a_bad_json_line_is_placed(tmp_path: Path, line: str, problem: str) -> None:
    path = write(tmp_path / "t.jsonl", '{"source": "a", "target": "b"}\n' + line + "\n")
    with pytest.raises(UserError, match=f"t.jsonl:2: .*{problem}") as caught:
        list(read_table(path))
    assert "\n" not in caught.value.message
    assert caught.value.hint


def test_a_table_line_without_a_tab_is_placed(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"t\.tsv:2: no tab"):
        list(read_table(write(tmp_path / "t.tsv", "a\tb\nab\n")))


@pytest.mark.parametrize("name", ["pairs", "pairs.txt", "pairs.gz", "-"])
def test_a_name_that_tells_no_form_is_an_error(tmp_path: Path, name: str) -> None:
    with pytest.raises(UserError, match="cannot tell the form"):
        list(read_table(tmp_path / name))


def test_reading_is_lazy(tmp_path: Path) -> None:
    source = write(tmp_path / "a", b"one\n" * 200_000 + b"\xff\n")
    target = write(tmp_path / "b", b"eins\n")
    assert next(read_parallel(source, target)) == Pair("one", "eins")
