"""What a run has besides weights and optimizer: its counters, and its random state."""

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass
class TrainingState:
    """Counters of a run; with weights, optimizer and random state it is all of it."""

    step: int = 0
    epoch: int = 0
    batch: int = 0  # batches of this epoch that are done
    tokens: int = 0  # target tokens trained on
    flops: int = 0  # floating-point operations that took (dragoman.training.utilization)
    seconds: float = 0.0  # spent training, over all interruptions
    validations: int = 0
    best_nll: float = math.inf
    best_step: int = 0
    worse: int = 0  # validations since the best
    validated_steps: list[int] = field(default_factory=list)


def random_state(device: torch.device) -> dict[str, str]:
    """The state of the random generators that training on a device draws from, as text."""
    states = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    return {name: _to_hex(state) for name, state in states.items()}


def restore_random(saved: dict[str, str], device: torch.device) -> None:
    """Put a saved state back. The inverse of `random_state`."""
    torch.set_rng_state(_from_hex(saved["cpu"]))
    if device.type == "cuda" and "cuda" in saved:
        torch.cuda.set_rng_state(_from_hex(saved["cuda"]), device)


def _to_hex(state: Tensor) -> str:
    return bytes(state.numpy()).hex()


def _from_hex(text: str) -> Tensor:
    return torch.frombuffer(bytearray.fromhex(text), dtype=torch.uint8)
