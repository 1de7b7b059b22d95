"""Adam with the paper's settings (section 5.3), and its state as named tensors."""

import ctypes
import math
from typing import Any

import torch
from torch import Tensor, nn

from dragoman.config import TrainingConfig
from dragoman.model.kernels import kernels
from dragoman.training.distributed import whole_tensor

_POINTER, _DOUBLE = ctypes.c_void_p, ctypes.c_double


class _Weights(ctypes.Structure):
    """Of adam.cpp: one tensor."""

    _fields_ = (
        *((name, _POINTER) for name in ("weight", "gradient", "mean", "square", "step")),
        *(("size", ctypes.c_int64), ("decay", ctypes.c_float)),
    )


class _Settings(ctypes.Structure):
    """Of adam.cpp."""

    _fields_ = tuple((name, _DOUBLE) for name in ("rate", "beta1", "beta2", "epsilon", "scale"))


class Adam(torch.optim.AdamW):
    """PyTorch's, with its state; on a CPU all weights are updated by one call of adam.cpp.

    That call also clips, which takes PyTorch one more pass over the gradients.
    """

    _scale = 1.0  # of the gradients at the next step

    def clip(self, limit: float) -> float:
        """The norm of all gradients together, which the next step limits; 0 = no limit."""
        limit = limit or math.inf
        trained = self._trained()
        if trained is None:
            parameters = [one for group in self.param_groups for one in group["params"]]
            return float(whole_tensor(nn.utils.clip_grad_norm_(parameters, limit)))
        norm: float = kernels().functions.gradient_norm(len(trained), trained)
        self._scale = min(1.0, limit / (norm + 1e-6))  # as PyTorch's clip_grad_norm_
        return norm

    def step(self, closure: Any = None) -> Any:
        """One update."""
        trained = self._trained() if closure is None else None
        if trained is None:
            return super().step(closure)
        group = self.param_groups[0]
        settings = _Settings(group["lr"], *group["betas"], group["eps"], self._scale)
        kernels().functions.adam_step(len(trained), trained, ctypes.byref(settings))
        self._scale = 1.0
        return None

    def _trained(self) -> Any:
        """What adam.cpp is to update, an array; None where there is something that it cannot."""
        found = []
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                if not (_is_plain(weight) and _is_plain(weight.grad) and kernels().library):
                    return None
                state = self.state[weight]
                if "step" not in state:  # as PyTorch makes it
                    moments = {name: torch.zeros_like(weight) for name in ("exp_avg", "exp_avg_sq")}
                    state.update({"step": torch.zeros(()), **moments})
                tensors = weight, weight.grad, state["exp_avg"], state["exp_avg_sq"], state["step"]
                addresses = (tensor.data_ptr() for tensor in tensors)
                found.append(_Weights(*addresses, weight.numel(), group["weight_decay"]))
        return (_Weights * len(found))(*found)


def _is_plain(tensor: Tensor) -> bool:
    """Whether adam.cpp can take it: float32 in the memory of a CPU, and no share of a tensor."""
    return (
        type(tensor) in (Tensor, nn.Parameter)
        and tensor.device.type == "cpu"
        and tensor.dtype == torch.float32
        and tensor.is_contiguous()
    )


def make_optimizer(model: nn.Module, config: TrainingConfig) -> Adam:
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
    return Adam(
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
