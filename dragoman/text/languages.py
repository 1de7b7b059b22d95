"""Language codes as people write them: ``de``, ``pt_BR``, ``zh-Hans``."""

UNSPACED = frozenset("zh zho chi cmn yue ja jpn th tha lo lao km khm my mya bo bod dz dzo".split())
"""Base codes of languages that write no space between words."""


def plain_code(code: str) -> str:
    """The code in one spelling, such as ``pt-br`` for ``pt_BR``: equal codes compare equal."""
    return code.lower().replace("_", "-")


def base_code(code: str) -> str:
    """The language alone, without script or region: ``zh`` of ``zh-Hans``, ``pt`` of ``pt_BR``."""
    return plain_code(code).partition("-")[0]
