import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.text.protect import (
    ESCAPE,
    SLOT_COUNT,
    SLOTS,
    TOKEN_PATTERN,
    Masked,
    escape_literals,
    find_spans,
    mask_pair,
    mask_spans,
    unmask,
)

PIECES = [
    "{name}",
    "{{ x }}",
    "${a}",
    "$b$",
    "%s",
    "%1$s",
    "%(n)s",
    "100%",
    "[%key:a::b%]",
    "<b>",
    "</b>",
    "<a href='x'>",
    "&amp;",
    "https://x.y/z",
    "a@b.org",
    "{",
    "}",
    "<",
    ">",
    "%",
    "$",
    "&",
    "@",
    "://",
    "www.",
    " ",
    "\n",
    "word",
    "é",
    "你",
    "\u2581",
    ESCAPE,
    *SLOTS[:3],
    SLOTS[-1],
]
texts = st.lists(st.sampled_from(PIECES), max_size=40).map("".join) | st.text()


def found(text: str) -> list[str]:
    return [text[start:end] for start, end in find_spans(text)]


@pytest.mark.parametrize(
    ("text", "spans"),
    [
        ("Hello {name}!", ["{name}"]),
        (
            "{} of {0}, {user.name}, {items[0]}, {x!r:>10}",
            ["{}", "{0}", "{user.name}", "{items[0]}", "{x!r:>10}"],
        ),
        (
            "{{x}} {{ states('a.b') | int }} {{{raw}}}",
            ["{{x}}", "{{ states('a.b') | int }}", "{{{raw}}}"],
        ),
        ("${x} and $y_1$, not $5 or $6", ["${x}", "$y_1$"]),
        (
            "%s %d %1$s %(name)s %.2f %-10s %@ %%",
            ["%s", "%d", "%1$s", "%(name)s", "%.2f", "%-10s", "%@", "%%"],
        ),
        ("Hello %1$s, good to see you!", ["%1$s"]),
        ("%dpx in %ss", ["%d", "%s"]),
        ("100% sure, 100%sicher, 10 %ige Lösung, 50%discount", []),
        ("see [%key:common::action%]", ["[%key:common::action%]"]),
        (
            '<a href="x>y" id=b>hi</a><br/><0>x</0>',
            ['<a href="x>y" id=b>', "</a>", "<br/>", "<0>", "</0>"],
        ),
        ("Hello < world, a<b and c>d, 1 < 2 > 0, <your name here>", []),
        ("&lt;p&gt; &#39; &#x1F600; AT&T; A & B;", ["&lt;", "&gt;", "&#39;", "&#x1F600;"]),
        ("Go to https://x.y/a_(b)?c=d&e=f#g.", ["https://x.y/a_(b)?c=d&e=f#g"]),
        (
            "(see www.x.org), [text](http://a.b/c) **https://q.r**",
            ["www.x.org", "http://a.b/c", "https://q.r"],
        ),
        (
            "请访问https://example.com了解，或https://a.b/c。",
            ["https://example.com", "https://a.b/c"],
        ),
        ("https://de.wikipedia.org/wiki/Köln", ["https://de.wikipedia.org/wiki/Köln"]),
        ("http://{host}:8123/x <http://u.v>", ["http://{host}:8123/x", "http://u.v"]),
        ("https:// https://. www. http://", []),
        ("write a.b+c@d-e.co.uk. 联系me@x.cn。 a@b, @home", ["a.b+c@d-e.co.uk", "me@x.cn"]),
        ("3.5 kg on 2024-01-01, **bold**, `code`, #5", []),
        (
            "{count, plural, one {# item} other {# items}}, {when, date, short}",
            ["{when, date, short}"],
        ),
        ('{some words} {"a": 1} { }', ["{ }"]),
    ],
)
def test_what_is_protected(text: str, spans: list[str]) -> None:
    assert found(text) == spans


def test_masking_in_order_of_first_appearance() -> None:
    masked = mask_spans("{b} <i>{a}</i> {b}")
    assert masked == Masked(
        f"{SLOTS[0]} {SLOTS[1]}{SLOTS[2]}{SLOTS[3]} {SLOTS[0]}", ["{b}", "<i>", "{a}", "</i>"]
    )


def test_spans_beyond_the_slots_stay() -> None:
    text = " ".join(f"{{x{number}}}" for number in range(SLOT_COUNT + 2)) + " {x0}"
    masked = mask_spans(text)
    assert len(masked.spans) == SLOT_COUNT
    assert masked.text.endswith(f"{SLOTS[-1]} {{x16}} {{x17}} {SLOTS[0]}")
    assert unmask(*masked) == text


def test_pair_shares_the_slots_of_the_source() -> None:
    source, target = mask_pair("Hi {a}, {b}", "{b}: hallo {a} {c}")
    assert source == Masked(f"Hi {SLOTS[0]}, {SLOTS[1]}", ["{a}", "{b}"])
    assert target == Masked(f"{SLOTS[1]}: hallo {SLOTS[0]} {{c}}", ["{a}", "{b}"])


def test_literals_are_escaped_and_spans_are_raw() -> None:
    text = f"{SLOTS[0]} \u2581 {ESCAPE} {{{{{SLOTS[1]}}}}}"
    masked = mask_spans(text)
    assert masked.text == f"{ESCAPE}{SLOTS[0]} {ESCAPE}\u2581 {ESCAPE}{ESCAPE} {SLOTS[0]}"
    assert masked.spans == [f"{{{{{SLOTS[1]}}}}}"]
    assert unmask(*masked) == text


def test_unmask_drops_what_has_no_span() -> None:
    assert unmask(f"a{SLOTS[0]}b{SLOTS[5]}c", ["{x}"]) == "a{x}bc"
    assert unmask(f"a{ESCAPE}", []) == "a"
    assert unmask(f"a{ESCAPE}{ESCAPE}", []) == f"a{ESCAPE}"


def test_plain_text_is_returned_as_it_is() -> None:
    text = "Nothing to protect here, 5 > 3."
    assert mask_spans(text).text is text
    assert escape_literals("Grüße, 你好") == "Grüße, 你好"


@given(texts)
def test_spans_are_in_order_and_apart(text: str) -> None:
    position = 0
    for start, end in find_spans(text):
        assert position <= start < end <= len(text)
        position = end


@given(texts)
def test_unmask_undoes_masking(text: str) -> None:
    assert unmask(*mask_spans(text)) == text
    assert unmask(escape_literals(text), []) == text


@given(texts, texts)
def test_pair_comes_back(source: str, target: str) -> None:
    masked_source, masked_target = mask_pair(source, target)
    assert masked_source == mask_spans(source)
    assert masked_target.spans == masked_source.spans
    assert unmask(*masked_source) == source
    assert unmask(*masked_target) == target


@given(texts)
def test_tokens_tell_slots_from_literals(text: str) -> None:
    masked = mask_spans(text)
    slots = {m["slot"] for m in TOKEN_PATTERN.finditer(masked.text)} - {None}
    assert slots == set(SLOTS[: len(masked.spans)])
    literals = [m["literal"] for m in TOKEN_PATTERN.finditer(escape_literals(text)) if m["literal"]]
    assert literals == [c for c in text if c in {*SLOTS, "\u2581", ESCAPE}]


@pytest.mark.parametrize(
    "unit",
    [
        "{",
        "<",
        "{{a",
        "$a",
        "%(",
        "&a",
        "a@",
        "a",
        "a.",
        "https://.",
        '<a "',
        "<a b=",
        "[%key:",
        "<a ",
        "{ ",
        "%1",
        "((",
        "https://(",
        "{a,",
        ESCAPE,
        SLOTS[0],
        "a@b.",
        "+",
    ],
)
def test_hostile_text_takes_linear_time(unit: str) -> None:
    # A quadratic search would take many minutes here.
    text = (unit * 1_000_000)[:1_000_000]
    assert unmask(*mask_spans(text)) == text
