"""Which class does what differs by task in a training run."""

from pathlib import Path

from dragoman.cli.encoder_run import ClassificationRun, MaskedRun
from dragoman.cli.language_model_run import LanguageModelRun
from dragoman.cli.parsing_run import ParsingRun
from dragoman.cli.translation_run import TranslationRun
from dragoman.cli.validation import TaskRun
from dragoman.config import Config
from dragoman.corpus.tokenizer import Tokenizer


def task_run(config: Config, tokenizer: Tokenizer, corpus: Path) -> TaskRun:
    """The run of the configuration's task, with the validation data of a prepared folder."""
    match config.task:
        case "lm":
            return LanguageModelRun(config, tokenizer, corpus)
        case "mlm":
            return MaskedRun(config, tokenizer, corpus)
        case "classification":
            return ClassificationRun(config, tokenizer, corpus)
        case "parsing":
            return ParsingRun(config, tokenizer, corpus)
        case _:
            return TranslationRun(config, tokenizer, corpus)
