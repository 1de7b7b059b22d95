"""What a model folder says of itself, without its weights; loads no torch."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from dragoman.config import Config, read_config
from dragoman.corpus.tokenizer import Tokenizer
from dragoman.errors import UserError

WEIGHTS, SETTINGS, TOKENIZER, CARD = (
    "model.safetensors",
    "config.toml",
    "tokenizer.model",
    "README.md",
)


@dataclass(frozen=True)
class ModelDescription:
    """A model folder's settings and tokenizer."""

    folder: Path
    config: Config
    tokenizer: Tokenizer

    def weights_digest(self) -> str:
        """SHA-256 of the weights file as config.toml has it, or else of the file itself."""
        return self.config.checksums.weights or file_digest(self.folder / WEIGHTS)


def describe(folder: Path) -> ModelDescription:
    """Open a model folder but for its weights. Raises UserError naming what is wrong with it."""
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
    verify(folder / TOKENIZER, config.checksums.tokenizer)
    return ModelDescription(folder, config, Tokenizer.load(folder / TOKENIZER))


def model_digest(config: Config) -> str:
    """SHA-256 of the section model of the configuration."""
    return digest(json.dumps(config.model.model_dump(), sort_keys=True).encode())


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
