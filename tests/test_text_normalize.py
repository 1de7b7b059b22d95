import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.text.normalize import normalize_key


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Turn on the light.", "  turn ON\tthe   light"),
        ("5 lights", "12 lights"),
        ("Costs 1,000.50 now", "costs 7 now"),
        ("Version 2.3.1", "Version 10"),
        ("Hello {name}!", "Hello {user}"),
        ("See https://a.b/c", "See http://x.org."),
        ("<b>Hi</b>", "<i>Hi</i>"),
        ("Straße", "STRASSE"),
        ("ﬁne", "fine"),
        ("Ｆｕｌｌ　ｗｉｄｔｈ", "full width"),
        ("café", "cafe\u0301"),
        ("soft\u00adhyphen", "softhyphen"),
        ("٣ أيام", "7 أيام"),
        ("你好，世界！", "你好 世界"),
    ],
)
def test_near_duplicates_share_a_key(one: str, other: str) -> None:
    assert normalize_key(one) == normalize_key(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("light on", "light off"),
        ("+", "-"),
        ("Hello {name}", "Hello"),
        ("หมู", "หมี"),  # they differ in a vowel sign only
        ("किला", "कला"),
        ("resume", "résumé"),
        ("你好", "您好"),
    ],
)
def test_different_texts_have_different_keys(one: str, other: str) -> None:
    assert normalize_key(one) != normalize_key(other)


def test_empty() -> None:
    assert normalize_key("") == normalize_key(" \t\u3000 ") == ""
    assert normalize_key("...") == "..."


@given(st.text(), st.sampled_from(["", " ", "\n", "\u2028", "\u00a0\u00a0"]))
def test_outer_space_makes_no_difference(text: str, space: str) -> None:
    assert normalize_key(space + text + space) == normalize_key(text)


@given(
    st.integers(0, 10**9), st.integers(0, 10**9), st.sampled_from(["{} items", "Page {}.", "a{}b"])
)
def test_numbers_make_no_difference(one: int, other: int, form: str) -> None:
    assert normalize_key(form.format(one)) == normalize_key(form.format(other))


@pytest.mark.parametrize("unit", ["1,", ",", "1", " ", "{", "a\u0301", "\U000f0000"])
def test_long_text_takes_linear_time(unit: str) -> None:
    # A quadratic search would take many minutes here.
    assert normalize_key(unit * 500_000) == normalize_key(unit * 500_000 + " ")
