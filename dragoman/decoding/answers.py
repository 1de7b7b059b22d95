"""A translation as it is written: text, a table of candidates, or JSON."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from dragoman.decoding.translation import Candidate, Translation
from dragoman.text.lines import one_line


@dataclass(frozen=True, slots=True)
class Answer:
    """What is written for a line of input, and what is said of it.

    parts are bytes between which the number of the line stands, so that the same line read again
    has the same answer.
    """

    parts: tuple[bytes, ...]
    warnings: tuple[str, ...] = ()

    def written(self, number: int) -> bytes:
        """Whole lines of output for the line of this number."""
        return (b"%d" % number).join(self.parts)

    @property
    def size(self) -> int:
        """Bytes, about."""
        return sum(map(len, self.parts)) + sum(map(len, self.warnings))


@dataclass(frozen=True)
class Form:
    """How translations are written.

    text is the best translation, with scores after its score; table is all candidates, each as
    NUMBER, SCORE and TEXT; json is one object a line.
    """

    kind: Literal["text", "table", "json"] = "text"
    scores: bool = False

    def render(self, translation: Translation) -> Answer:
        """The answer of a translation."""
        if self.kind == "json":
            rest = json.dumps(_record(translation), ensure_ascii=False).removeprefix("{")
            parts = ['{"line": ', f", {rest}\n"]
        else:
            if self.kind == "table":
                parts = ["", *(f"\t{_scored(each)}\n" for each in translation.candidates)]
            else:
                best = one_line(translation.text)
                parts = [f"{translation.score:.4f}\t{best}\n" if self.scores else f"{best}\n"]
            parts[-1] += "".join(f"{line}\n" for line in _explained(translation))
        encoded = tuple(part.encode("utf-8", "surrogatepass") for part in parts)
        return Answer(encoded, tuple(translation.warnings))


def _scored(candidate: Candidate) -> str:
    return f"{candidate.score:.4f}\t{one_line(candidate.text)}"


def _explained(translation: Translation) -> Iterator[str]:
    for trace in translation.traces:
        yield from trace.render()


def _record(translation: Translation) -> dict[str, Any]:
    record: dict[str, Any] = {
        "text": translation.text,
        "score": translation.score,
        "candidates": [_candidate_record(candidate) for candidate in translation.candidates],
        "warnings": translation.warnings,
        "findings": [finding.to_json() for finding in translation.findings],
    }
    if translation.traces:
        record["source_tokens"] = translation.source_tokens
        record["search"] = [trace.to_json() for trace in translation.traces]
    return record


def _candidate_record(candidate: Candidate) -> dict[str, Any]:
    record: dict[str, Any] = {
        "text": candidate.text,
        "score": candidate.score,
        "log_prob": candidate.log_prob,
    }
    if candidate.utility is not None:
        record["utility"] = candidate.utility
    if candidate.token_log_probs is not None:
        record["tokens"] = candidate.scored_tokens
        record["token_log_probs"] = candidate.token_log_probs
        record["attention"] = candidate.attention
    return record
