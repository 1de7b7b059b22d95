"""Lines as the pieces that a model translates, and all that comes back around them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from dragoman.config import Config
from dragoman.corpus.context import encode_contexts, fitting
from dragoman.corpus.pairs import Context
from dragoman.corpus.tokenizer import Tokenizer
from dragoman.decoding.casing import Casing, normalize_case, odd_casing
from dragoman.decoding.hypothesis import Prefix
from dragoman.decoding.prefix import prefix_symbols
from dragoman.decoding.safeguards import is_untranslatable
from dragoman.errors import UserError
from dragoman.text.segments import split_to_fit


@dataclass(frozen=True)
class Piece:
    """A part of a line short enough for the model.

    ids are those of its text with slots for its protected spans; beginning is how its translation
    is to begin, prefix the symbols for that. context are the symbols of the sentences before it.
    """

    text: str
    ids: tuple[int, ...]
    spans: tuple[str, ...]
    beginning: str = ""
    prefix: Prefix = ()
    context: tuple[int, ...] = ()


@dataclass(frozen=True)
class Line:
    """A line as pieces and the white space before, between and after them.

    One that says nothing in any language has no pieces. casing is what was odd about it.
    """

    text: str
    pieces: list[Piece]
    gaps: list[str]
    casing: Casing | None = None


class Splitter:
    """Makes pieces of lines, as a model's configuration and its tokenizer have it.

    limit is the most tokens of a piece.
    """

    def __init__(self, config: Config, tokenizer: Tokenizer) -> None:
        self._config, self._tokenizer = config, tokenizer
        self.limit = min(config.model.max_positions - 1, config.data.max_tokens)

    def split(self, lines: Sequence[str], contexts: Sequence[Context] = ()) -> list[Line]:
        """Every line as pieces; they are encoded together, which takes half the time.

        contexts, where given, holds one a line; a line of several pieces has no room for it.
        """
        split = self._split(lines)
        if not any(contexts):
            return split
        encoded = encode_contexts(self._tokenizer, contexts)
        return [self._behind(line, context) for line, context in zip(split, encoded, strict=True)]

    def _behind(self, line: Line, context: list[list[int]]) -> Line:
        if len(line.pieces) != 1:
            return line
        (piece,) = line.pieces
        before = fitting(context, self.limit - len(piece.ids))
        return replace(line, pieces=[replace(piece, context=tuple(before))])

    def _split(self, lines: Sequence[str]) -> list[Line]:
        cores = [_core(line) for line in lines]
        casings = [odd_casing(core) for core in cores]
        language = self._config.source_language
        texts = [
            core if casing is None else normalize_case(core, casing, language)
            for core, casing in zip(cores, casings, strict=True)
        ]
        pieces = iter(self._encode([text for text in texts if text]))
        return [
            self._split_line(line, core, next(pieces), casing) if core else Line(line, [], [line])
            for line, core, casing in zip(lines, cores, casings, strict=True)
        ]

    def _split_line(self, line: str, core: str, piece: Piece, casing: Casing | None) -> Line:
        """A line whose core is the piece, if that is short enough."""
        start = line.index(core)
        before, after = line[:start], line[start + len(core) :]
        if len(piece.ids) <= self.limit:
            return Line(line, [piece], [before, after], casing)
        parts = split_to_fit(piece.text, self._config.source_language, self._fits)
        gaps, pieces = [before], []
        for part in parts:
            text = part.strip()
            if text:
                pieces += self._encode([text])
                gaps.append(part[len(part.rstrip()) :])
            else:
                gaps[-1] += part
        gaps[-1] += after
        return Line(line, pieces, gaps, casing)

    def begin(self, number: int, line: Line, beginning: str) -> Line:
        """The line whose translation is to begin so; its first piece is searched with that.

        number is the line's own, for the UserError of a prefix longer than the model.
        """
        if not line.pieces or not beginning:
            return replace(line, text=beginning) if beginning else line
        first = line.pieces[0]
        prefix = prefix_symbols(self._tokenizer, first.text, beginning)
        limit = self._config.model.max_positions - 1
        if len(prefix) > limit:
            raise UserError(
                f"the prefix of line {number:,} has more than {limit} tokens", "shorten it"
            )
        first = replace(first, beginning=beginning, prefix=prefix)
        return replace(line, pieces=[first, *line.pieces[1:]], gaps=["", *line.gaps[1:]])

    def _fits(self, text: str) -> bool:
        return len(self._encode([text])[0].ids) <= self.limit

    def _encode(self, texts: Sequence[str]) -> list[Piece]:
        encoded = self._tokenizer.encode_sources(texts)
        return [
            Piece(text, tuple(ids), tuple(spans))
            for text, (ids, spans) in zip(texts, encoded, strict=True)
        ]


def _core(line: str) -> str:
    """What of a line is translated: nothing of one that says nothing in any language."""
    core = line.strip()
    return "" if not core or is_untranslatable(core) else core
