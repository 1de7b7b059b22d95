"""What a training ran on: said once at its start, for its log and its report."""

import os
import platform
from datetime import UTC, datetime
from pathlib import Path

import torch

from dragoman import __version__
from dragoman.model.kernels import kernels

_GIB = 1024**3


def machine_facts(device: torch.device) -> dict[str, str | int | float]:
    """Time (UTC), hardware and versions, without the name of the machine or of a person.

    `kernels` tells whether the CPU's compiled kernels are in use, or why not. `cores` are those
    this process may use, `threads` those a matrix product takes.
    """
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": str(device),
        "processor": _processor(device),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else _cores(),
        "threads": torch.get_num_threads(),
        "kernels": kernels().reason or "compiled",
        "memory_gib": _memory_gib(device),
        "system": f"{platform.system()} {platform.machine()}",
        "dragoman": __version__,
        "torch": str(torch.__version__),
        "python": platform.python_version(),
    }


def _cores() -> int:
    return os.cpu_count() or 1


def _processor(device: torch.device) -> str:
    """The name of what computes: of the GPU, else of the processor."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").split("\n"):
            name, colon, value = line.partition(":")
            if colon and name.strip() == "model name":
                return " ".join(value.split())
    except OSError:  # another system than Linux
        pass
    return platform.processor() or platform.machine()


def _memory_gib(device: torch.device) -> float:
    """Of the GPU, else of the machine; 0 where it is not told."""
    if device.type == "cuda":
        return round(torch.cuda.get_device_properties(device).total_memory / _GIB, 1)
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / _GIB, 1)
    except (AttributeError, OSError, ValueError):
        return 0.0
