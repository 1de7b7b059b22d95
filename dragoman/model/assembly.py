"""Which model a configuration means."""

from dragoman.config import Config
from dragoman.model.sequence_model import SequenceModel
from dragoman.model.stacks import DecoderOnly, EncoderOnly
from dragoman.model.transformer import Transformer


def build_model(config: Config, vocabulary_size: int) -> SequenceModel:
    """A new model of the configuration's task and sizes, with random weights."""
    match config.task:
        case "lm":
            return DecoderOnly(config.model, vocabulary_size)
        case "mlm" | "classification":
            return EncoderOnly(config.model, vocabulary_size)
        case _:
            return Transformer(config.model, vocabulary_size)
