"""Which model a configuration means."""

from dragoman.config import Config
from dragoman.model.classifier import Classifier
from dragoman.model.convolutional import Convolutional
from dragoman.model.recurrent import Recurrent
from dragoman.model.sequence_model import SequenceModel
from dragoman.model.stacks import DecoderOnly, EncoderOnly
from dragoman.model.transformer import Transformer


def build_model(config: Config, vocabulary_size: int) -> SequenceModel:
    """A new model of the configuration's task, kind and sizes, with random weights."""
    match config.task:
        case "lm":
            return DecoderOnly(config.model, vocabulary_size)
        case "mlm":
            return EncoderOnly(config.model, vocabulary_size)
        case "classification":
            return Classifier(config.model, vocabulary_size, len(config.labels))
    match config.model.kind:
        case "lstm" | "gru":
            return Recurrent(config.model, vocabulary_size)
        case "convolutional":
            return Convolutional(config.model, vocabulary_size)
        case "transformer":
            return Transformer(config.model, vocabulary_size)
