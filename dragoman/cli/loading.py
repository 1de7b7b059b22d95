"""Model folders, ready to translate as the options say."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from dragoman.config import SearchConfig, resolve_search
from dragoman.decoding.engine import Request
from dragoman.decoding.loading import EngineChoice
from dragoman.decoding.recipe import Recipe
from dragoman.decoding.translator import Translator
from dragoman.errors import UserError
from dragoman.model.description import ModelDescription, describe
from dragoman.training.progress import say


def load_translator(
    folders: Path | Sequence[Path],
    beam: int | None,
    length_penalty: float | None,
    device: str,
    n_best: int = 1,
    settings: Sequence[str] = (),
    mbr: int | None = None,
    engine: str = "auto",
) -> Translator:
    """The translator of `find_recipe`. Raises UserError."""
    recipe, description = find_recipe(
        folders, beam, length_penalty, device, n_best, settings, mbr, engine
    )
    return recipe.open(say, description)


def find_recipe(
    folders: Path | Sequence[Path],
    beam: int | None,
    length_penalty: float | None,
    device: str,
    n_best: int = 1,
    settings: Sequence[str] = (),
    mbr: int | None = None,
    engine: str = "auto",
) -> tuple[Recipe, ModelDescription]:
    """How to translate with the first model's search settings but for those given; that model.

    Several folders are an ensemble. settings are `search.name=value` strings. Where no beam is
    given, it is as wide as `n_best` translations need. Raises UserError.
    """
    listed = (folders,) if isinstance(folders, Path) else tuple(folders)
    given = {"beam": beam, "length_penalty": length_penalty, "mbr_samples": mbr}
    flags = {name: value for name, value in given.items() if value is not None}
    description = describe(listed[0], "translation")
    search = _wide_enough(description.config.search, flags, settings, n_best)
    recipe = Recipe(listed, search, EngineChoice(engine, device, search.precision))
    reason = "several models" if len(listed) > 1 else Request(search).native_only()
    return (recipe if reason is None else natively(recipe, reason)), description


def natively(recipe: Recipe, reason: str) -> Recipe:
    """The recipe with the native engine if none was asked for, which is said with the reason.

    So nothing is converted for an engine that is not used.
    """
    if recipe.choice.engine != "auto":
        return recipe
    say(f"the native engine is used: {reason}")
    return replace(recipe, choice=replace(recipe.choice, engine="native"))


def _wide_enough(
    base: SearchConfig, flags: dict[str, float], settings: Sequence[str], n_best: int
) -> SearchConfig:
    search = resolve_search(base, flags, settings)
    if n_best <= search.most_results:
        return search
    if "beam" in flags or search.beam != base.beam:
        raise UserError(
            f"--n-best {n_best} is more than a beam of {search.beam} can find",
            f"give --beam {n_best}, or leave --beam out",
        )
    groups = search.groups  # of which the beam is a multiple
    return resolve_search(base, {**flags, "beam": -(-n_best // groups) * groups}, settings)
