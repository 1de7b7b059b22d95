"""Where a head looks: a heat map, and for the script the words and a choice of layer and head."""

from dragoman.inspection.attention_maps import Kind
from dragoman.inspection.explain_numbers import Explained
from dragoman.inspection.explain_parts import Texts, heat_map, options, strongest
from dragoman.inspection.self_contained import escape


def reader(
    explained: Explained, kind: Kind, texts: Texts, labels: tuple[list[str], list[str]]
) -> str:
    """A view of the weights of a kind between labels of (queries, keys).

    Shown first: of the encoder the head followed so far, else the mean of the last layer's heads.
    """
    weights = explained.attention.weights(kind)  # (L, H, Q, M)
    layers, heads = weights.shape[:2]
    layer, head = (0, explained.head) if kind == "encoder" else (layers - 1, -1)
    matrix = weights[layer].mean(0) if head < 0 else weights[layer, head]
    queries, keys = labels
    buttons = "".join(
        f'<button type="button" class="piece" dir="auto">{escape(label)}</button>'
        for label in queries
    )
    spans = "".join(
        f'<span class="piece" dir="auto"><bdi>{escape(label)}</bdi><small></small></span>'
        for label in keys
    )
    rule = texts("ui", "rows_look")
    found = [
        (query, strongest(row.tolist(), keys, 1)[0][0])
        for query, row in zip(queries, matrix, strict=True)
    ]
    words = "; ".join(f"{query} → {key}" for query, key in found)
    layer_names = [str(place + 1) for place in range(layers)]
    head_names = [texts("ui", "all_heads"), *(str(place + 1) for place in range(heads))]
    return (
        f'<div class="reader" data-kind="{kind}"><p class="controls js">'
        f'<label>{texts("ui", "layer")} <select name="layer">{options(layer_names, layer)}'
        f'</select></label> <label>{texts("ui", "head")} <select name="head">'
        f"{options(head_names, head, -1)}</select></label></p>"
        f'<p class="soft js">{texts("ui", "pick")}</p>'
        f'<div class="words queries js">{buttons}</div><div class="words keys js">{spans}</div>'
        f'<p class="said js" aria-live="polite"></p>'
        f"{heat_map(matrix, queries, keys, f'{rule} {words}')}"
        f'<p class="soft">{rule}</p></div>'
    )
