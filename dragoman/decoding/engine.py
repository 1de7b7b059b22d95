"""What stands behind a translator: token ids in, hypotheses out; loads no torch."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from dragoman.config import Config, SearchConfig
from dragoman.corpus.context import own_start
from dragoman.corpus.tokenizer import Tokenizer
from dragoman.decoding.explanation import Recorder
from dragoman.decoding.hypothesis import Hypothesis, Prefix


@dataclass(frozen=True)
class Request:
    """How to search; one for many sources.

    prefixes, where given, holds one a source: what its translation begins with. details asks for
    token log-probabilities and attention; recorder is told of every step of a beam search, with the
    number of the source. Where no_repeat_ngram is more than 0, no so many tokens of an output stand
    in it twice.
    """

    search: SearchConfig
    n_best: int = 1  # how many of the results must be the best there are; of samples, how many
    prefixes: Sequence[Prefix] = ()
    details: bool = False
    recorder: Recorder | None = None
    no_repeat_ngram: int = 0

    def native_only(self) -> str | None:
        """What of this request only the native engine does, as a person calls it; or None."""
        search = self.search
        wanted = {
            "sample": search.sample,
            "mbr_samples": search.mbr_samples,
            "groups": search.groups > 1,
            "coverage_penalty": search.coverage_penalty,
            "min_length_ratio": search.min_length_ratio,
            "a prefix": any(self.prefixes),
            "attention": self.details,
            "an explanation of the search": self.recorder,
        }
        return next((name for name, value in wanted.items() if value), None)


class Engine(Protocol):
    """A model that can search, with what is needed to make its tokens of text."""

    config: Config
    tokenizer: Tokenizer

    def search(self, sources: Sequence[Sequence[int]], request: Request) -> list[list[Hypothesis]]:
        """Hypotheses of every source, best first, at most `request.search.most_results` of each.

        Sources hold no end-of-sentence and fit the model. No result depends on the other sources.
        """

    def search_each(
        self, sources: Sequence[Sequence[int]], request: Request
    ) -> Iterator[tuple[int, list[Hypothesis]]]:
        """What `search` finds, with the number of its source, each as soon as it is found."""


def output_limit(
    source: Sequence[int], search: SearchConfig, config: Config, prefix: Prefix = ()
) -> int:
    """The most tokens, end-of-sentence not counted, that a translation may have.

    A context before the source does not count.
    """
    length = len(source) - own_start(source)
    limit = length + 1 + search.max_extra_tokens
    if search.max_length_ratio is not None:
        limit = min(limit, max(1, math.ceil(search.max_length_ratio * length)))
    if prefix:
        limit = max(limit, len(prefix) + search.max_extra_tokens)
    return min(limit, config.model.max_positions - 1)


def output_minimum(source: Sequence[int], search: SearchConfig, limit: int) -> int:
    """The fewest tokens, end-of-sentence not counted, that a translation may have."""
    length = len(source) - own_start(source)
    return min(max(1, math.ceil(search.min_length_ratio * length)), limit)
