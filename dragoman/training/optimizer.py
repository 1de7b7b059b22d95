"""Adam with the paper's settings (section 5.3), and its state as named tensors."""

import torch
from torch import Tensor, nn

from dragoman.config import TrainingConfig


def make_optimizer(model: nn.Module, config: TrainingConfig) -> torch.optim.AdamW:
    """Fused Adam for what is not frozen; weight decay is decoupled and spares vectors.

    Those are norms and biases.
    """
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    matrices = [p for p in trained if p.dim() > 1]
    vectors = [p for p in trained if p.dim() <= 1]
    groups = [
        {"params": matrices, "weight_decay": config.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        groups,
        lr=0.0,
        betas=(config.adam_beta1, config.adam_beta2),
        eps=config.adam_epsilon,
        fused=True,
    )


def optimizer_tensors(optimizer: torch.optim.Optimizer, model: nn.Module) -> dict[str, Tensor]:
    """The optimizer's state as ``parameter name/entry`` tensors."""
    return {
        f"{name}/{entry}": value
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
        for entry, value in optimizer.state[parameter].items()
    }


def restore_optimizer(
    optimizer: torch.optim.Optimizer, model: nn.Module, tensors: dict[str, Tensor]
) -> None:
    """Put saved tensors back. The inverse of `optimizer_tensors`."""
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        optimizer.state[parameter] = {
            key.removeprefix(f"{name}/"): tensor.to(parameter.device)
            for key, tensor in tensors.items()
            if key.startswith(f"{name}/")
        }
