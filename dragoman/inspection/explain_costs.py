"""Where a model's parameters are, and what the length of a sentence costs on this machine."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from dragoman.inspection.layer_costs import (
    LayerCost,
    LayerKind,
    LayerSizes,
    fit_exponent,
    make_layer,
    measure_layer,
)
from dragoman.model.attention import MultiHeadAttention
from dragoman.model.layers import FeedForward, LayerNorm
from dragoman.model.transformer import Transformer

LENGTHS = tuple(2**power for power in range(4, 13))
MEASURED: tuple[LayerKind, ...] = ("self-attention", "recurrent", "convolutional")
# The longest of so many lengths tell how a layer grows; short ones tell what starting it costs.
_LAST = 3
_ORDER = "table positions query key value output inner outer norm".split()


@dataclass(frozen=True)
class ParameterRow:
    """Parameters of one kind in one part of the model, all layers together.

    place: embedding, encoder, decoder_self, decoder_cross, decoder. name: table, positions, query,
    key, value, output, inner, outer (with their biases), norm.
    """

    place: str
    name: str
    count: int


def parameter_rows(model: Transformer) -> list[ParameterRow]:
    """Every trained parameter of the model in one of the rows."""
    counts: dict[tuple[str, str], int] = {("embedding", "table"): model.embedding.weight.numel()}
    positions = model.embedding.positions
    if isinstance(positions, torch.nn.Parameter):
        counts["embedding", "positions"] = positions.numel()
    for name, module in model.named_modules():
        stack = name.split(".")[0].removesuffix("_norm")
        if isinstance(module, MultiHeadAttention):
            place = stack
            if stack == "decoder":
                place = "decoder_self" if "self_attention" in name else "decoder_cross"
            width = module.in_projection.weight.shape[1]
            keys, values = (module.heads * each * width for each in (module.d_k, module.d_v))
            parts = {
                "query": keys,
                "key": keys,
                "value": values,
                "output": module.out_projection.weight.numel(),
            }
        elif isinstance(module, FeedForward):
            place = stack
            parts = {
                part: sum(parameter.numel() for parameter in linear.parameters())
                for part, linear in (("inner", module.inner), ("outer", module.outer))
            }
        elif isinstance(module, LayerNorm):
            place, parts = stack, {"norm": module.weight.numel() + module.bias.numel()}
        else:
            continue
        for part, count in parts.items():
            counts[place, part] = counts.get((place, part), 0) + count
    rows = [ParameterRow(*key, count) for key, count in counts.items()]
    return sorted(rows, key=lambda row: _ORDER.index(row.name))


@dataclass(frozen=True)
class MeasuredLayer:
    """What a kind of layer took by length, and the exponent of its longest lengths."""

    kind: LayerKind
    costs: list[LayerCost]

    @property
    def longest(self) -> list[LayerCost]:
        """The costs of the longest lengths."""
        return self.costs[-_LAST:]

    @property
    def exponent(self) -> float | None:
        """The p of seconds ~ length^p over the longest lengths; None where one was measured."""
        last = self.longest
        if len(last) < 2:
            return None
        return fit_exponent([cost.length for cost in last], [cost.seconds for cost in last])


def measure_lengths(
    width: int, heads: int, lengths: Sequence[int] = LENGTHS, seconds: float = 0.05
) -> list[MeasuredLayer]:
    """Time a layer of each kind, of the model's width, on one sentence of every length.

    About `seconds` for each of them: a couple of seconds in all.
    """
    heads = heads if width % heads == 0 else 1
    sizes = LayerSizes(width=width, heads=heads)
    return [
        MeasuredLayer(kind, measure_layer(make_layer(kind, sizes), width, lengths, seconds, 0.3))
        for kind in MEASURED
    ]
