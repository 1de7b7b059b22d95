"""Dragoman: the Transformer of "Attention Is All You Need", made into software people can use."""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["Transformer", "__version__", "attention"]

if TYPE_CHECKING:
    from dragoman.model.attention import attention
    from dragoman.model.transformer import Transformer


def __getattr__(name: str) -> Any:
    # Imported on first use: `dragoman --help` must not wait for torch.
    if name == "attention":
        from dragoman.model.attention import attention

        return attention
    if name == "Transformer":
        from dragoman.model.transformer import Transformer

        return Transformer
    raise AttributeError(f"module 'dragoman' has no attribute '{name}'")
