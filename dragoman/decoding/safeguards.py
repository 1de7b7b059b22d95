"""What can be seen to be wrong with a translation from the two texts alone.

No model is asked. Every check is cautious: an ordinary translation gives no finding, and what is
reported deserves a look. The time is linear in the length of the texts.
"""

import functools
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal

from dragoman.decoding.loops import text_loop
from dragoman.decoding.numbers import lost_numbers
from dragoman.text.languages import UNSPACED, base_code
from dragoman.text.protect import count_spans, find_spans

Kind = Literal[
    "split",
    "cut",
    "empty",
    "loop",
    "repetition",
    "copy",
    "short",
    "long",
    "lost_placeholder",
    "lost_url",
    "lost_number",
]
"""What a finding is about.

``split``: the line was translated in parts; ``cut``: the output ended at the length limit;
``empty``: nothing was found and the source stands in its place; ``loop``: the search went in
circles and was done again without; the others as their checks say.
"""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something noticed about a translation: ``message`` for people, ``details`` for programs."""

    kind: Kind
    message: str
    details: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The fields as plain values that ``json.dumps`` takes."""
        return asdict(self)


# Characters of a translation for each of the same text in English, roughly. A code that is not
# here counts as 1.
_LENGTHS: Final = {
    **dict.fromkeys(("zh", "zho", "chi", "cmn", "yue"), 0.33),
    **dict.fromkeys(("ja", "jpn"), 0.45),
    **dict.fromkeys(("ko", "kor"), 0.5),
    **dict.fromkeys(("ar", "ara", "he", "heb", "fa", "fas"), 0.85),
    **dict.fromkeys(("de", "deu", "fr", "fra", "es", "spa", "el", "ell", "fi", "fin"), 1.15),
}
# A translation of fewer characters is long or short for many reasons; longer ones keep the ratio.
_FEWEST: Final = 60
_SHORTEST_SHARE: Final = 0.4
_LONGEST_SHARE: Final = 2.5
_SLACK: Final = 20.0

_LETTER: Final = re.compile(r"[^\W\d_]")
_UNIT: Final = re.compile(r"(?<=\d)[ \u00a0\u202f]?°?[A-Za-zµΩ](?![^\W_])")
_WORD: Final = re.compile(r"[^\W\d_]{2,}")
_LINK: Final = re.compile(r"(?i)[a-z][a-z0-9+.\-]+://|www\.|[^\s<>{}%]+@")
_SHOWN: Final = 60


def is_untranslatable(text: str) -> bool:
    """Whether a text says nothing in any language, so that it is copied rather than translated.

    That is so when it has no letter outside placeholders, tags and URLs: digits, punctuation,
    symbols, emoji. One letter right after a number is a unit, no word: "30.4 C", "12 V".
    """
    spans = find_spans(text)
    if not spans and text[:2].isalpha():  # as nearly every line begins; a unit stands after digits
        return False
    if spans:
        edges = [0, *(edge for span in spans for edge in span), len(text)]
        text = "\n".join(text[edges[i] : edges[i + 1]] for i in range(0, len(edges), 2))
    return not any(map(str.isalpha, _UNIT.sub("", text)))


def examine(
    source: str, translation: str, source_language: str, target_language: str
) -> list[Finding]:
    """What is suspicious about the translation of a line, most serious first.

    Languages are codes such as ``de`` or ``zh-Hans``. Never raises. A blank source, and one that
    is untranslatable and came through as it was, give no finding.
    """
    if not source.strip() or (source == translation and is_untranslatable(source)):
        return []
    findings = [
        repetition(source, translation),
        copy(source, translation, source_language, target_language),
        length(source, translation, source_language, target_language),
    ]
    return [found for found in findings if found is not None] + [
        *lost_spans(source, translation),
        *_numbers(source, translation),
    ]


def repetition(source: str, translation: str) -> Finding | None:
    """A phrase that the translation repeats at least 4 times in a row, and the source does not.

    ``details``: phrase, repeats, start (its first character), period, second (where to cut).
    """
    loop = text_loop(translation)
    if loop is None:
        return None
    own = text_loop(source)
    if own is not None and loop.repeats <= 2 * own.repeats:
        return None
    details = asdict(loop) | {"second": loop.second}
    return Finding("repetition", f"repeats {loop.repeats} times: {_short(loop.phrase)}", details)


def loop_finding(phrase: str, repeats: int) -> Finding:
    """What is reported of a piece that was searched again because of a loop of tokens."""
    return Finding(
        "loop",
        f"translated again, because it went in circles: {_short(phrase)} {repeats} times",
        {"phrase": phrase, "repeats": repeats},
    )


def copy(
    source: str, translation: str, source_language: str, target_language: str
) -> Finding | None:
    """A translation that is its source, or shares at least 9 of 10 words with it.

    Case, punctuation and a final full stop do not count. Texts of fewer than three words may well
    be names, and between equal languages a copy is right. ``details``: share of the words.
    """
    languages = _languages(source_language, target_language)
    if languages.same:
        return None
    if not languages.source_unspaced:  # two sets are much cheaper than all that follows
        chunks = set(source.casefold().split())
        if 2 * len(chunks.intersection(translation.casefold().split())) < len(chunks):
            return None
    pattern = _LETTER if languages.source_unspaced else _WORD
    words, found = (Counter(pattern.findall(text.casefold())) for text in (source, translation))
    total = words.total()
    if pattern is _LETTER:
        enough = total >= 4
    else:
        # Capitals within a line are names: "Anna Maria Schmidt".
        enough = total >= 3 and (source.isupper() or any(map(str.islower, _later_words(source))))
    if not enough:
        return None
    share = (words & found).total() / max(total, found.total())
    if share < 0.9:
        return None
    return Finding("copy", "copies the source", {"share": round(share, 3)})


def length(
    source: str, translation: str, source_language: str, target_language: str
) -> Finding | None:
    """A translation much shorter or longer than is usual for its languages.

    Short: less than 0.4 times the expected characters, if these are at least 60 (or the source of
    such a text). Long: more than 2.5 times and 20 characters. ``details``: ratio to what is
    expected, and the number of characters of both texts.
    """
    languages = _languages(source_language, target_language)
    before, after = len(source.strip()), len(translation.strip())
    expected = before * languages.target_length / languages.source_length
    ratio = after / expected if expected else math.inf
    kind: Kind
    if before >= _FEWEST * languages.source_length and ratio < _SHORTEST_SHARE:
        kind = "short"
    elif after > _LONGEST_SHARE * expected + _SLACK * languages.target_length:
        kind = "long"
    else:
        return None
    details = {"ratio": round(ratio, 3), "source": before, "translation": after}
    return Finding(kind, f"suspiciously {kind}: {after} characters for {before}", details)


def lost_spans(source: str, translation: str) -> list[Finding]:
    """Placeholders, tags and entities, and URLs and addresses, that the translation lacks.

    ``details``: lost, each as often as it is missing.
    """
    wanted = count_spans(source)
    if not wanted:  # as of nearly every line
        return []
    missing = list((wanted - count_spans(translation)).elements())
    links = [span for span in missing if _LINK.match(span)]
    others = [span for span in missing if not _LINK.match(span)]
    groups: tuple[tuple[Kind, list[str]], ...] = (
        ("lost_placeholder", others),
        ("lost_url", links),
    )
    return [Finding(kind, _lost(lost), {"lost": lost}) for kind, lost in groups if lost]


def _numbers(source: str, translation: str) -> list[Finding]:
    lost, extra = lost_numbers(source, translation)
    if not lost:
        return []
    message = _lost(lost) + (f"; instead: {_list(extra)}" if extra else "")
    return [Finding("lost_number", message, {"lost": lost, "instead": extra})]


def _lost(items: list[str]) -> str:
    return f"lost: {_list(items)}"


def _list(items: Iterable[str]) -> str:
    return ", ".join(map(_short, items))


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"


@dataclass(frozen=True, slots=True)
class _Languages:
    """What the checks need to know of a pair of languages."""

    same: bool
    source_unspaced: bool
    source_length: float
    target_length: float


@functools.lru_cache(64)
def _languages(source: str, target: str) -> _Languages:
    own, other = base_code(source), base_code(target)
    return _Languages(own == other, own in UNSPACED, _LENGTHS.get(own, 1), _LENGTHS.get(other, 1))


def _later_words(text: str) -> list[str]:
    return _WORD.findall(text)[1:]
