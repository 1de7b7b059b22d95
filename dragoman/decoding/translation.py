"""What a translator gives back for a line."""

from dataclasses import dataclass, field

from dragoman.decoding.alignment import Link
from dragoman.decoding.explanation import SearchTrace
from dragoman.decoding.safeguards import Finding


@dataclass(frozen=True)
class Candidate:
    """One translation of a line; score is the length-normalized log-probability.

    tokens are the subwords without any end. With details: scored_tokens, the same with a "</s>" at
    each end, one for every piece of a line that was split; token_log_probs, one for each of them;
    attention, a row for each of them over the source's tokens and its end, for a line that was not
    split. What the length limit cut off has no end. utility is the expected chrF of minimum Bayes
    risk.
    """

    text: str
    score: float
    log_prob: float
    tokens: list[str]
    token_log_probs: list[float] | None = None
    attention: list[list[float]] | None = None
    utility: float | None = None
    scored_tokens: list[str] | None = None


@dataclass(frozen=True)
class Translation:
    """The best translation of a line, its n-best list and what was noticed on the way.

    findings say it to programs, warnings are their messages. A line that was split has the sums of
    its pieces' log-probabilities and scores. source_tokens are there with details, and traces, one
    for each piece, where the search was to be explained. alignment, with details and for a line
    that was not split, links every word of the translation as the model wrote it to a source word.
    """

    text: str
    score: float
    candidates: list[Candidate]
    warnings: list[str] = field(default_factory=list)
    source_tokens: list[str] = field(default_factory=list)
    traces: list[SearchTrace] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    alignment: list[Link] | None = None

    @property
    def tokens(self) -> list[str]:
        """The subwords of the best translation."""
        return self.candidates[0].tokens
