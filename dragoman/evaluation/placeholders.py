"""How many of the placeholders that must come through a translation did."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from dragoman.errors import UserError
from dragoman.text.protect import find_spans

# Of the protected spans, those that a program fills in: not tags, entities, URLs or addresses.
_PLACEHOLDER = re.compile(r"[{$%]|\[%")


@dataclass(frozen=True, slots=True)
class Survival:
    """``kept`` of ``total`` placeholders stand unchanged in the translations.

    ``share`` is kept / total, between 0 and 1, and None when there was no placeholder.
    """

    total: int
    kept: int
    share: float | None


def placeholder_survival(
    sources: Sequence[str], references: Sequence[str] | None, hypotheses: Sequence[str]
) -> Survival:
    """Count the placeholders of the sources that stand exactly in the hypotheses.

    Counted are ``{name}``, ``{{name}}``, ``${name}``, ``$name$``, ``%s``, ``%1$s``, ``%(name)s``
    and ``[%key:...%]``, each as often as it occurs in a segment. With references, only those that
    the reference keeps as well: what a person dropped on purpose is not asked for.

    Raises UserError when the counts of segments differ.
    """
    if references is None:
        references = sources
    if not len(sources) == len(references) == len(hypotheses):
        raise UserError(
            f"{len(sources):,} source segments, {len(references):,} references and "
            f"{len(hypotheses):,} translations",
            "give one reference and one translation for each source segment, in the same order",
        )
    total = kept = 0
    for source, reference, hypothesis in zip(sources, references, hypotheses, strict=True):
        wanted = _placeholders(source) & _placeholders(reference)
        total += wanted.total()
        if wanted:
            kept += (wanted & _placeholders(hypothesis)).total()
    return Survival(total=total, kept=kept, share=kept / total if total else None)


def _placeholders(text: str) -> Counter[str]:
    spans = (text[start:end] for start, end in find_spans(text))
    return Counter(span for span in spans if _PLACEHOLDER.match(span))
