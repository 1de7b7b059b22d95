"""How each system is started on the same corpus and sizes, and how its own log is read.

Settings are each toolkit's documented ones for a CPU. None validates or writes a checkpoint while
it is measured.
"""

import json
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from environments import python_of
from segmentation import Segmented, batch_size_for

from dragoman.config import ModelConfig

NAMES = ("dragoman", "marian", "joeynmt", "plain")
# An update that no run reaches.
_NEVER = 10**9
_HERE = Path(__file__).parent


@dataclass(frozen=True)
class Sizes:
    """A model's sizes; the first updates that do not count, and how often a log line is written."""

    model: ModelConfig
    warmup_updates: int
    log_every: int


SIZES = {
    "tiny": Sizes(
        ModelConfig(d_model=32, d_ff=64, heads=2, encoder_layers=1, decoder_layers=1, dropout=0.1),
        warmup_updates=2,
        log_every=1,
    ),
    "small": Sizes(
        ModelConfig(d_model=256, d_ff=1024, heads=4, encoder_layers=3, decoder_layers=3),
        warmup_updates=20,
        log_every=5,
    ),
    "paper-base": Sizes(
        ModelConfig(
            d_model=512, d_ff=2048, heads=8, encoder_layers=6, decoder_layers=6, norm="post"
        ),
        warmup_updates=4,
        log_every=1,
    ),
}


@dataclass(frozen=True)
class Task:
    """What every system gets: the corpus, once prepared and once as words, and how much of it."""

    prepared: Path
    segmented: Segmented
    sizes: Sizes
    update_tokens: float
    batch_tokens: int
    threads: int
    precision: str
    epochs: int | None = None  # None: until it is stopped


@dataclass(frozen=True)
class Sample:
    """A line of a log: when it came, and updates and target tokens (eos included) until then."""

    seconds: float
    update: int
    tokens: float


@dataclass(frozen=True)
class Launch:
    """A command, where its log appears, and what its environment needs beside the caller's."""

    command: list[str]
    log: Path
    environment: dict[str, str]


def launch(name: str, task: Task, work: Path, environments: Path) -> Launch:
    """How a system is started; its files go to `work`, which is made."""
    work.mkdir(parents=True)
    threads = cpu_environment(task.threads)
    if name == "dragoman":
        command = _dragoman(task, work / "model")
        return Launch(command, work / "model" / "training" / "log.jsonl", threads)
    if name == "marian":
        python = python_of(environments, name)
        command = [str(python), "-m", "pymarian", "train", *_marian(task, work)]
        # Its own threads divide a batch; each of them computes alone.
        return Launch(command, work / "output", cpu_environment(1))
    if name == "joeynmt":
        python = python_of(environments, name)
        (work / "config.json").write_text(json.dumps(joeynmt_settings(task, work)))
        command = [str(python), "-m", "joeynmt", "train", str(work / "config.json"), "--skip-test"]
        return Launch(command, work / "output", threads)
    return Launch(_plain(task), work / "output", threads)


def read_samples(name: str, lines: Iterable[tuple[float, str]]) -> Iterator[Sample]:
    """The samples in a system's log; `lines` are what was read and when."""
    if name == "dragoman":
        yield from _rated(_dragoman_rates(lines))
    elif name == "marian":
        for seconds, line in lines:
            if found := _MARIAN_LINE.search(line):
                update, tokens = (int(text.replace(",", "")) for text in found.groups())
                yield Sample(seconds, update, tokens)
    elif name == "joeynmt":
        yield from _rated(_joeynmt_rates(lines))
    else:
        for _, line in lines:
            if line.startswith("{"):
                yield Sample(**json.loads(line))


# "Ep. 1 : Up. 20 : Sen. 1,200 : Cost 9.5 * 1,900 @ 1,950 after 38,000 : Time 9.1s : ..."
_MARIAN_LINE = re.compile(r"Up\. ([\d,]+) : .* after ([\d,]+) :")
# "Epoch   1, Step:       20, Batch Loss: ..., Tokens per Sec:      900, Lr: 0.000100"
_JOEYNMT_LINE = re.compile(r"Step:\s+(\d+), .*Tokens per Sec:\s+(\d+)")


def _dragoman_rates(lines: Iterable[tuple[float, str]]) -> Iterator[tuple[float, int, float]]:
    for _, line in lines:
        event = json.loads(line)
        if event["event"] == "train":
            yield event["seconds"], event["step"], event["tokens_per_second"]


def _joeynmt_rates(lines: Iterable[tuple[float, str]]) -> Iterator[tuple[float, int, float]]:
    for seconds, line in lines:
        if found := _JOEYNMT_LINE.search(line):
            yield seconds, int(found[1]), float(found[2])


def _rated(rates: Iterable[tuple[float, int, float]]) -> Iterator[Sample]:
    """Samples of a log that gives a rate since its last line instead of a total."""
    last, tokens = None, 0.0
    for seconds, update, rate in rates:
        tokens += 0.0 if last is None else rate * (seconds - last)
        last = seconds
        yield Sample(seconds, update, tokens)


def _dragoman(task: Task, out: Path) -> list[str]:
    model = task.sizes.model
    settings: dict[str, Any] = {
        f"model.{field}": getattr(model, field)
        for field in "d_model d_ff heads encoder_layers decoder_layers dropout norm".split()
    }
    settings |= {
        "training.batch_tokens": task.batch_tokens,
        "training.label_smoothing": 0.1,
        "training.precision": task.precision,
        "training.validations": 1,
        "training.checkpoint_minutes": 10_000,
        "training.seed": 1,
    }
    if task.epochs:
        settings["training.epochs"] = task.epochs
    else:
        settings["training.max_steps"] = _NEVER
    command = [sys.executable, "-m", "dragoman", "train", "--device", "cpu", "--preset", "small"]
    command += ["--prepared", str(task.prepared), "--out", str(out)]
    for name, value in settings.items():
        command += ["--set", f"{name}={value}"]
    return command


def marian_model(model: ModelConfig) -> list[str]:
    """Marian's options for a model of these sizes, embeddings tied three ways."""
    options = ["--type", "transformer", "--dim-emb", str(model.d_model)]
    options += ["--transformer-dim-ffn", str(model.d_ff), "--transformer-heads", str(model.heads)]
    options += ["--enc-depth", str(model.encoder_layers), "--dec-depth", str(model.decoder_layers)]
    options += ["--tied-embeddings-all", "--transformer-ffn-activation", "relu"]
    options += ["--transformer-dropout", str(model.dropout), "--label-smoothing", "0.1"]
    if model.norm == "pre":
        options += ["--transformer-preprocess", "n", "--transformer-postprocess", "da"]
        options += ["--transformer-postprocess-top", "n"]
    return options


def _marian(task: Task, work: Path) -> list[str]:
    folder = task.segmented.folder
    ratio = task.segmented.source_lengths.sum() / task.segmented.target_lengths.sum()
    options = marian_model(task.sizes.model)
    options += ["--train-sets", str(folder / "train.source"), str(folder / "train.target")]
    options += ["--vocabs", *[str(folder / "vocabulary.yml")] * 2]
    options += ["--model", str(work / "model.npz"), "--tempdir", str(work), "--seed", "1"]
    # It counts the words of the source. A maxi-batch holds mini-batch x maxi-batch pairs, sorted.
    options += ["--mini-batch-words", str(round(task.update_tokens * ratio))]
    options += ["--mini-batch", "64", "--maxi-batch", "500", "--max-length", "1000"]
    options += ["--cpu-threads", str(task.threads), "--sync-sgd", "--shuffle-in-ram"]
    # The sum shows the number of labels in the log; Adam is blind to the scale of a loss.
    options += ["--cost-type", "ce-sum", "--clip-norm", "0", "--optimizer", "adam"]
    options += ["--optimizer-params", "0.9", "0.98", "1e-09", "--learn-rate", "0.001"]
    options += ["--lr-warmup", "400", "--disp-freq", str(task.sizes.log_every)]
    options += ["--after", f"{task.epochs or _NEVER}e"]
    return options


def joeynmt_model(model: ModelConfig) -> dict[str, Any]:
    """JoeyNMT's section `model` for these sizes, embeddings tied three ways."""
    embeddings = {"embedding_dim": model.d_model, "scale": True, "dropout": 0.0}
    layers = {
        "type": "transformer",
        "num_heads": model.heads,
        "embeddings": embeddings,
        "hidden_size": model.d_model,
        "ff_size": model.d_ff,
        "dropout": model.dropout,
        "layer_norm": model.norm,
    }
    return {
        "initializer": "xavier_uniform",
        "embed_initializer": "xavier_uniform",
        "tied_embeddings": True,
        "tied_softmax": True,
        "encoder": layers | {"num_layers": model.encoder_layers},
        "decoder": layers | {"num_layers": model.decoder_layers},
    }


def joeynmt_settings(task: Task, work: Path) -> dict[str, Any]:
    """JoeyNMT's configuration file for a measured run (JSON is YAML)."""
    folder = task.segmented.folder
    side = {"level": "word", "voc_file": str(folder / "vocabulary.txt")}
    return {
        "name": "speed",
        "model_dir": str(work / "model"),
        "use_cuda": False,
        "num_workers": 0,  # the threads are busy: a worker would take turns with them
        "random_seed": 1,
        "data": {
            "train": str(folder / "train"),
            "dev": str(folder / "dev"),
            "dataset_type": "plain",
            "src": side | {"lang": "source"},
            "trg": side | {"lang": "target"},
        },
        "testing": {"beam_size": 1, "batch_size": 64},
        "training": {
            "batch_size": batch_size_for(task.segmented, task.update_tokens),
            "batch_type": "token",
            "normalization": "tokens",
            "optimizer": "adam",
            "adam_betas": [0.9, 0.98],
            "learning_rate": 0.001,
            "learning_rate_min": 0.0,
            "learning_rate_warmup": 400,
            "scheduling": "warmupinversesquareroot",
            "label_smoothing": 0.1,
            "clip_grad_norm": 1.0,
            "epochs": task.epochs or _NEVER,
            "logging_freq": task.sizes.log_every,
            "validation_freq": task.sizes.log_every * _NEVER,
        },
        "model": joeynmt_model(task.sizes.model),
    }


def _plain(task: Task) -> list[str]:
    model = task.sizes.model
    command = [sys.executable, str(_HERE / "plain_loop.py"), str(task.prepared)]
    for field in "d_model d_ff heads encoder_layers decoder_layers dropout norm".split():
        command += ["--" + field.replace("_", "-"), str(getattr(model, field))]
    command += ["--batch-tokens", str(task.batch_tokens), "--precision", task.precision]
    if task.epochs:
        command += ["--epochs", str(task.epochs)]
    return command


def cpu_environment(threads: int) -> dict[str, str]:
    """Variables that keep a process to so many threads and away from any GPU."""
    counts = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(threads))
    return counts | {"CUDA_VISIBLE_DEVICES": ""}
