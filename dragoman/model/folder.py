"""A model is a folder: model.safetensors, config.toml, tokenizer.model, README.md."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save
from torch import Tensor

from dragoman.config import Checksums, Config, config_to_toml
from dragoman.corpus.tokenizer import Tokenizer
from dragoman.errors import UserError
from dragoman.model.assembly import build_model
from dragoman.model.description import (
    CARD,
    SETTINGS,
    TOKENIZER,
    WEIGHTS,
    describe,
    digest,
    model_digest,
    verify,
)
from dragoman.model.encoder_decoder import EncoderDecoder
from dragoman.model.sequence_model import SequenceModel
from dragoman.model.transformer import Transformer
from dragoman.text.lines import atomic_write

_SHOWN = 20  # wrong weights in an error message
_COPY = "copy the model's folder again"


@dataclass(frozen=True)
class Loaded:
    """A model folder in memory; folder is None for a model that is in memory only."""

    config: Config
    tokenizer: Tokenizer
    model: SequenceModel
    folder: Path | None = None


@dataclass(frozen=True)
class LoadedModel(Loaded):
    """One that goes from a source to a target."""

    model: EncoderDecoder


@dataclass(frozen=True)
class LoadedTransformer(LoadedModel):
    """One with the attention of the paper."""

    model: Transformer


def save_model(
    folder: Path, config: Config, tokenizer: Tokenizer, weights: dict[str, Tensor], card: str
) -> None:
    """Write a self-contained model folder; weights last, since they make it one."""
    folder.mkdir(parents=True, exist_ok=True)
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in weights.items()}
    saved_weights, saved_tokenizer = save(plain), tokenizer.to_bytes()
    checksums = Checksums(
        model=model_digest(config),
        weights=digest(saved_weights),
        tokenizer=digest(saved_tokenizer),
    )
    config = config.model_copy(update={"checksums": checksums})
    contents = (
        (SETTINGS, config_to_toml(config).encode()),
        (TOKENIZER, saved_tokenizer),
        (CARD, card.encode()),
        (WEIGHTS, saved_weights),
    )
    for name, content in contents:
        with atomic_write(folder / name) as stream:
            stream.write(content)


def load_model(
    folder: Path, device: torch.device | None = None, task: str = "translation"
) -> LoadedModel:
    """Read the folder of a model with encoder and decoder; see `load_any`."""
    loaded = load_any(folder, (task,), device)
    model = cast(EncoderDecoder, loaded.model)
    return LoadedModel(loaded.config, loaded.tokenizer, model, folder)


def load_transformer(folder: Path, device: torch.device | None = None) -> LoadedTransformer:
    """The same, of a Transformer alone. Raises UserError for a model of another kind."""
    loaded = load_model(folder, device)
    if not isinstance(loaded.model, Transformer):
        raise UserError(
            f"{folder}: model.kind is {loaded.config.model.kind}, and this shows the parts of a "
            "transformer",
            "dragoman align shows what every kind of model attends to",
        )
    return LoadedTransformer(loaded.config, loaded.tokenizer, loaded.model, folder)


def load_any(folder: Path, tasks: Sequence[str] = (), device: torch.device | None = None) -> Loaded:
    """Read a model folder, in evaluation mode, of these tasks only where some are given.

    Raises UserError naming what is wrong with it, or what it is a model of.
    """
    description = describe(folder, *tasks)
    config, tokenizer = description.config, description.tokenizer
    with torch.device("meta"):  # shapes without memory: the settings may be those of a giant
        expected = build_model(config, tokenizer.vocabulary_size).state_dict()
    check_weights(expected, folder / WEIGHTS)
    verify(folder / WEIGHTS, config.checksums.weights)
    model = build_model(config, tokenizer.vocabulary_size)
    load_weights(model, folder / WEIGHTS)
    return Loaded(config, tokenizer, model.to(device or torch.device("cpu")).eval(), folder)


def check_weights(expected: dict[str, Tensor], path: Path) -> None:
    """Compare a safetensors file's names and shapes. Raises UserError naming what is wrong."""
    found: dict[str, tuple[int, ...]] = {}
    wrong = []
    try:
        with safe_open(path, framework="pt") as stream:
            for name in stream.keys():  # noqa: SIM118 (no mapping)
                part = stream.get_slice(name)
                found[name] = tuple(part.get_shape())
                if part.get_dtype() not in ("F16", "BF16", "F32", "F64"):
                    wrong.append(f"{name} is of type {part.get_dtype()}")
    except (SafetensorError, OSError) as error:
        raise UserError(f"{path}: damaged or no safetensors file: {error}", _COPY) from None
    wrong += [f"{name} is missing" for name in expected.keys() - found.keys()]
    wrong += [f"{name} is unknown" for name in found.keys() - expected.keys()]
    wrong += [
        f"{name} is {found[name]}, not {tuple(tensor.shape)}"
        for name, tensor in expected.items()
        if name in found and found[name] != tuple(tensor.shape)
    ]
    if wrong:
        more = f"; and {len(wrong) - _SHOWN} more" if len(wrong) > _SHOWN else ""
        raise UserError(
            f"{path}: the weights do not fit the configuration: "
            f"{'; '.join(sorted(wrong, key=_by_importance)[:_SHOWN])}{more}",
            "config.toml, tokenizer.model and model.safetensors must be of one model",
        )


def _by_importance(problem: str) -> tuple[bool, str]:
    # The embedding is in every model: it tells at once of another tokenizer or another width.
    return not problem.startswith("embedding."), problem


def load_weights(model: SequenceModel, path: Path) -> None:
    """Fill a model from a safetensors file that `check_weights` found right. Raises UserError."""
    try:
        model.load_state_dict(load_file(path))
    except (SafetensorError, OSError) as error:
        raise UserError(f"{path}: damaged or no safetensors file: {error}", _COPY) from None
    if not all(bool(weight.isfinite().all()) for weight in model.state_dict().values()):
        raise UserError(
            f"{path}: holds weights that are not finite numbers", "train anew, or copy it again"
        )
