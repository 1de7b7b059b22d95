"""What every head of a model attends to in one sentence pair, with the pair's subwords.

Letters: L layers, H heads, S source with its end, T translation with its end.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import torch
from torch import Tensor

from dragoman.corpus.tokenizer import Tokenizer
from dragoman.decoding.engine import Request
from dragoman.decoding.native import NativeEngine
from dragoman.errors import UserError
from dragoman.inspection.head_summaries import FloatArray, HeadSummaries, summarize_heads
from dragoman.model.folder import LoadedTransformer

Kind = Literal["encoder", "decoder", "cross"]
KINDS: Final[tuple[Kind, ...]] = ("encoder", "decoder", "cross")
START, END = "<s>", "</s>"


@dataclass(frozen=True)
class SentenceAttention:
    """Attention weights of one sentence pair by kind, (L, H, queries, keys), rows add up to 1.

    encoder: source to source, (L, H, S, S). decoder: translation to its own beginning, (L, H, T,
    T), zero above the diagonal. cross: translation to source, (L, H, T, S).

    Subwords are as `Tokenizer.pieces` shows them, `▁` before a word; source ends with `</s>`. Row t
    of decoder and cross reads target_in[t], which begins with `<s>`, and writes target_out[t],
    which ends with `</s>`. spans holds what the slots `⟨1⟩`, `⟨2⟩`, ... of the source stand for;
    own is True where the translation is the model's own.
    """

    text: str
    translation: str
    own: bool
    source: tuple[str, ...]
    target_in: tuple[str, ...]
    target_out: tuple[str, ...]
    spans: tuple[str, ...]
    encoder: FloatArray
    decoder: FloatArray
    cross: FloatArray

    def weights(self, kind: Kind) -> FloatArray:
        """The weights of a kind, (L, H, queries, keys)."""
        return {"encoder": self.encoder, "decoder": self.decoder, "cross": self.cross}[kind]

    def queries(self, kind: Kind) -> tuple[str, ...]:
        """The subwords that attend: of the decoder those it reads, of cross those it writes."""
        queries = {"encoder": self.source, "decoder": self.target_in, "cross": self.target_out}
        return queries[kind]

    def keys(self, kind: Kind) -> tuple[str, ...]:
        """The subwords that are attended to."""
        return self.target_in if kind == "decoder" else self.source

    def summaries(self, kind: Kind) -> HeadSummaries:
        """What kind of reader every head is."""
        mark = 0 if kind == "decoder" else len(self.source) - 1
        return summarize_heads(self.weights(kind), mark, same_positions=kind != "cross")


def sentence_attention(
    loaded: LoadedTransformer, text: str, target: str | None = None
) -> SentenceAttention:
    """The attention of a model to a text and a translation, without one to the model's own.

    The weights are those of the model's own attention function, in float32. Raises UserError for a
    blank text, and for one or a translation that is longer than the model's positions.
    """
    tokenizer = loaded.tokenizer
    text = text.strip()
    if not text:
        raise UserError("the text is blank", "give a sentence")
    spans: Sequence[str]
    if target is None:
        source_ids, spans = tokenizer.encode_source(text)
        _check_length(source_ids, "text", loaded)
        target_ids = _translate(loaded, source_ids)
        translation = tokenizer.decode_target(target_ids, spans)
    else:
        translation = target.strip()
        source_ids, target_ids = tokenizer.encode_pair(text, translation)
        spans = tokenizer.encode_source(text)[1]
        _check_length(source_ids, "text", loaded)
        _check_length(target_ids, "translation", loaded)
    source, written = tokenizer.pieces(source_ids), tokenizer.pieces(target_ids)
    return SentenceAttention(
        text,
        translation,
        target is None,
        (*source, END),
        (START, *written),
        (*written, END),
        tuple(spans),
        *_weights(loaded, source_ids, target_ids),
    )


def _check_length(ids: Sequence[int], name: str, loaded: LoadedTransformer) -> None:
    limit = loaded.config.model.max_positions - 1
    if len(ids) > limit:
        raise UserError(
            f"the {name} has {len(ids):,} tokens; the model takes {limit:,}",
            "give a part of it",
        )


def _translate(loaded: LoadedTransformer, source_ids: list[int]) -> list[int]:
    """The whole text at once, as one sentence: what is split has no attention of its own."""
    request = Request(loaded.config.search)
    return NativeEngine(loaded).search([source_ids], request)[0][0].tokens


@torch.inference_mode()
def _weights(
    loaded: LoadedTransformer, source_ids: list[int], target_ids: list[int]
) -> tuple[FloatArray, FloatArray, FloatArray]:
    device = loaded.model.embedding.weight.device
    source = torch.tensor([[*source_ids, Tokenizer.eos_id]], device=device)
    target_in = torch.tensor([[Tokenizer.bos_id, *target_ids]], device=device)
    maps = loaded.model.attention_maps(source, target_in)
    return _stack(maps.encoder), _stack(maps.decoder), _stack(maps.cross)


def _stack(layers: list[Tensor]) -> FloatArray:
    """Weights by layer, each (1, H, Q, M) -> (L, H, Q, M)."""
    stacked: FloatArray = torch.cat(layers).float().cpu().numpy().astype(np.float32, copy=False)
    return stacked
