"""What a model does with one sentence, step by step, as numbers that the explain page shows.

Everything is computed with the model's own parts, in the order of the paper. Letters: S source with
its end, T translation with its end, L layers, H heads, D d_model, F d_ff, K d_k, W d_v.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from dragoman.corpus.tokenizer import Tokenizer
from dragoman.decoding.engine import Request
from dragoman.decoding.explanation import SearchTrace, recorder_of
from dragoman.decoding.hypothesis import Hypothesis
from dragoman.decoding.native import NativeEngine
from dragoman.decoding.step import translation_log_probs
from dragoman.errors import UserError
from dragoman.inspection.attention_maps import SentenceAttention, sentence_attention
from dragoman.inspection.explain_experiments import look_ahead, order_experiment
from dragoman.model.folder import LoadedTransformer
from dragoman.model.layout import PADDED
from dragoman.model.transformer import DecoderLayer, EncoderLayer, Transformer

# A page for a sentence, not for a text; more does not fit a screen and says no more.
LONGEST = 64
# Candidates for the next subword, positions, and waves that are shown.
_CANDIDATES, _POSITIONS, _WAVES = 10, 64, 4

Numbers = dict[str, Any]


@dataclass(frozen=True)
class Explained:
    """A sentence and all that the page says of it.

    numbers holds plain values for `json.dumps`, as the model gave them; focus is the place of the
    source subword that is followed through, head the one of the first layer that is shown first.
    """

    attention: SentenceAttention
    source_ids: list[int]
    target_ids: list[int]  # without start and end
    vocabulary: int
    focus: int
    head: int
    numbers: Numbers


@torch.inference_mode()
def explain_sentence(loaded: LoadedTransformer, text: str) -> Explained:
    """Follow a sentence through a model on a CPU.

    Raises UserError for a blank or a long sentence, and for a model of restricted self-attention.
    """
    if loaded.config.model.window is not None:
        raise UserError(
            "the page explains attention to the whole sentence; this model has model.window "
            f"{loaded.config.model.window}",
            "dragoman attend shows what every head of it attends to",
        )
    loaded = _with_plain_search(loaded)
    model, tokenizer = loaded.model, loaded.tokenizer
    source_ids = tokenizer.encode_source(text.strip())[0]
    if len(source_ids) > LONGEST:
        raise UserError(
            f"the sentence has {len(source_ids):,} subwords; the page takes {LONGEST}",
            "give a shorter one; dragoman attend takes long ones",
        )
    found = sentence_attention(loaded, text)
    best, trace = _search(loaded, source_ids)
    source = torch.tensor([[*source_ids, Tokenizer.eos_id]])
    target_in = torch.tensor([[Tokenizer.bos_id, *best.tokens]])
    focus = _most_telling(source_ids, tokenizer)
    first = _first_layer(model, source)
    head = _telling_head(first, focus)
    numbers: Numbers = {
        "embedding": _embedding(model, source, focus),
        "positions": _positions(model),
        "order": order_experiment(loaded, source_ids),
        "first_layer": {name: value.tolist() for name, value in first.items()},
        "encoder_layers": _encoder_layers(model, source, focus),
        "masked_scores": _masked_scores(model, target_in).tolist(),
        "look_ahead": look_ahead(model, tokenizer, source, target_in),
        "next": _next_subwords(model, tokenizer, source, target_in),
        "search": _search_numbers(loaded, best, trace),
    }
    return Explained(
        found, source_ids, best.tokens, tokenizer.vocabulary_size, focus, head, numbers
    )


def _with_plain_search(loaded: LoadedTransformer) -> LoadedTransformer:
    """The model with a beam search that can be followed: nothing drawn, nothing ranked anew."""
    plain = {"sample": False, "mbr_samples": 0, "coverage_penalty": 0.0, "groups": 1}
    search = loaded.config.search.model_copy(update=plain)
    return replace(loaded, config=loaded.config.model_copy(update={"search": search}))


def _search(loaded: LoadedTransformer, source_ids: list[int]) -> tuple[Hypothesis, SearchTrace]:
    trace = SearchTrace(loaded.tokenizer.pieces)
    request = Request(loaded.config.search, recorder=recorder_of([trace]))
    return NativeEngine(loaded).search([source_ids], request)[0][0], trace


def _embedding(model: Transformer, source: Tensor, focus: int) -> Numbers:
    """The row of the table for the focus, what is added to it, and what enters the first layer."""
    table = model.embedding.weight
    return {
        "row": table[source[0, focus]].tolist(),
        "scale": math.sqrt(table.shape[1]),
        "position": model.embedding.positions[focus].tolist(),
        "sum": model.embedding(source)[0, focus].tolist(),
    }


def _positions(model: Transformer) -> Numbers:
    """Some dimensions of the first positions, fast to slow, and how like the first all are."""
    table = model.embedding.positions[:_POSITIONS]  # (P, D)
    pairs = table.shape[1] // 2
    chosen = sorted({2 * (pairs * wave // (2 * _WAVES)) for wave in range(_WAVES)})
    alike = functional.normalize(table, dim=1)
    return {
        "dimensions": chosen,
        "values": table[:, chosen].T.tolist(),  # (waves, P)
        "like_first": (alike @ alike[0]).tolist(),
    }


def _most_telling(source_ids: Sequence[int], tokenizer: Tokenizer) -> int:
    """The place of the rarest subword, which BPE made last, that is more than a single character.

    Single characters stand behind all others in the vocabulary, however frequent they are.
    """
    lengths = [len(piece.strip("▁")) for piece in tokenizer.pieces(source_ids)]
    return max(range(len(lengths)), key=lambda place: (lengths[place] > 1, source_ids[place]))


def _first_layer(model: Transformer, source: Tensor) -> dict[str, Tensor]:
    """Queries, keys, values (H, S, .), scores and weights (H, S, S) of the first encoder layer."""
    layer = model.encoder[0]
    assert isinstance(layer, EncoderLayer)
    x = layer.self_residual.before(model.embedding(source))
    query, key, value = (part[0] for part in layer.self_attention.project_self(x, PADDED))
    scores = query @ key.transpose(-2, -1)
    weights = (scores / math.sqrt(query.shape[-1])).softmax(-1)
    return {
        "query": query,
        "key": key,
        "value": value,
        "scores": scores,
        "weights": weights,
        "unscaled": scores.softmax(-1),
        "output": weights @ value,
    }


def _telling_head(first: dict[str, Tensor], focus: int) -> int:
    """The head in which the division changes most for the focus."""
    change = first["unscaled"][:, focus].amax(-1) - first["weights"][:, focus].amax(-1)
    return int(change.argmax())


def _encoder_layers(model: Transformer, source: Tensor, focus: int) -> list[Numbers]:
    """What every layer does to the state of the focus: sizes of vectors, means and spreads."""
    x = model.embedding(source)
    start = x[0, focus]
    numbers = []
    for layer in model.encoder:
        assert isinstance(layer, EncoderLayer)
        given = x
        read = layer.self_residual.before(x)
        operands = layer.self_attention.project_self(read, PADDED)
        attended = layer.self_attention.attend(operands, None, PADDED, None)
        x = middle = layer.self_residual.after(x, attended)
        read = layer.feed_forward_residual.before(x)
        hidden = layer.feed_forward.activate(layer.feed_forward.inner(read))  # (1, S, F)
        transformed = layer.feed_forward.outer(hidden)
        x = layer.feed_forward_residual.after(x, transformed)
        raw = given if layer.self_residual.pre_norm else given + attended
        numbers.append(
            {
                "before": _size(given[0, focus]),
                "attention": _size(attended[0, focus]),
                "between": _size(middle[0, focus]),
                "feed_forward": _size(transformed[0, focus]),
                "after": _size(x[0, focus]),
                "active": int((hidden[0, focus] > 0).sum()),
                "raw": _moments(raw[0, focus]),
                "normed": _moments(layer.self_residual.norm(raw)[0, focus]),
                "like_start": float(functional.cosine_similarity(x[0, focus], start, dim=0)),
            }
        )
    return numbers


def _moments(vector: Tensor) -> list[float]:
    """Mean and standard deviation, as a normalization takes them."""
    return [float(vector.mean()), float(vector.std(correction=0))]


def _size(vector: Tensor) -> float:
    return float(vector.norm())


def _masked_scores(model: Transformer, target_in: Tensor) -> Tensor:
    """q k^T / sqrt(d_k) of the first decoder layer's first head before the mask, (T, T)."""
    layer = model.decoder[0]
    assert isinstance(layer, DecoderLayer)
    x = layer.self_residual.before(model.embedding(target_in))
    query, key, _ = layer.self_attention.project_self(x, PADDED)
    scores: Tensor = query[0, 0] @ key[0, 0].T / math.sqrt(query.shape[-1])
    return scores


def _next_subwords(
    model: Transformer, tokenizer: Tokenizer, source: Tensor, target_in: Tensor
) -> list[Numbers]:
    """The likeliest next subwords at every step of the translation, and where the chosen stands."""
    probabilities = translation_log_probs(model(source, target_in)[0]).exp()  # (T, V)
    chosen = [*target_in[0, 1:].tolist(), Tokenizer.eos_id]
    steps = []
    for row, number in zip(probabilities, chosen, strict=True):
        best = row.topk(min(_CANDIDATES, len(row)))
        steps.append(
            {
                "candidates": tokenizer.pieces(best.indices.tolist()),
                "probabilities": best.values.tolist(),
                "chosen": float(row[number]),
                "rank": int((row > row[number]).sum()) + 1,
            }
        )
    return steps


def _search_numbers(loaded: LoadedTransformer, best: Hypothesis, trace: SearchTrace) -> Numbers:
    search = loaded.config.search
    return {
        "beam": search.beam,
        "length_penalty": search.length_penalty,
        "log_prob": best.log_prob,
        "score": best.score,
        "steps": trace.to_json(),
    }
