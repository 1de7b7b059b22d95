"""Protected spans: the parts of a text that a translation must carry over unchanged.

Placeholders, tags, entities, URLs and e-mail addresses are found by one pattern. Masking puts a
*slot*, one private-use character, in the place of each distinct span, so that the model sees one
symbol it can only copy; after decoding the span comes back. Numbers and Markdown marks are not
protected: they are translated (3.5 becomes 3,5).

How slot characters that already stand in the user's text survive
    The tokenizer reads the slots (``SLOTS``, U+F0000 to U+F000F) and U+2581 (the mark that
    sentencepiece writes for a space) as its own symbols. Where one of them, or the escape
    character itself, stands literally in a text, the text handed to the tokenizer carries
    ``ESCAPE`` (U+F00FF, private use, never a slot) before it:

    - literal slot character ``c``   -> ``ESCAPE + c``
    - literal U+2581                 -> ``ESCAPE + U+2581``
    - literal ``ESCAPE``             -> ``ESCAPE + ESCAPE``

    So in *escaped* text ``ESCAPE`` is always followed by the one literal character it speaks for,
    and a slot character without ``ESCAPE`` before it is a slot. ``mask_spans`` and ``mask_pair``
    return escaped text; ``escape_literals`` escapes a text without masking it. The spans in
    ``Masked.spans`` are raw text, never escaped.

    The tokenizer gives a slot its own piece and spells ``ESCAPE`` and the character after it in
    byte pieces. What it decodes is therefore escaped text again, in which slots and literals can
    be told apart, and ``unmask``, the inverse of masking, makes raw text of it.

    ``TOKEN_PATTERN`` matches, in escaped text, one ``ESCAPE + c`` or one slot.
"""

import re
from collections import Counter
from typing import Final, NamedTuple

SLOT_COUNT: Final = 16
SLOTS: Final[tuple[str, ...]] = tuple(chr(0xF0000 + number) for number in range(SLOT_COUNT))
ESCAPE: Final = "\U000f00ff"
SPACE_MARK: Final = "\u2581"

_SLOT_NUMBERS: Final = {slot: number for number, slot in enumerate(SLOTS)}
_SLOT_CLASS: Final = f"{SLOTS[0]}-{SLOTS[-1]}"
_LITERAL: Final = re.compile(f"[{_SLOT_CLASS}{SPACE_MARK}{ESCAPE}]")
TOKEN_PATTERN: Final = re.compile(f"{ESCAPE}(?P<literal>.?)|(?P<slot>[{_SLOT_CLASS}])", re.DOTALL)

# Every repetition below is possessive or stops at the character that could start another match,
# which keeps the whole search linear on hostile text ("{" * 100_000 and the like).
_URL_CHARACTER: Final = (
    r"[^\s<>\"`\\^|\[\](){}\u2018-\u201f\u3000-\u9fff\uac00-\ud7af\uff00-\uffef"
    r"\U00020000-\U0003ffff\U000f0000-\U0010ffff]"
)
_URL: Final = (
    r"(?<![A-Za-z0-9+.\-])(?:[A-Za-z][A-Za-z0-9+.\-]{1,20}+://|www\.(?=[A-Za-z0-9]))"
    rf"(?:{_URL_CHARACTER}++|\([^\s()<>\"]*+\)|\{{[^\s{{}}<>\"]*+\}})++"
)
_MAIL: Final = (
    r"(?<![A-Za-z0-9._%+\-])[A-Za-z0-9_+][A-Za-z0-9._%+\-]*+@"
    r"[A-Za-z0-9][A-Za-z0-9\-]*+(?:\.[A-Za-z0-9][A-Za-z0-9\-]*+)++"
)
_BRACES: Final = (
    r"\{{2,3}[^{}\n]*+\}{2,3}"  # {{x}}, {{ x | filter }}, {{{x}}}
    r"|\$\{[^{}\n]*+\}"  # ${x}
    # {x} {0} {} {user.name} {items[0]} {x!r:>10} {when, date, short}; not {some words}
    r"|\{[ ]?[\w.\-\[\]]*+(?:![rsa])?(?::[^\s{}]*+)?"
    r"(?:,\s?(?:number|date|time)(?:,\s?[^\s{},]++)?)?[ ]?\}"
)
_PERCENT: Final = (
    r"%%"
    r"|%\([^()%\s]*+\)[\-+#0]*+\d*+(?:\.\d++)?[sdiufFeEgGxXorac]"  # %(name)s
    # %s %d %1$s %.2f %@, but neither "100%sure" nor "10 %ige"
    r"|%(?:\d++\$)?[\-+#0]*+\d*+(?:\.\d++)?(?:hh?|ll?|[zjtL])?"
    r"(?:[@sd](?<!\d%[sd])(?<!\d\s%[sd])|[@sdiufFeEgGxXoc](?![^\W\d_]))"
)
_TAG: Final = (
    r"</?(?:[A-Za-z][\w:.\-]*+|\d{1,3}+)"
    r"(?:\s++[\w:@.\-]++\s*+=\s*+(?:\"[^\"<]*+\"|'[^'<]*+'|[^\s<>\"'=`]++))*+\s*+/?>"
)
_OTHERS: Final = (
    r"\$[A-Za-z_]\w*+\$"  # $x$
    r"|\[%key:[^\[\]%\n]*+%\]"
    r"|&(?:\#\d{1,7}|\#[xX][0-9A-Fa-f]{1,6}|[A-Za-z][A-Za-z0-9]{1,31});"
)
PATTERN: Final = re.compile(f"(?P<url>{_URL})|{_MAIL}|{_BRACES}|{_PERCENT}|{_TAG}|{_OTHERS}")
_URL_TAIL: Final = ".,;:!?'*_~\u2026"


class Masked(NamedTuple):
    """A text with slots in the place of its protected spans.

    ``text`` is escaped (see the module's docstring); ``SLOTS[i]`` in it stands for ``spans[i]``.
    """

    text: str
    spans: list[str]


def find_spans(text: str) -> list[tuple[int, int]]:
    """Return (start, end) of every protected span, left to right, none overlapping another.

    Punctuation that ends a sentence after a URL is not part of the URL. Time is linear.
    """
    if not _may_hold_spans(text):
        return []
    spans = []
    for match in PATTERN.finditer(text):
        start, end = match.span()
        if match.lastgroup == "url":
            end = start + len(match.group().rstrip(_URL_TAIL))
            if text[end - 1] == "/" and text.startswith("://", end - 3):
                continue
        spans.append((start, end))
    return spans


def _may_hold_spans(text: str) -> bool:
    """Whether a text, unlike nearly all, has one of the signs that each span has."""
    return (
        "{" in text
        or "%" in text
        or "$" in text
        or "<" in text
        or "&" in text
        or "[" in text
        or "@" in text
        or "://" in text
        or "www." in text
    )


def escape_literals(text: str) -> str:
    """Put ``ESCAPE`` before every slot character, U+2581 and ``ESCAPE`` that stands in ``text``."""
    if text.isascii() or not _LITERAL.search(text):
        return text
    return _LITERAL.sub(lambda match: ESCAPE + match.group(), text)


def mask_spans(text: str) -> Masked:
    """Escape ``text`` and put ``SLOTS[i]`` in the place of its i-th distinct protected span.

    Spans that are equal share a slot. From the 17th distinct span on they stay as they are.
    ``unmask(*mask_spans(text)) == text`` for every text.
    """
    numbers: dict[str, int] = {}
    masked = _replace(text, numbers, SLOT_COUNT)
    return Masked(masked, list(numbers))


def mask_pair(source: str, target: str) -> tuple[Masked, Masked]:
    """Mask both sides of a training pair with the slots of the source.

    A span of the target that equals one of the source gets the same slot; any other stays raw
    text. Both results hold the spans of the source.
    """
    numbers: dict[str, int] = {}
    masked_source = _replace(source, numbers, SLOT_COUNT)
    masked_target = _replace(target, numbers, len(numbers)) if numbers else escape_literals(target)
    spans = list(numbers)
    return Masked(masked_source, spans), Masked(masked_target, spans)


def unmask(text: str, spans: list[str]) -> str:
    """Undo masking: slots become their spans, escaped literals become the literals.

    ``text`` is escaped text. A slot whose number has no span is dropped, and so is an ``ESCAPE``
    with nothing after it.
    """
    if text.isascii():
        return text

    def restore(match: re.Match[str]) -> str:
        literal = match["literal"]
        if literal is not None:
            return literal
        number = _SLOT_NUMBERS[match["slot"]]
        return spans[number] if number < len(spans) else ""

    return TOKEN_PATTERN.sub(restore, text)


def _replace(text: str, numbers: dict[str, int], limit: int) -> str:
    """Escape ``text`` and replace its spans; new ones enter ``numbers`` while under ``limit``."""
    spans = find_spans(text)
    if not spans:
        return escape_literals(text)
    parts: list[str] = []
    position = 0
    for start, end in spans:
        span = text[start:end]
        if span not in numbers:
            if len(numbers) >= limit:
                continue
            numbers[span] = len(numbers)
        parts += (escape_literals(text[position:start]), SLOTS[numbers[span]])
        position = end
    parts.append(escape_literals(text[position:]))
    return "".join(parts)


def count_spans(text: str) -> Counter[str]:
    """How often each protected span stands in ``text``."""
    spans = find_spans(text)
    return Counter([text[start:end] for start, end in spans] if spans else None)
