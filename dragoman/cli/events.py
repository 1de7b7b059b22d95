"""What a training log holds beside updates and validations: its starts and its end."""

from typing import Any

from dragoman.cli.card import TrainingSummary
from dragoman.model.sequence_model import parameter_count
from dragoman.training.machine import machine_facts
from dragoman.training.trainer import Trainer

Event = dict[str, Any]


def start_event(trainer: Trainer, pairs: int) -> Event:
    """Where and with what a run begins or goes on; `peak` in operations a second."""
    return {
        "event": "start",
        "step": trainer.state.step,
        "seconds": round(trainer.state.seconds, 2),
        **machine_facts(trainer.device),
        "ranks": trainer.ranks.size,
        "precision": str(trainer.precision).removeprefix("torch."),
        "peak": round(trainer.peak),
        "parameters": parameter_count(trainer.model),
        "pairs": pairs,
    }


def end_event(summary: TrainingSummary) -> Event:
    """What a run came to."""
    return {
        "event": "end",
        "step": summary.steps,
        "epoch": summary.epochs - 1,
        "seconds": round(summary.seconds, 2),
        "tokens": summary.tokens,
        "tokens_per_second": round(summary.tokens_per_second),
        "utilization": summary.utilization,
        "nll": summary.nll,
        "perplexity": summary.perplexity,
        "kept": summary.kept,
        **summary.results.values,
    }
