import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.decoding.loops import find_loop, text_loop
from dragoman.decoding.safeguards import examine, is_untranslatable

# Ordinary sentences, each with its translation on the next line: none may give a finding.
GERMAN = """\
The train to Berlin leaves at 9:45 from platform 7.
Der Zug nach Berlin fährt um 9.45 Uhr von Gleis 7 ab.
The bridge was built in 1894 and is 1,234.5 metres long.
Die Brücke wurde 1894 gebaut und ist 1.234,5 Meter lang.
Our shop is open from Monday to Friday.
Unser Laden ist von Montag bis Freitag geöffnet.
Please send the form to info@example.org before 24 December.
Bitte senden Sie das Formular vor dem 24. Dezember an info@example.org.
Anna Schmidt and Peter Müller live in Hamburg.
Anna Schmidt und Peter Müller leben in Hamburg.
It costs 3.50 euros.
Es kostet 3,50 Euro.
More than 5 million people watched the match.
Mehr als 5 Millionen Menschen sahen das Spiel.
The company made 2.5 billion dollars in 2019.
Das Unternehmen verdiente 2019 2,5 Milliarden Dollar.
He has three brothers and 2 sisters.
Er hat drei Brüder und zwei Schwestern.
In the 1990s nobody had a phone like this.
In den 90ern hatte niemand so ein Telefon.
Half past two is 2:30.
Halb drei ist 2:30 Uhr.
Come at 6:30 and bring 25 chairs.
Komm um halb sieben und bring 25 Stühle mit.
The meeting starts at 3:20 pm.
Die Sitzung beginnt um 15:20 Uhr.
Press {button} to continue.
Drücke {button}, um fortzufahren.
See https://example.org/help for more.
Mehr dazu unter https://example.org/help.
You have %d new messages.
Du hast %d neue Nachrichten.
The film was very, very good.
Der Film war sehr, sehr gut.
No, no, no, I did not say that!
Nein, nein, nein, das habe ich nicht gesagt!
Good morning!
Guten Morgen!
Yes.
Ja.
Version 3.11.2 was released on 08/02/2023.
Version 3.11.2 erschien am 08.02.2023.
The population is 1 234 567.
Die Einwohnerzahl beträgt 1.234.567.
Restaurant, hotel and museum are in Berlin.
Restaurant, Hotel und Museum sind in Berlin.
She was born in Paris, Texas.
Sie wurde in Paris, Texas, geboren.
Do you speak English? I speak only a little German, but I am learning it.
Sprechen Sie Englisch? Ich spreche nur ein wenig Deutsch, aber ich lerne es.
"""
FRENCH = """\
The museum opens at 10 in the morning.
Le musée ouvre à 10 heures du matin.
I was born on 3 May 1987 in Lyon.
Je suis né le 3 mai 1987 à Lyon.
The ticket costs 1,250.75 euros.
Le billet coûte 1 250,75 euros.
About 12,000 people came to the concert.
Environ 12\u202f000 personnes sont venues au concert.
The information is on www.example.fr, page 45.
L'information se trouve sur www.example.fr, page 45.
Dear {name}, thank you for your order no. 4711.
{name}, merci pour votre commande n° 4711.
He lost 15% of his money.
Il a perdu 15 % de son argent.
My grandmother is 84 years old.
Ma grand-mère a 84 ans.
There are seven days in a week.
Il y a sept jours dans une semaine.
This important question concerns all nations.
Cette question importante concerne toutes les nations.
The 21st century began in 2001.
Le 21e siècle a commencé en 2001.
A hundred and one reasons, 100 answers.
Cent une raisons, cent réponses.
The lake is 12.7 km long and 300 m deep.
Le lac fait 12,7 km de long et 300 m de profondeur.
Where is the station?
Où est la gare ?
Madame Dubois will call you on 01 23 45 67 89.
Madame Dubois vous appellera au 01 23 45 67 89.
The <b>red</b> button stops the machine.
Le bouton <b>rouge</b> arrête la machine.
Pierre and Marie went to Marseille.
Pierre et Marie sont allés à Marseille.
Ha ha ha ha ha, that is funny!
Ha ha ha ha ha, c'est drôle !
"""
CHINESE = """\
There are 365 days in a year.
一年有365天。
There are 365 days in a year, she said.
她说，一年有三百六十五天。
The city has 1.2 million inhabitants.
这座城市有120万居民。
More than 120 million people live in Japan.
日本有超过1.2亿人口。
The house costs 350,000 dollars.
这座房子售价35万美元。
Call me at 138 0013 8000 tomorrow.
明天打138 0013 8000找我。
Mr Wang was born in 1965.
王先生出生于1965年。
The school begins at 8:30.
学校八点半开始上课。
Please enter your password and press OK.
请输入密码，然后按确定。
He bought two books.
他买了两本书。
Open https://example.org in your browser.
请在浏览器中打开 https://example.org。
Temperatures of 30 degrees are usual in July.
七月份气温通常为３０度。
This is a long sentence about nothing in particular, written only to be translated.
这是一个没有特定内容的长句，只是为了翻译而写的。
Haha, really?
哈哈，真的吗？
Slowly, slowly!
慢慢来，慢慢来！
On 12 March 2024 the office is closed.
2024年3月12日办公室关闭。
Beijing is the capital of China.
北京是中国的首都。
"""
ORDINARY = [
    (source, target, languages)
    for pairs, code in ((GERMAN, "de"), (FRENCH, "fr"), (CHINESE, "zh-Hans"))
    for first, second in zip(*[iter(pairs.splitlines())] * 2, strict=True)
    for source, target, languages in ((first, second, ("en", code)), (second, first, (code, "en")))
]


def kinds(source: str, translation: str, *languages: str) -> list[str]:
    return [found.kind for found in examine(source, translation, *languages or ("en", "de"))]


@pytest.mark.parametrize(("source", "target", "languages"), ORDINARY)
def test_an_ordinary_translation_gives_no_finding(
    source: str, target: str, languages: tuple[str, str]
) -> None:
    assert examine(source, target, *languages) == []


def test_enough_ordinary_sentences() -> None:
    assert len(ORDINARY) == 120


LONG = (
    "The committee met on Tuesday to discuss the plans for the new library, and after three hours "
    "it had agreed on nothing at all."
)


@pytest.mark.parametrize(
    ("source", "translation", "expected"),
    [
        ("A dog runs.", "Ein Hund Hund Hund Hund Hund läuft.", ["repetition"]),
        (
            "A dog runs in snow.",
            "Ein Hund läuft im Schnee, im Schnee, im Schnee, im Schnee, im Schnee",
            ["repetition"],
        ),
        (
            "A lady is walking down the street.",
            "Eine Frau geht " + "die Straße und " * 12,
            ["repetition", "long"],
        ),
        ("Very very very very good.", "sehr " * 30, ["repetition", "long"]),
        ("What?", "Waaaaaaaaaaaaaaaas?", ["repetition"]),
        ("The cat sees the dog.", "The cat sees the dog", ["copy"]),
        ("The cat sees the dog", "The cat sees the dog.", ["copy"]),
        (
            "A cat sees the dog and the birds in my old house!",
            "a cat sees the dog and the birds in my old Haus",
            ["copy"],
        ),
        ("THE CAT SEES THE DOG", "The cat sees the dog", ["copy"]),
        (LONG, "Der Ausschuss tagte.", ["short"]),
        (LONG, "Ja", ["short"]),
        (
            "A dog.",
            "Ein großer Hund, der über die Wiese läuft, während viele Leute zusehen.",
            ["long"],
        ),
        ("It weighs 37 kilos.", "Es wiegt 73 Kilo.", ["lost_number"]),
        ("In 1987 he moved away.", "Er zog weg.", ["lost_number"]),
        ("It costs 1.50 euros.", "Es kostet 150 Euro.", ["lost_number"]),
        ("Wait until 14:20 please.", "Warte bitte bis 16:20.", ["lost_number"]),
        ("Hello {name}!", "Hallo!", ["lost_placeholder"]),
        ("Hello %1$s, good to see you!", "Hallo $1s, schön, dich zu sehen!", ["lost_placeholder"]),
        ("See https://example.org now.", "Sieh jetzt nach.", ["lost_url"]),
        ("Write to a@example.org now.", "Schreib jetzt an.", ["lost_url"]),
        ("{a} of {b} at https://example.org", "{a} von", ["lost_placeholder", "lost_url"]),
    ],
)
def test_what_went_wrong_is_found(source: str, translation: str, expected: list[str]) -> None:
    assert kinds(source, translation) == expected


@pytest.mark.parametrize(
    ("source", "translation", "languages"),
    [
        ("Anna Maria Schmidt", "Anna Maria Schmidt", ("en", "de")),  # a name
        ("New York", "New York", ("en", "de")),
        ("The cat sees the dog.", "The cat sees the dog.", ("en", "en-GB")),
        ("https://example.org/a-long-path", "https://example.org/a-long-path", ("en", "de")),
        ("12345", "12345", ("en", "de")),
        ("- - - - - -", "- - - - - -", ("en", "de")),
        ("no no no no no", "nein nein nein nein nein", ("en", "de")),
        ("1000000000000 people", "1000000000000 Leute", ("en", "de")),
        ("....................", "..................", ("en", "de")),
        ("猫看见狗。", "The cat sees the dog.", ("zh", "en")),
        ("", "", ("en", "de")),
        ("   ", "   ", ("en", "de")),
        ("٣٧ كيلو", "37 Kilo", ("ar", "de")),
    ],
)
def test_what_may_look_wrong_is_not(
    source: str, translation: str, languages: tuple[str, str]
) -> None:
    assert kinds(source, translation, *languages) == []


def test_a_copy_of_unspaced_text_is_found() -> None:
    assert kinds("猫看见狗，狗看见房子。", "猫看见狗，狗看见房子", "zh", "en") == ["copy"]
    assert kinds("猫看见狗，狗看见房子和猫。", "猫看见狗，狗看见房屋和猫", "zh", "ja") == ["copy"]


def test_a_truncated_sentence_of_100_words_is_found() -> None:
    words = [f"word{chr(97 + i % 26)}{chr(97 + i // 26)}" for i in range(100)]
    assert kinds(" ".join(words), " ".join(reversed(words[:30]))) == ["short"]


def test_findings_are_for_people_and_programs() -> None:
    [loop, number] = examine(
        "A 37-year-old man laughs.", "Ein Mann lacht" + ", ein Mann lacht" * 4 + ".", "en", "de"
    )
    assert loop.message == "repeats 4 times: Mann lacht, ein"
    assert number.message == "lost: 37"
    record = json.loads(json.dumps([loop.to_json(), number.to_json()]))
    assert record[1] == {
        "kind": "lost_number",
        "message": "lost: 37",
        "details": {"lost": ["37"], "instead": []},
    }
    assert record[0]["kind"] == "repetition"
    assert record[0]["details"]["second"] > record[0]["details"]["start"]


@pytest.mark.parametrize(
    ("text", "copied"),
    [
        ("<", True),
        ("30.4 C", True),
        ("30.4 °C", True),
        ("12V", True),
        ("5 km", False),
        ("3.14159", True),
        ("1.", True),
        ("...", True),
        ("→ ★ ♥ 😀", True),
        ("{name} %s https://example.org", True),
        ("<br/>", True),
        ("&nbsp;", True),
        ("²½", True),
        ("", True),
        ("A", False),
        ("I", False),
        ("Yaoundé", False),
        ("猫", False),
        ("Plan 9 B", False),
        ("{name}: yes", False),
        ("1 and 2", False),
        ("ग", False),
    ],
)
def test_what_is_copied_and_what_is_translated(text: str, copied: bool) -> None:
    assert is_untranslatable(text) is copied


def test_a_loop_has_its_phrase_and_its_place() -> None:
    loop = find_loop([1, 2, 3, 7, 8, 7, 8, 7, 8, 7, 8, 7, 4])
    assert loop is not None
    assert (loop.start, loop.period, loop.repeats, loop.second) == (3, 2, 4, 5)
    assert find_loop([1, 2, 3, 1, 2, 3, 1, 2, 3]) is None
    assert find_loop([]) is None
    text = "so it goes on and on and on and on and on again"
    found = text_loop(text)
    assert found is not None
    assert text[found.start :].startswith(found.phrase)
    assert text[found.start : found.second] == f"{found.phrase} "
    assert found.phrase in ("on and", "and on")
    wide = text_loop("我看见我看见我看见我看见我看见了")
    assert wide is not None
    assert (wide.phrase, wide.repeats) == ("我看见", 5)


@given(
    st.lists(st.integers(0, 50), max_size=6, unique=True),
    st.lists(st.integers(51, 99), min_size=1, max_size=8, unique=True),
    st.integers(4, 9),
)
def test_every_loop_is_found_where_it_starts(
    before: list[int], phrase: list[int], repeats: int
) -> None:
    loop = find_loop([*before, *phrase * repeats])
    assert loop is not None
    assert (loop.start, loop.period, loop.repeats) == (len(before), len(phrase), repeats)


SNIPPETS = st.one_of(
    st.text(max_size=60),
    st.lists(
        st.sampled_from(
            ["{a}", "%s", "1,234.5", "https://x.org/", "ABC", "ß", "İ", "ά", " ", ".", "ha", "万",
             "٣", "²", "\u200d", "\ud800", "\U000f0000", "\n", "12:30", "99999999999999999999"]
        ),
        max_size=25,
    ).map("".join),
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(SNIPPETS, SNIPPETS, st.sampled_from(["en", "de", "zh", "tr", "", "x y", "ÄÖ"]))
def test_no_text_is_too_odd(source: str, translation: str, language: str) -> None:
    for found in examine(source, translation, language, "de"):
        json.dumps(found.to_json())
        assert "\n" not in found.kind
    is_untranslatable(source)


@settings(max_examples=100, deadline=None)
@given(SNIPPETS)
def test_a_text_beside_itself_has_lost_nothing(text: str) -> None:
    found = {finding.kind for finding in examine(text, text, "en", "de")}
    assert found <= {"copy"}


@pytest.mark.parametrize(
    "text",
    [
        "a" * 100_000,
        "ab" * 50_000,
        "1" * 100_000,
        "1 " * 50_000,
        "1,234." * 16_000,
        "12 345 " * 14_000,
        "the cat sees " * 8_000,
        "{" * 100_000,
        "A. " * 33_000,
        "猫看见狗" * 25_000,
        "".join(chr(0x4E00 + i % 20_000) for i in range(100_000)),
        " ".join(str(i) for i in range(100, 17_000)),
        " ".join(f"w{i % 97}x{i % 89}" for i in range(15_000)),
        " " * 100_000,
    ],
    ids=lambda text: text[:8],
)
def test_long_lines_are_read_once(text: str) -> None:
    # Quadratic time would take minutes here; the test has no clock of its own.
    examine(text, text[1:50_000], "en", "de")
    is_untranslatable(text)
