"""The model card: what a model was made from, how good it is, how to use it."""

from dataclasses import dataclass

from dragoman import __version__
from dragoman.cli.validation import Results, TaskRun
from dragoman.config import Config
from dragoman.corpus.prepared import PreparedCorpus
from dragoman.model.description import KINDS, sizes, stacks, title
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
    unit: str  # of what `tokens` counts
    vocabulary_size: int
    parameters: int
    results: Results
    utilization: float

    @property
    def tokens_per_second(self) -> float:
        """Tokens a second of the whole training, validation and checkpoints included."""
        return self.tokens / self.seconds if self.seconds else 0.0

    @property
    def speed(self) -> str:
        """The speed of the whole training in words."""
        return (
            f"{self.tokens_per_second:,.0f} {self.unit}/s and {self.utilization:.0f}% of the "
            "machine's matrix-product peak, validation and checkpoints included"
        )


def model_card(
    config: Config, corpus: PreparedCorpus, summary: TrainingSummary, task: TaskRun
) -> str:
    """The README.md of a model folder."""
    rows, kind = task.rows, "Transformer" if config.model.kind == "transformer" else "model"
    layers = " and ".join(f"{count} {name}" for name, count in stacks(config).items())
    measure = KINDS[config.task].measure
    if measure:
        measure = f":\nmeasure on text that took no part with `{measure}`"
    return f"""# {title(config)}

A {kind} that {task.purpose}, made with Dragoman {__version__}.

## Use

{task.usage}

## Results

{summary.results.card}

The weights are {summary.kept}. Validation data chose them, so these scores flatter a \
little{measure}.

## Data

- from {", ".join(f"`{name}`" for name in corpus.inputs)}
- {corpus.training_pairs:,} training {rows}, {corpus.validation_pairs:,} validation {rows}, \
after cleaning
- the license of the data applies to this model

## Model

- preset `{config.preset}`: {summary.parameters:,} parameters, {summary.vocabulary_size:,} subwords
- {layers} layers, {sizes(config)}
- every setting is in `config.toml`

## Training

{summary.steps:,} updates in {duration(summary.seconds)}, {summary.epochs} epochs begun, \
{summary.tokens:,} {task.tokens}: {summary.speed}.{_origin(config)}
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
