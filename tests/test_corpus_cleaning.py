import json
import random
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.config import DataConfig
from dragoman.corpus.cleaning import (
    CONTROL,
    DUPLICATE,
    EMPTY,
    EXAMPLES,
    LENGTH_RATIO,
    SAMPLE_SIZE,
    TOO_LONG,
    UNTRANSLATED,
    CleaningReport,
    clean_pairs,
    is_prose,
)
from dragoman.corpus.pairs import Pair

CONFIG = DataConfig()
CHINESE = "在您的路由器设置中打开此选项然后重新启动设备"


def clean(pairs: Iterable[Pair]) -> tuple[list[Pair], CleaningReport]:
    report = CleaningReport()
    return list(clean_pairs(pairs, CONFIG, report)), report


def ordinary(count: int = 200) -> list[Pair]:
    """Distinct pairs of ordinary lengths: German is a sixth longer than English."""
    rng = random.Random(0)
    words = "open the door of house number and wait".split()
    sources = [f"{' '.join(rng.choices(words, k=rng.randint(3, 9)))} {n}" for n in range(count)]
    return [Pair(source, "ü" * round(len(source) * 7 / 6)) for source in sources]


@given(st.lists(st.builds(Pair, st.text("ab \n\0é", max_size=6), st.text("ab {", max_size=6))))
def test_kept_pairs_are_unchanged_in_order_and_every_drop_is_counted(pairs: list[Pair]) -> None:
    kept, report = clean(pairs)
    remaining = iter(pairs)
    assert all(pair in remaining for pair in kept)
    assert report.total == len(pairs)
    assert report.kept == len(kept)
    assert report.kept + sum(report.dropped.values()) == report.total
    for reason, examples in report.examples.items():
        assert len(examples) == min(EXAMPLES, report.dropped[reason])
        assert all(pairs[line - 1] == pair for line, pair in examples)
    again, second = clean(kept)
    assert DUPLICATE not in second.dropped
    assert len(set(again)) == len(again)


@pytest.mark.parametrize(
    "pair",
    [
        Pair("On", "Ein"),
        Pair("Name", "Name"),
        Pair("1", "1"),
        Pair("°C", "Grad Celsius"),
        Pair("Volatile organic compounds", "VOC"),
        Pair("PSK", "Vorinstallierter Schlüssel"),
        Pair("Long Range S2 Access Control Key", "Long Range S2 Access Control Key"),
        Pair("{name} {model} ({host}) {a} {b} {c}", "{name} {model} ({host}) {a} {b} {c}"),
        Pair("Line one\nline two\r\n\tindented", "Zeile eins\nZeile zwei\r\n\teingerückt"),
        Pair(
            "**Bold** [link]({url}) `code` %1$s %(n)d", "**Fett** [Link]({url}) `Code` %1$s %(n)d"
        ),
        Pair("zero\u200dwidth\u00a0and 👩‍👩‍👧", "Null\u200dbreite\u00a0und 👩‍👩‍👧"),
        Pair("a\u2028b", "a\u2028b"),
        Pair(" padded ", "gepolstert"),
        Pair("\ue000 icon", "\ue000 Symbol"),
    ],
)
def test_sensible_pairs_are_kept(pair: Pair) -> None:
    assert clean([*ordinary(), pair])[0][-1] == pair


@pytest.mark.parametrize(
    ("reason", "pair"),
    [
        (EMPTY, Pair("", "x")),
        (EMPTY, Pair("x", " \t\n\u00a0\u200b\ufeff\u3000")),
        (CONTROL, Pair("a\0b", "ab")),
        (CONTROL, Pair("ab", "a\x1b[31mb")),
        (CONTROL, Pair("caf\ufffd", "Café")),
        (CONTROL, Pair("it\x92s", "es ist")),
        (CONTROL, Pair("half \ud83d", "halb")),
        (TOO_LONG, Pair("word " * 2000, "Wort " * 2000)),
        (DUPLICATE, ordinary()[3]),
        (UNTRANSLATED, Pair("Starts a zone or a schedule.", "Starts a zone or a schedule.")),
        (UNTRANSLATED, Pair(CHINESE, CHINESE)),
        (LENGTH_RATIO, Pair("Young girls weave corn stalks into elaborate designs.", "@@")),
        (LENGTH_RATIO, Pair("@@", "Junge Mädchen flechten Maisstängel zu kunstvollen Mustern.")),
    ],
)
def test_useless_pairs_are_dropped_with_the_reason(reason: str, pair: Pair) -> None:
    kept, report = clean([*ordinary(), pair])
    assert kept == ordinary()
    assert report.dropped == {reason: 1}
    assert report.examples == {reason: [(201, pair)]}


def test_two_translations_of_one_text_are_no_duplicates() -> None:
    pairs = [Pair("Open", "Offen"), Pair("Open", "Öffnen"), Pair("Start", "Öffnen")]
    assert clean(pairs)[0] == pairs
    # The border between the sides counts.
    assert len(clean([Pair("ab", "c"), Pair("a", "bc")])[0]) == 2


def test_the_usual_length_ratio_is_learned() -> None:
    """English to Chinese at a third of the length is normal, and equal length is then odd."""
    pairs = [Pair(pair.source * 2, "字" * (len(pair.source) * 2 // 3)) for pair in ordinary()]
    kept, report = clean(pairs)
    assert kept == pairs
    assert report.length_ratio == pytest.approx(1 / 3, abs=0.02)
    odd = Pair("the door of the house and the rest", "字" * 80)
    assert clean([*pairs, odd])[1].dropped == {LENGTH_RATIO: 1}
    assert clean([*ordinary(), odd])[1].dropped == {}


def test_the_rules_are_the_same_in_both_directions() -> None:
    pairs = [Pair(pair.source * 2, "字" * (len(pair.source) * 2 // 3)) for pair in ordinary()]
    pairs += [Pair("long " * 30, "字"), Pair("On", "开"), Pair("Off", "关" * 40)]
    kept = clean(pairs)[0]
    assert len(pairs) - len(kept) == 2
    assert clean([Pair(p.target, p.source) for p in pairs])[0] == [
        Pair(pair.target, pair.source) for pair in kept
    ]


def test_a_few_odd_pairs_do_not_decide_what_is_usual() -> None:
    pairs = [Pair(f"{n}", f"{n}") for n in range(100)]
    odd = Pair("a much longer sentence than all of the others " * 3, "?")
    assert clean([odd, *pairs])[0] == pairs


def test_equal_text_is_kept_where_it_is_usual() -> None:
    """American to British English: most running text stays as it is."""
    same = [Pair(f"Open the door of house {n}", f"Open the door of house {n}") for n in range(8)]
    other = [Pair("Choose the color of the lamp", "Choose the colour of the lamp")]
    assert clean(same + other)[0] == same + other
    rest = ordinary()
    assert clean(same + rest)[0] == rest


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The device is not plugged in", True),
        ("Go to [the site](https://example.org/a/b/c) and log in", True),
        ("اختر الجهاز الذي تريد إعداده", True),
        ("<b>{a}</b> {some_name} %(other_name)s https://example.org/and/so/on/with/words", False),
        ("Habitica - Gamify Your Life With Friends", False),
        ("Router capable", False),
        ("5G CQI 0", False),
        ("", False),
    ],
)
def test_running_text_is_told_from_names_and_formats(text: str, expected: bool) -> None:
    assert is_prose(text) is expected


def test_duplicates_are_found_past_the_sample() -> None:
    pairs = [Pair(f"source {n}", f"target {n}") for n in range(SAMPLE_SIZE + 10)]
    kept, report = clean(pairs + pairs)
    assert kept == pairs
    assert report.dropped == {DUPLICATE: len(pairs)}


def test_no_pairs() -> None:
    kept, report = clean([])
    assert kept == []
    assert report.length_ratio is None
    assert report.render() == "0 pairs read, 0 kept"


def test_the_report_is_readable_and_safe_to_print() -> None:
    report = clean([*ordinary(), Pair("\x1b[31mred\u202e\n" + "x" * 500, "rot"), Pair("", "leer")])[
        1
    ]
    text = report.render()
    assert text.splitlines()[0] == "202 pairs read, 200 kept (99.0%)"
    assert f"dropped 1: {EMPTY}" in text
    assert 'line 202: "" -> "leer"' in text
    assert r"\x1b[31mred\u202e\n" in text
    assert all(character.isprintable() for character in text.replace("\n", ""))
    assert max(map(len, text.splitlines())) < 200


def test_the_report_as_json() -> None:
    report = clean([*ordinary(), Pair("", "leer")])[1]
    plain = json.loads(json.dumps(report.to_json()))
    assert plain["total"] == 201
    assert plain["kept"] == 200
    assert plain["dropped"] == {EMPTY: 1}
    assert plain["examples"] == {EMPTY: [{"line": 201, "source": "", "target": "leer"}]}
    assert plain["length_ratio"] == pytest.approx(7 / 6, abs=0.03)
