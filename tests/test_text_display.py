import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from dragoman.text.display import excerpt, printable


def test_what_moves_the_cursor_is_an_escape() -> None:
    assert printable("a\tb\r\n\x1b[1mc\u202e\ud800") == r"a\tb\r\n\x1b[1mc\u202e\ud800"


def test_what_people_write_stays() -> None:
    text = "Prix\u00a0: 3\u202f€ 你好\u3000👩\u200d👧 می\u200cخواهم"
    assert printable(text) == excerpt(text) == text


@given(st.text(st.characters(exclude_categories=[])))
def test_nothing_unsafe_is_left(text: str) -> None:
    shown = printable(text)
    kinds = {unicodedata.category(c) for c in shown if c not in "\u200c\u200d"}
    assert not kinds & {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
    assert len(shown.splitlines()) <= 1


@given(st.text(), st.integers(1, 30))
def test_an_excerpt_is_a_beginning(text: str, width: int) -> None:
    shown = excerpt(text, width)
    whole = printable(text)
    assert len(shown) <= width
    assert shown == whole if len(whole) <= width else whole.startswith(shown.removesuffix("…"))
