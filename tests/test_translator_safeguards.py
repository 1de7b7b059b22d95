"""The safeguards in the translator, with an engine whose every answer the test decides."""

from collections.abc import Callable, Iterator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.config import Config, DataConfig, ModelConfig, SearchConfig
from dragoman.corpus.tokenizer import Tokenizer
from dragoman.decoding.engine import Request
from dragoman.decoding.hypothesis import Hypothesis
from dragoman.decoding.translation import Translation
from dragoman.decoding.translator import Translator

WORDS = "the dog cat sees a big house in garden der Hund die Katze sieht ein Haus im Garten".split()
Answer = Callable[[str, Request], str]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train([" ".join(WORDS[i:] + WORDS[:i]) for i in range(len(WORDS))] * 5, 340)


class Echo:
    """Answers each source text with the text that a function makes of it."""

    def __init__(self, tokenizer: Tokenizer, answer: Answer, target: str = "de") -> None:
        self.config = Config(
            source_language="en",
            target_language=target,
            model=ModelConfig(max_positions=400),
            data=DataConfig(max_tokens=300),
            search=SearchConfig(),
        )
        self.tokenizer, self.answer = tokenizer, answer
        self.asked: list[str] = []

    def search(self, sources: Sequence[Sequence[int]], request: Request) -> list[list[Hypothesis]]:
        texts = [self.tokenizer.decode_target(source, []) for source in sources]
        self.asked += texts
        answers = [self.answer(text, request) for text in texts]
        return [[Hypothesis(self.tokenizer.encode(text), -1.0, -0.5)] for text in answers]

    def search_each(
        self, sources: Sequence[Sequence[int]], request: Request
    ) -> Iterator[tuple[int, list[Hypothesis]]]:
        return iter(enumerate(self.search(sources, request)))


def one(tokenizer: Tokenizer, line: str, answer: Answer, target: str = "de") -> Translation:
    return Translator(Echo(tokenizer, answer, target)).translate([line])[0]


def kinds(translation: Translation) -> list[str]:
    assert translation.warnings == [finding.message for finding in translation.findings]
    return [finding.kind for finding in translation.findings]


@pytest.mark.parametrize("line", ["<", "30.4 C", " 12:30 — 1,5 % ", "★ 😀", "...", "{name}", ""])
def test_what_says_nothing_is_copied_and_no_engine_asked(tokenizer: Tokenizer, line: str) -> None:
    engine = Echo(tokenizer, lambda text, _: "und " * 50)
    [translation] = Translator(engine).translate([line])
    assert (translation.text, kinds(translation), engine.asked) == (line, [], [])


def test_a_line_in_capitals_is_translated_as_a_sentence(tokenizer: Tokenizer) -> None:
    engine = Echo(tokenizer, lambda text, _: "Der große Hund sieht die Straße.")
    [translation] = Translator(engine).translate(["  THE BIG DOG SEES THE STREET.\t"])
    assert engine.asked == ["The big dog sees the street."]
    assert translation.text == "  DER GROSSE HUND SIEHT DIE STRASSE.\t"
    assert translation.candidates[0].text == translation.text
    assert kinds(translation) == []


def test_capitals_follow_the_target_language(tokenizer: Tokenizer) -> None:
    found = one(tokenizer, "THE DOG SEES A CAT", lambda *_: "it kediyi görür", target="tr")
    assert found.text == "İT KEDİYİ GÖRÜR"
    found = one(tokenizer, "THE DOG SEES A CAT", lambda *_: "狗看见猫", target="zh")
    assert found.text == "狗看见猫"


def test_an_acronym_is_left_alone(tokenizer: Tokenizer) -> None:
    engine = Echo(tokenizer, lambda text, _: text)
    [translation] = Translator(engine).translate(["NATO"])
    assert (engine.asked, translation.text) == (["NATO"], "NATO")


def test_a_loop_is_searched_again_and_reported(tokenizer: Tokenizer) -> None:
    def answer(text: str, request: Request) -> str:
        return "der Hund sieht" if request.no_repeat_ngram else "der Hund " * 20

    found = one(tokenizer, "the dog sees", answer)
    assert found.text == "der Hund sieht"
    assert kinds(found) == ["loop"]
    assert found.findings[0].details["repeats"] == 20
    assert "der Hund" in found.findings[0].details["phrase"] * 2


def test_a_loop_that_stays_is_cut_and_reported(tokenizer: Tokenizer) -> None:
    found = one(tokenizer, "the dog sees", lambda *_: "die Katze " + "der Hund " * 20 + "im Haus")
    assert found.text == "die Katze der Hund im Haus"
    assert kinds(found) == ["loop"]


def test_a_loop_of_the_source_is_translated(tokenizer: Tokenizer) -> None:
    found = one(tokenizer, "the dog " * 6, lambda *_: "der Hund " * 6)
    assert found.text.split() == ["der", "Hund"] * 6
    assert kinds(found) == []


def test_loops_do_not_touch_their_neighbors(tokenizer: Tokenizer) -> None:
    engine = Echo(tokenizer, lambda text, _: "Hund " * 9 if "dog" in text else "Katze im Haus")
    found = Translator(engine).translate(["the cat in a house", "the dog"])
    assert [translation.text for translation in found] == ["Katze im Haus", "Hund"]
    assert engine.asked == ["the cat in a house", "the dog", "the dog"]


@pytest.mark.parametrize(
    ("line", "answer", "expected"),
    [
        ("The cat sees the dog.", "The cat sees the dog", ["copy"]),
        ("The dog is 37 years old.", "Der Hund ist 73 Jahre alt.", ["lost_number"]),
        ("The dog sees {name}.", "Der Hund sieht.", ["lost_placeholder"]),
        ("See https://example.org now", "Sieh jetzt", ["lost_url"]),
        ("The dog sees a cat in the garden " * 3, "Der Hund", ["short"]),
        ("The dog", "Der Hund sieht die Katze im Haus, ein Haus im Garten, die Katze", ["long"]),
        ("The dog", "  ", ["empty"]),
    ],
)
def test_findings_reach_the_translation(
    tokenizer: Tokenizer, line: str, answer: str, expected: list[str]
) -> None:
    found = one(tokenizer, line, lambda *_: answer)
    assert kinds(found) == expected


def test_a_prefix_stays_as_it_was_given(tokenizer: Tokenizer) -> None:
    translator = Translator(Echo(tokenizer, lambda *_: "Der Hund sieht"))
    [found] = translator.translate(["THE DOG SEES"], prefixes=["Der"])
    assert found.text == "Der HUND SIEHT"


LINES = st.one_of(
    st.text(max_size=40),
    st.lists(
        st.sampled_from(
            ["HELLO ", "the dog ", "{a}", "%s", "https://x.org/ ", "1,234.5", "İ", "ß", "猫",
             "\u200d", "\r", "\u2028", "\x00", "\U000f0000", "\U000f00ff", "▁", "<b>", "😀", "c "]
        ),
        max_size=30,
    ).map("".join),
)  # fmt: skip


def check(tokenizer: Tokenizer, line: str, answer: str) -> None:
    neighbors = ["the dog", "THE BIG DOG SEES"]
    translator = Translator(Echo(tokenizer, lambda text, _: text if "dog" in text else answer))
    first, found, last = translator.translate([neighbors[0], line, neighbors[1]])
    assert (first.text, last.text) == ("the dog", "THE BIG DOG SEES")
    assert found == translator.translate([line])[0]
    assert bool(found.text.strip()) is bool(line.strip())
    kinds(found)


@settings(max_examples=60, deadline=None)
@given(LINES, LINES)
def test_no_line_is_lost_and_none_raises(tokenizer: Tokenizer, line: str, answer: str) -> None:
    check(tokenizer, line, answer)


@pytest.mark.slow
@settings(max_examples=5000, deadline=None)
@given(LINES, LINES)
def test_five_thousand_lines(tokenizer: Tokenizer, line: str, answer: str) -> None:
    check(tokenizer, line, answer)
