"""The model card: what a model was made from, how good it is, how to use it."""

from dataclasses import dataclass

from dragoman import __version__
from dragoman.config import Config
from dragoman.corpus.prepared import PreparedCorpus
from dragoman.evaluation.metrics import Metrics
from dragoman.training.progress import duration


@dataclass(frozen=True)
class TrainingSummary:
    """What a run came to. `kept` says in words which weights the model has.

    utilization: the share of the machine's matrix-product peak over all of it, in percent.
    """

    steps: int
    epochs: int
    tokens: int
    seconds: float
    nll: float
    perplexity: float
    kept: str
    vocabulary_size: int
    parameters: int
    scores: Metrics
    utilization: float

    @property
    def tokens_per_second(self) -> float:
        """Target tokens a second of the whole training, validation and checkpoints included."""
        return self.tokens / self.seconds if self.seconds else 0.0

    @property
    def speed(self) -> str:
        """The speed of the whole training in words."""
        return (
            f"{self.tokens_per_second:,.0f} target tokens/s and {self.utilization:.0f}% of the "
            "machine's matrix-product peak, validation and checkpoints included"
        )


def model_card(config: Config, corpus: PreparedCorpus, summary: TrainingSummary) -> str:
    """The README.md of a model folder."""
    languages = f"{config.source_language} -> {config.target_language}"
    model, search, scores = config.model, config.search, summary.scores
    note = f"\n\nNote: {scores.note}." if scores.note else ""
    return f"""# {languages}

A Transformer that translates from `{config.source_language}` to `{config.target_language}`, made
with Dragoman {__version__}.

## Use

```sh
dragoman translate --model DIR --text "..."      # DIR: this folder
dragoman translate --model DIR < source.txt > translation.txt
```

```python
from dragoman.decoding.translator import Translator

print(Translator.load("DIR").translate(["..."])[0].text)
```

## Results

On {scores.sentences:,} validation segments, beam {search.beam}:

- BLEU {scores.bleu:.2f} (`{scores.bleu_signature}`)
- chrF2 {scores.chrf:.2f} (`{scores.chrf_signature}`)
- perplexity {summary.perplexity:.3f} a subword (all validation data)

The weights are {summary.kept}. Validation data chose them, so these scores flatter a little:
measure on text that took no part with `dragoman evaluate`.{note}

## Data

- from {", ".join(f"`{name}`" for name in corpus.inputs)}
- {corpus.training_pairs:,} training pairs, {corpus.validation_pairs:,} validation pairs, \
after cleaning
- the license of the data applies to this model

## Model

- preset `{config.preset}`: {summary.parameters:,} parameters, {summary.vocabulary_size:,} subwords
- {model.encoder_layers} encoder and {model.decoder_layers} decoder layers, d_model \
{model.d_model}, d_ff {model.d_ff}, {model.heads} heads, {model.norm}-norm
- every setting is in `config.toml`

## Training

{summary.steps:,} updates in {duration(summary.seconds)}, {summary.epochs} epochs begun, \
{summary.tokens:,} target tokens: {summary.speed}.{_origin(config)}
"""


def _origin(config: Config) -> str:
    """The paragraph on the model that training went on from, where there was one."""
    parent, rank = config.parent, config.training.lora_rank
    teachers = _teachers(config)
    if parent.weights is None:
        return teachers
    text = teachers + (
        f"\n\nTraining went on from the model `{parent.name}` (SHA-256 of its weights "
        f"`{parent.weights}`), with its vocabulary."
    )
    if rank:
        text += f" Only adapters of rank {rank} were trained (LoRA); they are merged in."
    return text


def _teachers(config: Config) -> str:
    """The paragraph on the models whose translations were learned, where there were some."""
    distilled = config.distillation
    if not distilled.teachers:
        return ""
    named = [
        f"`{name}` (SHA-256 of its weights `{weights}`)"
        for name, weights in zip(distilled.teachers, distilled.weights, strict=True)
    ]
    return f"\n\nDistilled: it learned the translations of the model {' and '.join(named)}."
