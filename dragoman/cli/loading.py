"""A model folder, ready to translate as the options say."""

from pathlib import Path

from dragoman.decoding.translator import Translator
from dragoman.errors import UserError
from dragoman.model.folder import load_model
from dragoman.training.precision import choose_device


def load_translator(
    folder: Path, beam: int | None, length_penalty: float | None, device: str, n_best: int = 1
) -> Translator:
    """A translator with the model's search settings but for those given. Raises UserError.

    Where no beam is given, it is as wide as `n_best` translations need.
    """
    if beam is not None and n_best > beam:
        raise UserError(
            f"--n-best {n_best} is more than a beam of {beam} can find",
            f"give --beam {n_best}, or leave --beam out",
        )
    loaded = load_model(folder, choose_device(device))
    search = loaded.config.search
    changes: dict[str, float] = {"beam": beam or max(search.beam, n_best)}
    if length_penalty is not None:
        changes["length_penalty"] = length_penalty
    return Translator(loaded, search.model_copy(update=changes))
