"""The end of the explain page: where the parameters are, what length costs, questions."""

import math

from dragoman.config import ModelConfig
from dragoman.inspection.explain_costs import MEASURED, MeasuredLayer, ParameterRow
from dragoman.inspection.explain_parts import Texts, bar, decimal, percent, quoted, table
from dragoman.inspection.layer_costs import LayerKind, LayerSizes, table_operations

_QUESTIONS = 7
# A plot in its own units: its size, and the room for what stands left of it and below it.
_WIDTH, _HEIGHT, _LEFT, _BELOW = 400, 280, 52, 44


def account_sections(
    rows: list[ParameterRow],
    measured: list[MeasuredLayer],
    facts: tuple[int, int, str],
    model: ModelConfig,
    texts: Texts,
) -> list[tuple[str, str]]:
    """Name and content of steps 13 to 15.

    facts: size of the vocabulary, length of the sentence with its end, name of the processor.
    """
    vocabulary, count, machine = facts
    return [
        ("parameters", _parameters(rows, vocabulary, model, texts)),
        ("length", _length(measured, count, machine, model, texts)),
        ("recap", _recap(texts)),
    ]


def _parameters(rows: list[ParameterRow], vocabulary: int, model: ModelConfig, texts: Texts) -> str:
    name = "parameters"
    total = sum(row.count for row in rows)
    inner = model.d_ff * (2 if model.feed_forward == "gated" else 1)
    sizes = {"width": model.d_model, "inner": inner, "vocabulary": f"{vocabulary:,}"}
    shown = []
    for part in dict.fromkeys(row.name for row in rows):
        same = [row for row in rows if row.name == part]
        count = sum(row.count for row in same)
        share = f"{percent(count / total, 1)}{bar(count / total)}"
        shown.append([texts(name, part, **sizes), *_by_stack(same), f"{count:,}", share])
    shown.append([f"<b>{texts(name, 'total')}</b>", *_by_stack(rows), f"<b>{total:,}</b>", "100%"])

    def together(*names: str) -> str:
        return percent(sum(row.count for row in rows if row.name in names) / total)

    after = texts(
        name,
        "after_learned" if model.positions == "learned" else "after",
        attention=together("query", "key", "value", "output"),
        feed=together("inner", "outer"),
        embedding=together("table", "positions"),
    )
    example = sum(row.count for row in rows if (row.place, row.name) == ("encoder", "query"))
    body = texts(
        name,
        "body",
        total=f"{total:,}",
        layers=model.encoder_layers,
        heads=model.heads,
        width=model.d_model,
        d_k=model.key_width,
        example=f"{example:,}",
    )
    head = ["", *(texts(name, key) for key in ("encoder", "decoder", "together", "share"))]
    return body + table(head, shown, "parameters") + after


def _by_stack(rows: list[ParameterRow]) -> list[str]:
    """Parameters of the encoder and of the decoder; the embeddings are of both."""
    counts = [
        sum(row.count for row in rows if row.place.startswith(stack))
        for stack in ("encoder", "decoder")
    ]
    return [f"{count:,}" if count else "" for count in counts]


def _length(
    measured: list[MeasuredLayer], count: int, machine: str, model: ModelConfig, texts: Texts
) -> str:
    name, sizes = "length", LayerSizes(width=model.d_model)
    formulas = {
        "self-attention": ("n² × d", "1", "1"),
        "recurrent": ("n × d²", f"n = {count}", f"n = {count}"),
        "convolutional": ("k × n × d²", "1", _paths(count, sizes.kernel)),
    }
    rows = []
    for kind in MEASURED:
        work, *others = formulas[kind]
        operations = table_operations(kind, count, sizes)
        rows.append([_name(kind, texts), f"{work} = {operations:,}", *others])
    head = [texts(name, key) for key in ("kind", "work", "in_turn", "path")]
    parts = [
        texts(
            name,
            "body",
            count=count,
            square=f"{count**2:,}",
            double=f"{(2 * count) ** 2:,}",
            tenfold=f"{(10 * count) ** 2:,}",
        ),
        table(head, rows, "table-1"),
        texts(name, "table_note", width=model.d_model, kernel=sizes.kernel, count=count),
        texts(name, "why"),
    ]
    if any(layer.exponent is not None for layer in measured):
        parts += [
            texts(name, "measured", machine=quoted(machine), width=model.d_model),
            _plot(measured, texts),
            *(_growth(layer, texts) for layer in measured),
            texts(name, "measured_note"),
        ]
    else:
        parts.append(texts(name, "not_measured"))
    return "\n".join(parts)


def _paths(count: int, kernel: int) -> str:
    layers = max(1, math.ceil(math.log(count, kernel) - 1e-9))
    return f"log<sub>k</sub> n ≈ {layers}"


def _name(kind: LayerKind, texts: Texts) -> str:
    return texts("length", kind, kernel=LayerSizes().kernel)


def _growth(layer: MeasuredLayer, texts: Texts) -> str:
    """How a layer grew over its longest lengths, in words."""
    if layer.exponent is None:
        return ""
    first, last = layer.longest[0], layer.longest[-1]
    words = texts(
        "length",
        "exponent",
        kind=_name(layer.kind, texts),
        first=f"{first.length:,}",
        last=f"{last.length:,}",
        factor=decimal(last.seconds / first.seconds, 1),
        exponent=decimal(layer.exponent, 1),
    )
    return f"<p>{words}</p>"


def _plot(measured: list[MeasuredLayer], texts: Texts) -> str:
    """Milliseconds by length, both logarithmic."""
    costs = [cost for layer in measured for cost in layer.costs]
    lengths = sorted({cost.length for cost in costs})
    low, high = (
        edge(math.log10(1000 * choose(cost.seconds for cost in costs)))
        for edge, choose in ((math.floor, min), (math.ceil, max))
    )
    across = (_WIDTH - _LEFT - 12) / max(math.log(lengths[-1] / lengths[0]), 1e-9)
    down = (_HEIGHT - _BELOW - 10) / max(high - low, 1)

    def x(length: int) -> float:
        return _LEFT + across * math.log(length / lengths[0])

    def y(milliseconds: float) -> float:
        return 10 + down * (high - math.log10(milliseconds))

    bottom = _HEIGHT - _BELOW
    drawn = []
    for power in range(low, high + 1):
        level = y(10.0**power)
        drawn.append(f'<path class="grid" d="M{_LEFT} {level:.1f}H{_WIDTH - 8}"/>')
        drawn.append(
            f'<text x="{_LEFT - 6}" y="{level + 4:.1f}" text-anchor="end">{10.0**power:g}</text>'
        )
    for length in lengths[:: 1 if len(lengths) < 6 else 2]:
        drawn.append(
            f'<text x="{x(length):.1f}" y="{bottom + 16}" text-anchor="middle">{length}</text>'
        )
    for tone, layer in enumerate(measured):
        points = [f"{x(cost.length):.1f} {y(1000 * cost.seconds):.1f}" for cost in layer.costs]
        drawn.append(f'<path class="line tone{tone}" d="M{" ".join(points)}"/>')
        dots = "".join(f"M{point}h0" for point in points)
        drawn.append(f'<path class="dots tone{tone}" d="{dots}"/>')
    title, label = texts("length", "axis_time"), texts("length", "axis_length")
    legend = "".join(
        f'<li class="tone{tone}"><span>{_name(layer.kind, texts)}</span></li>'
        for tone, layer in enumerate(measured)
    )
    return (
        f'<figure class="growth"><figcaption>{title}</figcaption><ul class="legend">{legend}</ul>'
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{title}; {label}">'
        f'{"".join(drawn)}<text x="{(_LEFT + _WIDTH) // 2}" y="{_HEIGHT - 6}" '
        f'text-anchor="middle">{label}</text></svg></figure>'
    )


def _recap(texts: Texts) -> str:
    parts = [texts("recap", "body")]
    for number in range(1, _QUESTIONS + 1):
        question, answer = texts("recap", f"q{number}"), texts("recap", f"a{number}")
        parts.append(f"<details><summary>{question}</summary><p>{answer}</p></details>")
    return "\n".join(parts)
