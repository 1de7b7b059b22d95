"""dragoman info"""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dragoman.cli import options
from dragoman.cli.application import app
from dragoman.presets import is_read
from dragoman.text.display import printable

if TYPE_CHECKING:
    from dragoman.model.folder import Loaded

_LARGEST_CARD = 1024 * 1024
_SECTIONS = ("Results", "Data", "Training")


@app.command()
def info(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A model folder.")],
    as_json: options.AsJson = False,
) -> None:
    """Say what a model is: languages, sizes, settings, scores."""
    from dragoman.model.folder import load_any

    loaded = load_any(folder)
    parts = _parameters(loaded)
    card = _card(folder)
    if as_json:
        record = {
            "task": loaded.config.task,
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
    lines = _description(loaded, parts)
    for title, text in card.items():
        lines += ["", title, *text.split("\n")]
    for line in lines:
        print(printable(line))  # the folder may be anybody's


def _parameters(loaded: "Loaded") -> dict[str, int]:
    """Trained parameters by part; the embedding is also the output layer and counts once."""
    parts: dict[str, int] = {}
    for name, parameter in loaded.model.named_parameters():
        part = name.partition(".")[0].partition("_")[0]
        parts[part] = parts.get(part, 0) + parameter.numel()
    return parts


def _description(loaded: "Loaded", parts: dict[str, int]) -> list[str]:
    from dragoman.model.description import sizes, stacks, title

    config = loaded.config
    model, search = config.model, config.search
    kept = f"{model.positions}, " if is_read("positions", model.kind) else ""
    layers = " + ".join(map(str, stacks(config).values()))
    lines = [
        f"{title(config)}, preset {config.preset}",
        f"parameters {sum(parts.values()):>13,}",
        *(f"  {part:<9}{count:>13,}" for part, count in parts.items()),
        f"vocabulary {loaded.tokenizer.vocabulary_size:>13,} subwords",
        f"layers     {layers}, {sizes(config)}",
        f"positions  {kept}at most {model.max_positions:,}; "
        f"trained on up to {config.data.max_tokens:,} subwords a side",
    ]
    if model.window is not None:
        lines.append(f"window     self-attention to {model.window} neighbors each side")
    if config.data.context_sentences:
        lines.append(f"context    {config.data.context_sentences} sentences before each")
    if config.task in ("translation", "parsing"):
        lines.append(
            f"search     beam {search.beam}, length penalty {search.length_penalty}, "
            f"at most {search.max_extra_tokens} subwords more than the source"
        )
    return lines


def _card(folder: Path) -> dict[str, str]:
    """What the model card says of results, data and training."""
    from dragoman.model.description import CARD

    path = folder / CARD
    if not path.is_file():
        return {}
    with path.open("rb") as stream:
        text = stream.read(_LARGEST_CARD).decode("utf-8", "replace").replace("\r\n", "\n")
    sections = dict(part.split("\n", 1) for part in text.split("\n## ")[1:] if "\n" in part)
    return {title: sections[title].strip() for title in _SECTIONS if title in sections}


def _best_validation(folder: Path) -> dict[str, Any] | None:
    """The validation with the lowest nll in the training log, where that is still there."""
    from dragoman.inspection.training_log import number
    from dragoman.training.progress import read_log

    log = folder / "training" / "log.jsonl"
    events = [
        (nll, event)
        for event in (read_log(log) if log.is_file() else ())
        if event.get("event") == "validation" and (nll := number(event, "nll")) is not None
    ]
    return min(events, key=lambda pair: pair[0], default=(0.0, None))[1]
