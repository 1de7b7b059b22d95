"""Where to compute and in which precision, by what the machine is measured to do."""

import time

import torch

from dragoman.errors import UserError

# bfloat16 must be this many times as fast as float32 to be worth its rounding.
_WORTH = 1.5
_PROBE = (128, 256, 256)  # of a product that takes no time, whatever the machine


def choose_device(name: str) -> torch.device:
    """'auto' (a GPU when there is one), 'cpu', 'cuda', 'cuda:1', ... Raises UserError."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UserError(f"unknown device '{name}'", "use auto, cpu or cuda") from None
    if device.type not in ("cpu", "cuda"):
        raise UserError(f"device '{name}' is not supported", "use auto, cpu or cuda")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UserError("this PyTorch sees no GPU", "use --device cpu, or install a CUDA build")
    return device


def choose_precision(name: str, device: torch.device) -> torch.dtype:
    """The dtype of a training step; 'auto' times a matrix product in both."""
    if name != "auto":
        return {"bfloat16": torch.bfloat16, "float32": torch.float32}[name]
    return torch.bfloat16 if bfloat16_gain(device) >= _WORTH else torch.float32


def bfloat16_gain(device: torch.device) -> float:
    """How many times as fast a bfloat16 matrix product is as a float32 one here."""
    gain = 1.0
    # Emulated, a product of full size takes a second: a small one tells that much already.
    for shape in (_PROBE, None):
        rates = [
            matrix_product_rate(device, kind, shape) for kind in (torch.bfloat16, torch.float32)
        ]
        gain = rates[0] / rates[1]
        if gain < 0.5:
            break
    return gain


def matrix_product_rate(
    device: torch.device, dtype: torch.dtype, shape: tuple[int, int, int] | None = None
) -> float:
    """Floating-point operations a second of a matrix product, the best of a few short tries.

    shape: (rows, inner, columns) of the product; None: what a training step of the device is like.
    """
    usual = (1024, 512, 1024) if device.type == "cpu" else (8192, 4096, 8192)
    rows, inner, columns = shape or usual
    # Measured in the middle of a run it must not draw from the random numbers that training has.
    chance = torch.Generator(device).manual_seed(0)
    left = torch.randn(rows, inner, device=device, generator=chance).to(dtype)
    right = torch.randn(inner, columns, device=device, generator=chance).to(dtype)
    best = float("inf")
    for _ in range(6):
        _synchronize(device)
        start = time.perf_counter()
        left @ right
        _synchronize(device)
        best = min(best, time.perf_counter() - start)
    return 2 * rows * inner * columns / best


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
