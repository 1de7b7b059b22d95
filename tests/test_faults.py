"""What can happen to a training from outside, done to it: kill, full disk, damage, signals.

Every training here is the real command in a process of its own.
"""

import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

KILLS = 50
KILLS_AT_THE_END = 8
UPDATES = 200
COLORS = ("red", "old", "big", "new", "wet")
ANIMALS = ("cat", "dog", "bird", "fish", "cow", "fox")
VERBS = ("sees", "finds", "draws", "hears")
SETTINGS = (
    "model.d_model=32",
    "model.d_ff=64",
    "model.encoder_layers=1",
    "model.decoder_layers=1",
    "data.vocabulary_size=400",
    "data.validation_size=20",
    "training.batch_tokens=200",
    "training.precision=float32",
    "training.validations=6",
    "training.patience=1000",
    "training.checkpoint_minutes=0.00001",  # every update: most kills meet one half written
)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    rows = [
        (f"the {color} {one} {verb} the {other}", f"{other} {verb} {color} {one} {color}")
        for color, one, verb, other in itertools.product(COLORS, ANIMALS, VERBS, ANIMALS)
    ]
    for side, name in enumerate(("train.xx", "train.yy")):
        (folder / name).write_text("".join(f"{row[side]}\n" for row in rows), "utf-8")
    return folder


def command(corpus: Path, out: Path, *more: str, updates: int = UPDATES) -> list[str]:
    given = ["--source", str(corpus / "train.xx"), "--target", str(corpus / "train.yy")]
    settings = [f"--set={setting}" for setting in (*SETTINGS, f"training.max_steps={updates}")]
    return ["train", "--preset", "tiny", *given, "--out", str(out), *settings, *more]


def start(arguments: list[str]) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "dragoman", *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )


def finish(arguments: list[str]) -> tuple[int, str]:
    process = start(arguments)
    _, errors = process.communicate(timeout=300)
    return process.returncode, errors


def resume(out: Path) -> list[str]:
    return ["train", "--resume", "--out", str(out)]


def checkpoints(out: Path) -> list[Path]:
    return sorted((out / "training" / "checkpoints").glob("step-*"))


def wait_for(condition: Callable[[], bool], process: "subprocess.Popen[str]") -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline
        time.sleep(0.01)


def step_of(path: Path) -> int:
    return int(path.name.removeprefix("step-"))


def one_error(errors: str) -> str:
    """The only error line; a hint stands beside it and no traceback anywhere."""
    lines = [line for line in errors.splitlines() if line.startswith("error:")]
    assert len(lines) == 1, errors
    assert "Traceback" not in errors
    assert "hint:" in errors
    return lines[0]


@pytest.fixture(scope="module")
def uninterrupted(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("whole") / "model"
    status, errors = finish(command(corpus, out))
    assert status == 0, errors
    return out


def same_model(left: Path, right: Path) -> bool:
    """Byte by byte: weights, settings, tokenizer."""
    names = ("model.safetensors", "config.toml", "tokenizer.model")
    return all((left / name).read_bytes() == (right / name).read_bytes() for name in names)


def logged(out: Path) -> list[tuple[str, int, float]]:
    """The validations of a log: each once, in order."""
    events = map(json.loads, (out / "training" / "log.jsonl").read_text("utf-8").splitlines())
    return [(e["event"], e["step"], e["nll"]) for e in events if e["event"] == "validation"]


def test_killed_at_fifty_random_moments_it_ends_in_the_same_model(
    corpus: Path, uninterrupted: Path, tmp_path: Path
) -> None:
    out = tmp_path / "model"
    loop = subprocess.run(
        [sys.executable, __file__, str(corpus), str(out)],
        capture_output=True,
        text=True,
        timeout=600,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert loop.returncode == 0, loop.stdout + loop.stderr
    assert json.loads(loop.stdout) >= KILLS
    assert same_model(out, uninterrupted)
    assert logged(out) == logged(uninterrupted)


def test_a_truncated_checkpoint_costs_its_own_updates_only(
    corpus: Path, uninterrupted: Path, tmp_path: Path
) -> None:
    out = tmp_path / "model"
    process = start(command(corpus, out))
    wait_for(lambda: len(checkpoints(out)) > 2 and step_of(checkpoints(out)[-1]) > 120, process)
    process.kill()
    process.communicate()
    newest = checkpoints(out)[-1]
    with (newest / "optimizer.safetensors").open("r+b") as stream:
        stream.truncate(1000)
    status, errors = finish(resume(out))
    assert status == 0, errors
    assert f"{newest}" in errors
    assert "warning:" in errors
    assert same_model(out, uninterrupted)


def test_a_scheduler_that_sends_sigterm_finds_a_checkpoint_and_status_143(
    corpus: Path, uninterrupted: Path, tmp_path: Path
) -> None:
    out = tmp_path / "model"
    process = start(command(corpus, out))
    wait_for(lambda: bool(checkpoints(out)), process)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM
    assert f"--resume --out {out}" in errors
    assert finish(resume(out))[0] == 0
    assert same_model(out, uninterrupted)


def test_the_second_of_two_trainings_in_one_folder_is_refused_and_the_first_goes_on(
    corpus: Path, uninterrupted: Path, tmp_path: Path
) -> None:
    out = tmp_path / "model"
    first = start(command(corpus, out))
    wait_for(lambda: (out / "training" / "lock").exists(), first)
    for arguments in (command(corpus, out), resume(out)):
        status, errors = finish(arguments)
        assert status == 2
        message = one_error(errors)
        assert str(out) in message
    _, errors = first.communicate(timeout=300)
    assert first.returncode == 0, errors
    assert same_model(out, uninterrupted)


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Callable[..., Path]]:
    """Makes a small file system in memory; skips where this user may not mount one."""
    place = tmp_path / "disk"
    place.mkdir()

    def mounted(options: str) -> Path:
        arguments = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)]
        if shutil.which("mount") is None or subprocess.run(arguments, check=False).returncode:
            pytest.skip("this user may not mount a file system")
        return place

    yield mounted
    while subprocess.run(["umount", str(place)], check=False, capture_output=True).returncode == 0:
        pass


def test_a_full_disk_is_one_error_and_training_goes_on_once_there_is_room(
    corpus: Path, uninterrupted: Path, mount: Callable[..., Path]
) -> None:
    disk = mount("size=2m")
    out = disk / "model"
    status, errors = finish(command(corpus, out))
    assert status == 2, errors
    assert "full" in one_error(errors) or "space" in one_error(errors)
    subprocess.run(["mount", "-o", "remount,size=64m", str(disk)], check=True)
    begun = bool(checkpoints(out))
    assert begun, "the disk was full before training began: give the test a larger one"
    status, errors = finish(resume(out))
    assert status == 0, errors
    assert same_model(out, uninterrupted)


def test_a_disk_that_fills_while_the_corpus_is_prepared_is_one_error(
    corpus: Path, mount: Callable[..., Path]
) -> None:
    out = mount("size=40k") / "model"
    status, errors = finish(command(corpus, out, updates=5))
    assert status == 2, errors
    assert str(out) in one_error(errors)


def test_a_read_only_folder_is_one_error_and_costs_no_checkpoint(
    corpus: Path, uninterrupted: Path, mount: Callable[..., Path]
) -> None:
    disk = mount("size=64m")
    out = disk / "model"
    process = start(command(corpus, out))
    wait_for(lambda: bool(checkpoints(out)), process)
    process.kill()
    process.communicate()
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    status, errors = finish(resume(out))
    assert status == 2
    assert str(out) in one_error(errors)
    status, errors = finish(command(corpus, disk / "other"))
    assert status == 2
    assert "other" in one_error(errors)
    subprocess.run(["mount", "-o", "remount,rw", str(disk)], check=True)
    assert finish(resume(out))[0] == 0
    assert same_model(out, uninterrupted)


def live(corpus: Path, out: Path) -> None:
    """One life of the training, in a forked process; does not return."""
    from dragoman.cli import main

    sink = os.open(out.parent / "output", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(sink, 1)
    os.dup2(sink, 2)
    sys.argv = ["dragoman", *(resume(out) if checkpoints(out) else command(corpus, out))]
    try:
        main()
    except SystemExit as end:
        os._exit(end.code if isinstance(end.code, int) else 1)
    os._exit(1)


def wait_for_moment(out: Path, chance: random.Random, at_the_end: bool) -> None:
    """Until a random moment of a life: at its start, some updates later, or after the last one."""
    begun = step_of(checkpoints(out)[-1]) if checkpoints(out) else 0
    if not at_the_end and chance.random() < 0.3:
        time.sleep(chance.uniform(0, 0.4))
        return
    goal = UPDATES if at_the_end else min(begun + chance.randint(1, 5), UPDATES)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        paths = checkpoints(out)
        if paths and step_of(paths[-1]) >= goal:
            break
        time.sleep(0.002)
    time.sleep(chance.uniform(0, 0.3 if at_the_end else 0.03))


def kill_loop(corpus: Path, out: Path) -> None:
    """Kills lives of one training at random moments, lets the last end, prints how many died.

    Lives are forks of a process that has torch loaded already: loading takes longer than they do.
    """
    import torch

    import dragoman.cli.run  # noqa: F401 (what a life would load)

    torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))])  # the first one loads the most
    chance = random.Random(1)
    killed = 0
    while not (out / "model.safetensors").exists():
        child = os.fork()
        if child == 0:
            live(corpus, out)
        if killed < KILLS + KILLS_AT_THE_END:
            wait_for_moment(out, chance, at_the_end=killed >= KILLS)
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status):
            killed += 1
        elif os.WEXITSTATUS(status):
            sys.exit((out.parent / "output").read_text("utf-8"))
    print(killed)


if __name__ == "__main__":
    kill_loop(Path(sys.argv[1]), Path(sys.argv[2]))
