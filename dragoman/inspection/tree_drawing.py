"""A constituency tree as a drawing: lines of text, or an SVG picture."""

from html import escape

from dragoman.text.trees import Tree

# Pixels: of a character, between words, between levels.
_CHARACTER, _GAP, _LEVEL = 8, 18, 52
_MARGIN = 20


def draw_text(tree: Tree) -> str:
    """The tree as lines, a constituent of nothing but words on one line."""
    return "\n".join(_lines(tree, "", ""))


def _lines(tree: Tree, first: str, other: str) -> list[str]:
    if not tree.children:
        return [first + tree.word]
    if not any(child.children for child in tree.children):
        return [" ".join([first + tree.label, *(child.word for child in tree.children)])]
    found = [first + tree.label]
    for child in tree.children[:-1]:
        found += _lines(child, other + "├─ ", other + "│  ")
    return found + _lines(tree.children[-1], other + "└─ ", other + "   ")


def draw_svg(tree: Tree) -> str:
    """The tree as an SVG picture with the words in one row at the bottom."""
    depth = _depth(tree)
    parts: list[str] = []
    end = _place(tree, _MARGIN, 0, depth, parts)[1]
    width, height = end - _GAP + _MARGIN, depth * _LEVEL + 2 * _MARGIN
    shapes = "\n".join(parts)
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" \
width="{width:.0f}" height="{height}" role="img" aria-label="{escape(" ".join(tree.words()))}">
<rect width="100%" height="100%" fill="white"/>
<g font-family="sans-serif" font-size="14" text-anchor="middle" stroke-width="1.2">
{shapes}
</g>
</svg>
"""


def _depth(tree: Tree) -> int:
    return 1 + max(map(_depth, tree.children)) if tree.children else 0


def _place(
    tree: Tree, start: float, level: int, bottom: int, parts: list[str]
) -> tuple[float, float]:
    """Draw a tree from an x on; its own x and where the next may start."""
    if not tree.children:
        width = max(1, len(tree.word)) * _CHARACTER
        x = start + width / 2
        parts.append(_label(x, bottom, tree.word, "black"))
        return x, start + width + _GAP
    below = []
    end, wanted = start, start + len(tree.label) * _CHARACTER + _GAP
    for child in tree.children:
        x, end = _place(child, end, level + 1, bottom, parts)
        below.append((x, level + 1 if child.children else bottom))
    x = (below[0][0] + below[-1][0]) / 2
    for child_x, child_level in below:
        parts.append(
            f'<line x1="{x:.1f}" y1="{_y(level) + 6}" x2="{child_x:.1f}" '
            f'y2="{_y(child_level) - 15}" stroke="#999"/>'
        )
    parts.append(_label(x, level, tree.label, "#1a4f9c"))
    return x, max(end, wanted)


def _label(x: float, level: int, text: str, color: str) -> str:
    return f'<text x="{x:.1f}" y="{_y(level)}" fill="{color}">{escape(text)}</text>'


def _y(level: int) -> int:
    return _MARGIN + level * _LEVEL + 5
