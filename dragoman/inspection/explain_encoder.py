"""The first half of the explain page: from the subwords to the encoder's last layer.

Letters: S source with its end, H heads.
"""

import math

import numpy as np

from dragoman.config import ModelConfig
from dragoman.corpus.tokenizer import Tokenizer
from dragoman.inspection.explain_numbers import Explained, Numbers
from dragoman.inspection.explain_parts import (
    Texts,
    bar,
    chip,
    chips,
    decimal,
    heat_map,
    options,
    percent,
    piece_labels,
    plain,
    quoted,
    shares,
    strip,
    strips,
    strongest,
    table,
)
from dragoman.inspection.explain_readers import reader

# Numbers of a list that are written out, and waves' places in words (counted from 1).
_WRITTEN, _MIDDLE = 4, 10


def encoder_sections(
    explained: Explained, model: ModelConfig, texts: Texts, labels: list[str], unspaced: bool
) -> list[tuple[str, str]]:
    """Name and content of steps 1 to 8. labels are those of the source with its end."""
    return [
        ("subwords", _subwords(explained, texts, labels)),
        ("embedding", _embedding(explained, model, texts, labels)),
        ("positions", _positions(explained, model, texts, labels, unspaced)),
        ("library", _library(explained, model, texts, labels)),
        ("scores", _scores(explained, model, texts, labels)),
        ("heads", _heads(explained, model, texts, labels)),
        ("layer", _layer(explained, model, texts, labels)),
        ("layers", _layers(explained, model, texts, labels)),
    ]


def _subwords(explained: Explained, texts: Texts, labels: list[str]) -> str:
    count = len(explained.source_ids)
    shown = chips(labels, [*explained.source_ids, Tokenizer.eos_id])
    vocabulary = f"{explained.vocabulary:,}"
    return texts("subwords", "body", vocabulary=vocabulary, count=count, chips=shown)


def _embedding(explained: Explained, model: ModelConfig, texts: Texts, labels: list[str]) -> str:
    row = explained.numbers["embedding"]["row"]
    return texts(
        "embedding",
        "body",
        focus=chip(labels[explained.focus]),
        strip=strip(row, texts("ui", "list_of", count=len(row))) + _first(row),
        legend=f'<p class="soft">{texts("ui", "legend")}</p>',
        width=model.d_model,
        scale=plain(explained.numbers["embedding"]["scale"]),
    )


def _first(values: list[float]) -> str:
    """The first numbers of a list, written out."""
    shown = ", ".join(decimal(value, 3) for value in values[:_WRITTEN])
    return f'<p class="numbers">{shown}, …</p>'


def _positions(
    explained: Explained, model: ModelConfig, texts: Texts, labels: list[str], unspaced: bool
) -> str:
    numbers: Numbers = explained.numbers["positions"]
    name = "positions"
    shown = len(numbers["values"][0])
    like = numbers["like_first"]
    kind = texts(
        name, model.positions, waves=len(numbers["values"]), width=model.d_model, shown=shown
    )
    near = texts(
        name,
        "near",
        near=decimal(like[1]),
        middle=decimal(like[min(_MIDDLE, shown) - 1]),
        far=decimal(like[-1]),
        last_place=shown,
    )  # fmt: skip
    parts = [
        texts(name, "body", width=model.d_model),
        kind,
        _waves(numbers, texts, shown),
        f"<p>{near}</p>",
        _sum(explained, texts, labels),
        f"<h3>{texts(name, 'experiment_title')}</h3>",
        texts(name, "experiment", encoder_layers=model.encoder_layers),
        *(_order(order, texts, unspaced) for order in explained.numbers["order"]),
        texts(name, "experiment_result"),
    ]
    return "\n".join(parts)


def _waves(numbers: Numbers, texts: Texts, shown: int) -> str:
    """Curves of some numbers of the fingerprint over the places, with a slider for the script."""
    largest = max(abs(value) for wave in numbers["values"] for value in wave) or 1.0
    curves, legend = [], []
    for tone, (wave, dimension) in enumerate(
        zip(numbers["values"], numbers["dimensions"], strict=True)
    ):
        points = " ".join(
            f"{4 + 392 * place / max(shown - 1, 1):.1f} {60 - 52 * value / largest:.1f}"
            for place, value in enumerate(wave)
        )
        curves.append(f'<path class="line tone{tone}" d="M{points}"/>')
        words = texts("positions", "wave", number=dimension + 1)
        legend.append(f'<li class="tone{tone}"><span>{words}</span> <output></output></li>')
    place = texts("positions", "slider")
    return (
        '<figure class="waves"><svg viewBox="0 0 400 120" role="img" '
        f'aria-label="{place}"><path class="axis" d="M4 60H396"/>{"".join(curves)}'
        '<path class="cursor" d="M4 0V120"/></svg>'
        f'<label class="js">{place} <input type="range" min="1" max="{shown}" value="1"> '
        f'<output>1</output></label><ul class="legend">{"".join(legend)}</ul></figure>'
    )


def _sum(explained: Explained, texts: Texts, labels: list[str]) -> str:
    numbers, name = explained.numbers["embedding"], "positions"
    rows = [
        [texts(name, key, scale=plain(numbers["scale"])), *(decimal(v) for v in values), "…"]
        for key, values in (
            ("row_embedding", [v * numbers["scale"] for v in numbers["row"][:_WRITTEN]]),
            ("row_position", numbers["position"][:_WRITTEN]),
            ("row_sum", numbers["sum"][:_WRITTEN]),
        )
    ]
    words = texts(name, "sum", focus=chip(labels[explained.focus]), place=explained.focus + 1)
    head = ["", *(str(place + 1) for place in range(len(rows[0]) - 2)), "…"]
    return f"<p>{words}</p>{table(head, rows, 'sums')}"


def _order(order: Numbers, texts: Texts, unspaced: bool) -> str:
    forwards, backwards = (
        "".join(piece.replace("▁", " ") for piece in order[way]).strip()
        for way in ("forwards", "backwards")
    )
    caption = texts("positions", "order", forwards=quoted(forwards), backwards=quoted(backwards))
    rows = [
        [chip(label), decimal(there), f"{missing:.7f}"]
        for label, there, missing in zip(
            piece_labels(order["forwards"], texts, unspaced),
            order["with_positions"],
            order["without_positions"],
            strict=True,
        )
    ]
    head = [
        texts("ui", "word"),
        texts("positions", "with_positions"),
        texts("positions", "without_positions"),
    ]
    return f'<p class="caption">{caption}</p>{table(head, rows)}'


def _library(explained: Explained, model: ModelConfig, texts: Texts, labels: list[str]) -> str:
    layer, head = explained.numbers["first_layer"], explained.head
    focus = chip(labels[explained.focus])
    query = layer["query"][head][explained.focus]
    parts = [
        texts(
            "library",
            "body",
            focus=focus,
            head=head + 1,
            heads=model.heads,
            width=model.d_model,
            d_k=model.key_width,
            d_v=model.value_width,
        ),
        f'<p class="caption">{texts("library", "query", focus=focus)}</p>',
        strips([labels[explained.focus]], [query], texts("ui", "list_of", count=len(query))),
    ]
    for key, name in (("keys", "key"), ("values", "value")):
        rows = layer[name][head]
        words = texts("ui", "list_of", count=len(rows[0]))
        parts.append(f'<p class="caption">{texts("library", key)}</p>{strips(labels, rows, words)}')
    return "\n".join([*parts, texts("library", "after")])


def _scores(explained: Explained, model: ModelConfig, texts: Texts, labels: list[str]) -> str:
    layer, head, focus = explained.numbers["first_layer"], explained.head, explained.focus
    scores, name = layer["scores"][head][focus], "scores"
    weights, unscaled = layer["weights"][head][focus], layer["unscaled"][head][focus]
    root = math.sqrt(model.key_width)
    rows = [
        [
            chip(label),
            decimal(score),
            decimal(score / root),
            f"{percent(weight)}{bar(weight)}",
            f"{percent(other)}{bar(other, 'pale')}",
        ]
        for label, score, weight, other in zip(labels, scores, weights, unscaled, strict=True)
    ]
    head_row = [texts(name, key, root=plain(root)) for key in _COLUMNS]
    caption = texts(name, "caption", focus=chip(labels[focus]), head=head + 1)
    result = texts(name, "result")
    output = layer["output"][head][focus]
    mean_with, mean_without = (_mean_largest(layer[key]) for key in ("weights", "unscaled"))
    mean_slopes = [_mean_slope(layer[key]) for key in ("weights", "unscaled")]
    why = texts(
        name,
        "why",
        d_k=model.key_width,
        root=plain(root),
        **{"with": percent(max(weights)), "without": percent(max(unscaled))},
        mean_with=percent(mean_with),
        mean_without=percent(mean_without),
        mean_slope_with=decimal(mean_slopes[0]),
        mean_slope_without=decimal(mean_slopes[1]),
    )
    return "\n".join(
        [
            texts(name, "body", d_k=model.key_width, root=plain(root), focus=chip(labels[focus])),
            _products(explained, texts, labels, weights.index(max(weights))),
            '<div class="workbench">',
            _choices(explained, texts, labels),
            f'<p class="caption">{caption}</p>{table(head_row, rows, "scores")}',
            f'<p class="caption">{result}</p><div class="result">{strip(output, result)}</div>',
            "</div>",
            f"<h3>{texts(name, 'why_title')}</h3>{why}",
        ]
    )


_COLUMNS = ("piece", "score", "divided", "weight", "undivided")


def _products(explained: Explained, texts: Texts, labels: list[str], book: int) -> str:
    """The first products of the dot product of the focus with a book, and their sum."""
    layer, head = explained.numbers["first_layer"], explained.head
    query, key = layer["query"][head][explained.focus], layer["key"][head][book]
    products = " + ".join(
        f"({decimal(one)} × {decimal(other)})"
        for one, other in list(zip(query, key, strict=True))[:3]
    )
    score = decimal(layer["scores"][head][explained.focus][book])
    names = {"focus": chip(labels[explained.focus]), "book": chip(labels[book])}
    return texts("scores", "products", **names, products=products, score=score)


def _choices(explained: Explained, texts: Texts, labels: list[str]) -> str:
    """Which subword and which head of the first layer; for the script."""

    heads = [str(head + 1) for head in range(len(explained.numbers["first_layer"]["scores"]))]
    return (
        f'<p class="controls js"><label>{texts("ui", "word")} <select name="piece">'
        f"{options(labels, explained.focus)}</select></label> "
        f'<label>{texts("ui", "head")} <select name="head">{options(heads, explained.head)}'
        "</select></label></p>"
    )


def _mean_largest(weights: list[list[list[float]]]) -> float:
    return float(np.asarray(weights).max(-1).mean())


def _mean_slope(weights: list[list[list[float]]]) -> float:
    """How fast the largest weights follow their scores: a softmax's derivative is w (1 - w)."""
    largest = np.asarray(weights).max(-1)
    return float((largest * (1.0 - largest)).mean())


def _heads(explained: Explained, model: ModelConfig, texts: Texts, labels: list[str]) -> str:
    weights = explained.attention.encoder[0]  # (H, S, S)
    summaries = explained.attention.summaries("encoder")
    previous, same, following = summaries.previous, summaries.same, summaries.following
    assert previous is not None and same is not None and following is not None
    figures = []
    for head, matrix in enumerate(weights):
        habits = texts(
            "heads",
            "habits",
            same=percent(same[0, head]),
            previous=percent(previous[0, head]),
            following=percent(following[0, head]),
            mark=percent(summaries.mark[0, head]),
        )
        found = shares(strongest(matrix[explained.focus].tolist(), labels, 2))
        most = texts("heads", "most", focus=chip(labels[explained.focus]), found=found)
        name = texts("heads", "head_caption", head=head + 1)
        caption = texts("heads", "caption", name=name, habits=habits, most=most)
        picture = heat_map(matrix, [], [], name)
        figures.append(f"<figure>{picture}<figcaption>{caption}</figcaption></figure>")
    body = texts(
        "heads",
        "body",
        heads=model.heads,
        d_v=model.value_width,
        joined=model.heads * model.value_width,
        width=model.d_model,
    )
    rows = f'<p class="soft">{texts("ui", "rows_look")}</p>'
    shown = f'<div class="gallery">{"".join(figures)}</div>'
    return body + rows + shown + texts("heads", "after")


def _layer(explained: Explained, model: ModelConfig, texts: Texts, labels: list[str]) -> str:
    first = explained.numbers["encoder_layers"][0]
    sizes = ("before", "attention", "between", "feed_forward", "after")
    shared = {"focus": chip(labels[explained.focus]), "width": model.d_model}
    active = first["active"]
    parts = texts(
        "layer",
        "parts",
        thinks=texts("layer", model.feed_forward, inner=model.d_ff, active=active, **shared),
        **shared,
        separate=decimal(first["before"] + first["attention"], 1),
        mean_before=decimal(first["raw"][0]),
        spread_before=decimal(first["raw"][1]),
        mean_after=decimal(first["normed"][0]),
        spread_after=decimal(first["normed"][1]),
        **{name: decimal(first[name], 1) for name in sizes},
    )
    drawing = _drawing(texts, model)
    return texts("layer", "body") + drawing + parts + texts("layer", model.norm)


def _drawing(texts: Texts, model: ModelConfig) -> str:
    """One layer as boxes from top to bottom, with the residual connections beside them."""
    halves = [("attention", {"heads": model.heads}), ("feed", {})]
    boxes: list[tuple[str, str]] = [("in", texts("layer", "box_in"))]
    bypasses = []
    for key, values in halves:
        start = len(boxes) - 1
        if model.norm == "pre":
            boxes.append(("norm", texts("layer", "box_norm")))
        boxes.append((key, texts("layer", f"box_{key}", **values)))
        boxes.append(("add", texts("layer", "box_add")))
        bypasses.append((start, len(boxes) - 1))
        if model.norm == "post":
            boxes.append(("norm", texts("layer", "box_norm")))
    boxes.append(("in", texts("layer", "box_out")))
    drawn = []
    for place, (kind, label) in enumerate(boxes):
        top = 8 + 44 * place
        if place:
            drawn.append(f'<path class="arrow" d="M130 {top - 14}v11m-4 -5l4 5l4 -5"/>')
        drawn.append(f'<rect class="box {kind}" x="20" y="{top}" width="220" height="28" rx="6"/>')
        drawn.append(f'<text x="130" y="{top + 19}" text-anchor="middle">{label}</text>')
    for start, end in bypasses:
        up, down = 8 + 44 * start + 20, 8 + 44 * end + 14
        drawn.append(f'<path class="arrow" d="M240 {up}h28V{down}h-25m5 -4l-5 4l5 4"/>')
    height = 8 + 44 * len(boxes)
    return (
        f'<svg class="drawing" viewBox="0 0 290 {height}" role="img" '
        f'aria-label="{texts("layer", "title")}">{"".join(drawn)}</svg>'
    )


def _layers(explained: Explained, model: ModelConfig, texts: Texts, labels: list[str]) -> str:
    name = "layers"
    rows = [
        [
            str(place),
            decimal(layer["attention"], 1),
            decimal(layer["feed_forward"], 1),
            decimal(layer["after"], 1),
            decimal(layer["like_start"]),
        ]
        for place, layer in enumerate(explained.numbers["encoder_layers"], start=1)
    ]
    keys = ("table_layer", "table_attention", "table_feed", "table_size", "table_like")
    return "\n".join(
        [
            texts(
                name,
                "body",
                encoder_layers=model.encoder_layers,
                focus=chip(labels[explained.focus]),
            ),
            table([texts(name, key) for key in keys], rows),
            texts(name, "likeness"),
            texts(name, "explore"),
            reader(explained, "encoder", texts, (labels, labels)),
            texts(name, "after", width=model.d_model, count=len(explained.source_ids)),
        ]
    )
