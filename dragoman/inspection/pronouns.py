"""What one word of a sentence attends to in every head of the encoder, as in Figure 4.

Letters: L layers, H heads, S source subwords with the end, W words with the end.
"""

from dataclasses import dataclass

import numpy as np

from dragoman.decoding.alignment import word_ranges
from dragoman.errors import UserError
from dragoman.inspection.attention_maps import sentence_attention
from dragoman.inspection.head_summaries import FloatArray
from dragoman.inspection.labels import token_labels
from dragoman.model.folder import LoadedTransformer
from dragoman.text.languages import UNSPACED, base_code

_SHOWN = 12  # words in an error message


@dataclass(frozen=True)
class WordAttention:
    """The weights from the word at `place` of a text over all its words, (L, H, W).

    A row adds up to 1: a word's weight is the sum over its subwords, and where the word that
    attends has several, the mean of theirs. words ends with `</s>`.
    """

    text: str
    words: tuple[str, ...]
    place: int
    weights: FloatArray

    @property
    def others(self) -> FloatArray:
        """The weights without those on the word itself and on the end, which are 0: (L, H, W)."""
        others = self.weights.copy()
        others[..., [self.place, -1]] = 0
        return others


def encoder_by_word(loaded: LoadedTransformer, text: str) -> tuple[tuple[str, ...], FloatArray]:
    """The words of a text with `</s>`, and the encoder's weights between them, (L, H, W, W).

    Columns are summed over the subwords of a word, rows are the mean of theirs. Raises UserError
    for a blank text and for one longer than the model's positions.
    """
    attention = sentence_attention(loaded, text, "")
    pieces, labels = attention.source, token_labels(attention.source)
    unspaced = base_code(loaded.config.source_language) in UNSPACED
    ranges = [*word_ranges(pieces[:-1], unspaced), range(len(pieces) - 1, len(pieces))]
    words = tuple(
        "".join(labels[place] for place in places).strip("␣\u200a") or "␣" for places in ranges
    )
    starts = [places.start for places in ranges]
    summed = np.add.reduceat(attention.encoder, starts, axis=-1)
    lengths = np.array([len(places) for places in ranges], dtype=np.float32)
    weights = np.add.reduceat(summed, starts, axis=-2) / lengths[:, None]
    return words, weights.astype(np.float32, copy=False)


def word_attention(loaded: LoadedTransformer, text: str, word: str) -> list[WordAttention]:
    """The attention of a word, wherever it stands in the text; case and punctuation do not count.

    Raises UserError for a blank text, one longer than the model's positions, and one that does not
    have the word.
    """
    words, weights = encoder_by_word(loaded, text)
    wanted = _bare(word)
    found = [place for place, other in enumerate(words[:-1]) if _bare(other) == wanted]
    if not found:
        shown = " ".join(words[:-1][:_SHOWN]) + (" …" if len(words) > _SHOWN + 1 else "")
        message = f"'{word}' is no word of this text: {shown}"
        raise UserError(message, "name one of them with --word")
    return [WordAttention(text.strip(), words, place, weights[:, :, place]) for place in found]


def _bare(word: str) -> str:
    """A word as it is looked for: without case and without the signs around it."""
    letters = [place for place, character in enumerate(word) if character.isalnum()]
    return word[letters[0] : letters[-1] + 1].casefold() if letters else word
