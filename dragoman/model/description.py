"""What a model folder says of itself, without its weights; loads no torch."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from dragoman.config import Config, ModelConfig, read_config
from dragoman.corpus.tokenizer import Tokenizer
from dragoman.errors import UserError

WEIGHTS, SETTINGS, TOKENIZER, CARD = (
    "model.safetensors",
    "config.toml",
    "tokenizer.model",
    "README.md",
)
# Settings of [model] that the first models did not have.
_LATER = ("kind", "kernel_width", "window", "feed_forward")


@dataclass(frozen=True)
class ModelDescription:
    """A model folder's settings and tokenizer."""

    folder: Path
    config: Config
    tokenizer: Tokenizer

    def weights_digest(self) -> str:
        """SHA-256 of the weights file as config.toml has it, or else of the file itself."""
        return self.config.checksums.weights or file_digest(self.folder / WEIGHTS)


class Kind(NamedTuple):
    """What a model of a task is called, and the commands that use and measure it."""

    noun: str
    use: str
    measure: str


KINDS = {
    "translation": Kind(
        "a translation model",
        "dragoman translate --model DIR",
        "dragoman evaluate --model DIR --source FILE --reference FILE",
    ),
    "lm": Kind(
        "a language model", "dragoman generate --model DIR", "dragoman perplexity --model DIR FILE"
    ),
    "mlm": Kind("a masked language model", "dragoman fill --model DIR TEXT", ""),
    "classification": Kind(
        "a classifier",
        "dragoman classify --model DIR FILE",
        "dragoman classify --model DIR --data FILE",
    ),
    "parsing": Kind(
        "a parser", "dragoman parse --model DIR TEXT", "dragoman parse --model DIR --gold FILE"
    ),
}


def title(config: Config) -> str:
    """A model's name for a person: `en -> de`, `a language model (en)`."""
    source, target = config.source_language, config.target_language
    if config.task == "translation":
        return f"{source} -> {target}"
    noun = KINDS[config.task].noun
    return noun if target == "target" else f"{noun} ({target})"


def stacks(config: Config) -> dict[str, int]:
    """The stacks of a model by name, and how many layers each has."""
    every = {"encoder": config.model.encoder_layers, "decoder": config.model.decoder_layers}
    match config.task:
        case "lm":
            del every["encoder"]
        case "mlm" | "classification":
            del every["decoder"]
    return every


def sizes(config: Config) -> str:
    """The kind of a model and its widths for a person."""
    model = config.model
    match model.kind:
        case "transformer":
            gated = " gated" if model.feed_forward == "gated" else ""
            return (
                f"d_model {model.d_model}, d_ff {model.d_ff}{gated}, {model.heads} heads "
                f"(d_k {model.key_width}, d_v {model.value_width}), {model.norm}-norm"
            )
        case "convolutional":
            return f"convolutional, d_model {model.d_model}, kernel width {model.kernel_width}"
        case recurrent:
            return f"{recurrent}, d_model {model.d_model}"


def describe(folder: Path, *tasks: str) -> ModelDescription:
    """Open a model folder but for its weights, of these tasks only where some are given.

    Raises UserError naming what is wrong with it, or what it is a model of.
    """
    missing = [name for name in (WEIGHTS, SETTINGS, TOKENIZER) if not (folder / name).is_file()]
    if missing:
        what = f"no model: {', '.join(missing)} missing"
        if not folder.is_dir():
            what = "is a file, not a folder" if folder.is_file() else "no such folder"
        raise UserError(f"{folder}: {what}", "name a folder that 'dragoman train' has written")
    config = read_config(folder / SETTINGS)
    if config.checksums.model not in (None, model_digest(config)):
        raise UserError(
            f"{folder / SETTINGS}: its section [model] was changed",
            "set it back; if the change is meant, delete [checksums] there",
        )
    if tasks and config.task not in tasks:
        noun, use, _ = KINDS[config.task]
        wanted = " or ".join(KINDS[task].noun for task in tasks)
        raise UserError(f"{folder}: is {noun}, not {wanted}", f"it is for: {use}")
    verify(folder / TOKENIZER, config.checksums.tokenizer)
    return ModelDescription(folder, config, Tokenizer.load(folder / TOKENIZER))


def model_digest(config: Config) -> str:
    """SHA-256 of the section model of the configuration."""
    return digest(json.dumps(model_settings(config), sort_keys=True).encode())


def model_settings(config: Config) -> dict[str, Any]:
    """The section model of the configuration.

    Settings that came after the first models are in it only where they are set, so that a folder
    or a checkpoint from before stays what it was.
    """
    settings = config.model.model_dump()
    defaults = ModelConfig().model_dump()
    unset = {name for name in _LATER if settings[name] == defaults[name]}
    return {name: value for name, value in settings.items() if name not in unset}


def digest(content: bytes) -> str:
    """SHA-256 in hexadecimal."""
    return hashlib.sha256(content).hexdigest()


def file_digest(path: Path) -> str:
    """SHA-256 of a file. Raises UserError when it cannot be read."""
    try:
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise UserError(
            f"{path}: cannot be read: {error}", "check the path and who may read it"
        ) from None


def verify(path: Path, expected: str | None) -> None:
    """Refuse a file that is not the one this model was saved with. Raises UserError."""
    if expected is not None and file_digest(path) != expected:
        raise UserError(
            f"{path}: damaged, changed, or of another model (checksum differs)",
            "copy the folder again; if the change is meant, delete [checksums] in config.toml",
        )
