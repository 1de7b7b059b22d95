"""A model folder, ready to translate as the options say."""

from pathlib import Path

from dragoman.decoding.translator import Translator
from dragoman.model.folder import load_model
from dragoman.training.precision import choose_device


def load_translator(
    folder: Path, beam: int | None, length_penalty: float | None, device: str
) -> Translator:
    """A translator with the model's search settings but for those given. Raises UserError."""
    loaded = load_model(folder, choose_device(device))
    changes = {"beam": beam, "length_penalty": length_penalty}
    given = {name: value for name, value in changes.items() if value is not None}
    return Translator(loaded, loaded.config.search.model_copy(update=given))
