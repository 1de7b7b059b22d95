"""A model that training goes on from: what of the new data must fit it, and what is said of it."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dragoman.cli.options import UNKNOWN
from dragoman.config import Config, Coverage
from dragoman.errors import UserError

if TYPE_CHECKING:
    from dragoman.corpus.prepared import PreparedCorpus
    from dragoman.model.description import ModelDescription

# In a training's folder: the model that it began with.
PARENT = "parent"


def parent_of_options(init_from: Path | None, encoder: Path | None) -> "ModelDescription | None":
    """The model of --init-from or --init-encoder-from. Raises UserError."""
    from dragoman.model.description import describe

    if init_from is not None and encoder is not None:
        raise UserError("--init-from brings an encoder", "leave --init-encoder-from out")
    if encoder is not None:
        return describe(encoder, "mlm")
    return describe(init_from) if init_from is not None else None


def files_of_parent(
    parent: "ModelDescription", languages: tuple[str, str], tokenizer: Path | None, task: str
) -> tuple[tuple[str, str], Path]:
    """Languages and tokenizer of new data for a model. Raises UserError for other ones."""
    from dragoman.model.description import TOKENIZER
    from dragoman.training.fine_tuning import check_parent_languages

    if tokenizer is not None:
        raise UserError("the model to begin with brings its tokenizer", "leave --tokenizer out")
    if task == parent.config.task:
        check_parent_languages(parent.config, *languages)
    return known_languages(parent.config, languages, task), parent.folder / TOKENIZER


def identity(parent: "ModelDescription | None", corpus: "PreparedCorpus") -> dict[str, Any]:
    """The settings that a corpus and the model to begin with bring: what the new model is of.

    Raises UserError for labels that a classifier to begin with does not know.
    """
    languages = corpus.source_language, corpus.target_language
    found: dict[str, Any] = {}
    if parent is not None:
        from dragoman.training.fine_tuning import parent_of

        languages = known_languages(parent.config, languages, corpus.task)
        found["parent"] = parent_of(parent).model_dump()
    if corpus.task == "classification":
        from dragoman.corpus.labels import find_labels

        labels, known = find_labels(corpus.folder), parent.config.labels if parent else []
        if known and not {*labels} <= {*known}:
            raise UserError(
                f"the data has the label {min({*labels} - {*known})!r}, which the classifier to "
                "begin with does not know",
                "begin with a masked language model, which has no labels yet",
            )
        found["labels"] = known or labels
    found["source_language"], found["target_language"] = languages
    return found


def known_languages(parent: Config, languages: tuple[str, str], task: str) -> tuple[str, str]:
    """The languages of data, those of a model of the same task where the data's are not known."""
    source, target = languages
    if parent.task != task:
        return languages
    return (
        parent.source_language if source == UNKNOWN[0] else source,
        parent.target_language if target == UNKNOWN[1] else target,
    )


def check_corpus(parent: "ModelDescription", corpus: "PreparedCorpus") -> None:
    """Refuse a prepared corpus of other languages or subwords. Raises UserError."""
    from dragoman.training.fine_tuning import check_parent_languages, check_same_tokenizer

    if corpus.task == parent.config.task:
        check_parent_languages(parent.config, corpus.source_language, corpus.target_language)
    check_same_tokenizer(parent, corpus.folder)


def begin_with(parent: "ModelDescription", corpus: "PreparedCorpus", folder: Path) -> None:
    """Bring the model into `folder` and say how well its vocabulary covers the corpus."""
    from dragoman.corpus.coverage import SideCoverage, measure_coverage
    from dragoman.corpus.prepared import TRAIN
    from dragoman.corpus.store import CorpusStore
    from dragoman.training.fine_tuning import judge_coverage, keep_parent
    from dragoman.training.progress import say

    keep_parent(parent, folder)
    found = measure_coverage(CorpusStore.open(corpus.folder / TRAIN), parent.tokenizer)
    own = parent.config.coverage
    if parent.config.task != corpus.task:  # its one language is what both sides are judged by
        own = Coverage(source=own.target, target=own.target)
    if corpus.task == "classification":  # labels are no language
        found = replace(found, target=SideCoverage(0, 0, 0))
    report = judge_coverage(found, own)
    say(report.line)
    for warning in report.warnings:
        say(f"warning: {warning}")
