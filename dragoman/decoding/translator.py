"""Raw text in, raw text out, whatever engine searches; loads no torch."""

from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

from dragoman.config import SearchConfig
from dragoman.decoding.alignment import Link, align
from dragoman.decoding.casing import Casing, normalize_case, odd_casing, restore_case
from dragoman.decoding.engine import Engine, Request, output_limit
from dragoman.decoding.explanation import SearchTrace, recorder_of
from dragoman.decoding.hypothesis import Hypothesis, Prefix
from dragoman.decoding.loops import NO_REPEAT, Loop, token_loop, without_loop
from dragoman.decoding.prefix import begins_with, prefix_symbols
from dragoman.decoding.safeguards import Finding, examine, is_untranslatable, loop_finding
from dragoman.decoding.streaming import stream
from dragoman.decoding.translation import Candidate, Translation
from dragoman.errors import UserError
from dragoman.text.languages import UNSPACED, base_code
from dragoman.text.protect import count_spans
from dragoman.text.segments import split_to_fit

# Lines read, sorted by length and translated together when a stream is translated.
_WINDOW = 2048
_WINDOW_CHARACTERS = 1_000_000


@dataclass(frozen=True)
class _Piece:
    """A part of a line short enough for the model."""

    text: str
    ids: tuple[int, ...]
    spans: tuple[str, ...]
    beginning: str = ""  # of its translation
    prefix: Prefix = ()


@dataclass(frozen=True)
class _Line:
    """A line as pieces and the white space before, between and after them."""

    text: str
    pieces: list[_Piece]
    gaps: list[str]
    casing: Casing | None = None


class Translator:
    """Translates lines with an engine. Results do not depend on a line's neighbors.

    A translator may be used by several threads at once.
    """

    def __init__(self, engine: Engine, search: SearchConfig | None = None) -> None:
        self.engine, self.config, self.tokenizer = engine, engine.config, engine.tokenizer
        self.search = search or engine.config.search
        limit = self.config.model.max_positions - 1
        self._max_source = min(limit, self.config.data.max_tokens)

    @classmethod
    def load(
        cls,
        folder: str | Path,
        device: str = "auto",
        search: SearchConfig | None = None,
        engine: str = "auto",
        precision: str = "auto",
        threads: int | None = None,
    ) -> "Translator":
        """Load a model folder; see `dragoman.decoding.loading.EngineChoice` for how it is run.

        Raises UserError for a folder that is no model and for an engine that cannot run it.
        """
        from dragoman.decoding.loading import EngineChoice, open_engine
        from dragoman.model.description import describe

        description = describe(Path(folder))
        search = search or description.config.search
        precision = search.precision if precision == "auto" else precision
        choice = EngineChoice(engine, device, precision, threads)
        return cls(open_engine(description, choice), search)

    def translate(
        self,
        lines: Sequence[str],
        n_best: int = 1,
        prefixes: Sequence[str] = (),
        details: bool = False,
        explain: bool = False,
        first: int = 1,
    ) -> list[Translation]:
        """Translate every line; a blank line and one of nothing but symbols stay as they are.

        n_best candidates a line, or as many as the search finds. prefixes, where given, holds one a
        line: its translation begins with exactly that text. details asks for token
        log-probabilities and attention, explain for what the beam search kept and pruned. first is
        the number of the first line in messages.

        Raises TypeError for a single string, and UserError for a prefix longer than the model.
        """
        if isinstance(lines, str):  # a sequence of strings too, of one character each
            raise TypeError("translate takes a list of lines, not one string")
        return self._translate(lines, prefixes, (n_best, details, explain), first)

    def translate_stream(
        self,
        lines: Iterable[str],
        n_best: int = 1,
        prefixes: Iterable[str] | None = None,
        details: bool = False,
        explain: bool = False,
    ) -> Iterator[Translation]:
        """Translate an endless stream in order, in constant memory; see `translate`.

        Raises UserError when there are fewer or more prefixes than lines.
        """
        asked = n_best, details, explain
        given = None if prefixes is None else iter(prefixes)
        window, beginnings, done, characters = list[str](), list[str](), 0, 0
        for line in lines:
            window.append(line)
            characters += len(line)
            if given is not None:
                beginning = next(given, None)
                if beginning is None:
                    count = done + len(window)
                    raise UserError(
                        f"line {count:,} has no prefix", "give as many prefixes as lines"
                    )
                beginnings.append(beginning)
            if len(window) == _WINDOW or characters > _WINDOW_CHARACTERS:
                yield from self._translate(window, beginnings, asked, done + 1)
                done += len(window)
                window, beginnings, characters = [], [], 0
        yield from self._translate(window, beginnings, asked, done + 1)
        if given is not None and next(given, None) is not None:
            raise UserError("there are more prefixes than lines", "give as many as lines")

    async def stream(
        self, lines: AsyncIterable[str] | Iterable[str], n_best: int = 1
    ) -> AsyncIterator[Translation]:
        """Translate lines as they come, in their order, without blocking the event loop.

        Lines of an async iterable are translated together when several have come in the meantime.
        """
        async for translation in stream(lambda part: self.translate(part, n_best), lines, _WINDOW):
            yield translation

    def _translate(
        self,
        lines: Sequence[str],
        prefixes: Sequence[str],
        asked: tuple[int, bool, bool],
        first: int,
    ) -> list[Translation]:
        n_best, details, explain = asked
        if explain and self.search.sample:
            raise UserError("a sample has no search to explain", "leave out search.sample=true")
        split = [self._split(line) for line in lines]
        if prefixes:
            numbered = enumerate(zip(split, prefixes, strict=True), start=first)
            split = [self._begin(number, *both) for number, both in numbered]
        pieces = list(dict.fromkeys(piece for line in split for piece in line.pieces))
        n_best = min(n_best, self.search.most_results)
        readable = self.tokenizer.pieces
        traces = {piece: SearchTrace(readable) for piece in pieces} if explain else {}
        request = Request(self.search, n_best, details=details)
        found = self._search_all(pieces, request, traces)
        loops = {} if self.search.sample else self._leave_loops(found, request)
        joined = [
            self._join(line, [found[piece] for piece in line.pieces], n_best, loops)
            for line in split
        ]
        if not details and not explain:
            return joined
        return [
            replace(
                translation,
                source_tokens=readable([number for piece in line.pieces for number in piece.ids]),
                traces=[traces[piece] for piece in line.pieces] if explain else [],
                alignment=self._align(line, translation.candidates[0]),
            )
            for line, translation in zip(split, joined, strict=True)
        ]

    def _align(self, line: _Line, best: Candidate) -> list[Link] | None:
        if best.attention is None:
            return None
        languages = self.config.source_language, self.config.target_language
        source, target = (base_code(language) in UNSPACED for language in languages)
        pieces = self.tokenizer.pieces(line.pieces[0].ids)
        return align(pieces, best.tokens, best.attention, (source, target))

    def _split(self, line: str) -> _Line:
        core = line.strip()
        if not core or is_untranslatable(core):
            return _Line(line, [], [line])
        start = line.index(core)
        before, after = line[:start], line[start + len(core) :]
        casing = odd_casing(core)
        if casing is not None:
            core = normalize_case(core, casing, self.config.source_language)
        parts = [core]
        if not self._fits(core):
            parts = split_to_fit(core, self.config.source_language, self._fits)
        gaps, pieces = [before], []
        for part in parts:
            text = part.strip()
            if text:
                pieces.append(self._encode(text))
                gaps.append(part[len(part.rstrip()) :])
            else:
                gaps[-1] += part
        gaps[-1] += after
        return _Line(line, pieces, gaps, casing)

    def _begin(self, number: int, line: _Line, beginning: str) -> _Line:
        """The line whose translation is to begin so; its first piece is searched with that."""
        if not line.pieces or not beginning:
            return replace(line, text=beginning) if beginning else line
        first = line.pieces[0]
        prefix = prefix_symbols(self.tokenizer, first.text, beginning)
        limit = self.config.model.max_positions - 1
        if len(prefix) > limit:
            raise UserError(
                f"the prefix of line {number:,} has more than {limit} tokens", "shorten it"
            )
        first = replace(first, beginning=beginning, prefix=prefix)
        return replace(line, pieces=[first, *line.pieces[1:]], gaps=["", *line.gaps[1:]])

    def _fits(self, text: str) -> bool:
        return len(self._encode(text).ids) <= self._max_source

    def _encode(self, text: str) -> _Piece:
        ids, spans = self.tokenizer.encode_source(text)
        return _Piece(text, tuple(ids), tuple(spans))

    def _join(
        self,
        line: _Line,
        found: list[list[Hypothesis]],
        n_best: int,
        loops: dict[_Piece, Loop],
    ) -> Translation:
        if not line.pieces:
            return Translation(line.text, 0.0, [Candidate(line.text, 0.0, 0.0, [])])
        findings = [
            loop_finding(loops[piece].phrase, loops[piece].repeats)
            for piece in line.pieces
            if piece in loops
        ]
        count = n_best
        if len(line.pieces) > 1:
            count = 1
            parts, limit = len(line.pieces), self._max_source
            message = f"split into {parts} parts: longer than {limit} tokens"
            findings.append(Finding("split", message, {"parts": parts, "limit": limit}))
        if any(self._is_cut(*both) for both in zip(line.pieces, found, strict=True)):
            findings.append(Finding("cut", "cut at the length limit"))
        ranks = range(min(count, len(found[0])))
        candidates = [self._candidate(line, [h[rank] for h in found]) for rank in ranks]
        best = candidates[0]
        if not best.text.strip():
            best = replace(best, text=line.text)
            candidates[0] = best
            findings.append(Finding("empty", "no translation found: the source is copied"))
        else:
            findings += examine(
                line.text, best.text, self.config.source_language, self.config.target_language
            )
        warnings = [finding.message for finding in findings]
        return Translation(best.text, best.score, candidates, warnings, findings=findings)

    def _is_cut(self, piece: _Piece, found: list[Hypothesis]) -> bool:
        limit = output_limit(piece.ids, self.search, self.config, piece.prefix)
        return not found[0].finished or len(found[0].tokens) >= limit

    def _candidate(self, line: _Line, chosen: list[Hypothesis]) -> Candidate:
        text = line.gaps[0]
        last = len(chosen) - 1
        for number, (hypothesis, piece) in enumerate(zip(chosen, line.pieces, strict=True)):
            gap = line.gaps[number + 1]
            if number < last:
                gap = self._between(gap)
            decoded = self.tokenizer.decode_target(hypothesis.tokens, list(piece.spans))
            text += begins_with(decoded, piece.beginning) + gap
        if line.casing is not None:
            given = len(line.pieces[0].beginning)
            rest = restore_case(text[given:], line.casing, self.config.target_language)
            text = text[:given] + rest
        scored = [hypothesis.token_log_probs for hypothesis in chosen]
        pieces = [self.tokenizer.pieces(hypothesis.tokens) for hypothesis in chosen]
        return Candidate(
            text,
            sum(hypothesis.score for hypothesis in chosen),
            sum(hypothesis.log_prob for hypothesis in chosen),
            list(chain.from_iterable(pieces)),
            None if None in scored else [p for part in scored for p in part or []],
            chosen[0].attention if last == 0 else None,
            chosen[0].utility if last == 0 else None,
            None if None in scored else list(chain.from_iterable(map(_with_end, pieces, chosen))),
        )

    def _between(self, gap: str) -> str:
        """The space between two sentences, as the target language writes it."""
        if gap in ("", " "):
            return "" if base_code(self.config.target_language) in UNSPACED else " "
        return gap

    def _search_all(
        self, pieces: list[_Piece], request: Request, traces: dict[_Piece, SearchTrace]
    ) -> dict[_Piece, list[Hypothesis]]:
        """Hypotheses of every piece, best first; one that keeps more protected spans is better."""
        if self.search.sample:  # drawn, not chosen
            return self._search(pieces, request, traces)
        plain = [piece for piece in pieces if not piece.spans]
        marked = [piece for piece in pieces if piece.spans]
        found = self._search(plain, request, traces)
        # The whole beam for these, whatever n_best, so that the first result does not depend on it.
        whole = replace(request, n_best=self.search.most_results)
        for piece, hypotheses in self._search(marked, whole, traces).items():
            found[piece] = sorted(hypotheses, key=lambda h: len(self._lost(piece, h)))
        return found

    def _leave_loops(
        self, found: dict[_Piece, list[Hypothesis]], request: Request
    ) -> dict[_Piece, Loop]:
        """Search anew where the best goes in circles; what still does is cut. Return the loops."""
        loops = dict[_Piece, Loop]()
        for piece, hypotheses in found.items():
            # What was given, and what was drawn, may repeat itself.
            if piece.prefix or self.search.sample:
                continue
            loop = token_loop(piece.ids, hypotheses[0].tokens)
            if loop is not None:
                phrase = hypotheses[0].tokens[loop.start : loop.second]
                text = self.tokenizer.decode_target(phrase, list(piece.spans)).strip()
                if "\ufffd" in text:  # a part of a character
                    text = " ".join(self.tokenizer.pieces(phrase))
                loops[piece] = replace(loop, phrase=text)
        if not loops:
            return loops
        again = self._search_all(list(loops), replace(request, no_repeat_ngram=NO_REPEAT), {})
        for piece, hypotheses in again.items():
            best = hypotheses[0]
            loop = token_loop(piece.ids, best.tokens)
            if loop is not None:
                best = replace(
                    best,
                    tokens=without_loop(best.tokens, loop),
                    token_log_probs=None,
                    attention=None,
                )
            found[piece] = [best, *hypotheses[1:]]
        return loops

    def _lost(self, piece: _Piece, hypothesis: Hypothesis) -> list[str]:
        text = self.tokenizer.decode_target(hypothesis.tokens, list(piece.spans))
        return list((count_spans(piece.text) - count_spans(text)).elements())

    def _search(
        self, pieces: list[_Piece], request: Request, traces: dict[_Piece, SearchTrace]
    ) -> dict[_Piece, list[Hypothesis]]:
        if any(piece.prefix for piece in pieces):
            request = replace(request, prefixes=[piece.prefix for piece in pieces])
        if traces:
            request = replace(request, recorder=recorder_of([traces[piece] for piece in pieces]))
        found = self.engine.search([piece.ids for piece in pieces], request)
        return dict(zip(pieces, found, strict=True))


def _with_end(tokens: list[str], hypothesis: Hypothesis) -> list[str]:
    """The tokens, and the end where it has a log-probability: what was cut off has none."""
    scored = hypothesis.token_log_probs or []
    return [*tokens, "</s>"] if len(scored) > len(tokens) else tokens
