"""The recurrent encoder-decoder with attention (LSTM, GRU), which the paper set out to replace.

A bidirectional encoder and additive attention, as Bahdanau et al. 2014 (arXiv 1409.0473). The query
is the state of the decoder's lowest layer, which reads the tokens alone; the layers above it read
that state and the context, as in GNMT (Wu et al. 2016, arXiv 1609.08144, section 3). So no layer
waits for what a later one made of the step before, and training runs each of PyTorch's own layers
over the whole sequence at once. The initial state is a function of the encoder's backward state at
the first token (Bahdanau et al., appendix A.2.2).

Shapes: B batch, S source, T target, D d_model, L decoder layers, N beams of a sentence, R = B * N.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.utils import rnn
from torch.utils.checkpoint import checkpoint

from dragoman.config import ModelConfig
from dragoman.model.cache import RowStates
from dragoman.model.encoder_decoder import AttentionMaps, EncoderDecoder
from dragoman.model.layers import Linear, dropout
from dragoman.model.sequence_model import PAD

# Of the sums of a query and a key that are in memory at once: B * T * S * D is beyond any of it.
_MOST_SUMS = 2**24

States = tuple[Tensor, ...]  # hidden and, of an LSTM, cell states; (layers, R, D) each


class Recurrence(nn.Module):
    """PyTorch's LSTM or GRU, batch first; on a CPU it computes in the dtype of its input."""

    def __init__(self, config: ModelConfig, inputs: int, layers: int, encoder: bool) -> None:
        super().__init__()
        kind = nn.LSTM if config.kind == "lstm" else nn.GRU
        self.layers = kind(
            inputs,
            config.d_model // 2 if encoder else config.d_model,
            layers,
            batch_first=True,
            dropout=config.dropout if layers > 1 else 0.0,
            bidirectional=encoder,
        )

    def forward(
        self, x: Tensor, states: States | None = None, lengths: Tensor | None = None
    ) -> tuple[Tensor, States]:
        """(B, T, inputs) -> (B, T, D) and the last states.

        lengths (B,): what comes after them is not read, and its outputs are zero.
        """
        dtype, own = x.dtype, next(self.layers.parameters()).dtype
        if x.device.type != "cpu":  # its kernels want all weights in one piece, which no copies are
            x = x.to(own)
        packed: Tensor | rnn.PackedSequence = x
        if lengths is not None:
            packed = rnn.pack_padded_sequence(
                x, lengths.cpu(), batch_first=True, enforce_sorted=False
            )
        start: Tensor | States | None = None
        if states is not None:
            states = tuple(state.to(x.dtype) for state in states)
            start = states if len(states) > 1 else states[0]
        if own == x.dtype:
            output, last = self.layers(packed, start)
        else:
            weights = {name: weight.to(dtype) for name, weight in self.layers.named_parameters()}
            output, last = functional_call(self.layers, weights, (packed, start))
        if lengths is not None:
            output, _ = rnn.pad_packed_sequence(output, batch_first=True, total_length=x.shape[1])
        return output.to(dtype), last if isinstance(last, tuple) else (last,)


class AdditiveAttention(nn.Module):
    """e_ij = v^T tanh(W s_i + U h_j), softmax over j (Bahdanau et al. 2014, appendix A.1.2)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query = Linear(width, width, bias=False)
        self.key = Linear(width, width)
        self.energy = Linear(width, 1, bias=False)

    def forward(
        self, states: Tensor, keys: Tensor, memory: Tensor, real: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Contexts (B, T, D) and weights (B, T, S) of decoder states (B, T, D).

        keys (B, S, D) is `key` of the memory (B, S, D); real (B, S), True where there is a token.
        """
        queries = self.query(states)
        rows = max(1, _MOST_SUMS // max(1, keys.numel()))
        parts = queries.split(rows, dim=1)
        if len(parts) > 1 and torch.is_grad_enabled():
            energies = [
                checkpoint(self._energies, part, keys, use_reentrant=False) for part in parts
            ]
        else:
            energies = [self._energies(part, keys) for part in parts]
        scores = torch.cat(energies, dim=1).float().masked_fill(~real[:, None], -torch.inf)
        weights = scores.softmax(dim=-1).to(memory.dtype)
        return weights @ memory, weights

    def _energies(self, queries: Tensor, keys: Tensor) -> Tensor:
        """(B, T, D), (B, S, D) -> (B, T, S)."""
        energies: Tensor = self.energy((queries[:, :, None] + keys[:, None]).tanh())
        return energies[..., 0]


class Recurrent(EncoderDecoder):
    """Encoder and decoder of LSTM or GRU layers, for token ids padded with 0.

    One embedding matrix serves source, target and output, as in the Transformer.
    """

    def __init__(self, config: ModelConfig, vocabulary_size: int) -> None:
        super().__init__(config, vocabulary_size)
        width, above = config.d_model, config.decoder_layers - 1
        self.encoder = Recurrence(config, width, config.encoder_layers, encoder=True)
        self.decoder_start = Linear(width // 2, config.decoder_layers * width)
        self.decoder_lower = Recurrence(config, width, 1, encoder=False)
        self.decoder_attention = AdditiveAttention(width)
        self.decoder_upper = Recurrence(config, 2 * width, above, encoder=False) if above else None
        self.decoder_output = Linear(2 * width, width)

    @property
    def attends(self) -> tuple[int, int]:
        """Layers and heads of the attention to the source."""
        return 1, 1

    def encode(self, source: Tensor, maps: AttentionMaps | None = None) -> Tensor:
        """(B, S) -> memory (B, S, D): at each token the states of both directions."""
        real = source != PAD
        x = self._tokens(source).masked_fill(~real[..., None], 0.0)
        place = torch.arange(1, source.shape[1] + 1, device=source.device)
        memory: Tensor = self.encoder(x, lengths=(real * place).amax(dim=1))[0]
        return dropout(memory, self._rate)

    def decode(
        self, target_in: Tensor, memory: Tensor, source: Tensor, maps: AttentionMaps | None = None
    ) -> Tensor:
        """Teacher-forced decoder states: (B, T), (B, S, D), (B, S) -> (B, T, D)."""
        read = memory, self.decoder_attention.key(memory), source != PAD
        output, _, weights = self._run(self._tokens(target_in), self._start(memory), read)
        if maps:
            maps.cross.append(weights[:, None])
        return output

    def start(self, memory: Tensor, source: Tensor, beams: int) -> RowStates:
        """The cache before the first step; the memory's keys are computed here, once."""
        read = memory, self.decoder_attention.key(memory), source != PAD
        rows = [s.transpose(0, 1).repeat_interleave(beams, dim=0) for s in self._start(memory)]
        return RowStates(beams, read, tuple(rows))

    def step_states(self, ids: Tensor, cache: RowStates) -> Tensor:
        """What the output layer reads of a step: ids (B, N) -> (B, N, D); the cache grows."""
        states = tuple(rows.transpose(0, 1).contiguous() for rows in cache.rows)
        output, states, _ = self._run(self._tokens(ids.reshape(-1, 1)), states, cache.sentences)
        cache.rows = tuple(state.transpose(0, 1) for state in states)
        cache.step += 1
        return output.view(*ids.shape, -1)

    @property
    def _rate(self) -> float:
        return self.config.dropout if self.training else 0.0

    def _tokens(self, ids: Tensor) -> Tensor:
        """Embeddings without positions: (B, T) -> (B, T, D). A recurrence knows where it is."""
        return self.embedding.without_positions(ids)

    def _start(self, memory: Tensor) -> States:
        """States before the first token, (L, B, D) each; cells are empty."""
        backward = memory[:, 0, self.config.d_model // 2 :]
        layers = self.decoder_start(backward).tanh().unflatten(1, (self.config.decoder_layers, -1))
        hidden = layers.transpose(0, 1).contiguous()
        return (hidden, torch.zeros_like(hidden)) if self.config.kind == "lstm" else (hidden,)

    def _run(
        self, x: Tensor, states: States, read: Sequence[Tensor]
    ) -> tuple[Tensor, States, Tensor]:
        """Tokens (R, T, D) of B sentences -> outputs (R, T, D), last states, weights (B, N T, S).

        read: memory (B, S, D), its keys, and where it has tokens; N rows read one sentence.
        """
        memory, keys, real = read
        lower, last = self.decoder_lower(x, tuple(state[:1] for state in states))
        queries = lower.reshape(len(memory), -1, lower.shape[-1])
        contexts, weights = self.decoder_attention(queries, keys, memory, real)
        context, top = contexts.view_as(lower), lower
        if self.decoder_upper is not None:
            both = torch.cat([dropout(lower, self._rate), context], dim=-1)
            top, above = self.decoder_upper(both, tuple(state[1:] for state in states))
            last = tuple(torch.cat(pair) for pair in zip(last, above, strict=True))
        output = self.decoder_output(torch.cat([top, context], dim=-1)).tanh()
        return dropout(output, self._rate), last, weights
