"""Memory and time of whole models by the length of the text: full, fused and restricted attention.

python benchmarks/paper/length.py

DecoderOnly (causal) and EncoderOnly read one text of n random tokens: a training step (forward,
loss, backward) and inference (forward; of the decoder, as a perplexity is computed). Attention is
explicit (the whole matrix of weights, as Equation 1 is written), fused (what a model does by
itself; the same results) or restricted to --window neighbors on each side, in the decoder before.
Float32, no dropout.

Every case runs in a process of its own. Memory is the peak of its resident memory beyond what it
held after the same on 64 tokens, which is the constant part: PyTorch and the weights (Linux only).
Time is the fastest of the runs that fit into --seconds, at least one. Printed as Markdown, with the
exponents in n over the lengths from --fit-from on. Explicit attention is left out from
--longest-explicit on, where it would take several gigabytes.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dragoman.config import ModelConfig
from dragoman.inspection.layer_costs import fit_exponent
from dragoman.model.stacks import DecoderOnly, EncoderOnly
from dragoman.model.windowed import Sight
from dragoman.training.loss import cross_entropy

MODELS = {"DecoderOnly": DecoderOnly, "EncoderOnly": EncoderOnly}
KINDS = ("explicit", "fused", "restricted")
TASKS = ("training step", "inference")
_VOCABULARY, _LAYERS, _WARM = 1000, 2, 64

Case = dict[str, Any]


def make(case: Case) -> DecoderOnly | EncoderOnly:
    torch.manual_seed(1)
    config = ModelConfig(
        d_model=case["width"],
        d_ff=4 * case["width"],
        heads=case["width"] // 64,
        encoder_layers=_LAYERS,
        decoder_layers=_LAYERS,
        dropout=0.0,
        max_positions=max(_WARM, case["length"]),
        window=case["window"] if case["kind"] == "restricted" else None,
    )
    return MODELS[case["model"]](config, _VOCABULARY)


def states(model: DecoderOnly | EncoderOnly, ids: Tensor, explicit: bool) -> Tensor:
    """What the output layer reads, (1, N) -> (1, N, D)."""
    if not explicit:
        return model.hidden(ids, ids)
    sight = Sight.of(ids, isinstance(model, DecoderOnly), None)
    x = model.embedding(ids)
    for layer in model.layers:
        x = layer(x, sight, maps=[])  # who asks for the weights gets them as a matrix
    result: Tensor = model.norm(x)
    return result


def run(model: DecoderOnly | EncoderOnly, length: int, case: Case) -> float:
    """Seconds of one training step or one inference."""
    ids = torch.randint(4, _VOCABULARY, (1, length))
    training = case["task"] == TASKS[0]
    start = time.perf_counter()
    with torch.inference_mode(not training):
        rows = states(model.train(training), ids, case["kind"] == "explicit").flatten(0, 1)
        loss = cross_entropy(rows, model.embedding.weight, ids.flatten(), 0.0, 0)
    if training:
        loss.smoothed.backward()
        model.zero_grad()
    return time.perf_counter() - start


def forget_peak() -> None:
    """Let the peak begin anew at what this process holds now."""
    Path("/proc/self/clear_refs").write_text("5", "ascii")


def peak() -> float:
    """The most megabytes of memory that this process has held."""
    for line in Path("/proc/self/status").read_text("utf-8").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024 / 1e6
    raise SystemExit("error: this system does not say how much memory a process has held")


def measure(case: Case) -> dict[str, float]:
    """Seconds and megabytes of a case, in this process."""
    model = make(case)
    run(model, _WARM, case)
    forget_peak()
    constant, start, fastest = peak(), time.perf_counter(), float("inf")
    while fastest == float("inf") or time.perf_counter() - start + fastest < case["seconds"]:
        fastest = min(fastest, run(model, case["length"], case))
    return {"seconds": fastest, "megabytes": peak() - constant}


def measure_apart(case: Case) -> dict[str, float]:
    """The same in a process of its own."""
    command = [sys.executable, __file__, "--case", json.dumps(case)]
    found: dict[str, float] = json.loads(subprocess.check_output(command))
    return found


def exponent(lengths: Sequence[int], values: Sequence[float], fit_from: int) -> str:
    """The exponent in n of the values at the lengths from fit_from on."""
    upper = [(n, value) for n, value in zip(lengths, values, strict=True) if n >= fit_from]
    if len(upper) < 2:
        return ""
    return f"{fit_exponent(*zip(*upper, strict=True)):.2f}"


def row(case: Case, options: argparse.Namespace) -> list[str]:
    """The cells of a model and a kind of attention."""
    lengths = [n for n in options.lengths if n < options.longest_explicit]
    if case["kind"] != "explicit":
        lengths = options.lengths
    costs = [measure_apart(case | {"length": length}) for length in lengths]
    cells = [f"{1000 * cost['seconds']:,.0f} ms, {cost['megabytes']:,.0f} MB" for cost in costs]
    fits = (
        exponent(lengths, [cost[name] for cost in costs], options.fit_from)
        for name in ("seconds", "megabytes")
    )
    return [*cells, *[""] * (len(options.lengths) - len(cells)), *fits]


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    lengths = [512, 1024, 2048, 4096, 8192, 16_384]
    parser.add_argument("--lengths", type=int, nargs="+", default=lengths)
    parser.add_argument("--models", choices=MODELS, nargs="+", default=list(MODELS))
    parser.add_argument("--kinds", choices=KINDS, nargs="+", default=KINDS)
    parser.add_argument("--tasks", choices=TASKS, nargs="+", default=TASKS)
    parser.add_argument("--width", type=int, default=256, help="d_model, in heads of 64")
    parser.add_argument("--window", type=int, default=128)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--fit-from", type=int, default=2048, metavar="LENGTH")
    parser.add_argument("--longest-explicit", type=int, default=8192, metavar="LENGTH")
    parser.add_argument("--case", type=json.loads, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    options = parse()
    if options.case is not None:
        print(json.dumps(measure(options.case)))
        return
    names = ["task", "model", "attention", *(f"{n:,}" for n in options.lengths)]
    print("|", " | ".join([*names, "time ~ n^", "memory ~ n^"]), "|")
    print("| --- | --- | --- |", " ---: |" * (len(options.lengths) + 2), sep="")
    shared = {"width": options.width, "window": options.window, "seconds": options.seconds}
    for task in options.tasks:
        for model in options.models:
            for kind in options.kinds:
                case = shared | {"task": task, "model": model, "kind": kind}
                print("|", " | ".join([task, model, kind, *row(case, options)]), "|", flush=True)
    print(f"\nrestricted to {options.window}; {torch.get_num_threads()} threads")


if __name__ == "__main__":
    main()
