"""Encoder-only models in training: masked language models and classifiers."""

from typing import Any

from dragoman.cli.validation import Results, TaskRun
from dragoman.corpus.batches import batches
from dragoman.decoding.perplexity import perplexity
from dragoman.evaluation.classification import LabelScores, score_labels
from dragoman.model.sequence_model import SequenceModel
from dragoman.training.objective import predictions


class _EncoderRun(TaskRun):
    """Measured by the labels that it finds, of hidden words or of sentences."""

    def _scores(self, model: SequenceModel) -> LabelScores:
        size = self.config.training.batch_tokens
        supply = batches(self.store, size, seed=0, epoch=0, collate=self._collate)
        labels, likeliest = predictions(model, supply)
        return score_labels(likeliest.tolist(), labels.tolist())


class MaskedRun(_EncoderRun):
    """Perplexity and accuracy at hidden words, always the same ones of the validation data."""

    purpose = "finds the words that are hidden in a text, and makes vectors of sentences"
    usage = """```sh
dragoman fill --model DIR "The <mask> sat on the mat."      # DIR: this folder
dragoman embed --model DIR lines.txt --out vectors.npy
dragoman train --task classification --init-from DIR --data labeled.tsv --out CLASSIFIER
```"""
    rows, tokens = "texts", "hidden tokens"

    def scores(self, model: SequenceModel) -> dict[str, Any]:
        """The share of hidden tokens for which the likeliest token is the right one."""
        return {"accuracy": 100 * self._scores(model).accuracy}

    def results(self, model: SequenceModel, nll: float) -> Results:
        """Perplexity and accuracy."""
        scores = self._scores(model)
        found = (
            f"accuracy {scores.accuracy:.1%}, perplexity {perplexity(nll):.3f} at "
            f"{scores.count:,} hidden tokens"
        )
        return Results(
            {"accuracy": 100 * scores.accuracy},
            f"validation {found}",
            f"- {found} of the validation data",
            learned=scores.accuracy > scores.majority,
        )


class ClassificationRun(_EncoderRun):
    """Accuracy and macro-F1."""

    purpose = "tells which label a sentence has"
    usage = """```sh
dragoman classify --model DIR lines.txt      # DIR: this folder
```"""
    rows, tokens = "sentences", "sentences"

    def scores(self, model: SequenceModel) -> dict[str, Any]:
        """Of all the validation data."""
        scores = self._scores(model)
        return {"accuracy": 100 * scores.accuracy, "macro_f1": 100 * scores.macro_f1}

    def results(self, model: SequenceModel, nll: float) -> Results:
        """Accuracy, macro-F1, and the F1 of every label."""
        scores = self._scores(model)
        found = f"accuracy {scores.accuracy:.1%}, macro-F1 {scores.macro_f1:.1%}"
        names = self.config.labels
        rows = [
            f"- {names[number]}: F1 {scores.f1.get(number, 0.0):.1%}"
            for number in range(len(names))
        ]
        return Results(
            {"accuracy": 100 * scores.accuracy, "macro_f1": 100 * scores.macro_f1},
            f"validation {found} of {scores.count:,} sentences",
            f"- {found} of {scores.count:,} validation sentences (the most frequent label: "
            f"{scores.majority:.1%})\n" + "\n".join(rows),
            learned=scores.accuracy > scores.majority,
        )
