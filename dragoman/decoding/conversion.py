"""A model in CTranslate2's format: the same weights under other names.

The tokens of the converted model are the ids in decimal ("0", "1", ...), so that no subword, be it
a tab or a line break, must survive a vocabulary file. Symbols that no translation may hold get a
bias of -1e9 in the output layer: CTranslate2 then leaves them out of its softmax, as the native
step does.

Shapes: V vocabulary, D d_model.
"""

import random
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dragoman.config import ModelConfig
from dragoman.corpus.tokenizer import Tokenizer
from dragoman.decoding.fast import CTranslate2Engine
from dragoman.decoding.rescoring import Forced
from dragoman.decoding.step import FORBIDDEN
from dragoman.model.folder import LoadedModel
from dragoman.model.layers import LAYER_NORM_EPSILON

_NEVER = -1e9
_SENTENCES, _LONGEST = 32, 24  # of the check
Weights = dict[str, np.ndarray[Any, np.dtype[np.float32]]]


def write_ctranslate2(loaded: LoadedModel, folder: Path, quantization: str) -> None:
    """Write a model that `refusal` lets pass into an existing folder; int8 or float32."""
    from ctranslate2.specs import TransformerSpec

    config = loaded.config.model
    weights: Weights = {
        # A copy: quantization scales the arrays where they are.
        name: tensor.detach().float().cpu().numpy().copy()
        for name, tensor in loaded.model.state_dict().items()
    }
    weights["embedding.positions"] = loaded.model.embedding.positions.detach().cpu().numpy()
    head_width = None if config.key_width * config.heads == config.d_model else config.key_width
    spec = TransformerSpec(
        _encoder(config, weights, head_width), _decoder(config, weights, head_width)
    )
    spec.config.layer_norm_epsilon = LAYER_NORM_EPSILON
    spec.config.unk_token = str(Tokenizer.unk_id)
    spec.config.bos_token = spec.config.decoder_start_token = str(Tokenizer.bos_id)
    spec.config.eos_token = str(Tokenizer.eos_id)
    names = [str(number) for number in range(loaded.tokenizer.vocabulary_size)]
    spec.register_source_vocabulary(names)
    spec.register_target_vocabulary(names)
    spec.validate()
    spec.optimize(quantization=quantization)
    spec.save(str(folder))


def _encoder(config: ModelConfig, weights: Weights, head_width: int | None) -> Any:
    from ctranslate2.specs import transformer_spec

    spec = transformer_spec.TransformerEncoderSpec(
        config.encoder_layers,
        config.heads,
        pre_norm=config.norm == "pre",
        head_dim=head_width,
        **_feed_forward_kind(config),
    )
    spec.embeddings[0].weight = weights["embedding.weight"]
    spec.position_encodings.encodings = weights["embedding.positions"]
    for number, layer in enumerate(spec.layer):
        name = f"encoder.{number}"
        _self_attention(layer.self_attention, weights, name)
        _feed_forward(layer.ffn, weights, name)
    if config.norm == "pre":
        _norm(spec.layer_norm, weights, "encoder_norm")
    return spec


def _decoder(config: ModelConfig, weights: Weights, head_width: int | None) -> Any:
    from ctranslate2.specs import transformer_spec

    spec = transformer_spec.TransformerDecoderSpec(
        config.decoder_layers,
        config.heads,
        pre_norm=config.norm == "pre",
        head_dim=head_width,
        alignment_heads=config.heads,
        **_feed_forward_kind(config),
    )
    spec.embeddings.weight = weights["embedding.weight"]
    spec.position_encodings.encodings = weights["embedding.positions"]
    spec.projection.weight = weights["embedding.weight"]
    spec.projection.bias = np.zeros(len(weights["embedding.weight"]), dtype=np.float32)
    spec.projection.bias[FORBIDDEN] = _NEVER
    for number, layer in enumerate(spec.layer):
        name = f"decoder.{number}"
        _self_attention(layer.self_attention, weights, name)
        _cross_attention(layer.attention, weights, name, config.heads * config.key_width)
        _feed_forward(layer.ffn, weights, name)
    if config.norm == "pre":
        _norm(spec.layer_norm, weights, "decoder_norm")
    return spec


def _feed_forward_kind(config: ModelConfig) -> dict[str, Any]:
    from ctranslate2.specs.common_spec import Activation

    if config.feed_forward == "relu":
        return {}
    return {"ffn_glu": True, "activation": Activation.SWISH}


def _self_attention(spec: Any, weights: Weights, name: str) -> None:
    spec.linear[0].weight = weights[f"{name}.self_attention.in_projection.weight"]
    spec.linear[1].weight = weights[f"{name}.self_attention.out_projection.weight"]
    _norm(spec.layer_norm, weights, f"{name}.self_residual.norm")


def _cross_attention(spec: Any, weights: Weights, name: str, queries: int) -> None:
    projection = weights[f"{name}.cross_attention.in_projection.weight"]
    spec.linear[0].weight, spec.linear[1].weight = projection[:queries], projection[queries:]
    spec.linear[2].weight = weights[f"{name}.cross_attention.out_projection.weight"]
    _norm(spec.layer_norm, weights, f"{name}.cross_residual.norm")


def _feed_forward(spec: Any, weights: Weights, name: str) -> None:
    gated = hasattr(spec, "linear_0_noact")
    inner = (spec.linear_0, spec.linear_0_noact) if gated else (spec.linear_0,)
    for part in ("weight", "bias"):
        halves = np.split(weights[f"{name}.feed_forward.inner.{part}"], len(inner))
        for layer, half in zip(inner, halves, strict=True):
            setattr(layer, part, half)
        setattr(spec.linear_1, part, weights[f"{name}.feed_forward.outer.{part}"])
    _norm(spec.layer_norm, weights, f"{name}.feed_forward_residual.norm")


def _norm(spec: Any, weights: Weights, name: str) -> None:
    spec.gamma, spec.beta = weights[f"{name}.weight"], weights[f"{name}.bias"]


@torch.inference_mode()
def differences(loaded: LoadedModel, engine: CTranslate2Engine) -> tuple[float, float]:
    """The largest and the mean difference of token log-probabilities, in nats, of both engines.

    Of pairs of sentences made of random subwords: they reach every part of a model and are at hand
    for every model.
    """
    chance = random.Random(1)
    longest = min(_LONGEST, loaded.config.model.max_positions - 1)
    first = max(FORBIDDEN) + 2  # from after end-of-sentence

    def sentence() -> list[int]:
        length = chance.randint(1, longest)
        return [chance.randrange(first, loaded.tokenizer.vocabulary_size) for _ in range(length)]

    sources, targets = ([sentence() for _ in range(_SENTENCES)] for _ in range(2))
    native = Forced([loaded.model], sources, targets).token_log_probs()
    fast = engine.token_log_probs(sources, targets)
    gaps = [
        abs(a - b) for pair in zip(native, fast, strict=True) for a, b in zip(*pair, strict=True)
    ]
    return max(gaps), sum(gaps) / len(gaps)
