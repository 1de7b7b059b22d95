"""dragoman info"""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dragoman.cli import options
from dragoman.cli.application import app

if TYPE_CHECKING:
    from dragoman.model.folder import LoadedModel

_SECTIONS = ("Results", "Data", "Training")


@app.command()
def info(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A model folder.")],
    as_json: options.AsJson = False,
) -> None:
    """Say what a model is: languages, sizes, settings, scores."""
    from dragoman.model.folder import load_model

    loaded = load_model(folder)
    parts = _parameters(loaded)
    card = _card(folder)
    if as_json:
        record = {
            "source_language": loaded.config.source_language,
            "target_language": loaded.config.target_language,
            "preset": loaded.config.preset,
            "vocabulary": loaded.tokenizer.vocabulary_size,
            "parameters": parts | {"total": sum(parts.values())},
            "settings": loaded.config.model_dump(exclude={"preset"}),
            "best_validation": _best_validation(folder),
            "card": card,
        }
        print(json.dumps(record, ensure_ascii=False))
        return
    for line in _description(loaded, parts):
        print(line)
    for title, text in card.items():
        print(f"\n{title}\n{text}")


def _parameters(loaded: "LoadedModel") -> dict[str, int]:
    """Trained parameters by part; the embedding is also the output layer and counts once."""
    parts = {"embedding": 0, "encoder": 0, "decoder": 0}
    for name, parameter in loaded.model.named_parameters():
        part = next(part for part in parts if name.startswith(part))
        parts[part] += parameter.numel()
    return parts


def _description(loaded: "LoadedModel", parts: dict[str, int]) -> list[str]:
    config = loaded.config
    model, search = config.model, config.search
    return [
        f"{config.source_language} -> {config.target_language}, preset {config.preset}",
        f"parameters {sum(parts.values()):>13,}",
        *(f"  {part:<9}{count:>13,}" for part, count in parts.items()),
        f"vocabulary {loaded.tokenizer.vocabulary_size:>13,} subwords",
        f"layers     {model.encoder_layers} + {model.decoder_layers}, {model.norm}-norm, "
        f"d_model {model.d_model}, d_ff {model.d_ff}, {model.heads} heads "
        f"(d_k {model.key_width}, d_v {model.value_width})",
        f"positions  {model.positions}, at most {model.max_positions:,}; "
        f"trained on up to {config.data.max_tokens:,} subwords a side",
        f"search     beam {search.beam}, length penalty {search.length_penalty}, "
        f"at most {search.max_extra_tokens} subwords more than the source",
    ]


def _card(folder: Path) -> dict[str, str]:
    """What the model card says of results, data and training."""
    try:
        text = (folder / "README.md").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return {}
    sections = dict(part.split("\n", 1) for part in text.split("\n## ")[1:] if "\n" in part)
    return {title: sections[title].strip() for title in _SECTIONS if title in sections}


def _best_validation(folder: Path) -> dict[str, Any] | None:
    """The validation with the lowest nll in the training log, where that is still there."""
    from dragoman.training.progress import read_log

    events = [e for e in read_log(folder / "training" / "log.jsonl") if e["event"] == "validation"]
    return min(events, key=lambda event: float(event["nll"]), default=None)
