"""Raw text in, raw text out, whatever engine searches; loads no torch."""

import itertools
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from dragoman.config import SearchConfig
from dragoman.corpus.context import Preceding
from dragoman.corpus.pairs import Context
from dragoman.decoding.alignment import Link, align
from dragoman.decoding.casing import restore_case
from dragoman.decoding.engine import Engine, Request, output_limit
from dragoman.decoding.explanation import SearchTrace, recorder_of
from dragoman.decoding.hypothesis import Hypothesis
from dragoman.decoding.loops import NO_REPEAT, Loop, token_loop, without_loop
from dragoman.decoding.pieces import Line, Piece, Splitter
from dragoman.decoding.prefix import begins_with
from dragoman.decoding.safeguards import Finding, examine, loop_finding
from dragoman.decoding.streaming import stream
from dragoman.decoding.translation import Candidate, Translation
from dragoman.errors import UserError
from dragoman.text.languages import UNSPACED, base_code
from dragoman.text.protect import count_spans

# Lines read, sorted by length and translated together when a stream is translated.
_WINDOW = 2048
_WINDOW_CHARACTERS = 1_000_000
# Pieces that are searched again together while the engine is at others.
_AGAIN = 16

_Found = Iterator[tuple[Piece, list[Hypothesis]]]


class Translator:
    """Translates lines with an engine.

    Results do not depend on a line's neighbors, unless the model has data.context_sentences: then
    lines are a text, and so many before each are its context, back to the last blank line. A
    translator may be used by several threads at once.
    """

    def __init__(self, engine: Engine, search: SearchConfig | None = None) -> None:
        self.engine, self.config, self.tokenizer = engine, engine.config, engine.tokenizer
        self.search = search or engine.config.search
        self._splitter = Splitter(self.config, self.tokenizer)

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

        description = describe(Path(folder), "translation")
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
        contexts: Sequence[Context] | None = None,
    ) -> list[Translation]:
        """Translate every line; a blank line and one of nothing but symbols stay as they are.

        n_best candidates a line, or as many as the search finds. prefixes, where given, holds one a
        line: its translation begins with exactly that text. details asks for token
        log-probabilities and attention, explain for what the beam search kept and pruned. first is
        the number of the first line in messages. contexts holds the context of every line; None:
        the lines before it.

        Raises TypeError for a single string, and UserError for a prefix longer than the model.
        """
        if isinstance(lines, str):  # a sequence of strings too, of one character each
            raise TypeError("translate takes a list of lines, not one string")
        contexts = self._contexts(lines) if contexts is None else contexts
        return self._translate(lines, contexts, prefixes, (n_best, details, explain), first)

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
        preceding, contexts = self._preceding(), list[Context]()
        window, beginnings, done, characters = list[str](), list[str](), 0, 0
        for line in lines:
            window.append(line)
            contexts.append(preceding.of(line))
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
                yield from self._translate(window, contexts, beginnings, asked, done + 1)
                done += len(window)
                window, contexts, beginnings, characters = [], [], [], 0
        yield from self._translate(window, contexts, beginnings, asked, done + 1)
        if given is not None and next(given, None) is not None:
            raise UserError("there are more prefixes than lines", "give as many as lines")

    async def stream(
        self, lines: AsyncIterable[str] | Iterable[str], n_best: int = 1
    ) -> AsyncIterator[Translation]:
        """Translate lines as they come, in their order, without blocking the event loop.

        Lines of an async iterable are translated together when several have come in the meantime.
        """
        preceding = self._preceding()

        def translate(part: Sequence[str]) -> list[Translation]:
            return self.translate(part, n_best, contexts=list(map(preceding.of, part)))

        async for translation in stream(translate, lines, _WINDOW):
            yield translation

    def _preceding(self) -> Preceding:
        return Preceding(self.config.data.context_sentences)

    def _contexts(self, lines: Sequence[str]) -> list[Context]:
        return list(map(self._preceding().of, lines))

    def _translate(
        self,
        lines: Sequence[str],
        contexts: Sequence[Context],
        prefixes: Sequence[str],
        asked: tuple[int, bool, bool],
        first: int,
    ) -> list[Translation]:
        n_best, details, explain = asked
        if explain and self.search.sample:
            raise UserError("a sample has no search to explain", "leave out search.sample=true")
        split = self._splitter.split(lines, contexts)
        if prefixes:
            numbered = enumerate(zip(split, prefixes, strict=True), start=first)
            split = [self._splitter.begin(number, *both) for number, both in numbered]
        pieces = list(dict.fromkeys(piece for line in split for piece in line.pieces))
        n_best = min(n_best, self.search.most_results)
        readable = self.tokenizer.pieces
        traces = {piece: SearchTrace(readable) for piece in pieces} if explain else {}
        request = Request(self.search, n_best, details=details)
        alone = dict[Piece, list[int]]()  # the lines that are one piece
        for number, line in enumerate(split):
            if len(line.pieces) == 1:
                alone.setdefault(line.pieces[0], []).append(number)
        found, loops = dict[Piece, list[Hypothesis]](), dict[Piece, Loop]()
        whole = dict[int, Translation]()
        waiting, again = list[Piece](), list[_Found]()
        marks = (len(pieces) // 2, len(pieces) // 8, 0)  # long ones came first
        for done, (piece, hypotheses) in enumerate(self._search_all(pieces, request, traces), 1):
            found[piece] = hypotheses
            loop = self._loop(piece, hypotheses[0])
            if loop is not None:
                loops[piece] = loop
                waiting.append(piece)
            else:  # while the engine is at the next ones
                for number in alone.get(piece, ()):
                    whole[number] = self._join(split[number], [hypotheses], n_best, loops)
            left = len(pieces) - done
            if waiting and (len(waiting) == _AGAIN or left in marks):
                again.append(self._search_again(waiting, request))
                waiting = []
        found.update(itertools.chain.from_iterable(again))
        joined = [
            whole[number]
            if number in whole
            else self._join(line, [found[piece] for piece in line.pieces], n_best, loops)
            for number, line in enumerate(split)
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

    def _align(self, line: Line, best: Candidate) -> list[Link] | None:
        if best.attention is None:
            return None
        languages = self.config.source_language, self.config.target_language
        source, target = (base_code(language) in UNSPACED for language in languages)
        pieces = self.tokenizer.pieces(line.pieces[0].ids)
        return align(pieces, best.tokens, best.attention, (source, target))

    def _join(
        self,
        line: Line,
        found: list[list[Hypothesis]],
        n_best: int,
        loops: dict[Piece, Loop],
    ) -> Translation:
        if not line.pieces:
            return Translation(line.text, 0.0, [Candidate(line.text, 0.0, 0.0, [])])
        findings: list[Finding] = []
        if loops:
            findings += [
                loop_finding(loops[piece].phrase, loops[piece].repeats)
                for piece in line.pieces
                if piece in loops
            ]
        count = n_best
        if len(line.pieces) > 1:
            count = 1
            parts, limit = len(line.pieces), self._splitter.limit
            message = f"split into {parts} parts: longer than {limit} tokens"
            findings.append(Finding("split", message, {"parts": parts, "limit": limit}))
        if any(map(self._is_cut, line.pieces, found)):
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

    def _is_cut(self, piece: Piece, found: list[Hypothesis]) -> bool:
        limit = output_limit(piece.ids, self.search, self.config, piece.prefix)
        return not found[0].finished or len(found[0].tokens) >= limit

    def _candidate(self, line: Line, chosen: list[Hypothesis]) -> Candidate:
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
        all_ = chosen[0] if last == 0 else _together(chosen)
        readable, scored = self.tokenizer.pieces, None
        if all_.token_log_probs is not None:
            scored = [token for one in chosen for token in _with_end(readable(one.tokens), one)]
        return Candidate(
            text,
            all_.score,
            all_.log_prob,
            readable(all_.tokens),
            all_.token_log_probs,
            all_.attention,
            all_.utility,
            scored,
        )

    def _between(self, gap: str) -> str:
        """The space between two sentences, as the target language writes it."""
        if gap in ("", " "):
            return "" if base_code(self.config.target_language) in UNSPACED else " "
        return gap

    def _search_all(
        self, pieces: list[Piece], request: Request, traces: dict[Piece, SearchTrace]
    ) -> _Found:
        """Every piece with its hypotheses, best first; one that keeps more spans is better.

        The engine may begin with all of them at once.
        """
        if self.search.sample:  # drawn, not chosen
            return self._search(pieces, request, traces)
        plain = self._search([piece for piece in pieces if not piece.spans], request, traces)
        # The whole beam for these, whatever n_best, so that the first result does not depend on it.
        whole = replace(request, n_best=self.search.most_results)
        marked = self._search([piece for piece in pieces if piece.spans], whole, traces)
        return itertools.chain(plain, (self._keeping_spans(*each) for each in marked))

    def _loop(self, piece: Piece, best: Hypothesis) -> Loop | None:
        """The loop of the best hypothesis, with its text; None where it goes in no circles."""
        # What was given, and what was drawn, may repeat itself.
        if piece.prefix or self.search.sample:
            return None
        loop = token_loop(piece.ids, best.tokens)
        if loop is None:
            return None
        phrase = best.tokens[loop.start : loop.second]
        text = self.tokenizer.decode_target(phrase, list(piece.spans)).strip()
        if "\ufffd" in text:  # a part of a character
            text = " ".join(self.tokenizer.pieces(phrase))
        return replace(loop, phrase=text)

    def _search_again(self, pieces: list[Piece], request: Request) -> _Found:
        """Pieces whose best goes in circles, searched anew; what still does is cut."""
        request = replace(request, no_repeat_ngram=NO_REPEAT)
        return (_without_loops(*each) for each in self._search_all(pieces, request, {}))

    def _keeping_spans(
        self, piece: Piece, hypotheses: list[Hypothesis]
    ) -> tuple[Piece, list[Hypothesis]]:
        return piece, sorted(hypotheses, key=lambda h: len(self._lost(piece, h)))

    def _lost(self, piece: Piece, hypothesis: Hypothesis) -> list[str]:
        text = self.tokenizer.decode_target(hypothesis.tokens, list(piece.spans))
        return list((count_spans(piece.text) - count_spans(text)).elements())

    def _search(
        self, pieces: list[Piece], request: Request, traces: dict[Piece, SearchTrace]
    ) -> _Found:
        if any(piece.prefix for piece in pieces):
            request = replace(request, prefixes=[piece.prefix for piece in pieces])
        if traces:
            request = replace(request, recorder=recorder_of([traces[piece] for piece in pieces]))
        found = self.engine.search_each([piece.context + piece.ids for piece in pieces], request)
        return (_without_context(pieces[number], hypotheses) for number, hypotheses in found)


def _without_context(piece: Piece, hypotheses: list[Hypothesis]) -> tuple[Piece, list[Hypothesis]]:
    """With the attention to the piece itself only."""
    length = len(piece.context)
    if not length:
        return piece, hypotheses
    return piece, [
        found
        if found.attention is None
        else replace(found, attention=[row[length:] for row in found.attention])
        for found in hypotheses
    ]


def _without_loops(piece: Piece, hypotheses: list[Hypothesis]) -> tuple[Piece, list[Hypothesis]]:
    """With the phrase of its loop once in the best, if that goes in circles."""
    best = hypotheses[0]
    loop = token_loop(piece.ids, best.tokens)
    if loop is None:
        return piece, hypotheses
    tokens = without_loop(best.tokens, loop)
    best = replace(best, tokens=tokens, token_log_probs=None, attention=None)
    return piece, [best, *hypotheses[1:]]


def _together(chosen: Sequence[Hypothesis]) -> Hypothesis:
    """The hypotheses of the pieces of a line as one, without attention."""
    scored = [one.token_log_probs for one in chosen]
    return Hypothesis(
        [token for one in chosen for token in one.tokens],
        sum(one.log_prob for one in chosen),
        sum(one.score for one in chosen),
        token_log_probs=None if None in scored else [p for part in scored for p in part or []],
    )


def _with_end(tokens: list[str], hypothesis: Hypothesis) -> list[str]:
    """The tokens, and the end where it has a log-probability: what was cut off has none."""
    scored = hypothesis.token_log_probs or []
    return [*tokens, "</s>"] if len(scored) > len(tokens) else tokens
