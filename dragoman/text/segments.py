"""Sentence segments that rejoin to the text they came from, character by character.

Boundaries come from pysbd where it knows the language. It is known to lose characters, to misplace
sentences that repeat, and to take time that grows with the square of the text; so it sees windows
of bounded size, only its positions are used, and where these leave a gap the splitter below takes
over. A boundary inside a protected span (a URL, a tag, a placeholder) is never used.
"""

import bisect
import functools
import itertools
import re
import unicodedata
import warnings
from collections.abc import Callable, Sequence
from typing import Final

from dragoman.text.languages import base_code
from dragoman.text.protect import find_spans

_WINDOW: Final = 600

_CLOSERS: Final = "\"'”’»›)\\]}」』】》〉）＂＇"
_STOPS: Final = r".!?…‥‽؟۔।॥։።፧፨။၊៕\u1803\u1809⸮"
# After these stops a sentence ends only where white space follows, after the wide ones anywhere.
# Looking back keeps a long run of stops from being tried from each of them.
_SENTENCE_END: Final = re.compile(
    rf"(?<![{_STOPS}])[{_STOPS}]++[{_CLOSERS}]*+\s++"
    rf"|[。！？｡．][。！？｡．…]*+[{_CLOSERS}]*+\s*+"
    r"|\n\s*+"
)
"""The end of a sentence, with the white space after it."""
_TITLES: Final = "Mrs?|Ms|Dr|Prof|Sra?|St|vs"
_NO_END: Final = re.compile(rf"(?:^|[\s(\[\"'“„])(?:\w|\d+|[A-Za-z]\.[A-Za-z]|{_TITLES})$")
"""What stands before a full stop that ends no sentence: an initial, a list number, "e.g"."""
_SIGN: Final = re.compile(rf"[{_STOPS}。！？｡．;:\n]")
"""What may end a sentence, for pysbd as well."""
# A no-break space is no place to break.
_SPACE: Final = re.compile(r"[^\S\u00a0\u2007\u202f]++")
_CLAUSE: Final = re.compile(r"[,;:–—،؛][^\S\u00a0\u2007\u202f]++|[，、；：]\s*+")


def split_segments(text: str, language: str) -> list[str]:
    """Cut ``text`` into sentences; white space stays with the segment before it.

    ``language`` is a code like "de" or "zh-Hans". ``"".join(result) == text`` for every text, no
    segment is empty, and the time is linear in the length.
    """
    cuts = _usable(text, _boundaries(text, language))
    edges = [0, *cuts, len(text)]
    return [text[start:end] for start, end in itertools.pairwise(edges) if start < end]


def split_to_fit(text: str, language: str, fits: Callable[[str], bool]) -> list[str]:
    """Cut ``text`` into pieces, as long as sentence ends allow, each of which ``fits``.

    Sentences are merged while they fit. A sentence that alone does not fit is cut after a clause
    or at a space, where there is none at a character, but not inside a protected span if the span
    itself fits. ``"".join(result) == text``; a single character is returned whether it fits or
    not; an empty text has no pieces. ``fits`` should hold for the beginning of what it holds for.
    """
    if text and fits(text):
        return [text]
    segments = split_segments(text, language)
    edges = [0, *itertools.accumulate(map(len, segments))]
    pieces: list[str] = []
    first, count = 0, 1
    while first < len(segments):
        count = _furthest(text, edges, first, count, fits)
        if count:
            pieces.append(text[edges[first] : edges[first + count]])
        else:
            pieces += _cut_segment(segments[first], fits)
        first += max(count, 1)
    return pieces


def _furthest(
    text: str, edges: Sequence[int], first: int, guess: int, fits: Callable[[str], bool]
) -> int:
    """Return over how many edges after the first a piece may reach and fit, 0 if over none.

    The search doubles from ``guess`` and then halves, so what is tested stays near the answer.
    """

    def accepts(count: int) -> bool:
        return fits(text[edges[first] : edges[first + count]])

    limit = len(edges) - 1 - first
    low, high = 0, min(max(guess, 1), limit)
    while low < limit and accepts(high):
        low, high = high, min(2 * high, limit)
    while high - low > 1:
        middle = (low + high) // 2
        if accepts(middle):
            low = middle
        else:
            high = middle
    return low


def _cut_segment(segment: str, fits: Callable[[str], bool]) -> list[str]:
    """Cut a segment that does not fit into pieces that do."""
    protected = find_spans(segment)
    pieces: list[str] = []
    edges = range(len(segment) + 1)
    start, length = 0, 256
    while start < len(segment):
        length = _furthest(segment, edges, start, length, fits)
        end = start + max(length, 1)
        if end < len(segment):
            end = _break_point(segment, start, end, protected)
        # A tokenizer may need more pieces for a shorter text, if rarely.
        while end - start > 1 and not fits(segment[start:end]):
            end = start + (end - start) // 2
        pieces.append(segment[start:end])
        start = end
    return pieces


def _break_point(text: str, start: int, end: int, protected: list[tuple[int, int]]) -> int:
    """Return the best place to cut in (start, end]."""
    middle = (start + end) // 2
    for pattern, first in ((_CLAUSE, middle), (_SPACE, middle), (_SPACE, start)):
        places = [match.end() for match in pattern.finditer(text, first, end)]
        for place in reversed(places):
            if start < place and not _joined(text, place) and not _inside(place, protected):
                return place
    place = end
    while place > start and (_joined(text, place) or _inside(place, protected)):
        place -= 1
    return place if place > start else end


def _inside(place: int, protected: list[tuple[int, int]]) -> bool:
    """Tell whether a cut at ``place`` would split one of the spans."""
    index = bisect.bisect_left(protected, (place, 0)) - 1
    return index >= 0 and protected[index][0] < place < protected[index][1]


def _joined(text: str, place: int) -> bool:
    """Tell whether the characters on both sides of ``place`` show as one."""
    if place >= len(text):
        return False
    after = text[place]
    if after < "\u0300":
        return after == "\n" and text[place - 1] == "\r"
    return (
        unicodedata.category(after)[0] == "M"
        or "\u200d" in (after, text[place - 1])
        or "\U0001f3fb" <= after <= "\U0001f3ff"
    )


def _boundaries(text: str, language: str) -> list[int]:
    """Return the places inside ``text`` where a sentence begins, in order."""
    code = base_code(language)
    if code not in _library_languages():
        return _simple_boundaries(text)
    cuts: list[int] = []
    start = 0
    while start < len(text):
        end = _window_end(text, start)
        found = _library_boundaries(text[start:end], code)
        cuts += [start + cut for cut in found]
        # The last sentence of a window may go on after it: it opens the next one. Where it began
        # early in the window it is long, and going back to it would repeat too much work.
        start = start + found[-1] if found and found[-1] > (end - start) // 4 else end
        if end == len(text):
            break
    return cuts


def _window_end(text: str, start: int) -> int:
    end = start + _WINDOW
    if end >= len(text):
        return len(text)
    middle = start + _WINDOW // 2
    place = text.rfind("\n", middle, end)
    if place < 0:
        place = text.rfind(" ", middle, end)
    return place + 1 if place >= 0 else end


@functools.cache
def _library_languages() -> frozenset[str]:
    with warnings.catch_warnings():
        # Its sources hold escapes that newer Pythons warn of.
        warnings.simplefilter("ignore")
        from pysbd.languages import LANGUAGE_CODES
    return frozenset(LANGUAGE_CODES)


def _library_boundaries(text: str, code: str) -> list[int]:
    """Return the boundaries inside one window as pysbd sees them, ours where it goes wrong."""
    import pysbd

    body = text.strip()
    signs = len(_SIGN.findall(body))
    if not signs:
        return []
    if signs > len(body) // 12:
        # Its time grows with the square of the number of sentences.
        return _simple_boundaries(text)
    lead = len(text) - len(text.lstrip())
    try:
        # A segmenter keeps the text on itself: one for each call, or threads would mix texts.
        segmenter = pysbd.Segmenter(language=code, clean=False, char_span=True)
        spans = [(span.start, span.end) for span in segmenter.segment(body)]
    except Exception:  # Whatever the library trips over, the text must come through.
        return _simple_boundaries(text)
    edges = [start for start, _ in spans] + [len(body)]
    if edges[0] != 0 or any(end != edge for (_, end), edge in zip(spans, edges[1:], strict=True)):
        return _simple_boundaries(text)
    return [lead + start for start, _ in spans[1:]]


def _simple_boundaries(text: str) -> list[int]:
    """Return the boundaries by sentence-ending signs, for any language."""
    cuts: list[int] = []
    for match in _SENTENCE_END.finditer(text):
        end = match.end()
        if end == len(text):
            break
        if match.group()[0] == "." and (
            text[end].islower() or _NO_END.search(text, max(0, match.start() - 8), match.start())
        ):
            continue
        cuts.append(end)
    return cuts


def _usable(text: str, cuts: list[int]) -> list[int]:
    """Drop the cuts that would split a protected span or a character with its marks."""
    protected = find_spans(text) if cuts else []
    return [cut for cut in cuts if not _joined(text, cut) and not _inside(cut, protected)]
