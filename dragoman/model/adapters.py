"""Low-rank adapters (LoRA, Hu et al. 2021, arXiv 2106.09685) on attention and feed-forward.

An adapted linear map has the weight W + s B A with s = lora_alpha / lora_rank, where W stays as it
was. It is a parametrization of PyTorch's: whoever reads `linear.weight` gets the sum, and a model
without adapters pays nothing. A is random and B zero at first, so that the model starts as it was.

Shapes: I inputs, O outputs, R lora_rank.
"""

import math
import tomllib
from dataclasses import dataclass
from pathlib import Path

import tomli_w
import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn
from torch.nn.utils import parametrize

from dragoman.errors import UserError
from dragoman.model.layers import Linear
from dragoman.text.lines import atomic_write

ADAPTER, SETTINGS = "adapter.safetensors", "adapter.toml"
LARGEST_RANK = 4096
_LARGEST_SETTINGS = 64 * 1024
# What a parametrized weight's parts are called in a module's state.
_INNER = ".parametrizations.weight.0."


class LowRank(nn.Module):
    """Adds s B A to a weight (O, I); A (R, I), B (O, R)."""

    def __init__(self, outputs: int, inputs: int, rank: int, scale: float) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.empty(rank, inputs))
        self.b = nn.Parameter(torch.zeros(outputs, rank))
        self.scale = scale
        nn.init.kaiming_uniform_(self.a, a=math.sqrt(5))  # the authors' code

    def forward(self, weight: Tensor) -> Tensor:
        """(O, I) -> (O, I)."""
        return torch.addmm(weight, self.b, self.a, alpha=self.scale)


@dataclass(frozen=True)
class AdapterSettings:
    """What adapter weights need to be used: their scale, and the model that they belong to."""

    rank: int
    alpha: float
    base_name: str
    base_weights: str  # SHA-256 of the base's model.safetensors


def add_adapters(model: nn.Module, rank: int, alpha: float) -> None:
    """Freeze the model and give every linear map of its layers an adapter that trains."""
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    for module in [module for module in model.modules() if isinstance(module, Linear)]:
        outputs, inputs = module.weight.shape
        adapter = LowRank(outputs, inputs, rank, alpha / rank).to(module.weight.device)
        # Unsafe: what is checked otherwise, that shapes agree, is so by construction.
        parametrize.register_parametrization(module, "weight", adapter, unsafe=True)


def trained_weights(model: nn.Module) -> dict[str, Tensor]:
    """What training changes, by name: the adapters where there are some, else all weights."""
    state: dict[str, Tensor] = model.state_dict()
    adapters = {name: weight for name, weight in state.items() if _INNER in name}
    return adapters or state


def load_trained_weights(model: nn.Module, weights: dict[str, Tensor]) -> None:
    """Put back what `trained_weights` gave. Raises RuntimeError for weights of another model."""
    own = trained_weights(model)
    if own.keys() != weights.keys():
        different = sorted(own.keys() ^ weights.keys())
        raise RuntimeError(f"{len(different)} weights missing or unknown, such as {different[0]}")
    model.load_state_dict(weights, strict=False)


def merge_adapters(model: nn.Module) -> None:
    """Make the sums W + s B A plain weights: the model computes the same and has no adapters."""
    for module in list(model.modules()):
        if parametrize.is_parametrized(module):
            parametrize.remove_parametrizations(module, "weight", leave_parametrized=True)
    for parameter in model.parameters():
        parameter.requires_grad_(True)


def save_adapter(folder: Path, settings: AdapterSettings, weights: dict[str, Tensor]) -> None:
    """Write adapters as `trained_weights` gives them to a folder; the weights last."""
    folder.mkdir(parents=True, exist_ok=True)
    plain = {
        name.replace(_INNER, "."): weight.detach().cpu().contiguous()
        for name, weight in weights.items()
    }
    table = {
        "rank": settings.rank,
        "alpha": settings.alpha,
        "base": {"name": settings.base_name, "weights": settings.base_weights},
    }
    for name, content in ((SETTINGS, tomli_w.dumps(table).encode()), (ADAPTER, save(plain))):
        with atomic_write(folder / name) as stream:
            stream.write(content)


def read_adapter_settings(folder: Path) -> AdapterSettings:
    """Raises UserError for a folder that is no adapter's."""
    path = folder / SETTINGS
    try:
        with path.open("rb") as stream:
            table = tomllib.loads(stream.read(_LARGEST_SETTINGS).decode())
        settings = AdapterSettings(
            int(table["rank"]),
            float(table["alpha"]),
            str(table["base"]["name"]),
            str(table["base"]["weights"]),
        )
        if not (0 < settings.rank <= LARGEST_RANK and 0 < settings.alpha < math.inf):
            raise ValueError(f"rank must be 1 to {LARGEST_RANK:,} and alpha positive")
    except FileNotFoundError:
        raise UserError(
            f"{folder}: no adapter in this folder",
            "name training/adapter in the folder that train was given as --out",
        ) from None
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise UserError(f"{path}: damaged: {error}", "copy the adapter's folder again") from None
    return settings


def load_adapter(model: nn.Module, folder: Path) -> None:
    """Give a model the adapters of a folder. Raises UserError when they are not for such a model.

    That the model is the very one they were trained on is for the caller to see, who has its file.
    """
    settings = read_adapter_settings(folder)
    path = folder / ADAPTER
    add_adapters(model, settings.rank, settings.alpha)
    expected = trained_weights(model)
    limit = 2**20 + sum(weight.numel() * 8 for weight in expected.values())
    try:
        if path.stat().st_size > limit:
            raise ValueError("larger than adapters for this model")
        saved = load(path.read_bytes())
        weights = {name: saved.pop(name.replace(_INNER, ".")) for name in expected}
        if saved:
            raise ValueError(f"{min(saved)} is unknown")
        load_trained_weights(model, weights)
        if not all(bool(weight.isfinite().all()) for weight in weights.values()):
            raise ValueError("holds weights that are not finite numbers")
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise UserError(
            f"{path}: no adapter for this model: {error}", "name the model that it was trained on"
        ) from None
