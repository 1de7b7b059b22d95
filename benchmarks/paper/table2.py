"""The cost of training as the paper's Table 2 estimates it, of one's own runs and the paper's.

python benchmarks/paper/table2.py MODEL [MODEL ...]

The paper multiplies the time of training, the number of processors and the single-precision
floating-point operations a second that one of them sustains. MODEL is a folder of `dragoman train`;
its log has the time and, as what its processors sustain together, the best rate of a matrix product
in the training's precision that was measured as it began. Beside that stand the operations that
training needed, counted (dragoman.training.utilization). Their share of the estimate is how much of
the processors the training used. What is counted for the paper's models are its updates of 25,000
source and 25,000 target tokens, in sentences of --sentence-tokens (they hardly matter).
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dragoman.config import resolve_config
from dragoman.errors import UserError
from dragoman.inspection.training_log import Record, read_training_log
from dragoman.training.utilization import TrainingCost

# Section 6.1's footnote: what a P100 sustains in single precision.
_P100 = 9.5e12
_GPUS = 8


@dataclass(frozen=True)
class Published:
    """A row of Table 2: BLEU on newstest2014 and floating-point operations; None: not printed."""

    name: str
    bleu: tuple[float | None, float | None]  # English-German, English-French
    operations: tuple[float | None, float | None]


PUBLISHED = (
    Published("ByteNet", (23.75, None), (None, None)),
    Published("Deep-Att + PosUnk", (None, 39.2), (None, 1.0e20)),
    Published("GNMT + RL", (24.6, 39.92), (2.3e19, 1.4e20)),
    Published("ConvS2S", (25.16, 40.46), (9.6e18, 1.5e20)),
    Published("MoE", (26.03, 40.56), (2.0e19, 1.2e20)),
    Published("Deep-Att + PosUnk, ensemble", (None, 40.4), (None, 8.0e20)),
    Published("GNMT + RL, ensemble", (26.30, 41.16), (1.8e20, 1.1e21)),
    Published("ConvS2S, ensemble", (26.36, 41.29), (7.7e19, 1.2e21)),
    Published("Transformer (base)", (27.3, 38.1), (3.3e18, None)),
    Published("Transformer (big)", (28.4, 41.8), (2.3e19, None)),
)


@dataclass(frozen=True)
class Training:
    """A training's cost; sustained in operations a second of all processors together."""

    name: str
    seconds: float
    processors: str
    sustained: float
    counted: float

    @property
    def estimated(self) -> float:
        """Time x processors x sustained operations a second."""
        return self.seconds * self.sustained


def own_training(model: Path) -> Training:
    """What the log of a finished training tells. Raises UserError for one that is not finished."""
    records = read_training_log(model / "training" / "log.jsonl").records
    if not records["start"] or not records["end"] or not records["start"][-1].get("peak"):
        raise UserError(
            f"{model}: its training has not ended, or measured no matrix products",
            "name a model folder of a finished 'dragoman train'",
        )
    starts, end = records["start"], records["end"][-1]
    seconds, last = end["seconds"], starts[-1]
    return Training(
        name=model.resolve().name,
        seconds=seconds,
        processors=_processors(last),
        sustained=_sustained(starts, seconds),
        # The log's share is of the last start's peak.
        counted=end["utilization"] / 100 * seconds * last["peak"],
    )


def _processors(start: Record) -> str:
    cores = "" if start["device"] != "cpu" else f", {start['threads']} threads"
    return f"{start['ranks']} x {start['processor']}{cores}, {start['precision']}"


def _sustained(starts: Sequence[Record], seconds: float) -> float:
    """The mean over the time; a resumed training measured at each start, maybe elsewhere."""
    ends = [*(start["seconds"] for start in starts[1:]), seconds]
    spans = [end - start["seconds"] for start, end in zip(starts, ends, strict=True)]
    return sum(span * start["peak"] for span, start in zip(spans, starts, strict=True)) / seconds


def papers_training(preset: str, hours: float, sentence_tokens: int) -> Training:
    """Section 5: the time of base or big on eight P100, and the arithmetic of its updates."""
    config = resolve_config(preset)
    cost = TrainingCost.of(config.model, config.data.vocabulary_size)
    lengths = np.full(round(config.training.batch_tokens / sentence_tokens), sentence_tokens)
    updates = config.training.max_steps or 0
    counted = float(updates) * cost.of_lengths(lengths, lengths)
    return Training(preset, 3600 * hours, f"{_GPUS} x P100, float32", _GPUS * _P100, counted)


def training_table(trainings: Sequence[Training]) -> str:
    """Markdown: both costs of each training."""
    lines = [
        "| training | time | processors | sustained, all together | time x processors x sustained "
        "| counted | counted / estimated |",
        "| --- | ---: | --- | ---: | ---: | ---: | ---: |",
    ]
    for training in trainings:
        share = training.counted / training.estimated
        lines.append(
            f"| {training.name} | {_duration(training.seconds)} | {training.processors} | "
            f"{training.sustained / 1e12:,.2f} TFLOP/s | {training.estimated:.1e} | "
            f"{training.counted:.1e} | {share:.1%} |"
        )
    return "\n".join(lines)


def _duration(seconds: float) -> str:
    return f"{seconds / 3600:,.1f} h" if seconds >= 3600 else f"{seconds / 60:.1f} min"


def published_table() -> str:
    """Markdown: Table 2."""
    lines = [
        "| model | BLEU En-De | BLEU En-Fr | FLOPs En-De | FLOPs En-Fr |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for row in PUBLISHED:
        bleu = [f"{value:g}" if value else "" for value in row.bleu]
        operations = [f"{value:.1e}" if value else "" for value in row.operations]
        lines.append(f"| {' | '.join([row.name, *bleu, *operations])} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="*", type=Path)
    parser.add_argument("--sentence-tokens", type=int, default=25)
    options = parser.parse_args()
    try:
        trainings = [own_training(model) for model in options.models]
    except UserError as error:
        raise SystemExit(f"error: {error.message}\nhint: {error.hint}") from None
    for preset, hours in (("paper-base", 12.0), ("paper-big", 3.5 * 24)):
        trainings.append(papers_training(preset, hours, options.sentence_tokens))
    print(f"{training_table(trainings)}\n\nAs published, newstest2014:\n\n{published_table()}")


if __name__ == "__main__":
    main()
