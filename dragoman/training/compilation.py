"""torch.compile for training on a GPU: what a layer does in fewer and larger kernels.

Shapes: B batch, T positions.
"""

import warnings
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from dragoman.model.sequence_model import PAD, SequenceModel

# Widths are multiples of it: few shapes, and whole tiles for a GPU's matrix units.
WIDTH_STEP = 8


def round_width(ids: Tensor, limit: int) -> Tensor:
    """Ids (B, T) with padding up to a multiple of `WIDTH_STEP` columns, but at most `limit`."""
    width = ids.shape[1]
    return functional.pad(ids, (0, min(-width % WIDTH_STEP, limit - width)), value=PAD)


def compile_layers(model: SequenceModel, precision: torch.dtype, backend: str = "inductor") -> str:
    """Compile every layer for training; where that fails, why, and all layers are as they were.

    Encoder layers share one program and decoder layers another, for all shapes; translating and
    validating runs uncompiled. A first small batch is computed here, so that what fails fails now.
    """
    layers = model.repeated_layers
    try:
        for layer in layers:
            _compile_training(layer, backend)
        _try(model, precision)
    except Exception as error:  # there is no end to what a compiler may raise
        for layer in layers:
            layer.__dict__.pop("forward", None)
        model.zero_grad()
        return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
    return ""


def _compile_training(layer: nn.Module, backend: str) -> None:
    plain = layer.forward
    compiled = torch.compile(plain, dynamic=True, backend=backend)

    def forward(*arguments: Any, **options: Any) -> Any:
        return (compiled if layer.training else plain)(*arguments, **options)

    layer.forward = forward


def _try(model: SequenceModel, precision: torch.dtype) -> None:
    device = model.embedding.weight.device
    training, dtype = model.training, model.embedding.compute_dtype
    ids = torch.ones(3, 2 * WIDTH_STEP, dtype=torch.int64, device=device)
    try:
        model.train()
        model.embedding.compute_dtype = precision
        devices = [device] if device.type == "cuda" else []
        with torch.random.fork_rng(devices), warnings.catch_warnings():
            # The compiler looks at gradients of what has none, and warns of itself.
            warnings.filterwarnings("ignore", "The .grad attribute", UserWarning)
            model.hidden(ids, ids).float().sum().backward()
    finally:
        model.train(training)
        model.embedding.compute_dtype = dtype
    model.zero_grad()
