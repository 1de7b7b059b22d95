import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.decoding.casing import Casing, normalize_case, odd_casing, restore_case


@pytest.mark.parametrize(
    ("text", "casing"),
    [
        ("THE DOG SLEEPS", Casing.UPPER),
        ("WARNING!", Casing.UPPER),
        ("DIE STRASSE IST GESPERRT.", Casing.UPPER),
        ("ВНИМАНИЕ: ЗАКРЫТО", Casing.UPPER),
        ("CLICK {name} NOW, see", None),
        ("CLICK {name} TWICE", Casing.UPPER),
        ("CALL 0800 123 TODAY", Casing.UPPER),
        ("hELLO wORLD", Casing.INVERTED),
        ("NATO", None),
        ("UNESCO", None),
        ("USA UK", None),
        ("A B C D E F G H I J", None),
        ("NT AUTHORITY\\СИСТЕМА", Casing.UPPER),
        ("The NATO meeting", None),
        ("The Dog", None),
        ("iPhone and iPad", None),
        ("{NAME} %S HTTPS://EXAMPLE.ORG", None),
        ("全角文字", None),
        ("123 !", None),
        ("", None),
        ("ß", None),
    ],
)
def test_what_is_odd(text: str, casing: Casing | None) -> None:
    assert odd_casing(text) is casing


@pytest.mark.parametrize(
    ("text", "language", "expected"),
    [
        ("THE DOG SLEEPS. I'M TIRED!", "en", "The dog sleeps. I'm tired!"),
        ("MAY I COME IN, I.E. NOW?", "en", "May I come in, i.e. now?"),
        ("CLICK {Name} NOW", "en", "Click {Name} now"),
        ("SEE HTTPS://EXAMPLE.ORG NOW", "en", "See HTTPS://EXAMPLE.ORG now"),
        ("IŞIK VE İNSAN", "tr", "Işık ve insan"),
        ("IJSBERGEN IN ZEE", "nl", "IJsbergen in zee"),
        ("ΟΔΟΣ ΑΘΗΝΩΝ", "el", "Οδος αθηνων"),
        ("„GUTEN MORGEN!“ SAGTE ER.", "de", "„Guten morgen!“ sagte er."),
    ],
)
def test_a_line_in_sentence_case(text: str, language: str, expected: str) -> None:
    assert normalize_case(text, Casing.UPPER, language) == expected


@pytest.mark.parametrize(
    ("text", "language", "expected"),
    [
        ("Die Straße ist groß.", "de", "DIE STRASSE IST GROSS."),
        ("Işık ve insan", "tr", "IŞIK VE İNSAN"),
        ("insan", "az-Latn", "İNSAN"),
        ("insan", "en", "INSAN"),
        ("Οδός Αθηνών", "el", "ΟΔΟΣ ΑΘΗΝΩΝ"),
        ("Ο Μάιος και η μαϊμού", "el", "Ο ΜΑΪΟΣ ΚΑΙ Η ΜΑΪΜΟΥ"),
        ("αυτός ή εκείνος", "el", "ΑΥΤΟΣ Ή ΕΚΕΙΝΟΣ"),
        ("Klick auf {name} und <b>los</b>", "de", "KLICK AUF {name} UND <b>LOS</b>"),
        ("Внимание", "ru", "ВНИМАНИЕ"),
        ("请点击 Save", "zh", "请点击 Save"),
        ("გამარჯობა", "ka", "გამარჯობა"),
        ("", "de", ""),
    ],
)
def test_capitals_come_back(text: str, language: str, expected: str) -> None:
    assert restore_case(text, Casing.UPPER, language) == expected


def test_a_forgotten_caps_lock_goes_through() -> None:
    assert normalize_case("hELLO wORLD", Casing.INVERTED, "en") == "Hello World"
    assert restore_case("Hallo Welt", Casing.INVERTED, "de") == "hALLO wELT"


TEXTS = st.one_of(
    st.text(max_size=40),
    st.lists(
        st.sampled_from(["HELLO", "{a}", " ", "ß", "İI", "ΆΙ", "%s", "ǅ", "ﬁ", "\ud800", ". "]),
        max_size=20,
    ).map("".join),
)


@settings(max_examples=150, deadline=None)
@given(
    TEXTS, st.sampled_from(["en", "de", "tr", "el", "nl", "ka", "zh", ""]), st.sampled_from(Casing)
)
def test_no_text_is_too_odd(text: str, language: str, casing: Casing) -> None:
    odd_casing(text)
    normalize_case(text, casing, language)
    restore_case(text, casing, language)


@settings(max_examples=200, deadline=None)
@given(st.text("abcdefghijklmnopqrstuvwxyz {}.", max_size=40), st.sampled_from(["en", "de", "fr"]))
def test_capitals_survive_a_translation_that_changes_nothing(text: str, language: str) -> None:
    upper = restore_case(text, Casing.UPPER, language)
    if odd_casing(upper) is Casing.UPPER:
        normal = normalize_case(upper, Casing.UPPER, language)
        assert odd_casing(normal) is None
        assert restore_case(normal, Casing.UPPER, language) == upper


def test_long_lines_are_read_once() -> None:
    for text in ("HELLO " * 20_000, "A. " * 33_000, "{" * 100_000, "{a} B" * 20_000, "." * 100_000):
        odd_casing(text)
        normalize_case(text, Casing.UPPER, "en")
        restore_case(text, Casing.UPPER, "el")
