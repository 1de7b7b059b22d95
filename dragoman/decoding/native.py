"""The native engine: the Transformer in PyTorch, on a CPU or a GPU; one model or an ensemble.

Shapes: B sentences, S source.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import torch

from dragoman.config import Config
from dragoman.corpus.shortlist import Shortlist, load_shortlist
from dragoman.corpus.tokenizer import Tokenizer
from dragoman.decoding.engine import Request, output_limit, output_minimum
from dragoman.decoding.ensemble import EnsembleState, EnsembleStep
from dragoman.decoding.explanation import Recorder
from dragoman.decoding.hypothesis import Hypothesis, Prefix
from dragoman.decoding.minimum_bayes_risk import expected_utilities
from dragoman.decoding.rescoring import with_coverage, with_details
from dragoman.decoding.sampling import Narrowing, sample, seed_of
from dragoman.decoding.search import Limits, State, Step, beam_search
from dragoman.decoding.shortlisted import ShortlistedStep, candidates_of
from dragoman.decoding.step import ModelStep, pad_rows
from dragoman.errors import UserError
from dragoman.model.folder import LoadedModel, load_model
from dragoman.text.languages import plain_code


class NativeEngine:
    """Searches with a loaded model, or with the mean of several that share a tokenizer."""

    def __init__(self, loaded: LoadedModel, *others: LoadedModel) -> None:
        self.tokenizer, self.model = loaded.tokenizer, loaded.model
        self.config = _common_limits([loaded.config, *(other.config for other in others)])
        self.models = [loaded.model, *(other.model for other in others)]
        self._steps = [ModelStep(model) for model in self.models]
        self._folder = loaded.folder

    @classmethod
    def load(cls, folders: Sequence[Path], device: torch.device | None = None) -> "NativeEngine":
        """Open one model folder or several.

        Raises UserError when their tokenizers or their languages differ.
        """
        loaded = [load_model(folder, device) for folder in folders]
        tokens, pair = loaded[0].tokenizer.to_bytes(), _languages(loaded[0].config)
        for folder, other in zip(folders, loaded, strict=True):
            if _languages(other.config) != pair:
                raise UserError(
                    f"{folders[0]} is {'->'.join(pair)} and {folder} is "
                    f"{'->'.join(_languages(other.config))}",
                    "models translate together only between the same languages",
                )
            if other.tokenizer.to_bytes() != tokens:
                raise UserError(
                    f"{folders[0]} and {folder} have different tokenizers",
                    "models translate together only when they were trained with one "
                    "(dragoman train --tokenizer)",
                )
        return cls(*loaded)

    @cached_property
    def _shortlist(self) -> Shortlist | None:
        """That of the first model; None for a model without a folder."""
        if self._folder is None:
            return None
        return load_shortlist(self._folder, self.tokenizer)

    def search(self, sources: Sequence[Sequence[int]], request: Request) -> list[list[Hypothesis]]:
        """Hypotheses of every source, best first; samples in the order drawn.

        Raises UserError for a search with a shortlist where the model's folder has none.
        """
        results: list[list[Hypothesis]] = [[] for _ in sources]
        for number, hypotheses in self.search_each(sources, request):
            results[number] = hypotheses
        return results

    def search_each(
        self, sources: Sequence[Sequence[int]], request: Request
    ) -> Iterator[tuple[int, list[Hypothesis]]]:
        """What `search` finds, with the number of its source, each as soon as it is found."""
        for numbers in self._batches(sources, request):
            batch = [sources[number] for number in numbers]
            part = replace(
                request,
                prefixes=[request.prefixes[number] for number in numbers]
                if request.prefixes
                else (),
                recorder=_renumbered(request.recorder, numbers),
            )
            yield from zip(numbers, self._search_batch(batch, part), strict=True)

    def _batches(self, sources: Sequence[Sequence[int]], request: Request) -> Iterator[list[int]]:
        """Sources of about one length together, long ones first, within the token budget."""
        search = request.search
        rows = max(request.n_best if search.sample else search.beam, search.mbr_samples)
        # Samples are drawn from whole vocabularies in float64, which takes that much more memory.
        draws = search.sample or search.mbr_samples
        budget = search.batch_tokens // 4 if draws else search.batch_tokens
        order = sorted(range(len(sources)), key=lambda number: -len(sources[number]))
        start = 0
        while start < len(order):
            width = (len(sources[order[start]]) + 1) * rows
            count = max(1, budget // width)
            yield order[start : start + count]
            start += count

    @torch.inference_mode()
    def _search_batch(
        self, batch: Sequence[Sequence[int]], request: Request
    ) -> list[list[Hypothesis]]:
        search = request.search
        if search.sample:
            found = self._sample(batch, request, request.n_best)
        else:
            limits = self._limits(batch, request, search.beam)
            found = beam_search(*self._start(batch, request, search.beam), limits, request.recorder)
            if search.coverage_penalty:
                found = with_coverage(self.models, batch, found, search.coverage_penalty)
        if search.mbr_samples:
            samples = self._sample(batch, request, search.mbr_samples)
            found = [self._by_utility(*both) for both in zip(found, samples, strict=True)]
        if request.details:
            best = [hypotheses[: request.n_best] for hypotheses in found]
            found = [
                [*detailed, *hypotheses[request.n_best :]]
                for detailed, hypotheses in zip(
                    with_details(self.models, batch, best), found, strict=True
                )
            ]
        return found

    def _start(
        self, batch: Sequence[Sequence[int]], request: Request, beam: int
    ) -> tuple[Step, State]:
        """The step function of all models and its state before the first step."""
        source = pad_rows([[*ids, Tokenizer.eos_id] for ids in batch])  # (B, S)
        steps: Sequence[ModelStep | ShortlistedStep] = self._steps
        if request.search.shortlist and self._shortlist is not None:
            candidates = candidates_of(self._shortlist, batch, request.prefixes)
            steps = [ShortlistedStep(model, candidates) for model in self.models]
        states = [step.start(source.to(step.model.embedding.weight.device), beam) for step in steps]
        if len(states) == 1:
            return steps[0], states[0]
        return EnsembleStep(steps), EnsembleState(states)

    def _limits(self, batch: Sequence[Sequence[int]], request: Request, beam: int) -> Limits:
        search = request.search
        prefixes: Sequence[Prefix] = request.prefixes or [()] * len(batch)
        most = [
            output_limit(ids, search, self.config, prefix)
            for ids, prefix in zip(batch, prefixes, strict=True)
        ]
        return Limits(
            beam,
            search.length_penalty,
            most,
            Tokenizer.bos_id,
            Tokenizer.eos_id,
            # What ranks the results anew needs all there are.
            beam if search.coverage_penalty else min(request.n_best, beam),
            [
                output_minimum(*each)
                for each in zip(batch, [search] * len(batch), most, strict=True)
            ],
            request.prefixes,
            1 if search.sample else search.groups,
            search.diversity,
            request.no_repeat_ngram,
        )

    def _sample(
        self, batch: Sequence[Sequence[int]], request: Request, count: int
    ) -> list[list[Hypothesis]]:
        search = request.search
        narrowing = Narrowing(search.temperature, search.top_k, search.top_p, search.epsilon)
        limits = replace(self._limits(batch, request, count), groups=1)
        seeds = [seed_of(search.seed, ids) for ids in batch]
        return sample(*self._start(batch, request, count), limits, narrowing, seeds)

    def _by_utility(
        self, searched: Sequence[Hypothesis], samples: Sequence[Hypothesis]
    ) -> list[Hypothesis]:
        """Distinct candidates, the one of the highest expected utility over the samples first."""
        distinct = {tuple(h.tokens): h for h in reversed([*searched, *samples])}
        candidates = list(reversed(distinct.values()))
        utilities = expected_utilities(
            [self.tokenizer.decode(candidate.tokens) for candidate in candidates],
            [self.tokenizer.decode(drawn.tokens) for drawn in samples],
        )
        ranked = [replace(h, utility=u) for h, u in zip(candidates, utilities, strict=True)]
        return sorted(ranked, key=lambda hypothesis: -(hypothesis.utility or 0.0))


def _languages(config: Config) -> tuple[str, str]:
    return plain_code(config.source_language), plain_code(config.target_language)


def _common_limits(configs: Sequence[Config]) -> Config:
    """The first configuration, with lengths that all models can do."""
    first = configs[0]
    positions = min(config.model.max_positions for config in configs)
    tokens = min(config.data.max_tokens for config in configs)
    return first.model_copy(
        update={
            "model": first.model.model_copy(update={"max_positions": positions}),
            "data": first.data.model_copy(update={"max_tokens": tokens}),
        }
    )


def _renumbered(recorder: Recorder | None, numbers: Sequence[int]) -> Recorder | None:
    """A recorder of a batch's steps that passes them on with the numbers of the sources."""
    if recorder is None:
        return None
    return lambda step: recorder(replace(step, sentence=numbers[step.sentence]))
