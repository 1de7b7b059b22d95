"""Training in two processes: what one process computes, in other hands, and what goes wrong.

Run by torchrun, this file is what each process does; its findings go to files that the tests read.
"""

import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dragoman.config import Config, ModelConfig, TrainingConfig
from dragoman.corpus.batches import batches
from dragoman.corpus.store import CorpusStore, write_store
from dragoman.errors import UserError
from dragoman.model.transformer import Transformer
from dragoman.training.checkpoints import list_checkpoints, load_checkpoint
from dragoman.training.distributed import Ranks, choose_rank_device, process_group
from dragoman.training.launch import Launch
from dragoman.training.objective import validation_nll
from dragoman.training.trainer import StopRequestedError, Trainer

VOCABULARY = 41  # no multiple of two: shares are uneven
MODES = ("ddp", "fsdp")
ALONE = Ranks(torch.device("cpu"))
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
# From a process's death to the end of the job: torchrun gives the others 30 seconds.
SECONDS_TO_END = 45


def make_config(parallel: str, dropout: float = 0.0, **training: Any) -> Config:
    sizes: dict[str, Any] = {"d_model": 8, "d_ff": 12, "heads": 2, "max_positions": 32}
    layers = {"encoder_layers": 1, "decoder_layers": 2}
    model = ModelConfig(**sizes, **layers, positions="learned", dropout=dropout)
    settings: dict[str, Any] = {
        "batch_tokens": 40, "max_steps": 8, "validations": 2, "warmup_steps": 3, "patience": 100,
        "learning_rate": 0.01, "precision": "float32", "gradient_clip": 0.5, "parallel": parallel,
    }  # fmt: skip
    return Config(model=model, training=TrainingConfig(**(settings | training)))


def make_store(path: Path, rows: int) -> CorpusStore:
    chance = np.random.default_rng(rows)
    pairs = []
    for _ in range(rows):
        source = chance.integers(4, VOCABULARY, int(chance.integers(1, 10))).tolist()
        pairs.append((source, source[::-1][: int(chance.integers(1, 10))]))
    write_store(path, pairs, VOCABULARY)
    return CorpusStore.open(path)


def train(
    ranks: Ranks,
    config: Config,
    store: CorpusStore,
    folder: Path,
    stop_at: int | None = None,
    stopping_rank: int = 0,
) -> dict[str, Any]:
    """Train from the newest checkpoint in the folder, if there is one; what every update saw."""
    torch.manual_seed(config.training.seed)
    model = Transformer(config.model, VOCABULARY)
    events: list[dict[str, Any]] = []
    trainer = Trainer(
        config, model, store, folder, ranks,
        lambda whole: {"nll": validation_nll(whole, batches(store, 60, seed=0, epoch=0))},
        events.append,
        lambda: trainer.state.step == stop_at and ranks.rank == stopping_rank,
    )  # fmt: skip
    losses, norms = [], []
    update = trainer.updater.update

    def watched(*arguments: Any) -> Any:
        loss, norm = update(*arguments)
        losses.append(float(loss.smoothed) / loss.tokens)
        norms.append(norm)
        return loss, norm

    trainer.updater.update = watched  # type: ignore[method-assign]
    warnings: list[str] = []
    resumed = trainer.resume(warnings.append)
    stopped = False
    try:
        trainer.run()
    except StopRequestedError:
        stopped = True
    nlls = [event["nll"] for event in events if event["event"] == "validation"]
    return {
        "losses": losses, "norms": norms, "nlls": nlls, "resumed": resumed, "stopped": stopped,
        "step": trainer.state.step, "tokens": trainer.state.tokens, "warnings": warnings,
    }  # fmt: skip


def refusal(ranks: Ranks, mode: str, store: CorpusStore, folder: Path) -> str:
    """The error when one weight is no number."""
    config = make_config(mode)
    torch.manual_seed(config.training.seed)
    model = Transformer(config.model, VOCABULARY)
    with torch.no_grad():
        model.decoder[0].feed_forward.inner.weight[0, 0] = math.nan  # type: ignore[union-attr, index]
    trainer = Trainer(config, model, store, folder, ranks, lambda _: {"nll": 1.0}, print)
    try:
        trainer.run()
    except UserError as error:
        return error.message
    return ""


def whole_and_parts(ranks: Ranks, mode: str, store: CorpusStore, folder: Path) -> list[Any]:
    """With dropout, never stopped and stopped twice: the last checkpoints of both."""
    config = make_config(mode, dropout=0.3)
    train(ranks, config, store, folder / "whole")
    for stop_at in (2, 5, None):
        train(ranks, config, store, folder / "parts", stop_at)
    return []


def work(folder: Path) -> None:
    """What each of two processes does under torchrun."""
    torch.set_num_threads(1)
    with process_group(Launch.of_environment(), "cpu") as ranks:
        found: dict[str, Any] = {}
        store = CorpusStore.open(folder / "store.arrow")
        few = CorpusStore.open(folder / "few.arrow")
        for mode in MODES:
            place = folder / mode
            found[mode] = {
                "plain": train(ranks, make_config(mode), store, place / "plain"),
                "accumulated": train(
                    ranks, make_config(mode, accumulation=3), store, place / "accumulated"
                ),
                "few": train(ranks, make_config(mode), few, place / "few"),
                "stopped": train(ranks, make_config(mode), store, place / "two", 4, 1),
                "resumed": train(ranks, make_config(mode), store, place / "one"),
                "refusal": refusal(ranks, mode, store, place / "refused"),
                "dropout": whole_and_parts(ranks, mode, store, place / "dropout"),
            }
        found["gathered"] = ranks.gather({"rank": ranks.rank, "text": "é" * ranks.rank})
        (folder / f"found-{ranks.rank}.json").write_text(json.dumps(found))


def environment() -> dict[str, str]:
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
    inherited = {name: value for name, value in os.environ.items() if name not in names}
    return inherited | {"OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where one process trained half, and two processes everything else, all in one go."""
    folder = tmp_path_factory.mktemp("distributed")
    store = make_store(folder / "store.arrow", 40)
    make_store(folder / "few.arrow", 3)
    for mode in MODES:
        assert train(ALONE, make_config(mode), store, folder / mode / "one", 4)["stopped"]
    command = [*TORCHRUN, __file__, str(folder)]
    result = subprocess.run(
        command, env=environment(), capture_output=True, text=True, timeout=300, check=False
    )
    assert result.returncode == 0, result.stderr
    return folder


@pytest.fixture(scope="module")
def found(folder: Path) -> list[dict[str, Any]]:
    """The findings of both ranks."""
    return [json.loads((folder / f"found-{rank}.json").read_text()) for rank in (0, 1)]


def check_same(two: dict[str, Any], one: dict[str, Any], first: int = 0) -> None:
    for name in ("losses", "norms"):
        assert two[name] == pytest.approx(one[name][first:], rel=2e-5), name
    assert (two["step"], two["tokens"]) == (one["step"], one["tokens"])


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("case", ["plain", "accumulated", "few"])
def test_two_ranks_compute_what_one_does(
    folder: Path, found: list[dict[str, Any]], tmp_path: Path, mode: str, case: str
) -> None:
    """`few`: three pairs on two ranks, in batches of a row or two."""
    store = CorpusStore.open(folder / ("few.arrow" if case == "few" else "store.arrow"))
    config = make_config(mode, accumulation=3 if case == "accumulated" else 1)
    one = train(ALONE, config, store, tmp_path)
    assert len(one["losses"]) == 8
    for rank in (0, 1):
        check_same(found[rank][mode][case], one)
        assert found[rank][mode][case]["nlls"] == pytest.approx(one["nlls"], rel=2e-5)
    assert found[0][mode][case]["losses"] == found[1][mode][case]["losses"]  # to the bit


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_checkpoints_do_not_depend_on_the_number_of_ranks(
    folder: Path, found: list[dict[str, Any]], tmp_path: Path, mode: str
) -> None:
    store = CorpusStore.open(folder / "store.arrow")
    whole = train(ALONE, make_config(mode), store, tmp_path)
    # Rank 1 alone asked to stop, and both did.
    assert all(each[mode]["stopped"]["stopped"] for each in found)
    assert all(each[mode]["stopped"]["step"] == 4 for each in found)
    # Saved on two, resumed on one, in either mode; saved on one, resumed on two.
    other = {"ddp": "fsdp", "fsdp": "ddp"}[mode]
    on_one = train(ALONE, make_config(other), store, folder / mode / "two")
    assert on_one["resumed"] and len(on_one["losses"]) == 4
    check_same(on_one, whole, first=4)
    for each in found:
        assert each[mode]["resumed"]["resumed"] and len(each[mode]["resumed"]["losses"]) == 4
        check_same(each[mode]["resumed"], whole, first=4)


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_stopped_and_resumed_on_as_many_ranks_is_never_stopped(
    folder: Path, found: list[dict[str, Any]], mode: str
) -> None:
    whole, parts = (
        load_checkpoint(list_checkpoints(folder / mode / "dropout" / name / "checkpoints")[-1])
        for name in ("whole", "parts")
    )
    for mine, its in ((whole.model, parts.model), (whole.optimizer, parts.optimizer)):
        assert mine.keys() == its.keys()
        assert [name for name in mine if not torch.equal(mine[name], its[name])] == []
    states = [whole.state["random"], *whole.state["random_of_others"]]
    assert states == [parts.state["random"], *parts.state["random_of_others"]]
    assert len(states) == 2 and states[0] != states[1]  # ranks draw other numbers


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_no_number_is_refused_by_every_rank_at_the_same_step(
    found: list[dict[str, Any]], mode: str
) -> None:
    first, second = (each[mode]["refusal"] for each in found)
    assert first == second
    assert first.startswith("step 1, epoch 0, batch 0: the loss is nan")


@pytest.mark.slow
def test_ranks_tell_each_other_values_of_any_length(found: list[dict[str, Any]]) -> None:
    expected = [{"rank": 0, "text": ""}, {"rank": 1, "text": "é"}]
    assert [each["gathered"] for each in found] == [expected, expected]


def test_a_process_alone_has_nobody_to_ask() -> None:
    with process_group(Launch(), "cpu") as ranks:
        assert ranks == ALONE
        assert ranks.sum(1, 2.5) == [1.0, 2.5]
        assert ranks.gather("x") == ["x"]
        assert ranks.decide(lambda: 7) == 7
    assert not torch.distributed.is_initialized()


@pytest.mark.parametrize(
    "variables", [{}, {"RANK": "1"}, {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost"}]
)
def test_without_all_of_its_variables_a_process_is_alone(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]
) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert Launch.of_environment() == Launch()


@pytest.mark.parametrize("numbers", ["2 2 0", "0 1 1", "x 2 0", "-1 2 0"])
def test_ranks_that_cannot_be(monkeypatch: pytest.MonkeyPatch, numbers: str) -> None:
    for name, value in zip(("RANK", "WORLD_SIZE", "LOCAL_RANK"), numbers.split(), strict=True):
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MASTER_ADDR", "localhost")
    monkeypatch.setenv("MASTER_PORT", "1")
    with pytest.raises(UserError, match="these are no ranks"):
        Launch.of_environment()


def test_each_rank_has_a_gpu_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert choose_rank_device("auto", Launch(5, 8, 1)) == torch.device("cuda", 1)
    assert choose_rank_device("cpu", Launch(5, 8, 1)) == torch.device("cpu")
    assert choose_rank_device("cuda:1", Launch()) == torch.device("cuda", 1)
    with pytest.raises(UserError, match="rank 6: no GPU 2 on this machine"):
        choose_rank_device("cuda", Launch(6, 8, 2))
    with pytest.raises(UserError, match="is one GPU"):
        choose_rank_device("cuda:1", Launch(5, 8, 1))


class Job:
    """`dragoman train` in two processes under torchrun."""

    def __init__(self, folder: Path, *more: str) -> None:
        self.log = folder / "stderr.txt"
        words = {"training.validations": 6, "training.batch_tokens": 300, "model.d_model": 16}
        sizes = {"data.vocabulary_size": 300, "model.d_ff": 16, "training.parallel": "fsdp"}
        settings = [f"--set={name}={value}" for name, value in (words | sizes).items()]
        command = [
            *TORCHRUN, "-m", "dragoman", "train", f"--data={folder / 'pairs.tsv'}",
            "--source-language=en", "--target-language=fr", f"--out={folder / 'model'}",
            "--preset=tiny", "--budget=60-steps", *settings, *more,
        ]  # fmt: skip
        with self.log.open("w") as stream:
            self.process = subprocess.Popen(command, env=environment(), stderr=stream)

    def __enter__(self) -> "Job":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()

    def wait_for(self, ready: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 300
        while not ready():
            assert self.process.poll() is None and time.monotonic() < deadline, self.said()
            time.sleep(0.02)

    def said(self) -> str:
        return self.log.read_text()

    def signal(self, rank: int, number: signal.Signals) -> None:
        pid = self.process.pid
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            if f"\0RANK={rank}\0".encode() in Path(f"/proc/{child}/environ").read_bytes():
                os.kill(int(child), number)
                return
        raise AssertionError(f"no process of rank {rank}: {self.said()}")


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="finds a rank in /proc")
def test_a_job_that_is_killed_and_stopped_goes_on_by_the_same_command(tmp_path: Path) -> None:
    chance = np.random.default_rng(1)
    words = ["ba ke mi no tu ra so".split(), "un de tri kv pe ses ok".split()]
    with (tmp_path / "pairs.tsv").open("w") as stream:
        for _ in range(400):
            chosen = chance.integers(0, 7, int(chance.integers(2, 9)))
            stream.write("\t".join(" ".join(side[n] for n in chosen) for side in words) + "\n")
    checkpoints = tmp_path / "model" / "training" / "checkpoints"

    with Job(tmp_path) as job:
        job.wait_for(lambda: bool(list_checkpoints(checkpoints)))
        job.signal(1, signal.SIGKILL)
        assert job.process.wait(SECONDS_TO_END) != 0
    cause = job.said().partition("Root Cause")[2]
    assert "rank      : 1 " in cause and "Signal 9 (SIGKILL)" in cause, job.said()
    # What the other rank says itself, unless it was waiting for this one's last words.
    assert job.said().count("Traceback") == 1, job.said()  # torchrun's own

    with Job(tmp_path, "--resume") as job:
        job.wait_for(lambda: "on 2 x cpu in" in job.said())  # both heed signals by then
        assert "going on from step" in job.said()
        job.signal(1, signal.SIGTERM)
        assert job.process.wait(SECONDS_TO_END) != 0
    assert job.said().count("stopped at step") == 1, job.said()
    assert "exitcode  : 143" in job.said() and "error:" not in job.said()

    with Job(tmp_path, "--resume", "--set=training.seed=2") as job:
        assert job.process.wait(300) != 0
    assert "error: --resume: training.seed is 2 now, and 1 in the training" in job.said()
    assert job.said().count("error: ") == 1

    with Job(tmp_path, "--resume") as job:
        assert job.process.wait(300) == 0, job.said()
    assert (tmp_path / "model" / "model.safetensors").is_file()


if __name__ == "__main__":
    work(Path(sys.argv[1]))
