"""The weights of a model folder under the names that Hugging Face transformers gives them.

Post-norm models become MarianMT; pre-norm ones Pegasus, which is the same model with the
normalizations where ours are. Both take our table of positions as it is.
"""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from dragoman.config import ModelConfig
from dragoman.corpus.tokenizer import Tokenizer
from dragoman.decoding.step import FORBIDDEN
from dragoman.model.folder import load_model

_NORMS = {
    "self_residual": "self_attn_layer_norm",
    "cross_residual": "encoder_attn_layer_norm",
    "feed_forward_residual": "final_layer_norm",
}


def write_huggingface(model: Path, folder: Path) -> None:
    """Write `config.json` and `model.safetensors` into an existing folder.

    Raises ValueError for a model whose heads are not d_model / heads wide.
    """
    loaded = load_model(model)
    config, state = loaded.config.model, loaded.model.state_dict()
    if config.key_width * config.heads != config.d_model or config.key_width != config.value_width:
        raise ValueError("transformers has heads of d_model / heads only")
    weights = {"model.shared.weight": state["embedding.weight"]}
    bias = torch.zeros(1, loaded.tokenizer.vocabulary_size)
    bias[:, FORBIDDEN] = -1e9
    weights["final_logits_bias"] = bias
    for side, layers in (("encoder", config.encoder_layers), ("decoder", config.decoder_layers)):
        weights[f"model.{side}.embed_positions.weight"] = loaded.model.embedding.positions
        for number in range(layers):
            weights |= _layer(state, f"{side}.{number}", f"model.{side}.layers.{number}")
        if config.norm == "pre":
            for part in ("weight", "bias"):
                weights[f"model.{side}.layer_norm.{part}"] = state[f"{side}_norm.{part}"]
    save_file(
        {name: tensor.detach().float().contiguous().clone() for name, tensor in weights.items()},
        folder / "model.safetensors",
    )
    settings = _settings(config, loaded.tokenizer.vocabulary_size)
    (folder / "config.json").write_text(json.dumps(settings))


def _layer(state: dict[str, Tensor], ours: str, theirs: str) -> dict[str, Tensor]:
    found = {}
    kinds = {"self_attention": "self_attn", "cross_attention": "encoder_attn"}
    for kind, name in kinds.items():
        if f"{ours}.{kind}.in_projection.weight" not in state:
            continue
        parts = state[f"{ours}.{kind}.in_projection.weight"].chunk(3)
        out = state[f"{ours}.{kind}.out_projection.weight"]
        for letter, weight in zip(("q", "k", "v", "out"), (*parts, out), strict=True):
            found[f"{theirs}.{name}.{letter}_proj.weight"] = weight
            found[f"{theirs}.{name}.{letter}_proj.bias"] = torch.zeros(len(weight))
    for part in ("weight", "bias"):
        for inner, name in (("inner", "fc1"), ("outer", "fc2")):
            found[f"{theirs}.{name}.{part}"] = state[f"{ours}.feed_forward.{inner}.{part}"]
        for norm, name in _NORMS.items():
            if f"{ours}.{norm}.norm.{part}" in state:
                found[f"{theirs}.{name}.{part}"] = state[f"{ours}.{norm}.norm.{part}"]
    return found


def _settings(config: ModelConfig, vocabulary_size: int) -> dict[str, Any]:
    sizes: dict[str, Any] = {}
    for side, layers in (("encoder", config.encoder_layers), ("decoder", config.decoder_layers)):
        sizes[f"{side}_layers"] = layers
        sizes[f"{side}_attention_heads"] = config.heads
        sizes[f"{side}_ffn_dim"] = config.d_ff
    return sizes | {
        "class": "Pegasus" if config.norm == "pre" else "Marian",
        "vocab_size": vocabulary_size,
        "decoder_vocab_size": vocabulary_size,
        "d_model": config.d_model,
        "max_position_embeddings": config.max_positions,
        "activation_function": "relu",
        "scale_embedding": True,
        "pad_token_id": Tokenizer.pad_id,
        "bos_token_id": Tokenizer.bos_id,
        "eos_token_id": Tokenizer.eos_id,
        "decoder_start_token_id": Tokenizer.bos_id,
        "forced_eos_token_id": None,
    }
