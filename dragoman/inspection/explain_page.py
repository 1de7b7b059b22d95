"""The explain page: one HTML file in which a model shows how it translates one sentence."""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from dragoman import __version__
from dragoman.inspection.attention_maps import KINDS
from dragoman.inspection.explain_account import account_sections
from dragoman.inspection.explain_costs import MeasuredLayer, ParameterRow, parameter_rows
from dragoman.inspection.explain_decoder import decoder_sections
from dragoman.inspection.explain_encoder import encoder_sections
from dragoman.inspection.explain_numbers import Explained
from dragoman.inspection.explain_parts import Language, Texts, piece_labels, rounded
from dragoman.inspection.self_contained import (
    PageContent,
    escape,
    language_attribute,
    page_part,
    self_contained,
)
from dragoman.model.folder import LoadedTransformer
from dragoman.text.languages import UNSPACED, base_code
from dragoman.text.lines import atomic_write
from dragoman.training.machine import machine_facts

WEIGHT_UNIT = 1000
"""Attention weights stand in the page's data as whole numbers of this part of 1."""


def write_explain_page(
    path: Path,
    loaded: LoadedTransformer,
    explained: Explained,
    measured: list[MeasuredLayer],
    language: Language,
) -> None:
    """Write the page, atomically; see `explain_page`."""
    content = explain_page(loaded, explained, measured, language)
    with atomic_write(path) as stream:
        stream.write(content)


def explain_page(
    loaded: LoadedTransformer,
    explained: Explained,
    measured: list[MeasuredLayer],
    language: Language,
) -> bytes:
    """The page in a language. measured: layers timed on this machine, or none."""
    texts = Texts(language)
    config = loaded.config
    source_unspaced, target_unspaced = (
        base_code(code) in UNSPACED for code in (config.source_language, config.target_language)
    )
    labels = piece_labels(explained.attention.source, texts, source_unspaced)
    rows = parameter_rows(loaded.model)
    processor = str(machine_facts(torch.device("cpu"))["processor"])
    facts = (explained.vocabulary, len(labels), processor)
    sections = [
        *encoder_sections(explained, config.model, texts, labels, source_unspaced),
        *decoder_sections(explained, config.model, texts, labels, target_unspaced),
        *account_sections(rows, measured, facts, config.model, texts),
    ]
    body = _head(loaded, explained, texts, sum(row.count for row in rows)) + _contents(
        [name for name, _ in sections], texts
    )
    for number, (name, content) in enumerate(sections, start=1):
        body += (
            f'<section id="{name}"><h2><span>{number}</span> {texts(name, "title")}</h2>\n'
            f"{content}\n</section>\n"
        )
    body += f'<footer class="soft">{texts("page", "made", version=__version__)}</footer>'
    return self_contained(
        PageContent(
            texts("page", "language"),
            f"{texts('page', 'title')}: {explained.attention.text[:80]}",
            f"<main>{body}</main>",
            page_part("base.css") + page_part("explain.css"),
            page_part("explain.js"),
            _data(explained, texts, labels, target_unspaced, (rows, measured)),
        )
    )


def _head(loaded: LoadedTransformer, explained: Explained, texts: Texts, parameters: int) -> str:
    model, config = loaded.config.model, loaded.config

    def pair(term: str, text: str, language: str) -> str:
        shown = f'<dd dir="auto"{language_attribute(language)}>{escape(text)}</dd>'
        return f"<dt>{texts('page', term)}</dt>{shown}"

    facts = texts(
        "page",
        "facts",
        languages=escape(f"{config.source_language} → {config.target_language}"),
        parameters=f"{parameters:,}",
        encoder_layers=model.encoder_layers,
        decoder_layers=model.decoder_layers,
        heads=model.heads,
        width=model.d_model,
    )
    return (
        f'<h1>{texts("page", "title")}</h1>{texts("page", "intro")}\n<dl class="pair">'
        f"{pair('source', explained.attention.text, config.source_language)}"
        f"{pair('translation', explained.attention.translation, config.target_language)}</dl>\n"
        f"{texts('page', 'quality')}{facts}{texts('page', 'overview')}"
        f'<p class="soft">{texts("page", "script")}</p>'
    )


def _contents(names: list[str], texts: Texts) -> str:
    links = "".join(f'<li><a href="#{name}">{texts(name, "title")}</a></li>' for name in names)
    title = texts("page", "contents")
    return f'<nav aria-label="{title}"><p class="caption">{title}</p><ol>{links}</ol></nav>'


def _data(
    explained: Explained,
    texts: Texts,
    labels: list[str],
    unspaced: bool,
    account: tuple[list[ParameterRow], list[MeasuredLayer]],
) -> dict[str, Any]:
    """What the script reads, and all numbers that the page shows."""
    attention, numbers = explained.attention, explained.numbers
    layer = numbers["first_layer"]
    rows, measured = account
    return {
        "texts": {key: texts("ui", key) for key in ("step", "back", "forward", "looks", "writes")}
        | {"asks": texts("scores", "caption"), "place": texts("positions", "slider")},
        "labels": {
            "source": labels,
            "target_in": piece_labels(attention.target_in, texts, unspaced),
            "target_out": piece_labels(attention.target_out, texts, unspaced),
        },
        "source_ids": explained.source_ids,
        "target_ids": explained.target_ids,
        "focus": explained.focus,
        "head": explained.head,
        "weight_unit": WEIGHT_UNIT,
        "weights": {
            kind: np.rint(attention.weights(kind) * WEIGHT_UNIT).astype(int).tolist()
            for kind in KINDS
        },
        "first_layer": {key: rounded(layer[key], 3) for key in ("query", "key", "value")}
        | {"scores": rounded(layer["scores"])},
        "parameters": [[row.place, row.name, row.count] for row in rows],
        "times": {
            layer.kind: [[cost.length, rounded(cost.seconds, 4)] for cost in layer.costs]
            for layer in measured
        },
        **{name: rounded(numbers[name]) for name in numbers if name != "first_layer"},
    }
