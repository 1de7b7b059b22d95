"""What a beam search did, step by step: which hypotheses it kept and which it pruned.

`beam_search` calls a recorder, any function that takes a `SearchStep`, once for every sentence and
step; without one it collects nothing.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from dragoman.decoding.hypothesis import Hypothesis
from dragoman.text.display import printable


@dataclass(frozen=True)
class Extension:
    """An open hypothesis with one more symbol; log_prob is that of all its tokens.

    kept says whether the search went on with it, or pruned it; group is that of a diverse search.
    """

    tokens: list[int]
    log_prob: float
    kept: bool
    group: int = 0


@dataclass(frozen=True)
class Ending:
    """An open hypothesis that ended at this step; kept: among the best finished ones so far."""

    hypothesis: Hypothesis
    kept: bool
    group: int = 0


@dataclass(frozen=True)
class SearchStep:
    """What a step did with one sentence of the batch: its number there, and the step from 1.

    extensions are all that were kept and as many of the pruned ones, likeliest first; endings all
    that could end here.
    """

    sentence: int
    step: int
    extensions: list[Extension]
    endings: list[Ending]


Recorder = Callable[[SearchStep], None]


@dataclass(frozen=True)
class SearchTrace:
    """All steps of one sentence, collected by `recorder_of`; pieces makes its tokens readable."""

    pieces: Callable[[Sequence[int]], list[str]]
    steps: list[SearchStep] = field(default_factory=list)

    def to_json(self) -> list[dict[str, object]]:
        """The steps as plain values that `json.dumps` takes."""
        pieces = self.pieces
        return [
            {
                "step": step.step,
                "hypotheses": [
                    {
                        "tokens": pieces(extension.tokens),
                        "log_prob": extension.log_prob,
                        "kept": extension.kept,
                        "group": extension.group,
                    }
                    for extension in step.extensions
                ],
                "finished": [
                    {
                        "tokens": pieces(ending.hypothesis.tokens),
                        "log_prob": ending.hypothesis.log_prob,
                        "score": ending.hypothesis.score,
                        "kept": ending.kept,
                        "group": ending.group,
                    }
                    for ending in step.endings
                ],
            }
            for step in self.steps
        ]

    def render(self) -> Iterator[str]:
        """The steps as lines of a table for a person, without line ends.

        Step, what became of the hypothesis, log-probability, score where it ended, tokens.
        """
        pieces = self.pieces
        yield f"{'step':>4}  {'':<8} {'log prob':>9} {'score':>9}  hypothesis"
        for step in self.steps:
            for extension in step.extensions:
                fate = "kept" if extension.kept else "pruned"
                tokens = printable(" ".join(pieces(extension.tokens)))
                yield f"{step.step:>4}  {fate:<8} {extension.log_prob:>9.4f} {'':>9}  {tokens}"
            for ending in step.endings:
                fate = "finished" if ending.kept else "dropped"
                found = ending.hypothesis
                tokens = printable(" ".join([*pieces(found.tokens), "</s>"]))
                numbers = f"{found.log_prob:>9.4f} {found.score:>9.4f}"
                yield f"{step.step:>4}  {fate:<8} {numbers}  {tokens}"


def recorder_of(traces: Sequence[SearchTrace]) -> Recorder:
    """A recorder that adds every step to the trace of its sentence."""
    return lambda step: traces[step.sentence].steps.append(step)
