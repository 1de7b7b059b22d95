"""Several processes that train one model: what they tell each other, and how the model is shared.

torchrun starts them. Rank 0 reads and writes files, measures and decides; numbers that a decision
hangs on are made equal on every rank first, so that no rank waits for one that went another way.
What the ranks send is numbers, JSON and tensors, never a pickle.
"""

import json
import re
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal, NoReturn, cast

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous
from torch.nn.parallel import DistributedDataParallel

from dragoman.errors import UserError
from dragoman.model.transformer import DecoderLayer
from dragoman.training.launch import Launch, OtherRankFailedError
from dragoman.training.objective import Objective
from dragoman.training.precision import choose_device

# How long a rank waits for the others in an exchange before it takes them for hung.
TIMEOUT = timedelta(minutes=10)
# Seconds that a rank that lost another one leaves torchrun to find which one failed first.
_GRACE = 2.0
# Seconds between two looks at whether rank 0 is done.
_LOOK = 0.02


class EveryRankError(UserError):
    """What every rank finds at the same step; rank 0 says it."""


@dataclass(frozen=True)
class Ranks:
    """The processes that train together, seen from one of them, and the device it computes on."""

    device: torch.device
    rank: int = 0
    size: int = 1
    store: Store | None = None

    @property
    def first(self) -> bool:
        """Whether this is the rank that reads, writes and decides."""
        return self.rank == 0

    def sum(self, *values: float) -> list[float]:
        """Each value summed over the ranks, the same to the bit on all of them."""
        if self.size == 1:
            return [float(value) for value in values]
        total = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(total)
        return [float(value) for value in total]

    def gather(self, value: Any) -> list[Any]:
        """The JSON values of all ranks, in their order."""
        if self.size == 1:
            return [value]
        content = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
        sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
        dist.all_gather(sizes, torch.tensor([len(content)]))
        longest = max(int(size) for size in sizes)
        padded = torch.zeros(longest, dtype=torch.uint8)
        padded[: len(content)] = content
        found = [torch.zeros(longest, dtype=torch.uint8) for _ in range(self.size)]
        dist.all_gather(found, padded)
        return [
            json.loads(bytes(text[: int(size)].numpy()))
            for text, size in zip(found, sizes, strict=True)
        ]

    def decide(self, make: Callable[[], Any]) -> Any:
        """What `make` gives on rank 0, a JSON value, on every rank; the others wait without limit.

        Raises OtherRankFailedError where any rank has failed meanwhile.
        """
        if self.store is None:
            return make()
        if self.first:
            value = make()
            self.store.set("decision", json.dumps(value))
        else:
            while not self.store.check(["decision"]):
                if self.someone_failed():
                    raise OtherRankFailedError
                time.sleep(_LOOK)
            value = json.loads(self.store.get("decision"))
        dist.barrier()
        if self.first:
            self.store.delete_key("decision")
        dist.barrier()
        return value

    def someone_failed(self) -> bool:
        """Whether a rank has failed and said so; also when there is nobody to ask any more."""
        try:
            return self.store is not None and self.store.check(["failed"])
        except RuntimeError:
            return False

    def broadcast(self, tensors: dict[str, Tensor] | None) -> dict[str, Tensor]:
        """The tensors of rank 0 on every rank, in the memory of the CPU."""
        if self.size == 1:
            return tensors or {}
        given = {name: tensor.contiguous() for name, tensor in (tensors or {}).items()}
        kinds = self.decide(
            lambda: {n: [str(t.dtype).removeprefix("torch."), *t.shape] for n, t in given.items()}
        )
        for name, (kind, *shape) in kinds.items():
            if not self.first:
                given[name] = torch.empty(shape, dtype=getattr(torch, kind))
            dist.broadcast(given[name], 0)
        return given

    def seed(self, *numbers: int) -> None:
        """Seed this rank's random numbers; with one number, rank 0 gets just that."""
        own = numbers[0] if len(numbers) == 1 and self.first else self._mixed(numbers)
        torch.manual_seed(own)

    def _mixed(self, numbers: tuple[int, ...]) -> int:
        return int(np.random.SeedSequence([*numbers, self.rank]).generate_state(1, np.uint64)[0])

    def close(self) -> None:
        """End the exchange: every rank calls this at the same place, and goes on alone."""
        if self.size > 1 and dist.is_initialized():
            dist.barrier()
            dist.destroy_process_group()


def choose_rank_device(name: str, launch: Launch) -> torch.device:
    """The device of a rank: of several on one machine, each has its own GPU. Raises UserError."""
    device = choose_device(name)
    if launch.size == 1 or device.type == "cpu":
        return device
    if ":" in name:
        raise UserError(
            f"--device {name} is one GPU, and there are {launch.size} processes",
            "give --device cuda: each process takes the GPU of its own number",
        )
    if launch.local_rank >= torch.cuda.device_count():
        raise UserError(
            f"rank {launch.rank}: no GPU {launch.local_rank} on this machine, "
            f"which has {torch.cuda.device_count()}",
            "start as many processes as GPUs: torchrun --nproc-per-node gpu",
        )
    return torch.device("cuda", launch.local_rank)


@contextmanager
def process_group(launch: Launch, device_name: str) -> Iterator[Ranks]:
    """Connect the processes that torchrun started; alone, nothing is connected.

    A failure of this rank is left in torchrun's report, and where it waits for rank 0 another rank
    ends at once. Raises UserError.
    """
    device = choose_rank_device(device_name, launch)
    if launch.size == 1:
        yield Ranks(device)
        return
    if device.type == "cuda":
        torch.cuda.set_device(device)
    store, rank, size = next(iter(rendezvous("env://", timeout=TIMEOUT)))
    # Numbers and JSON go over gloo, and keep no GPU waiting; gradients of GPUs over NCCL.
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(
        backend,
        store=PrefixStore("group", store),
        rank=rank,
        world_size=size,
        timeout=TIMEOUT,
    )
    own = PrefixStore("dragoman", store)
    ranks = Ranks(device, rank, size, own)
    try:
        yield ranks
    except Exception as error:
        if not dist.is_initialized():  # the exchange is over: this is no other rank's business
            raise
        _fail(error, ranks)
    ranks.close()


def _fail(error: Exception, ranks: Ranks) -> NoReturn:
    """Tell torchrun and the other ranks, and say what one of them has not said."""
    from torch.distributed.elastic.multiprocessing.errors import get_error_handler

    assert ranks.store is not None
    told = isinstance(error, EveryRankError) and not ranks.first
    lost = isinstance(error, RuntimeError) and _is_lost_connection(error)
    if not (told or lost or isinstance(error, OtherRankFailedError)):
        ranks.store.set("failed", str(ranks.rank))
        get_error_handler().record_exception(error)
        if isinstance(error, UserError) and not ranks.first:
            raise UserError(f"rank {ranks.rank}: {error.message}", error.hint) from None
        raise error
    time.sleep(_GRACE)
    if told or not lost or ranks.someone_failed():
        raise OtherRankFailedError from None
    # Without the place in gloo's source before it and the advice behind.
    reason = re.sub(r"^\[[^]]*\] ", "", str(error).splitlines()[0]).partition(". ")[0]
    raise UserError(
        f"rank {ranks.rank}: another rank is gone: {reason}",
        "torchrun names below the one that failed first; then go on with --resume",
    ) from None


def _is_lost_connection(error: RuntimeError) -> bool:
    # Gloo raises bare RuntimeErrors that name its source file.
    return isinstance(error, dist.DistError) or "gloo" in str(error).lower()


Parallel = Literal["ddp", "fsdp"]


def parallelize(objective: Objective, ranks: Ranks, kind: Parallel) -> nn.Module:
    """The objective, whose backward pass then adds up gradients of all ranks and divides by `size`.

    ddp: every rank holds all of the model (Li et al. 2020). fsdp: it holds a share of every
    parameter and gathers a layer's when it computes with it (Zhao et al. 2023); the model is
    changed in place, so an optimizer is to be made afterwards.
    """
    if ranks.size == 1:
        return objective
    if kind == "ddp":
        return DistributedDataParallel(
            objective, broadcast_buffers=False, gradient_as_bucket_view=True
        )
    # Slow to import, and of no use to the others.
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(ranks.device.type, (ranks.size,))
    model = objective.model
    # These are used before their layer is called: they belong to what is gathered all along.
    objective.memory_projections = nn.ModuleList(
        layer.cross_attention.in_projection
        for layer in model.repeated_layers
        if isinstance(layer, DecoderLayer)
    )
    apart = set(objective.memory_projections.parameters())
    for layer in model.repeated_layers:
        fully_shard(layer, mesh=mesh, ignored_params=apart)
    fully_shard(objective, mesh=mesh)
    return objective


def accumulating(parallel: nn.Module, last: bool) -> AbstractContextManager[None]:
    """Ranks add up gradients in the last pass of an update only; shards in each, to stay small."""
    if isinstance(parallel, DistributedDataParallel) and not last:
        return cast(AbstractContextManager[None], parallel.no_sync())
    return nullcontext()


def gather_tensors(tensors: dict[str, Tensor], ranks: Ranks) -> dict[str, Tensor]:
    """Whole tensors of those shared out among the ranks, on rank 0; others get an empty dict."""
    whole = {}
    for name, tensor in tensors.items():
        full = whole_tensor(tensor)
        if ranks.first:
            whole[name] = full if full is tensor else full.cpu()
    return whole


def whole_tensor(tensor: Tensor) -> Tensor:
    """All of a tensor of which the ranks hold a share each, or the tensor itself."""
    gather: Callable[[], Tensor] | None = getattr(tensor, "full_tensor", None)
    return gather() if gather else tensor


def shard_like(tensor: Tensor, parameter: Tensor) -> Tensor:
    """This rank's share of a whole tensor, as a parameter of that shape is shared out."""
    if not hasattr(parameter, "full_tensor") or tensor.shape != parameter.shape:
        return tensor
    from torch.distributed.tensor import DTensor, distribute_tensor

    shared = cast(DTensor, parameter)
    whole = tensor.to(parameter.device)
    return distribute_tensor(whole, shared.device_mesh, shared.placements, src_data_rank=None)
