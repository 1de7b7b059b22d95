"""How a model is measured while it trains and when it is done."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import torch
from torch.nn.utils import parametrize

from dragoman.config import Config, Coverage, SearchConfig
from dragoman.corpus.batches import batches
from dragoman.corpus.coverage import measure_coverage
from dragoman.corpus.pairs import Pair, read_table
from dragoman.corpus.prepared import VALID, VALID_TEXT
from dragoman.corpus.store import CorpusStore
from dragoman.corpus.tokenizer import Tokenizer
from dragoman.decoding.engine import Engine
from dragoman.decoding.native import NativeEngine
from dragoman.decoding.translation import Translation
from dragoman.decoding.translator import Translator
from dragoman.errors import UserError
from dragoman.evaluation.metrics import Metrics, evaluate_corpus
from dragoman.inspection.word_alignment import AlignmentHead, WordAligner
from dragoman.inspection.word_alignment_choice import ENOUGH, measure_heads
from dragoman.model.folder import LoadedModel
from dragoman.model.sequence_model import SequenceModel
from dragoman.model.transformer import Transformer
from dragoman.training.objective import validation_nll
from dragoman.training.progress import stage

# Pairs translated at every validation, and once at the end; fewer when the time is short.
_DURING, _AT_END = 200, 1000
# Seconds of a time budget for each of them.
_SECONDS_DURING, _SECONDS_AT_END = 2.5, 0.4
# Lines translated between two updates of a progress bar.
_CHUNK = 256


class Validation:
    """Measures a model on the validation data of a prepared folder."""

    def __init__(self, config: Config, tokenizer: Tokenizer, corpus: Path) -> None:
        self._config, self._tokenizer = config, tokenizer
        self._store = CorpusStore.open(corpus / VALID)
        self._pairs = list(read_table(corpus / VALID_TEXT))
        if not self._pairs or len(self._pairs) != len(self._store):
            raise UserError(
                f"{corpus / VALID_TEXT}: {len(self._pairs):,} pairs, but {len(self._store):,} in "
                f"{VALID}",
                "the prepared corpus is damaged: prepare it anew",
            )
        budget = config.training.budget_seconds or math.inf
        self._at_end = int(min(_AT_END, max(50, budget / _SECONDS_AT_END)))
        self._during = spread(self._pairs, int(min(_DURING, max(20, budget / _SECONDS_DURING))))
        by_length = sorted(self._during, key=lambda pair: len(pair.source))
        middle, longer = by_length[len(by_length) // 2], by_length[len(by_length) * 4 // 5]
        self._shown = list(dict.fromkeys([middle, longer]))

    def __call__(self, model: SequenceModel) -> dict[str, Any]:
        """What a validation event holds: nll, perplexity, BLEU and chrF of greedy translations."""
        nll = self.nll(model)
        greedy = self._config.search.model_copy(update={"beam": 1, "max_extra_tokens": 20})
        sources = [pair.source for pair in self._during]
        # Every step of a search has other shapes: in float32 no product is compiled for them.
        model.embedding.compute_dtype = torch.float32
        with parametrize.cached():  # adapters' sums are made once, not at every step
            translations = self._translator(model, greedy).translate(sources)
        metrics = self._measure(self._during, translations)
        texts = {p: t.text for p, t in zip(self._during, translations, strict=True)}
        return {
            "nll": nll,
            "perplexity": perplexity(nll),
            "bleu": metrics.bleu,
            "chrf": metrics.chrf,
            "samples": [
                {"source": pair.source, "reference": pair.target, "translation": texts[pair]}
                for pair in self._shown
            ],
        }

    def nll(self, model: SequenceModel) -> float:
        """Unsmoothed loss on all the validation data, in nats a token."""
        size = self._config.training.batch_tokens
        with parametrize.cached():
            return validation_nll(model, batches(self._store, size, seed=0, epoch=0))

    def coverage(self) -> Coverage:
        """How long the validation data is in subwords a character: the measure of new data."""
        found = measure_coverage(self._store, self._tokenizer)
        return Coverage(source=found.source.length, target=found.target.length)

    def final(self, model: SequenceModel) -> Metrics:
        """The scores for the model card: search as configured."""
        chosen = spread(self._pairs, self._at_end)
        translator = self._translator(model, self._config.search)
        sources = [pair.source for pair in chosen]
        name = "evaluating"
        if len(chosen) < len(self._pairs):  # as many as the time allows
            name = f"evaluating a part of the {len(self._pairs):,} validation pairs"
        return self._measure(chosen, translate_all(translator, sources, name))

    def aligning_head(self, model: SequenceModel) -> AlignmentHead:
        """The head whose attention aligns words best, by a part of the pairs."""
        aligner = WordAligner(LoadedModel(self._config, self._tokenizer, cast(Transformer, model)))
        return measure_heads(aligner, spread(self._pairs, min(ENOUGH, self._at_end // 2)))[0].head

    def quality(self, engine: Engine) -> Metrics:
        """The scores of another engine with the same model, on the same text as `final`."""
        chosen = spread(self._pairs, self._at_end)
        translator = Translator(engine, self._config.search)
        return self._measure(chosen, translator.translate([pair.source for pair in chosen]))

    def _translator(self, model: SequenceModel, search: SearchConfig) -> Translator:
        loaded = LoadedModel(self._config, self._tokenizer, cast(Transformer, model))
        return Translator(NativeEngine(loaded), search)

    def _measure(self, pairs: Sequence[Pair], translations: Sequence[Translation]) -> Metrics:
        return evaluate_corpus(
            [translation.text for translation in translations],
            [pair.target for pair in pairs],
            self._config.target_language,
        )


def translate_all(translator: Translator, lines: Sequence[str], name: str) -> list[Translation]:
    """Translate lines under a progress bar."""
    translations: list[Translation] = []
    with stage(name, len(lines)) as advance:
        for start in range(0, len(lines), _CHUNK):
            chunk = lines[start : start + _CHUNK]
            translations += translator.translate(chunk)
            advance(len(chunk))
    return translations


def spread(pairs: Sequence[Pair], count: int) -> list[Pair]:
    """At most so many of the pairs, evenly from all over."""
    if len(pairs) <= count:
        return list(pairs)
    return [pairs[number * len(pairs) // count] for number in range(count)]


def perplexity(nll: float) -> float:
    """exp(nll), infinite where that is too large for a float."""
    return math.exp(nll) if nll < 700 else math.inf
