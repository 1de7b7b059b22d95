"""A translation model in training: measured by its translations, made ready for the fast engine."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from dragoman.cli.validation import Results, TaskRun, spread
from dragoman.config import Config, SearchConfig
from dragoman.corpus.context import Preceding
from dragoman.corpus.pairs import Context, Pair
from dragoman.corpus.prepared import VALID, VALID_TEXT
from dragoman.corpus.shortlist import SHORTLIST, learn_shortlist
from dragoman.corpus.store import CorpusStore
from dragoman.corpus.tokenizer import Tokenizer
from dragoman.decoding.converted import Quality, make_form, refusal
from dragoman.decoding.engine import Engine
from dragoman.decoding.native import NativeEngine
from dragoman.decoding.perplexity import perplexity
from dragoman.decoding.translation import Translation
from dragoman.decoding.translator import Translator
from dragoman.errors import UserError
from dragoman.evaluation.metrics import Metrics, evaluate_corpus
from dragoman.inspection.word_alignment import AlignmentHead, WordAligner
from dragoman.inspection.word_alignment_choice import ENOUGH, measure_heads, save_choice
from dragoman.model.description import describe
from dragoman.model.encoder_decoder import EncoderDecoder
from dragoman.model.folder import LoadedModel
from dragoman.model.sequence_model import SequenceModel
from dragoman.training.progress import say, stage

# Pairs translated at every validation, and once at the end; fewer when the time is short.
_DURING, _AT_END = 200, 1000
# Seconds of a time budget for each of them.
_SECONDS_DURING, _SECONDS_AT_END = 2.5, 0.4
# Lines translated between two updates of a progress bar.
_CHUNK = 256
# A model with a lower BLEU writes the same few words whatever it reads.
_NOTHING_LEARNED = 5.0


class TranslationRun(TaskRun):
    """BLEU and chrF of greedy translations; at the end of the search as configured."""

    usage = """```sh
dragoman translate --model DIR --text "..."      # DIR: this folder
dragoman translate --model DIR < source.txt > translation.txt
```

```python
from dragoman.decoding.translator import Translator

print(Translator.load("DIR").translate(["..."])[0].text)
```"""

    def __init__(self, config: Config, tokenizer: Tokenizer, corpus: Path) -> None:
        super().__init__(config, tokenizer, corpus)
        if len(self.pairs) != len(self.store):
            raise UserError(
                f"{corpus / VALID_TEXT}: {len(self.pairs):,} pairs, but {len(self.store):,} in "
                f"{VALID}",
                "the prepared corpus is damaged: prepare it anew",
            )
        self.purpose = f"translates from `{config.source_language}` to `{config.target_language}`"
        budget = config.training.budget_seconds or math.inf
        self._at_end = int(min(_AT_END, max(50, budget / _SECONDS_AT_END)))
        self._during = spread(self.pairs, int(min(_DURING, max(20, budget / _SECONDS_DURING))))
        by_length = sorted(self._during, key=lambda pair: len(pair.source))
        middle, longer = by_length[len(by_length) // 2], by_length[len(by_length) * 4 // 5]
        self._shown = list(dict.fromkeys([middle, longer]))
        self._final_bleu = 0.0

    def scores(self, model: SequenceModel) -> dict[str, Any]:
        """BLEU and chrF of greedy translations, and some of those."""
        greedy = self.config.search.model_copy(update={"beam": 1, "max_extra_tokens": 20})
        sources, contexts = _sources(self._during)
        translator = self._translator(model, greedy)
        translations = translator.translate(sources, contexts=contexts)
        metrics = self._measure(self._during, translations)
        texts = {p: t.text for p, t in zip(self._during, translations, strict=True)}
        return {
            "bleu": metrics.bleu,
            "chrf": metrics.chrf,
            "samples": [
                {"source": pair.source, "reference": pair.target, "translation": texts[pair]}
                for pair in self._shown
            ],
        }

    def results(self, model: SequenceModel, nll: float) -> Results:
        """The scores for the model card: search as configured."""
        chosen = spread(self.pairs, self._at_end)
        translator = self._translator(model, self.config.search)
        sources, contexts = _sources(chosen)
        name = "evaluating"
        if len(chosen) < len(self.pairs):  # as many as the time allows
            name = f"evaluating a part of the {len(self.pairs):,} validation pairs"
        translations = translate_all(translator, sources, name, contexts)
        scores = self._measure(chosen, translations)
        self._final_bleu, beam = scores.bleu, self.config.search.beam
        note = f"\n\nNote: {scores.note}." if scores.note else ""
        return Results(
            {"beam": beam, **scores.to_json()},
            f"validation scores, beam {beam}:\n{scores.render()}",
            f"On {scores.sentences:,} validation segments, beam {beam}:\n\n"
            f"- BLEU {scores.bleu:.2f} (`{scores.bleu_signature}`)\n"
            f"- chrF2 {scores.chrf:.2f} (`{scores.chrf_signature}`)\n"
            f"- perplexity {perplexity(nll):.3f} a subword (all validation data){note}",
            learned=scores.bleu >= _NOTHING_LEARNED,
        )

    def save_parts(self, folder: Path, model: SequenceModel, train: CorpusStore) -> None:
        """Write the shortlist, and which head's attention aligns words."""
        with stage("learning the shortlist"):
            learn_shortlist(train, self.tokenizer).save(folder / SHORTLIST)
        with stage("choosing the attention that aligns words"):
            save_choice(folder, self._aligning_head(model))

    def convert(self, folder: Path) -> None:
        """Convert the model in int8 for the fast engine, checked on validation text.

        Nothing that goes wrong here is an error: the folder is a whole model without it.
        """
        say(self._converted(folder))

    def _converted(self, folder: Path) -> str:
        try:
            description = describe(folder)
            reason = refusal(description.config.model)
            if reason is not None:
                return f"translation uses PyTorch: CTranslate2 cannot run this model: {reason}"
            quality = Quality(self._final_bleu, lambda engine: self._quality(engine).bleu)
            _, form = make_form(description, "int8", quality=quality)
        except (UserError, RuntimeError, ValueError) as error:  # the latter two are CTranslate2's
            message = error.message if isinstance(error, UserError) else error
            return f"warning: not converted for CTranslate2: {message}"
        if form.refused is not None:
            return f"translation uses float32, not int8: {form.refused}"
        return (
            f"translation uses int8: BLEU {form.bleu:.2f} on the validation text, "
            f"{form.native_bleu:.2f} in float32"
        )

    def _aligning_head(self, model: SequenceModel) -> AlignmentHead:
        aligner = WordAligner(LoadedModel(self.config, self.tokenizer, cast(EncoderDecoder, model)))
        return measure_heads(aligner, spread(self.pairs, min(ENOUGH, self._at_end // 2)))[0].head

    def _quality(self, engine: Engine) -> Metrics:
        """The scores of another engine with the same model, on the same text as `results`."""
        chosen = spread(self.pairs, self._at_end)
        sources, contexts = _sources(chosen)
        translator = Translator(engine, self.config.search)
        return self._measure(chosen, translator.translate(sources, contexts=contexts))

    def _translator(self, model: SequenceModel, search: SearchConfig) -> Translator:
        loaded = LoadedModel(self.config, self.tokenizer, cast(EncoderDecoder, model))
        return Translator(NativeEngine(loaded), search)

    def _measure(self, pairs: Sequence[Pair], translations: Sequence[Translation]) -> Metrics:
        return evaluate_corpus(
            [translation.text for translation in translations],
            [pair.target for pair in pairs],
            self.config.target_language,
        )


def _sources(pairs: Sequence[Pair]) -> tuple[list[str], list[Context]]:
    return [pair.source for pair in pairs], [pair.context for pair in pairs]


def translate_all(
    translator: Translator,
    lines: Sequence[str],
    name: str,
    contexts: Sequence[Context] | None = None,
) -> list[Translation]:
    """Translate lines under a progress bar; contexts: see `Translator.translate`."""
    if contexts is None:
        preceding = Preceding(translator.config.data.context_sentences)
        contexts = list(map(preceding.of, lines))
    translations: list[Translation] = []
    with stage(name, len(lines)) as advance:
        for start in range(0, len(lines), _CHUNK):
            chunk = lines[start : start + _CHUNK]
            context = contexts[start : start + _CHUNK]
            translations += translator.translate(chunk, contexts=context)
            advance(len(chunk))
    return translations
