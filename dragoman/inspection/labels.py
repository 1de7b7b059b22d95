"""Text in pictures: tokens as readable labels, and installed fonts that can draw them."""

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from dragoman.text.protect import SLOTS

INK, GREY, FAINT = "#1f2328", "#6e7781", "#d8dee4"

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_VISIBLE = {"\n": "⏎", "\t": "⇥", " ": "␣", "▁": "␣", "\x7f": "␡"}
_VISIBLE.update({slot: f"⟨{number}⟩" for number, slot in enumerate(SLOTS, start=1)})
_OWN = frozenset({*SLOTS, "▁"})
_JOINERS = "\u200c\u200d"
_BOUNDARY = re.compile("␣(?=[^␣])")
_ESCAPED_BREAKS = re.compile(r"▁*(?:\\n▁*)+")
_LONGEST = 20
_FAMILIES = (
    "DejaVu Sans",
    "Noto Sans",
    "Noto Sans CJK SC",
    "Noto Sans CJK JP",
    "Noto Sans CJK KR",
    "Noto Sans SC",
    "Noto Sans JP",
    "Noto Sans KR",
    "Source Han Sans SC",
    "PingFang SC",
    "Hiragino Sans",
    "Hiragino Sans GB",
    "Apple SD Gothic Neo",
    "Microsoft YaHei",
    "Yu Gothic",
    "Malgun Gothic",
    "WenQuanYi Micro Hei",
    "WenQuanYi Zen Hei",
    "Droid Sans Fallback",
    "Noto Sans Arabic",
    "Noto Naskh Arabic",
    "Geeza Pro",
    "Segoe UI",
    "Tahoma",
    "Arial Unicode MS",
)
# Fonts that claim characters they do not draw as themselves, or that matplotlib cannot draw.
_UNUSABLE = re.compile(r"(?i)last ?resort|color|^cm[a-z]+\d+$|^STIX(NonUni|Size)|blank")


def token_labels(pieces: Sequence[str]) -> list[str]:
    """Return one readable label for each subword.

    A word boundary is ``␣`` (and a hair space), a line break ``⏎``, a placeholder slot ``⟨1⟩``,
    an invisible character its code point. Byte pieces that make up a character show it:
    ``ß 1/2``, ``ß 2/2``; others their value, ``xE4``.
    """
    labels: list[str] = []
    run: list[int] = []
    for piece in pieces:
        match = _BYTE.fullmatch(piece)
        if match:
            run.append(int(match[1], 16))
            continue
        labels.extend(_byte_labels(bytes(run)))
        run.clear()
        # The tokenizer spells a line break of a piece as an escape.
        if _ESCAPED_BREAKS.fullmatch(piece):
            piece = piece.replace("\\n", "\n")
        shown = "".join(_visible(char, piece) for char in piece) or "∅"
        labels.append(shorten(_BOUNDARY.sub("␣\u200a", shown), _LONGEST))
    labels.extend(_byte_labels(bytes(run)))
    return labels


def shorten(text: str, columns: int) -> str:
    """Cut a text to a width in columns (a CJK character fills two), with an ellipsis when cut."""
    width = 0
    for index, char in enumerate(text):
        width += 2 if unicodedata.east_asian_width(char) in "WF" else 1
        if width > columns:
            return text[: max(index - 1, 1)] + "…"
    return text


def _byte_labels(run: bytes) -> Iterator[str]:
    start = 0
    while start < len(run):
        for length in (1, 2, 3, 4):
            try:
                char = run[start : start + length].decode("utf-8")
            except UnicodeDecodeError:
                continue
            # Only the piece of a slot or of the space mark is one: bytes are what a user wrote.
            shown = _code_point(char) if char in _OWN else _visible(char, char)
            yield from (
                f"{shown} {part}/{length}" if length > 1 else shown for part in range(1, length + 1)
            )
            start += length
            break
        else:
            yield f"x{run[start]:02X}"
            start += 1


def _visible(char: str, piece: str) -> str:
    if char in _VISIBLE:
        return _VISIBLE[char]
    category = unicodedata.category(char)
    if char < " ":
        return chr(0x2400 + ord(char))
    if category.startswith("M") and piece.lstrip("▁").startswith(char):
        return f"◌{char}"
    if char in _JOINERS and len(piece) > 1:
        return char
    if category[0] in "CZ":
        return _code_point(char)
    return char


@dataclass(frozen=True, slots=True)
class Lettering:
    """Font families that together draw a set of texts, tried in order for each character.

    ``missing`` holds the characters that no installed font draws; ``draw`` writes them as code
    points. ``shaped`` is False when right-to-left or joining text cannot be laid out.
    """

    families: tuple[str, ...]
    missing: frozenset[str]
    shaped: bool

    def draw(self, text: str) -> str:
        """Return the text with every character that no font draws as ``[4F60]``."""
        if self.missing.isdisjoint(text):
            return text
        pattern = "[" + re.escape("".join(sorted(self.missing))) + "]+"
        return re.sub(pattern, lambda run: _code_points(run[0]), text)

    def style(self, size: float) -> dict[str, Any]:
        """Return the properties of a text of ``size`` points. Dollar signs are never formulas."""
        return {"fontfamily": list(self.families), "fontsize": size, "parse_math": False}

    @property
    def note(self) -> str:
        """One sentence on what the picture cannot show as it is written, or ``""``."""
        parts = []
        if self.missing:
            shown = "".join(sorted(self.missing)[:8])
            more = "…" if len(self.missing) > 8 else ""
            parts.append(
                f"no installed font draws {shown}{more} ({len(self.missing)} characters), shown as "
                "code points; install one that does, such as Noto Sans CJK or Noto Sans Arabic"
            )
        if not self.shaped:
            parts.append(
                "this matplotlib neither joins letters nor orders right-to-left text: such labels "
                "stand left to right in single letters; matplotlib 3.11 or newer draws them right"
            )
        return "; ".join(parts)


def choose_lettering(texts: Iterable[str]) -> Lettering:
    """Pick installed fonts that cover the texts, as few and as plain as possible."""
    characters = {char for text in texts for char in text if not char.isspace()} | set("0…")
    families, wanted = _cover(characters)
    if wanted and _find_new_fonts():
        families, wanted = _cover(characters)
    if not families:
        families.append("DejaVu Sans")
    shaped = _can_shape() or not any(_needs_shaping(char) for char in characters)
    return Lettering(tuple(families), frozenset(wanted), shaped)


def _cover(characters: set[str]) -> tuple[list[str], set[str]]:
    """Families that draw the characters, and the characters that none draws."""
    wanted = set(characters)
    families: list[str] = []
    for family, fonts in _installed(characters):
        if not wanted:
            break
        covered = {char for char in wanted if fonts.get_char_index(ord(char))}
        if covered:
            families.append(family)
            wanted -= covered
    return families, wanted


def _find_new_fonts() -> bool:
    """Make known what was installed after matplotlib wrote its list of fonts; whether there is any.

    It writes that once, and a person who installs what the note asks for would not see it used.
    """
    from matplotlib import font_manager

    known = {entry.fname for entry in font_manager.fontManager.ttflist}
    found = False
    for path in sorted(set(font_manager.findSystemFonts()) - known):
        try:
            font_manager.fontManager.addfont(path)
        except (OSError, RuntimeError, ValueError):
            continue
        found = True
    return found


def _installed(characters: set[str]) -> Iterator[tuple[str, Any]]:
    """Yield (family, opened regular font), the families that suit the characters first."""
    from matplotlib import font_manager

    entries: dict[str, Any] = {}
    for entry in font_manager.fontManager.ttflist:
        best = entries.get(entry.name)
        if _UNUSABLE.search(entry.name) or (best and _plainness(best) <= _plainness(entry)):
            continue
        entries[entry.name] = entry
    order = list(_FAMILIES)
    if any("\u3040" <= char <= "\u30ff" for char in characters):
        order.sort(key=lambda name: not name.endswith(" JP") and name != "DejaVu Sans")
    elif any("\uac00" <= char <= "\ud7a3" for char in characters):
        order.sort(key=lambda name: not name.endswith(" KR") and name != "DejaVu Sans")
    rest = sorted(entries.keys() - set(order), key=lambda name: ("Sans" not in name, name))
    # Matplotlib before 3.11 opens only the first font of a collection.
    font_path = getattr(font_manager, "FontPath", None)
    for family in [name for name in order if name in entries] + rest:
        entry = entries[family]
        try:
            path = font_path(entry.fname, entry.index) if font_path else entry.fname
            yield family, font_manager.get_font(path)
        except (OSError, RuntimeError):
            continue


def _plainness(entry: Any) -> tuple[bool, int]:
    weight = entry.weight if isinstance(entry.weight, int) else 400
    return entry.style != "normal", abs(weight - 400)


def _can_shape() -> bool:
    from matplotlib import ft2font

    return hasattr(ft2font, "__libraqm_version__")


def _needs_shaping(char: str) -> bool:
    return (
        unicodedata.bidirectional(char) in ("R", "AL")
        or "\u0900" <= char <= "\u0dff"
        or "\u1000" <= char <= "\u109f"
        or "\u1780" <= char <= "\u17ff"
    )


def _code_point(char: str) -> str:
    return f"U+{ord(char):04X}"


def _code_points(text: str) -> str:
    return "[" + " ".join(f"{ord(char):04X}" for char in text) + "]"
