"""The functions of the C++ files beside this one, called through ctypes.

They are compiled once a machine and held against PyTorch.

Where there is no C++ compiler, or what it makes is wrong, PyTorch's own operations do the same in
more passes over memory. The environment variable DRAGOMAN_KERNELS=off asks for that.
"""

import ctypes
import functools
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import torch
from torch import Tensor

from dragoman.corpus.samples import default_cache

WIDTH = 16  # elements of a vector: what sizes must be multiples of
_FLAGS = (
    *("-O3", "-march=native", "-fopenmp", "-shared", "-fPIC", "-std=c++17"),
    *("-fno-math-errno", "-fno-trapping-math", "-Wno-psabi"),
)
_HEADERS, _UNITS = ("vectors.h", "rows.h"), ("kernels", "decoding", "products", "adam")
_SOURCES = (*_HEADERS, *(f"{unit}.cpp" for unit in _UNITS))
_SUFFIX = {torch.float32: "float32", torch.bfloat16: "bfloat16"}
_INT, _LONG, _FLOAT, _SEED = ctypes.c_int, ctypes.c_int64, ctypes.c_float, ctypes.c_uint64
_POINTER, _DOUBLE = ctypes.c_void_p, ctypes.c_double
_ATTENTION = [_INT] * 4 + [_POINTER] * 3 + [_LONG] + [_POINTER] * 2 + [_LONG, _FLOAT, _SEED]
_SIGNATURES = {
    "attention_forward": [*_ATTENTION, _POINTER, _POINTER],
    "attention_backward": _ATTENTION + [_POINTER] * 5,
    "add_dropout": [_LONG, _POINTER, _POINTER, _FLOAT, _SEED, _POINTER],
    "relu_dropout": [_LONG, _POINTER, _FLOAT, _SEED, _POINTER],
    "relu_dropout_backward": [_LONG, _POINTER, _POINTER, _FLOAT, _POINTER],
    "gate": [_LONG, _INT] + [_POINTER] * 2,
    "gate_backward": [_LONG, _INT] + [_POINTER] * 3,
    "layer_norm": [_LONG, _INT, _FLOAT] + [_POINTER] * 5,
    "layer_norm_backward": [_LONG, _INT] + [_POINTER] * 7,
    "softmax": [_LONG, _INT] + [_POINTER] * 4,
    "less_a_row": [_LONG, _INT, _POINTER, _POINTER, _FLOAT, _POINTER],
    "attend_past": [_INT] * 4 + [_POINTER] * 3,
    "attend_memory": [_INT] * 4 + [_POINTER] * 5,
    "log_sums": [_LONG, _INT] + [_POINTER] * 2,
    "largest": [_LONG, _INT, _INT] + [_POINTER] * 3,
}


@dataclass(frozen=True)
class Kernels:
    """The compiled functions, or why there are none."""

    library: ctypes.CDLL | None
    reason: str
    matrix_units: bool = False  # whether products.cpp can compute

    @property
    def functions(self) -> ctypes.CDLL:
        """Where there are some."""
        assert self.library is not None, self.reason
        return self.library

    def call(self, name: str, dtype: torch.dtype, *arguments: Tensor | int | float | None) -> None:
        """Call a function of kernels.cpp on tensors (by address) and numbers."""
        function = getattr(self.library, f"{name}_{_SUFFIX[dtype]}")
        function(*(one.data_ptr() if isinstance(one, Tensor) else one for one in arguments))


@functools.cache
def kernels() -> Kernels:
    """The kernels of this process; compiled by the first call on a machine, which takes seconds."""
    if os.environ.get("DRAGOMAN_KERNELS", "").lower() in ("off", "0", "no"):
        return Kernels(None, "turned off by DRAGOMAN_KERNELS")
    compiler = shutil.which(os.environ.get("CXX", "")) or shutil.which("g++")
    compiler = compiler or shutil.which("clang++")
    if compiler is None:
        return Kernels(None, "no C++ compiler (g++ or clang++) was found")
    try:
        library = ctypes.CDLL(str(_compiled(compiler)))
        for name, arguments in _SIGNATURES.items():
            for suffix in _SUFFIX.values():
                function = getattr(library, f"{name}_{suffix}")
                function.argtypes, function.restype = arguments, None
        for function in (library.linear_forward, library.linear_backward):
            function.argtypes, function.restype = [_POINTER], None
        library.gradient_norm.argtypes, library.gradient_norm.restype = [_INT, _POINTER], _DOUBLE
        library.adam_step.argtypes, library.adam_step.restype = [_INT, _POINTER, _POINTER], None
        units = bool(library.matrix_units())
    except (OSError, AttributeError, subprocess.SubprocessError) as error:
        return Kernels(None, f"compiling them failed: {_first_line(error)}")
    found = Kernels(library, "", units)
    return found if _agree(found) else Kernels(None, "what the compiler made of them is wrong")


def _agree(found: Kernels) -> bool:
    """Whether the kernels compute what PyTorch does, on something small: compilers err too."""
    x, weight, bias = torch.linspace(-3, 3, 96).view(3, 32), torch.ones(32), torch.zeros(32)
    normed, statistics = torch.empty_like(x), torch.empty(3, 2)
    found.call("layer_norm", x.dtype, 3, 32, 1e-6, x, weight, bias, normed, statistics)
    labels, gold, nll = torch.tensor([0, 5, 31]), torch.empty(3), torch.empty(3)
    powers = x.sin()
    found.call("softmax", x.dtype, 3, 32, powers, labels, nll, gold)
    return torch.allclose(
        normed, torch.nn.functional.layer_norm(x, (32,), eps=1e-6), atol=1e-4
    ) and torch.allclose(powers, x.sin().softmax(1), atol=1e-5)


def usable(x: Tensor) -> bool:
    """Whether kernels can compute on x: (..., width) on a CPU, in float32 or bfloat16."""
    return (
        x.device.type == "cpu"
        and not torch.compiler.is_compiling()
        and x.dtype in _SUFFIX
        and x.shape[-1] % WIDTH == 0
        and kernels().library is not None
    )


def _compiled(compiler: str) -> Path:
    """The shared library of this source, compiler and processor; made where it is missing.

    Several processes may make it at once: each writes a file of its own and moves it into place.
    """
    folder_of_sources = resources.files("dragoman.model")
    sources = {name: folder_of_sources.joinpath(name).read_bytes() for name in _SOURCES}
    version = subprocess.run([compiler, "--version"], capture_output=True, timeout=60, check=True)
    facts = [*sources.values(), version.stdout, " ".join(_FLAGS).encode(), _processor()]
    digest = hashlib.sha256(b"\0".join(facts)).hexdigest()[:32]
    folder = default_cache() / "kernels"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise PermissionError(f"{folder} belongs to somebody else")
    path = folder / f"{digest}.so"
    if not path.exists():
        with tempfile.TemporaryDirectory(prefix=".compile-", dir=folder) as work:
            made = Path(work, "kernels.so")
            for name, text in sources.items():
                Path(work, name).write_bytes(text)
            units = [str(Path(work, name)) for name in sources if name.endswith(".cpp")]
            command = [compiler, *_FLAGS, "-o", str(made), *units]
            subprocess.run(command, capture_output=True, timeout=300, check=True)
            with made.open("rb") as written:
                os.fsync(written.fileno())
            made.replace(path)
    return path


def _processor() -> bytes:
    """What -march=native looks at: a home folder may be shared by machines that differ."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor().encode()
    names = ("model name", "flags", "Features", "CPU part")
    facts = sorted({line for line in lines if line.startswith(names)})
    return "\n".join([platform.machine(), *facts]).encode()


def _first_line(error: Exception) -> str:
    if isinstance(error, subprocess.CalledProcessError) and error.stderr:
        printed: bytes = error.stderr
        for line in printed.decode(errors="replace").splitlines():
            if "error" in line:
                return line
    return str(error).partition("\n")[0]
