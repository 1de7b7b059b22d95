"""Dragoman: the Transformer of "Attention Is All You Need", made into software people can use."""

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["Scorer", "Transformer", "Translator", "__version__", "attention"]

if TYPE_CHECKING:
    from dragoman.decoding.scorer import Scorer
    from dragoman.decoding.translator import Translator
    from dragoman.model.attention import attention
    from dragoman.model.transformer import Transformer

_HOMES = {
    "Scorer": "dragoman.decoding.scorer",
    "Transformer": "dragoman.model.transformer",
    "Translator": "dragoman.decoding.translator",
    "attention": "dragoman.model.attention",
}


def __getattr__(name: str) -> Any:
    # Imported on first use: `dragoman --help` must not wait for torch.
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'dragoman' has no attribute '{name}'")
