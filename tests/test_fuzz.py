"""Whatever bytes come in: as many lines go out, each the one it would be alone, and no crash.

Everything between the bytes of a file and those of the output is the real thing: reading, cutting,
masking, tokenizing, safeguards, loops, casing, writing. What searches is once made up, an engine
that answers with any tokens at all, and once a small model of random weights in the fast engine.
"""

import io
import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dragoman.corpus.tokenizer import Tokenizer
from dragoman.decoding.answers import Form
from dragoman.decoding.engine import Request, output_limit
from dragoman.decoding.hypothesis import Hypothesis
from dragoman.decoding.translator import Translator
from dragoman.model.description import describe
from dragoman.text.lines import iterate_lines

LEAST = 5000  # inputs, over the tests that count them
ODD = (
    "{name} {{x}} ${y} %s %1$s %(n)d [%key:a.b%] {plural, one {#} other {s}} {{ } %} $ %"
    " <b> </b> <a href='x'> <br/> < > &amp; &lt; &#39; & https://a.b/c?d=é#f www.x.y a@b.de"
    " 1,234.50 1.234,50 ½ ٣٤ 12:30 -5°C 007 1e99999 … ... ?! ¿ « » „“ — ☃ ★ 😀 👩‍👩‍👧 🇩🇪 é e\u0301"
    " STOP NASA iPhone McDonald's ǅ ß ẞ İ ı ﬁ Ω Ω Å КОТ кот 猫 ねこ 고양이 แมว عربي עברית हिन्दी"
    " Dr. e.g. U.S. the cat sees the dog. The big red house, and the old tree; or not"
).split(" ")
CONTROLS = (
    "\0 \x01 \x07 \x08 \x1b[31m \r \r\r \x0b \x0c \x1c \x85 \u2028 \u2029 \u200b \u200d \u202e"
    " \ufeff \ufffd \ufffe \uffff \u00a0 \u3000 \t \u2581 \U000f0000 \U000f000f \U000f00ff"
    " \U0010ffff \ue000 \u0301\u0301\u0301"
).split(" ")
FRAGMENT = st.one_of(
    st.sampled_from(ODD),
    st.sampled_from(ODD),
    st.sampled_from(CONTROLS),
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n"), max_size=12),
    st.tuples(st.sampled_from(ODD + CONTROLS), st.integers(2, 70)).map(
        lambda both: both[0] * both[1]
    ),
    st.tuples(st.sampled_from(ODD), st.integers(2, 40)).map(lambda both: f"{both[0]} " * both[1]),
)
LINE = st.lists(st.tuples(FRAGMENT, st.sampled_from(["", " ", " ", "  ", ". "])), max_size=9).map(
    lambda parts: "".join(fragment + space for fragment, space in parts)
)
BYTES = st.one_of(LINE.map(str.encode), LINE.map(str.encode), st.binary(max_size=30))
TEXT = st.tuples(st.lists(BYTES, min_size=4, max_size=12), st.sampled_from([b"\n", b"\r\n"])).map(
    lambda both: both[1].join(both[0])
)
FORMS = [Form("text"), Form("text", scores=True), Form("json")]


class Anything:
    """An engine that answers each source with any tokens, but always with the same."""

    def __init__(self, model: Path) -> None:
        description = describe(model)
        self.config, self.tokenizer = description.config, description.tokenizer

    def search(self, sources: Sequence[Sequence[int]], request: Request) -> list[list[Hypothesis]]:
        return [self._found(source, request) for source in sources]

    def search_each(
        self, sources: Sequence[Sequence[int]], request: Request
    ) -> Iterator[tuple[int, list[Hypothesis]]]:
        return iter(enumerate(self.search(sources, request)))

    def _found(self, source: Sequence[int], request: Request) -> list[Hypothesis]:
        assert 0 < len(source) < self.config.model.max_positions
        chance = random.Random(f"{source} {request.no_repeat_ngram}")
        limit = output_limit(source, request.search, self.config)
        first = Tokenizer.eos_id + 1
        found = []
        for _ in range(chance.randint(1, request.search.beam)):
            few = [chance.randrange(first, self.tokenizer.vocabulary_size) for _ in range(3)]
            choices = chance.choice([few, [*source], range(first, self.tokenizer.vocabulary_size)])
            tokens = chance.choices(choices, k=chance.randint(1, limit))
            if chance.random() < 0.2:  # the source itself, a copy
                tokens = [*source][:limit]
            found.append(Hypothesis(tokens, -1.0, -0.5, chance.random() < 0.9))
        return found


def lines_of(data: bytes) -> int:
    return data.count(b"\n") + (not data.endswith(b"\n") and data != b"")


def check(translator: Translator, data: bytes, form: Form, chosen: int) -> int:
    """Translate a file of these bytes; how many lines it has."""
    lines = list(iterate_lines(io.BytesIO(data), "fuzz", "replace"))
    found = translator.translate(lines)
    written = [form.render(one).written(number) for number, one in enumerate(found, start=1)]
    assert len(lines) == len(found) == lines_of(data)
    assert b"".join(written).count(b"\n") == len(lines)
    for line, translation, answer in zip(lines, found, written, strict=True):
        text = answer.decode()  # UTF-8, with nothing that is no character
        if not line.strip():
            assert translation.text == line
        else:
            assert translation.text.strip()
        if form.kind == "json":
            assert json.loads(text, parse_constant=pytest.fail)["text"] == translation.text
        assert [finding.message for finding in translation.findings] == translation.warnings
    if lines:
        number = chosen % len(lines)
        assert translator.translate([lines[number]])[0].text == found[number].text
    return len(lines)


def run(translator: Translator, examples: int, least: int) -> None:
    count = 0

    @settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck))
    @given(data=TEXT, form=st.sampled_from(FORMS), chosen=st.integers(0, 99))
    def fuzz(data: bytes, form: Form, chosen: int) -> None:
        nonlocal count
        count += check(translator, data, form, chosen)

    fuzz()
    assert count >= least


def test_any_bytes_with_any_answer(model: Path) -> None:
    run(Translator(Anything(model)), 30, 100)


@pytest.mark.slow
def test_thousands_of_inputs_with_any_answer(model: Path) -> None:
    run(Translator(Anything(model)), 1000, LEAST)


@pytest.mark.slow
def test_thousands_of_inputs_through_the_fast_engine(model: Path) -> None:
    search = describe(model).config.search.model_copy(update={"beam": 2})
    translator = Translator.load(model, search=search, engine="ctranslate2", threads=1)
    run(translator, 200, 1000)
