"""Two experiments with a model: words without positions, and a decoder that may look ahead.

Letters: S source with its end, T translation, D d_model.
"""

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from dragoman.corpus.tokenizer import Tokenizer
from dragoman.model.cache import LayerCache
from dragoman.model.folder import LoadedTransformer
from dragoman.model.layout import PADDED
from dragoman.model.transformer import DecoderLayer, Transformer
from dragoman.model.windowed import Sight
from dragoman.text.languages import base_code

# Sentences whose words in reverse order are one that a reader understands too, and another.
_REVERSIBLE = {"en": "I love you", "zh": "我爱你", "ja": "私 は 君 が 好き"}
_SPACE = "\u2581"


def order_experiment(loaded: LoadedTransformer, source_ids: list[int]) -> list[dict[str, Any]]:
    """Encode sentences with their words forwards and backwards, with positions and without.

    The first is a short example where there is one in the source language, the last the sentence
    itself. Of each subword: the largest difference of any number of its state between the orders.
    """
    tokenizer = loaded.tokenizer
    example = _REVERSIBLE.get(base_code(loaded.config.source_language))
    sentences = [tokenizer.encode(example)] if example else []
    results = []
    for ids in [*sentences, source_ids]:
        order = _reversed_words(tokenizer.pieces(ids))
        if order == list(range(len(ids))):
            continue
        forwards = torch.tensor([[*ids, Tokenizer.eos_id]])
        places = [*order, len(ids)]
        backwards = forwards[:, places]
        differences = []
        for there in (True, False):
            first, second = (_encode(loaded.model, ids, there) for ids in (forwards, backwards))
            differences.append(_largest(first[:, places], second))
        back = [places.index(place) for place in range(len(ids))]
        results.append(
            {
                "forwards": tokenizer.pieces(ids),
                "backwards": tokenizer.pieces([ids[place] for place in order]),
                "with_positions": [differences[0][place] for place in back],
                "without_positions": [differences[1][place] for place in back],
            }
        )
    return results


def _reversed_words(pieces: list[str]) -> list[int]:
    """The places of the pieces when the words come in reverse order; no spaces: the pieces."""
    starts = [place for place, piece in enumerate(pieces) if not place or piece[0] == _SPACE]
    if len(starts) == 1:
        starts = list(range(len(pieces)))
    ends = [*starts[1:], len(pieces)]
    return [
        place
        for start, end in reversed(list(zip(starts, ends, strict=True)))
        for place in range(start, end)
    ]


def _encode(model: Transformer, source: Tensor, positions: bool) -> Tensor:
    """The encoder's states with positions or without, (1, S) -> (1, S, D)."""
    if positions:
        return model.encode(source)
    table = model.embedding.weight
    x = functional.embedding(source, table) * math.sqrt(table.shape[1])
    for layer in model.encoder:
        x = layer(x, None)
    states: Tensor = model.encoder_norm(x)
    return states


def _largest(first: Tensor, second: Tensor) -> list[float]:
    """(1, S, D), (1, S, D) -> the largest difference of each of S states."""
    differences: list[float] = (first - second).abs().amax(-1)[0].tolist()
    return differences


def look_ahead(
    model: Transformer, tokenizer: Tokenizer, source: Tensor, target_in: Tensor
) -> dict[str, Any] | None:
    """Replace the last word that the decoder reads; what becomes of the states before it.

    With the mask, and with a decoder that sees the whole translation. None where nothing stands
    before the last word.
    """
    if target_in.shape[1] < 2:
        return None
    changed = target_in.clone()
    logits = model(source, target_in[:, :-1])[0, -1]
    logits[target_in[0, -1]] = -math.inf
    changed[0, -1] = logits.argmax()
    differences = [
        _largest(*(_decode(model, source, ids, masked) for ids in (target_in, changed)))
        for masked in (True, False)
    ]
    return {
        "word": tokenizer.pieces([int(target_in[0, -1])])[0],
        "replacement": tokenizer.pieces([int(changed[0, -1])])[0],
        "masked": differences[0],
        "unmasked": differences[1],
    }


def _decode(model: Transformer, source: Tensor, target_in: Tensor, masked: bool) -> Tensor:
    """The decoder's states with its mask or without, (1, T) -> (1, T, D)."""
    memory = model.encode(source)
    mask = Sight(causal=masked)
    x = model.embedding(target_in)
    for layer in model.decoder:
        assert isinstance(layer, DecoderLayer)
        cache = LayerCache(*layer.cross_attention.project_memory(memory, PADDED))
        x = layer(x, cache, mask)
    states: Tensor = model.decoder_norm(x)
    return states
