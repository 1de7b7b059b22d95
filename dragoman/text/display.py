"""Texts as they can be shown on a terminal: nothing in them moves the cursor or turns the line."""

import unicodedata

# The joiners of Persian, Hindi and emoji: without them the text would be another one.
_HARMLESS = "\u200c\u200d"


def printable(text: str) -> str:
    r"""The text with control, format and broken characters as escapes such as ``\n``, ``\x1b``."""
    if text.isprintable():
        return text
    return "".join(map(_show, text))


def excerpt(text: str, width: int = 100) -> str:
    """The beginning of a text on one line of at most `width` characters, `printable`."""
    shown = printable(text[: width + 1])
    return shown if len(shown) <= width else shown[: width - 1] + "…"


def _show(character: str) -> str:
    # A space of another width is a space, and no escape is easier to read.
    harmless = character in _HARMLESS or unicodedata.category(character) == "Zs"
    return character if character.isprintable() or harmless else ascii(character)[1:-1]
