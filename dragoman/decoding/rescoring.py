"""Finished translations put through the decoder at once: token log-probabilities and attention.

Shapes: B pairs, S source with its end, T target with its end, H heads, D d_model, V vocabulary,
R = B * T rows.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from dragoman.corpus.tokenizer import Tokenizer
from dragoman.decoding.ensemble import mean_probability
from dragoman.decoding.hypothesis import Hypothesis
from dragoman.decoding.log_probs import LogProbs
from dragoman.decoding.step import FORBIDDEN, pad_rows
from dragoman.model.encoder_decoder import AttentionMaps, EncoderDecoder

Ids = Sequence[int]
# Rows whose logits are in memory at once.
_ROWS = 1024


class Forced:
    """What one or several models make of given translations, ids without bos and eos.

    token_log_probs() are those of their mean probability; attention() is the mean of the
    cross-attention over heads, layers and models.
    """

    def __init__(
        self, models: Sequence[EncoderDecoder], sources: Sequence[Ids], targets: Sequence[Ids]
    ) -> None:
        self.models, self.sources, self.targets = models, sources, targets
        bos, eos = Tokenizer.bos_id, Tokenizer.eos_id
        self._source = pad_rows([[*ids, eos] for ids in sources])
        self._target_in = pad_rows([[bos, *ids] for ids in targets])
        self._target_out = pad_rows([[*ids, eos] for ids in targets])

    @torch.inference_mode()
    def token_log_probs(self) -> list[list[float]]:
        """Natural logarithms, one for every token of a target and one for its end."""
        found = []
        for model in self.models:
            device = model.embedding.weight.device
            states = model.hidden(self._source.to(device), self._target_in.to(device))
            labels = self._target_out.to(device)
            found.append(label_log_probs(model, states.flatten(0, 1), labels.flatten()))
        chosen = mean_probability(found).double().cpu().view(self._target_out.shape)
        return [chosen[row, : len(target) + 1].tolist() for row, target in enumerate(self.targets)]

    def attention(self) -> list[list[list[float]]]:
        """Of every target's token and its end, the weights over the source's tokens and its end."""
        weights = self._attention()
        return [
            weights[row, : len(target) + 1, : len(source) + 1].tolist()
            for row, (source, target) in enumerate(zip(self.sources, self.targets, strict=True))
        ]

    def coverage(self) -> list[float]:
        """sum_i log(min(sum_j p_ij, 1)), Wu et al. 2016 (arXiv 1609.08144), Equation 14.

        i runs over the source's tokens, j over the target's and its end.
        """
        weights = self._attention()
        lengths = torch.tensor([len(target) + 1 for target in self.targets])
        real = torch.arange(weights.shape[1]) < lengths[:, None]
        received = (weights * real[..., None]).sum(dim=1)  # (B, T, S) -> (B, S)
        logs = received.clamp(1e-9, 1.0).log()
        return [float(logs[row, : len(source)].sum()) for row, source in enumerate(self.sources)]

    @torch.inference_mode()
    def _attention(self) -> Tensor:
        """(B, T, S), in float32 on the CPU."""
        found = []
        for model in self.models:
            device = model.embedding.weight.device
            source = self._source.to(device)
            maps = AttentionMaps([], [], [])
            model.decode(self._target_in.to(device), model.encode(source), source, maps)
            layers = torch.stack([weights.float().mean(dim=1) for weights in maps.cross])
            found.append(layers.mean(dim=0).cpu())
        return torch.stack(found).mean(dim=0)


def label_log_probs(model: EncoderDecoder, states: Tensor, labels: Tensor) -> Tensor:
    """Log-probabilities of labels (R,) among the symbols of a translation: (R, D) -> (R,)."""
    chosen = []
    for rows, symbols in zip(states.split(_ROWS), labels.split(_ROWS), strict=True):
        logits = model.logits(rows)
        logits[:, FORBIDDEN] = -torch.inf
        chosen.append(LogProbs.of(logits).of_each(symbols))
    return torch.cat(chosen)


def with_details(
    models: Sequence[EncoderDecoder], sources: Sequence[Ids], found: Sequence[Sequence[Hypothesis]]
) -> list[list[Hypothesis]]:
    """Every source's hypotheses with their token log-probabilities and attention."""
    forced = _forced(models, sources, found)
    details = zip(forced.token_log_probs(), forced.attention(), strict=True)
    detailed: list[list[Hypothesis]] = []
    for hypotheses in found:
        detailed.append([])
        for hypothesis in hypotheses:
            log_probs, attention = next(details)
            places = len(hypothesis.tokens) + hypothesis.finished  # what was cut has no end
            detailed[-1].append(
                replace(
                    hypothesis, token_log_probs=log_probs[:places], attention=attention[:places]
                )
            )
    return detailed


def with_coverage(
    models: Sequence[EncoderDecoder],
    sources: Sequence[Ids],
    found: Sequence[Sequence[Hypothesis]],
    beta: float,
) -> list[list[Hypothesis]]:
    """Hypotheses ranked anew by score + beta * coverage, which becomes their score."""
    coverages = iter(_forced(models, sources, found).coverage())
    ranked = [
        [replace(h, score=h.score + beta * next(coverages)) for h in hypotheses]
        for hypotheses in found
    ]
    return [sorted(hypotheses, key=lambda h: -h.score) for hypotheses in ranked]


def _forced(
    models: Sequence[EncoderDecoder], sources: Sequence[Ids], found: Sequence[Sequence[Hypothesis]]
) -> Forced:
    pairs = [
        (source, hypothesis.tokens)
        for source, hypotheses in zip(sources, found, strict=True)
        for hypothesis in hypotheses
    ]
    return Forced(models, [source for source, _ in pairs], [target for _, target in pairs])
