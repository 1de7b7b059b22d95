"""Training that goes on from a finished model: what it takes over, and what it looks at first."""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dragoman.config import Config, Coverage, Parent, TrainingConfig, read_config, resolve_config
from dragoman.corpus.coverage import CorpusCoverage, SideCoverage
from dragoman.errors import UserError
from dragoman.model.adapters import (
    AdapterSettings,
    add_adapters,
    merge_adapters,
    save_adapter,
    trained_weights,
)
from dragoman.model.assembly import build_model
from dragoman.model.description import (
    KINDS,
    SETTINGS,
    TOKENIZER,
    WEIGHTS,
    ModelDescription,
    file_digest,
)
from dragoman.model.folder import check_weights, load_weights
from dragoman.model.sequence_model import SequenceModel
from dragoman.model.stacks import EncoderOnly
from dragoman.model.transformer import Transformer
from dragoman.presets import PRESETS, TASKS
from dragoman.text.languages import plain_code

# A trained model is refined: of the highest rate of its preset. Adapters begin at nothing and are
# few, and take the whole of it.
_SHARE_OF_RATE = 0.1
_WARMUP_STEPS, _EPOCHS = 100, 10
# The settings of [model] that are no part of what the weights are.
_FREE = {"dropout", "attention_dropout", "activation_dropout"}
# Above these a vocabulary is made for other text. Held-out text like its own has less than 0.1%
# of single bytes and 1.0 times the length. Photo captions' on everyday sentences: 1 to 2% and 1.5
# to 1.7 times; on biomedical articles 5% and 1.9 times; on another script 95% and 13 times.
_MOST_BYTES, _MOST_LENGTH = 0.01, 1.4


def fine_tuning_settings(parent: Config, adapters: bool) -> dict[str, Any]:
    """The settings, weaker than any that a person gives, of training that goes on from a model.

    Sizes, vocabulary and search are the model's. The schedule is linear from a tenth of the
    highest rate of the model's preset (from the whole of it where adapters train) after 100 steps
    of warm-up, at most 10 epochs.
    """
    preset = resolve_config(parent_preset(parent)).training
    peak = preset.learning_rate
    if preset.schedule == "paper":  # Equation 3 at the end of its warm-up
        peak = (parent.model.d_model * preset.warmup_steps) ** -0.5
    return {
        "model": parent.model.model_dump(),
        "search": parent.search.model_dump(),
        "data": {
            "vocabulary_size": parent.data.vocabulary_size,
            "max_tokens": min(256, parent.model.max_positions - 1),
            "context_sentences": parent.data.context_sentences,
        },
        "training": {
            "schedule": "linear",
            "learning_rate": peak * (1.0 if adapters else _SHARE_OF_RATE),
            "warmup_steps": _WARMUP_STEPS,
            "epochs": _EPOCHS,
            "max_steps": None,
            "patience": TrainingConfig().patience,
            "validations": TrainingConfig().validations,
            "gradient_clip": 1.0,
        },
    }


def initial_settings(parent: Config, task: str, adapters: bool = False) -> dict[str, Any]:
    """The settings, weaker than any that a person gives, of training for a task from a model.

    A translation model that only begins with an encoder has its sizes, and all else of its own.
    """
    if parent.task == "mlm" and task == "translation":
        vocabulary = {"vocabulary_size": parent.data.vocabulary_size}
        return {"model": _sizes(parent, encoder=True), "data": vocabulary}
    settings = fine_tuning_settings(parent, adapters)
    if task == "classification":  # its data are few sentences, of one label each
        settings["training"] |= {"epochs": TrainingConfig().epochs, **TASKS[task]["training"]}
    return settings


def _sizes(config: Config, encoder: bool) -> dict[str, Any]:
    """The settings that weights depend on; encoder: those of an encoder only."""
    free = _FREE | {"decoder_layers"} if encoder else _FREE
    return {n: value for n, value in config.model.model_dump().items() if n not in free}


def parent_preset(parent: Config) -> str:
    """The preset of a model, or small for one that was not trained here."""
    return parent.preset if parent.preset in PRESETS else "small"


def parent_of(model: ModelDescription) -> Parent:
    """What the new model's settings say of the one it came from."""
    return Parent(name=model.folder.resolve().name, weights=model.weights_digest())


def check_sizes(config: Config, parent: Config) -> None:
    """Refuse settings that are not those of the weights. Raises UserError naming the first."""
    begun = parent.task == "mlm" and config.task in ("translation", "classification")
    if config.task != parent.task and not begun:
        raise UserError(
            f"--task {config.task}: the model to begin with is {KINDS[parent.task].noun}",
            "go on with a model of the same task, or begin with a masked language model",
        )
    rank, width = config.training.lora_rank, parent.model.d_model
    if rank and begun:
        raise UserError(
            "training.lora_rank: adapters go on with a model of the same task", "leave it out"
        )
    if rank > width:
        raise UserError(
            f"training.lora_rank = {rank}: more than d_model of the model, {width}",
            "adapters are to be smaller than what they adapt: 4 to 64 are usual",
        )
    own = _sizes(parent, parent.task == "mlm")
    for name, value in _sizes(config, parent.task == "mlm").items():
        if value != own[name]:
            raise UserError(
                f"model.{name} = {value!r}, but the model to begin with has {own[name]!r}",
                "its sizes come with its weights: leave the setting out",
            )


def check_parent_languages(parent: Config, source: str, target: str) -> None:
    """Refuse data in other languages than the model's. Raises UserError naming both."""
    for side, wanted, own in (
        ("source", source, parent.source_language),
        ("target", target, parent.target_language),
    ):
        if own != side and wanted != side and plain_code(wanted) != plain_code(own):
            raise UserError(
                f"the data is {source} -> {target}, but the model of --init-from is "
                f"{parent.source_language} -> {parent.target_language}",
                "take a model of these languages, or name them with --source-language and "
                "--target-language",
            )


def check_same_tokenizer(parent: ModelDescription, prepared: Path) -> None:
    """Refuse a corpus in other subwords than the model's. Raises UserError."""
    tokenizer = parent.folder / TOKENIZER
    if file_digest(prepared / TOKENIZER) != file_digest(tokenizer):
        raise UserError(
            f"{prepared}: prepared with another tokenizer than that of --init-from",
            f"prepare it anew with: dragoman prepare --tokenizer {tokenizer}",
        )


def keep_parent(parent: ModelDescription, folder: Path) -> None:
    """Bring the model into the training's folder: to resume takes nothing from elsewhere.

    By links where the disk has them. They hold, since models are never changed in place.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name in (SETTINGS, TOKENIZER, WEIGHTS):
        (folder / name).unlink(missing_ok=True)
        try:
            os.link(parent.folder / name, folder / name)
        except OSError:
            shutil.copyfile(parent.folder / name, folder / name)


def initial_model(config: Config, vocabulary_size: int, folder: Path) -> SequenceModel:
    """A new model, or that of config.parent in `folder`; with adapters where settings want them.

    Of a parent that was trained for another task the encoder is taken. Raises UserError when the
    parent's weights are not there, damaged, or another's.
    """
    model, expected = build_model(config, vocabulary_size), config.parent
    if expected.weights is None:
        return model
    if file_digest(folder / WEIGHTS) != expected.weights:
        raise UserError(
            f"{folder / WEIGHTS}: damaged, or not the weights of '{expected.name}' that this "
            "training began with",
            "copy the model again, and train into another --out",
        )
    parent = read_config(folder / SETTINGS)
    if parent.task != config.task:
        _take_encoder(model, parent, folder / WEIGHTS)
        return model
    check_weights(model.state_dict(), folder / WEIGHTS)
    load_weights(model, folder / WEIGHTS)
    if config.training.lora_rank:
        add_adapters(model, config.training.lora_rank, config.training.lora_alpha)
    return model


def _take_encoder(model: SequenceModel, parent: Config, path: Path) -> None:
    """Give a model the embedding and the encoder of an encoder-only one. Raises UserError."""
    found = build_model(parent, model.vocabulary_size)
    assert isinstance(found, EncoderOnly)
    check_weights(found.state_dict(), path)
    load_weights(found, path)
    whole = isinstance(model, Transformer)
    names = ("encoder", "encoder_norm") if whole else ("layers", "norm")
    for name, part in zip(
        ("embedding", *names), (found.embedding, found.layers, found.norm), strict=True
    ):
        model.get_submodule(name).load_state_dict(part.state_dict())


def keep_and_merge(model: SequenceModel, config: Config, folder: Path) -> None:
    """Write the adapters of a model to `folder` and make them part of its weights."""
    training, parent = config.training, config.parent
    settings = AdapterSettings(
        training.lora_rank, training.lora_alpha, parent.name or "", parent.weights or ""
    )
    save_adapter(folder, settings, trained_weights(model))
    merge_adapters(model)


@dataclass(frozen=True)
class CoverageReport:
    """`line` is for a person to see always, `warnings` (with a hint each) where it is poor."""

    line: str
    warnings: list[str]


def judge_coverage(found: CorpusCoverage, own: Coverage) -> CoverageReport:
    """How the model's vocabulary fits new data.

    Poor is more than 1% of subwords that are single bytes, or texts that come out more than 1.4
    times as long, in subwords a character, as the model's own validation data: it then reads and
    writes pieces that it has hardly seen.
    """
    parts, warnings = [], []
    for side, figures, usual in (
        ("source", found.source, own.source),
        ("target", found.target, own.target),
    ):
        if not figures.subwords:  # texts alone
            continue
        ratio = figures.length / usual if usual else None
        parts.append(f"{side} {_figures(figures, ratio)}")
        if figures.byte_share > _MOST_BYTES or (ratio or 0.0) > _MOST_LENGTH:
            warnings.append(
                f"the model's vocabulary covers the {side} poorly: {_figures(figures, ratio)}\n"
                f"hint: more than {_MOST_BYTES:.0%} of single bytes or {_MOST_LENGTH} times the "
                "length mean text unlike what the model has learned; much new data is better "
                "served by a model of its own, without --init-from"
            )
    return CoverageReport(f"vocabulary coverage: {'; '.join(parts)}", warnings)


def _figures(side: SideCoverage, ratio: float | None) -> str:
    against = "" if ratio is None else f" ({ratio:.2f} times the model's own)"
    return f"{side.byte_share:.2%} bytes, {side.length:.3f} subwords a character{against}"
