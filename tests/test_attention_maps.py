"""Attention maps of a sentence pair: the model's own weights, and what is said of its heads.

Letters: H heads, Q queries, M keys, K d_k.
"""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dragoman.decoding.engine import Request
from dragoman.decoding.native import NativeEngine
from dragoman.errors import UserError
from dragoman.inspection.attention_maps import KINDS, SentenceAttention, sentence_attention
from dragoman.inspection.head_summaries import summarize_heads
from dragoman.model.folder import LoadedModel, load_model

SOURCE, TARGET = "the red cat sees the dog", "rot Katze sieht Hund"


@pytest.fixture(scope="module")
def loaded(model: Path) -> LoadedModel:
    return load_model(model)


@pytest.fixture(scope="module")
def given(loaded: LoadedModel) -> SentenceAttention:
    return sentence_attention(loaded, SOURCE, TARGET)


def by_hand(attention: Any, queries: Any, keys: Any, causal: bool) -> np.ndarray:
    """softmax(Q K^T / sqrt(d_k)) of every head, from what is projected, in float64."""
    heads, width = attention.heads, attention.d_k
    matrix = attention.in_projection.weight.detach().double().numpy()
    found = []
    for head in range(heads):
        rows = slice(head * width, (head + 1) * width)
        query = queries @ matrix[: heads * width][rows].T  # (Q, K)
        key = keys @ matrix[heads * width :][rows].T  # (M, K)
        scores = query @ key.T / math.sqrt(width)
        if causal:
            scores[np.triu_indices(len(scores), 1)] = -np.inf
        exponentials = np.exp(scores - scores.max(axis=1, keepdims=True))
        found.append(exponentials / exponentials.sum(axis=1, keepdims=True))
    return np.stack(found)


def test_the_weights_are_the_softmax_of_scaled_products(loaded: LoadedModel) -> None:
    read: dict[str, np.ndarray] = {}  # what comes out of every normalization

    def keep(name: str) -> Any:
        return lambda module, inputs, output: read.update({name: output[0].double().numpy()})

    network: Any = loaded.model
    parts = [(name, part) for name, part in network.named_modules() if name.endswith("norm")]
    hooks = [part.register_forward_hook(keep(name)) for name, part in parts]
    attention = sentence_attention(loaded, SOURCE, TARGET)
    for hook in hooks:
        hook.remove()
    for number, layer in enumerate(network.encoder):
        x = read[f"encoder.{number}.self_residual.norm"]
        expected = by_hand(layer.self_attention, x, x, causal=False)
        np.testing.assert_allclose(attention.encoder[number], expected, atol=1e-6)
    for number, layer in enumerate(network.decoder):
        x = read[f"decoder.{number}.self_residual.norm"]
        expected = by_hand(layer.self_attention, x, x, causal=True)
        np.testing.assert_allclose(attention.decoder[number], expected, atol=1e-6)
        x, memory = read[f"decoder.{number}.cross_residual.norm"], read["encoder_norm"]
        expected = by_hand(layer.cross_attention, x, memory, causal=False)
        np.testing.assert_allclose(attention.cross[number], expected, atol=1e-6)


def test_tokens_and_shapes_fit_together(loaded: LoadedModel, given: SentenceAttention) -> None:
    assert "".join(given.source) == "▁the▁red▁cat▁sees▁the▁dog</s>"
    assert (given.target_in[0], given.target_out[-1]) == ("<s>", "</s>")
    assert given.target_in[1:] == given.target_out[:-1]
    sizes = loaded.config.model
    for kind in KINDS:
        layers = sizes.encoder_layers if kind == "encoder" else sizes.decoder_layers
        places = len(given.queries(kind)), len(given.keys(kind))
        assert given.weights(kind).shape == (layers, sizes.heads, *places)
        np.testing.assert_allclose(given.weights(kind).sum(axis=-1), 1.0, atol=1e-5)
    assert not np.triu(given.decoder, 1).any()


def test_without_a_translation_it_is_the_model_s_own(loaded: LoadedModel) -> None:
    own = sentence_attention(loaded, f"  {SOURCE}\n")
    tokenizer, search = loaded.tokenizer, loaded.config.search
    found = NativeEngine(loaded).search([tokenizer.encode(SOURCE)], Request(search))[0][0]
    assert (own.own, own.text) == (True, SOURCE)
    assert own.translation == tokenizer.decode(found.tokens)
    assert own.target_out[:-1] == tuple(tokenizer.pieces(found.tokens))
    again = sentence_attention(loaded, SOURCE, TARGET)
    assert (again.own, again.translation) == (False, TARGET)


def test_placeholders_are_named(loaded: LoadedModel) -> None:
    attention = sentence_attention(loaded, "the {noun} of {name}", "{name} Katze")
    assert attention.spans == ("{noun}", "{name}")
    assert "⟨1⟩" in attention.source
    assert "⟨2⟩" in attention.target_out


@pytest.mark.parametrize(
    ("text", "target", "message"),
    [
        (" \n", None, "blank"),
        ("cat " * 2000, None, "the text has"),
        ("cat", "dog " * 2000, "the translation has"),
        ("cat \udce4", None, "surrogate"),
    ],
)
def test_what_cannot_be_shown_is_said(
    loaded: LoadedModel, text: str, target: str | None, message: str
) -> None:
    with pytest.raises(UserError, match=message) as caught:
        sentence_attention(loaded, text, target)
    assert caught.value.hint


def test_longer_than_in_training_is_shown_whole(loaded: LoadedModel) -> None:
    attention = sentence_attention(loaded, "cat " * 60, "Katze " * 50)
    assert len(attention.source) > loaded.config.data.max_tokens
    assert torch.isfinite(torch.from_numpy(attention.cross)).all()


def test_summaries_are_what_their_words_say() -> None:
    weights = np.random.default_rng(0).dirichlet(np.full(5, 0.3), (2, 3, 5)).astype(np.float32)
    found = summarize_heads(weights, 4, same_positions=True)
    for layer, head in np.ndindex(2, 3):
        rows = weights[layer, head]
        entropy = np.mean([-sum(w * math.log(w) for w in row if w > 0) for row in rows])
        distance = np.mean(
            [sum(w * abs(q - k) for k, w in enumerate(r)) for q, r in enumerate(rows)]
        )
        expected = {
            "strongest": np.mean([max(row) for row in rows]),
            "entropy": entropy,
            "mark": rows[:, 4].mean(),
            "distance": distance,
            "previous": np.mean([rows[q, q - 1] for q in range(1, 5)]),
            "same": np.mean([rows[q, q] for q in range(5)]),
            "following": np.mean([rows[q, q + 1] for q in range(4)]),
        }
        for name, value in expected.items():
            assert getattr(found, name)[layer, head] == pytest.approx(value, abs=1e-5), name


def test_summaries_of_extremes() -> None:
    identity = np.eye(4, dtype=np.float32)[None, None]
    found = summarize_heads(identity, 3, same_positions=True)
    assert found.same is not None
    assert (found.same[0, 0], found.entropy[0, 0], found.mark[0, 0]) == (1.0, 0.0, 0.25)
    one = summarize_heads(np.ones((1, 1, 1, 1), np.float32), 0, same_positions=True)
    assert one.previous is not None
    assert one.previous[0, 0] == 0.0
    even = np.full((1, 1, 2, 3), 1 / 3, np.float32)
    found = summarize_heads(even, 2, same_positions=False)
    assert found.entropy[0, 0] == pytest.approx(math.log(3))
    assert found.distance is found.previous is found.same is found.following is None
