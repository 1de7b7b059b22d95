import sys
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.text.protect import find_spans
from dragoman.text.segments import split_segments, split_to_fit

LANGUAGES = ["en", "de", "zh-Hans", "ar", "nl", "el", "pt-BR", "th", "xx", ""]
PIECES = [
    ". ",
    ".",
    "!",
    "? ",
    "。",
    "؟ ",
    "।",
    "\n",
    "\r\n",
    "\r",
    "\u2028",
    " ",
    "  ",
    "\u00a0",
    "\t",
    "\x00",
    "Mr. ",
    "e.g. ",
    "1. ",
    "A. ",
    "(",
    ") ",
    '"',
    "'",
    "“",
    "”",
    "«",
    "...",
    "…",
    "∯",
    "ȸ",
    "&ᓰ&",
    "☝",
    "\\",
    "word ",
    "Word ",
    "Yes. ",
    "é",
    "e\u0301",
    "👩\u200d👧",
    "你好",
    "สวัสดี",
    "{{ a. b }}",
    "https://x.y/?a=1. ",
    "[",
]
texts = st.lists(st.sampled_from(PIECES), max_size=60).map("".join) | st.text(max_size=300)


@pytest.mark.parametrize(
    ("language", "expected"),
    [
        ("en", ["Mr. Smith left, e.g. at 3.5 o'clock. ", "Did he? ", "Yes!"]),
        ("de", ["Guten Tag, Herr Dr. Müller.  ", "Wie geht es? ", "Gut!"]),
        ("zh", ["你好。", "今天天气很好吗？", "是的！"]),
        ("zh-Hans", ["你好。", "再见！"]),
        ("ja", ["こんにちは。", "元気ですか？"]),
        ("ar", ["مرحبا بك. ", "كيف حالك؟ ", "بخير."]),
        ("pt-BR", ["Olá, Sr. Silva. ", "Tudo bem? ", "Sim, p.ex. hoje."]),
        ("ko", ["안녕하세요. ", "반갑습니다!"]),
        ("en", ["  Leading space. ", "Trailing space.  \t"]),
        ("en", ["One line\n", "another line\r\n\r\n", "a third"]),
        ("pt", ["Uma linha\n", "outra"]),
        ("en", ["Yes. ", "No. ", "Yes. ", "Yes. ", "No way. ", "Yes."]),
        ("en", ["A single one"]),
        ("th", ["สวัสดีชาวโลก"]),
        ("en", ["   "]),
        ("en", []),
    ],
)
def test_sentences(language: str, expected: list[str]) -> None:
    assert split_segments("".join(expected), language) == expected


def test_protected_spans_are_never_split() -> None:
    for language in ("en", "pt"):
        text = 'Set {{ a. B }} here. See <a title="One. Two! ">it</a>. Ok.'
        segments = split_segments(text, language)
        assert segments == ["Set {{ a. B }} here. ", 'See <a title="One. Two! ">it</a>. ', "Ok."]


@settings(deadline=None)
@given(texts, st.sampled_from(LANGUAGES))
def test_segments_rejoin(text: str, language: str) -> None:
    segments = split_segments(text, language)
    assert "".join(segments) == text
    assert all(segments)


@settings(deadline=None, max_examples=20)
@given(st.lists(st.sampled_from(PIECES), min_size=1, max_size=8), st.sampled_from(LANGUAGES))
def test_long_texts_rejoin(pieces: list[str], language: str) -> None:
    unit = "".join(pieces)
    text = unit * (5_000 // len(unit))
    segments = split_segments(text, language)
    assert "".join(segments) == text
    inside = [
        cut for cut in _cuts(segments) for start, end in find_spans(text) if start < cut < end
    ]
    assert inside == []


@settings(deadline=None)
@given(texts, st.sampled_from(LANGUAGES), st.integers(1, 40))
def test_pieces_fit_and_rejoin(text: str, language: str, limit: int) -> None:
    pieces = split_to_fit(text, language, lambda piece: len(piece) <= limit)
    assert "".join(pieces) == text
    assert all(0 < len(piece) <= limit for piece in pieces)


@settings(deadline=None)
@given(texts, st.integers(1, 100))
def test_pieces_fit_when_what_fits_is_in_bytes(text: str, limit: int) -> None:
    def fits(piece: str) -> bool:
        return len(piece.encode("utf-8", "surrogatepass")) <= limit

    pieces = split_to_fit(text, "en", fits)
    assert "".join(pieces) == text
    assert all(fits(piece) or len(piece) == 1 for piece in pieces)


@given(texts)
def test_pieces_rejoin_whatever_fits_says(text: str) -> None:
    pieces = split_to_fit(text, "xx", lambda piece: len(piece) % 3 == 1)
    assert "".join(pieces) == text
    assert all(pieces)
    assert "".join(split_to_fit(text, "xx", lambda piece: False)) == text


def test_sentences_are_merged_while_they_fit() -> None:
    text = "One one. Two two. Three three. Four."
    assert split_to_fit(text, "en", lambda piece: len(piece) <= 20) == [
        "One one. Two two. ",
        "Three three. Four.",
    ]
    assert split_to_fit(text, "en", lambda piece: len(piece) <= 100) == [text]
    assert split_to_fit("", "en", lambda piece: True) == []


def test_a_long_sentence_is_cut_where_it_hurts_least() -> None:
    def ten(piece: str) -> bool:
        return len(piece) <= 10

    assert split_to_fit("abcdef, gh ijklmnop", "en", ten) == ["abcdef, ", "gh ", "ijklmnop"]
    assert split_to_fit("abc defgh ijklm", "en", ten) == ["abc defgh ", "ijklm"]
    assert split_to_fit("我们今天去公园，明天去学校", "zh", ten) == [
        "我们今天去公园，",
        "明天去学校",
    ]
    assert split_to_fit("a" * 25, "en", ten) == ["a" * 10, "a" * 10, "a" * 5]
    # Not inside a character that is made of several, not inside a placeholder, not at a
    # no-break space.
    assert split_to_fit("aaaaaaaaae\u0301bbb", "en", ten) == ["a" * 9, "e\u0301bbb"]
    assert split_to_fit("aaaaaa👩\u200d👩\u200d👧", "en", ten) == ["a" * 6, "👩\u200d👩\u200d👧"]
    assert split_to_fit("aaaa {{ b c }}", "en", ten) == ["aaaa ", "{{ b c }}"]
    assert split_to_fit("aaaaa 1000\u00a0km z", "en", ten) == ["aaaaa ", "1000\u00a0km z"]


@pytest.mark.parametrize("language", ["en", "pt"])
@pytest.mark.parametrize(
    "unit",
    [
        "word ",
        "a",
        "你好。",
        "你",
        "This is one. Was it (really)? ",
        "! ",
        "\n",
        "؟",
        "{",
        "e\u0301",
    ],
)
def test_a_line_of_100_000_characters(unit: str, language: str) -> None:
    # The library alone would take hours for some of these.
    text = (unit * 100_000)[:100_000]
    assert "".join(split_segments(text, language)) == text
    tested = 0

    def fits(piece: str) -> bool:
        nonlocal tested
        tested += len(piece)
        return len(piece) <= 500

    pieces = split_to_fit(text, language, fits)
    assert "".join(pieces) == text
    assert max(map(len, pieces)) <= 500
    assert tested < 40 * len(text)


def test_windows_leave_no_trace() -> None:
    sentence = "The quick brown fox jumps over the lazy dog near the bank. "
    segments = split_segments(sentence * 500, "en")
    assert segments == [sentence] * 500
    endless = "word " * 2000 + "end. "
    assert split_segments(endless + "Next one.", "en") == [endless, "Next one."]


def test_the_library_failing_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    import pysbd

    def fail(self: object, text: str) -> list[object]:
        raise IndexError(text)

    monkeypatch.setattr(pysbd.Segmenter, "segment", fail)
    assert split_segments("A first one. A second.", "en") == ["A first one. ", "A second."]
    monkeypatch.setattr(pysbd.Segmenter, "segment", lambda self, text: [])
    assert split_segments("A first one. A second.", "en") == ["A first one. ", "A second."]


def test_importing_the_package_is_light() -> None:
    import subprocess

    code = "import sys, dragoman.text.segments, dragoman.text.lines; print(*sys.modules)"
    output = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert not {"pysbd", "zstandard", "torch", "numpy"} & set(output)


def _cuts(segments: list[str]) -> list[int]:
    edges = [0]
    for segment in segments:
        edges.append(edges[-1] + len(segment))
    assert all(one < other for one, other in pairwise(edges))
    return edges[1:-1]
