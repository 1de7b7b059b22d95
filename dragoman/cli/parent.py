"""A model that training goes on from: what of the new data must fit it, and what is said of it."""

from pathlib import Path
from typing import TYPE_CHECKING

from dragoman.cli.options import UNKNOWN
from dragoman.config import Config
from dragoman.errors import UserError

if TYPE_CHECKING:
    from dragoman.corpus.prepared import PreparedCorpus
    from dragoman.model.description import ModelDescription

# In a training's folder: the model that it began with.
PARENT = "parent"


def files_of_parent(
    parent: "ModelDescription", languages: tuple[str, str], tokenizer: Path | None
) -> tuple[tuple[str, str], Path]:
    """Languages and tokenizer of new data for a model. Raises UserError for other ones."""
    from dragoman.model.description import TOKENIZER
    from dragoman.training.fine_tuning import check_parent_languages

    if tokenizer is not None:
        raise UserError("--init-from brings its own tokenizer", "leave --tokenizer out")
    check_parent_languages(parent.config, *languages)
    return known_languages(parent.config, languages), parent.folder / TOKENIZER


def known_languages(parent: Config, languages: tuple[str, str]) -> tuple[str, str]:
    """The languages of data, those of the model where the data's are not known."""
    source, target = languages
    return (
        parent.source_language if source == UNKNOWN[0] else source,
        parent.target_language if target == UNKNOWN[1] else target,
    )


def check_corpus(parent: "ModelDescription", corpus: "PreparedCorpus") -> None:
    """Refuse a prepared corpus of other languages or subwords. Raises UserError."""
    from dragoman.training.fine_tuning import check_parent_languages, check_same_tokenizer

    check_parent_languages(parent.config, corpus.source_language, corpus.target_language)
    check_same_tokenizer(parent, corpus.folder)


def begin_with(parent: "ModelDescription", corpus: "PreparedCorpus", folder: Path) -> None:
    """Bring the model into `folder` and say how well its vocabulary covers the corpus."""
    from dragoman.corpus.coverage import measure_coverage
    from dragoman.corpus.prepared import TRAIN
    from dragoman.corpus.store import CorpusStore
    from dragoman.training.fine_tuning import judge_coverage, keep_parent
    from dragoman.training.progress import say

    keep_parent(parent, folder)
    found = measure_coverage(CorpusStore.open(corpus.folder / TRAIN), parent.tokenizer)
    report = judge_coverage(found, parent.config.coverage)
    say(report.line)
    for warning in report.warnings:
        say(f"warning: {warning}")
