"""How much of the machine training uses: its arithmetic, counted, over what the machine can do.

Letters: D d_model, F d_ff, H heads, K d_k, W d_v, V vocabulary, s and t the tokens of one sentence.
"""

import time
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from dragoman.config import ModelConfig
from dragoman.corpus.batches import Batch
from dragoman.model.sequence_model import PAD
from dragoman.training.precision import matrix_product_rate

# (rows, inner, columns) of the products that find a machine's best rate; which one does differs.
_CPU_SHAPES = ((1024, 512, 1024), (1024, 1024, 1024), (2048, 512, 2048))
_GPU_SHAPES = ((4096, 4096, 4096), (8192, 4096, 8192), (8192, 8192, 8192))
# No further shape is begun after so many seconds: a slow machine is measured by its small products.
_LONGEST = 0.25

Lengths = npt.NDArray[np.integer[Any]]


@dataclass(frozen=True, slots=True)
class TrainingCost:
    """Floating-point operations of an update's matrix products, by what they depend on.

    A product (n, i) (i, o) takes 2 n i o. The backward pass takes twice the forward pass, one
    product for either factor's gradient (Kaplan et al. 2020, section 2.1, whose C = 6 N a token
    this is, with attention and the output layer counted in full as in Hoffmann et al. 2022,
    appendix F). Only real tokens count, padding is waste; attention counts every pair of positions,
    masked or not, as both papers do. Normalization, softmax, dropout and the optimizer are no
    matrix products and count nothing, so recomputation or padding can only lower a utilization.
    """

    source_token: int
    target_token: int
    source_pair: int  # for each s²
    target_pair: int  # for each t²
    cross_pair: int  # for each s t
    sentence: int = 0

    @classmethod
    def of(
        cls,
        config: ModelConfig,
        vocabulary_size: int,
        passes: int = 1,
        stacks: Collection[str] = ("encoder", "decoder"),
    ) -> "TrainingCost":
        """For the model of a configuration with the output layer over V symbols.

        passes: how often every sentence goes through the model in one update; stacks: those that
        the model has. A single stack reads the target and attends to no other.
        """
        times = 6 * passes  # two operations a multiplication, in three products
        if config.kind != "transformer":
            source, target, pair, start = _replaced(config)
            target += config.d_model * vocabulary_size
            return cls(times * source, times * target, 0, 0, times * pair, times * start)
        width, keys = config.d_model, config.heads * config.key_width
        values = config.heads * config.value_width
        encoder, decoder = config.encoder_layers, config.decoder_layers
        attention = width * (2 * keys + 2 * values)  # W^Q, W^K, W^V, W^O
        feed_forward = (3 if config.feed_forward == "gated" else 2) * width * config.d_ff
        memory = decoder * width * (keys + values)  # W^K, W^V of the memory, by source token
        cross = width * (keys + values)  # W^Q, W^O
        pair = keys + values  # Q K^T and weights V of all heads
        layer = attention + cross + feed_forward
        if len(stacks) == 1:
            layers = decoder if "decoder" in stacks else encoder
            token = layers * (attention + feed_forward) + width * vocabulary_size
            return cls(0, times * token, 0, times * layers * pair, 0)
        return cls(
            source_token=times * (encoder * (attention + feed_forward) + memory),
            target_token=times * (decoder * layer + width * vocabulary_size),
            source_pair=times * encoder * pair,
            target_pair=times * decoder * pair,
            cross_pair=times * decoder * pair,
        )

    def of_batch(self, batch: Batch) -> int:
        """Forward and backward for the sentences of a batch."""
        source, target = (batch.source != PAD).sum(axis=1), (batch.target_in != PAD).sum(axis=1)
        return self.of_lengths(source, target)

    def of_lengths(self, source: Lengths, target: Lengths) -> int:
        """Forward and backward for sentences of so many tokens, eos included: two of (B,)."""
        source, target = source.astype(np.int64), target.astype(np.int64)
        return (
            self.sentence * len(source)
            + self.source_token * int(source.sum())
            + self.target_token * int(target.sum())
            + self.source_pair * int((source * source).sum())
            + self.target_pair * int((target * target).sum())
            + self.cross_pair * int((source * target).sum())
        )


def _replaced(config: ModelConfig) -> tuple[int, int, int, int]:
    """Multiplications of a kind that the Transformer replaced, without the output layer.

    For each source token, target token, pair of both, and sentence.
    """
    square = config.d_model * config.d_model
    encoder, decoder = config.encoder_layers, config.decoder_layers
    if config.kind == "convolutional":
        convolution = 2 * config.kernel_width * square
        layer = convolution + 2 * square  # W_d of the query, and the context's
        return encoder * convolution, decoder * layer + square, decoder * 2 * config.d_model, 0
    gates = 4 if config.kind == "lstm" else 3
    # A layer reads its input and its own state; an encoder's is of two directions of half width.
    source = encoder * gates * (square + square // 2) + square  # the memory's keys
    layers = gates * (2 * decoder + (decoder > 1)) * square  # the second reads the context too
    target = layers + square + 2 * square  # W of the query, and the output's layer
    start = decoder * square // 2  # the initial states
    return source, target, 2 * config.d_model, start  # energies, and weights times memory


def matrix_product_peak(device: torch.device, dtype: torch.dtype) -> float:
    """The best rate of a matrix product here, in floating-point operations a second.

    With the threads that training has, in well under a second. Other work on the machine lowers it.
    """
    begun, best = time.perf_counter(), 0.0
    for shape in _CPU_SHAPES if device.type == "cpu" else _GPU_SHAPES:
        best = max(best, matrix_product_rate(device, dtype, shape))
        if time.perf_counter() - begun > _LONGEST:
            break
    return best


def utilization(flops: int, seconds: float, peak: float) -> float:
    """What share of the peak so many operations in such a time are, in percent."""
    return round(100 * flops / (seconds * peak), 2)
