"""Target tokens a second of training: Dragoman, Marian, JoeyNMT and a plain PyTorch loop in turn.

python benchmarks/training_speed.py TEXT --work DIR --environments DIR

TEXT holds train.L and valid.L of both languages. Everything runs on the same pairs, the same
subwords (BPE, 8,000 together), the same sizes, and as many target tokens an update as Dragoman's
batches hold. A round runs every system for --seconds behind its first updates; target tokens are
counted with eos and without padding. --check trains one epoch of a few pairs instead and compares
the number of target tokens that each system says it trained on with the number in the files.
"""

import argparse
import itertools
import json
import os
import platform
import re
import shutil
import statistics
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from environments import python_of, version_of
from measuring import (
    Window,
    accept_interrupts,
    follow,
    keep_to_processors,
    measure,
    output_of,
    started,
)
from segmentation import export, prepare
from toolkits import NAMES, SIZES, Launch, Task, launch, read_samples

from dragoman.config import ModelConfig
from dragoman.corpus.batches import plan_batches
from dragoman.corpus.store import CorpusStore
from dragoman.training.utilization import TrainingCost

_FLAGS = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16")
_PEAK = """
import json, torch
from dragoman.training.utilization import matrix_product_peak
cpu, kinds = torch.device("cpu"), ("float32", "bfloat16")
print(json.dumps({kind: matrix_product_peak(cpu, getattr(torch, kind)) for kind in kinds}))
"""


@dataclass(frozen=True)
class Measured:
    """One system in one round: its window, and the better of the peaks before and after it."""

    system: str
    window: Window
    precision: str
    peaks: dict[str, float]


def make_task(options: argparse.Namespace, pairs: int | None = None) -> Task:
    """Prepare the corpus and write it as words."""
    languages = (options.source_language, options.target_language)
    prepared = prepare(options.text, languages, options.vocabulary_size, options.work / "prepared")
    segmented = export(prepared, options.work / "words", pairs)
    store = CorpusStore.open(prepared / "train.arrow")
    lengths = store.source_lengths, store.target_lengths
    batches = len(plan_batches(*lengths, options.batch_tokens, seed=1, epoch=0))
    return Task(
        prepared,
        segmented,
        SIZES[options.sizes],
        (int(store.target_lengths.sum()) + len(store)) / batches,
        options.batch_tokens,
        options.threads,
        options.precision,
    )


def run_rounds(options: argparse.Namespace, task: Task) -> list[Measured]:
    """Every system in turn, round after round; each result is kept in results.jsonl."""
    results = []
    for number in range(1, options.rounds + 1):
        for system in options.systems:
            work = fresh(options.work / "runs" / f"{system}-{number}")
            launched = launch(system, task, work, options.environments)
            peaks = matrix_product_peaks(options.threads)
            warmup = task.sizes.warmup_updates
            found = measure(system, launched, warmup, options.seconds)
            after = matrix_product_peaks(options.threads)
            peaks = {kind: max(rate, after[kind]) for kind, rate in peaks.items()}
            result = Measured(system, found, precision_of(system, launched), peaks)
            results.append(result)
            keep(options.work / "results.jsonl", options, number, result)
            say(
                f"round {number}: {system} {found.rate:,.0f} tokens/s in {result.precision}, "
                f"{found.updates} updates in {found.seconds:.1f} s"
            )
            shutil.rmtree(work)
    return results


def fresh(folder: Path) -> Path:
    """A path where nothing is: what an interrupted measurement left there goes."""
    shutil.rmtree(folder, ignore_errors=True)
    return folder


def matrix_product_peaks(threads: int) -> dict[str, float]:
    """Floating-point operations a second of the best matrix product, by precision."""
    done = subprocess.run(
        [sys.executable, "-c", _PEAK],
        env=os.environ | {"OMP_NUM_THREADS": str(threads)},
        capture_output=True,
        text=True,
        check=True,
    )
    found: dict[str, float] = json.loads(done.stdout)
    return found


def precision_of(system: str, launched: Launch) -> str:
    """What a system computes matrix products in, by its own words where it has a choice."""
    found = re.search(r"(?:precision: | in )(bfloat16|float32)\b", output_of(launched))
    return found[1] if found and system in ("dragoman", "plain") else "float32"


def keep(path: Path, options: argparse.Namespace, number: int, result: Measured) -> None:
    """Append a result to a file, so that none is lost when a later run fails."""
    record: dict[str, Any] = {"round": number, "sizes": options.sizes, "system": result.system}
    record |= {"precision": result.precision, "peaks": result.peaks} | vars(result.window)
    record["rate"] = result.window.rate
    with path.open("a", encoding="utf-8") as stream:
        stream.write(json.dumps(record) + "\n")


def operations_a_token(task: Task, model: ModelConfig) -> float:
    """Floating-point operations of a training step for each target token, on this corpus."""
    words = task.segmented
    cost = TrainingCost.of(model, words.vocabulary_size)
    return cost.of_lengths(words.source_lengths, words.target_lengths) / words.target_tokens


def table(task: Task, results: list[Measured]) -> str:
    """Medians, range, ratios and utilization as Markdown."""
    systems = list(dict.fromkeys(result.system for result in results))
    rates = {name: [r.window.rate for r in results if r.system == name] for name in systems}
    medians = {name: statistics.median(found) for name, found in rates.items()}
    operations = operations_a_token(task, task.sizes.model)
    lines = [
        "| system | precision | target tokens/s, median | min - max | target tokens an update "
        "| dragoman / it | of its precision's peak |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name in systems:
        own = [result for result in results if result.system == name]
        shares = [r.window.rate * operations / r.peaks[r.precision] for r in own]
        update = statistics.median(r.window.tokens / r.window.updates for r in own)
        ratio = f"{medians['dragoman'] / medians[name]:.2f}" if "dragoman" in medians else ""
        lines.append(
            f"| {name} | {own[-1].precision} | {medians[name]:,.0f} "
            f"| {min(rates[name]):,.0f} - {max(rates[name]):,.0f} | {update:,.0f} "
            f"| {ratio} | {statistics.median(shares):.0%} |"
        )
    return "\n".join(lines)


def conditions(options: argparse.Namespace, task: Task, results: list[Measured]) -> str:
    """What the figures were measured on and with."""
    model, words = task.sizes.model, task.segmented
    peaks = {
        kind: statistics.median(result.peaks[kind] for result in results) / 1e9
        for kind in ("float32", "bfloat16")
    }
    versions = [f"Python {platform.python_version()}", f"PyTorch {installed('torch')}"]
    versions.append(f"dragoman {installed('dragoman')}")
    for name in ("marian", "joeynmt"):
        if name in options.systems:
            python = python_of(options.environments, name)
            versions.append(f"{name} {version_of(python, name)}")
    return (
        f"{processor()}; {options.threads} threads. {', '.join(versions)}.\n"
        f"{len(words.target_lengths):,} pairs, {words.target_tokens:,} target tokens, vocabulary "
        f"{words.vocabulary_size:,}; d_model {model.d_model}, d_ff {model.d_ff}, {model.heads} "
        f"heads, {model.encoder_layers}+{model.decoder_layers} layers, {model.norm}-norm, dropout "
        f"{model.dropout}; {options.rounds} rounds of {options.seconds:.0f} s behind "
        f"{task.sizes.warmup_updates} updates.\n"
        f"A target token takes {operations_a_token(task, model) / 1e6:.1f} million operations; "
        f"matrix products reach {peaks['float32']:,.1f} GFLOP/s in float32 and "
        f"{peaks['bfloat16']:,.1f} in bfloat16 (the better of before and after each run, medians)."
    )


def installed(package: str) -> str:
    """The version of a package of this Python."""
    from importlib.metadata import version

    return version(package)


def processor() -> str:
    """Model and the flags that matter for matrix products."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor() or platform.machine()
    model = re.search(r"^model name\s*: (.*)$", text, re.MULTILINE)
    flags = re.search(r"^flags\s*: (.*)$", text, re.MULTILINE)
    known = set(flags[1].split()) if flags else set()
    have = [flag for flag in _FLAGS if flag in known]
    return f"{model[1] if model else platform.machine()} ({', '.join(have) or 'no AVX2'})"


def check(options: argparse.Namespace) -> bool:
    """One epoch of a few pairs: does every system train on every target token, and count it?"""
    task = make_check_task(options)
    expected, right = task.segmented.target_tokens, True
    say(f"expected: {expected:,} target tokens in {len(task.segmented.target_lengths):,} pairs")
    for system in options.systems:
        work = fresh(options.work / "check" / system)
        launched = launch(system, task, work, options.environments)
        with started(launched) as process:
            for _ in follow(launched.log, process):
                pass
        found = tokens_of_epoch(system, launched)
        right = right and found == expected
        say(f"{system}: {found:,} target tokens ({'right' if found == expected else 'WRONG'})")
    return right


def make_check_task(options: argparse.Namespace) -> Task:
    """A corpus of `--check` pairs, prepared anew so that Dragoman sees no others."""
    text = fresh(options.work / "check-text")
    text.mkdir(parents=True)
    for name in ("train", "valid"):
        for language in (options.source_language, options.target_language):
            with (options.text / f"{name}.{language}").open("rb") as lines:
                first = list(itertools.islice(lines, options.check if name == "train" else 20))
            (text / f"{name}.{language}").write_bytes(b"".join(first))
    fresh(options.work / "check-prepared")
    small = argparse.Namespace(**vars(options))
    small.text, small.work = text, fresh(options.work / "check-work")
    small.vocabulary_size = 1000
    return replace(make_task(small), epochs=1)


def tokens_of_epoch(system: str, launched: Launch) -> int:
    """Target tokens that a system itself says it trained on; 0 where it does not say."""
    if system == "dragoman":
        states = launched.log.parent.glob("checkpoints/step-*/state.json")
        return max(
            (json.loads(path.read_text())["counters"]["tokens"] for path in states), default=0
        )
    if system == "marian":
        lines = ((0.0, line) for line in output_of(launched).splitlines())
        return int(max((sample.tokens for sample in read_samples(system, lines)), default=0))
    pattern = r"num\. of tokens: (\d+)" if system == "joeynmt" else r"trained on (\d+) target"
    found = re.search(pattern, output_of(launched))
    return int(found[1]) if found else 0


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("text", type=Path, help="folder with train.L and valid.L")
    parser.add_argument("--work", type=Path, required=True, help="folder for everything made")
    parser.add_argument(
        "--environments",
        type=Path,
        required=True,
        help="folder of virtual environments, made on first use",
    )
    parser.add_argument("--source-language", default="en", metavar="L")
    parser.add_argument("--target-language", default="de", metavar="L")
    parser.add_argument("--systems", default=",".join(NAMES), help="default: %(default)s")
    parser.add_argument("--sizes", choices=list(SIZES), default="small")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=60.0, help="per system and round")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--batch-tokens", type=int, default=2000)
    parser.add_argument("--vocabulary-size", type=int, default=8000)
    parser.add_argument(
        "--precision",
        choices=["auto", "bfloat16", "float32"],
        default="auto",
        help="of dragoman and plain; auto: as measured (default)",
    )
    parser.add_argument(
        "--check", type=int, metavar="PAIRS", help="count the tokens of one epoch of so many pairs"
    )
    options = parser.parse_args()
    options.systems = options.systems.split(",")
    if unknown := set(options.systems) - set(NAMES):
        parser.error(f"unknown systems: {', '.join(sorted(unknown))}; known: {', '.join(NAMES)}")
    return options


def main() -> None:
    options = read_options()
    accept_interrupts()
    keep_to_processors(options.threads)
    if options.check:
        raise SystemExit(0 if check(options) else 1)
    task = make_task(options)
    results = run_rounds(options, task)
    print(conditions(options, task, results))
    print()
    print(table(task, results))


if __name__ == "__main__":
    main()
