"""Target tokens a second and model-FLOPs utilization of `dragoman train` on a CUDA GPU.

python benchmarks/gpu_training.py --work DIR [--prepared DIR] [--presets paper-base,paper-big]

Without --prepared it makes a corpus of made-up words, as many subwords as the preset wants and
about as long as news. Every preset trains as the command line does, in the preset's own batches,
for --seconds behind its first updates. Utilization is the arithmetic of forward and backward pass
of real tokens (dragoman.training.utilization) over the best rate of a matrix product, measured
before and after, and over the data sheet's where --peak-tflops gives it. Exit code 2 when there is
no GPU.

--device cpu --presets tiny tries the script itself on a CPU.
"""

import argparse
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from measuring import Window, accept_interrupts, measure
from toolkits import Launch

from dragoman.config import resolve_config
from dragoman.corpus.store import CorpusStore
from dragoman.corpus.tokenizer import Tokenizer
from dragoman.presets import PRESETS
from dragoman.training.precision import choose_precision
from dragoman.training.utilization import TrainingCost, matrix_product_peak

_SYLLABLES = [a + b for a in "bdfgklmnprstvz" for b in ("a", "e", "i", "o", "u", "ar", "en", "is")]
_WORDS = 60_000


@dataclass(frozen=True)
class Measured:
    """A preset's window; operations a second it did and the machine's peak."""

    preset: str
    precision: str
    window: Window
    operations: float
    peak: float


def write_text(folder: Path, pairs: int) -> None:
    """Two files of made-up words, frequent ones more often, aligned by line."""
    chance = np.random.default_rng(1)
    words = min(_WORDS, 20 * pairs)
    parts = chance.integers(len(_SYLLABLES), size=(2, words, 4))
    counts = chance.integers(1, 5, size=(2, words))
    lexicon = [
        ["".join(_SYLLABLES[p] for p in word[:n]) for word, n in zip(*side, strict=True)]
        for side in zip(parts, counts, strict=True)
    ]
    lengths = np.clip(chance.lognormal(3.0, 0.6, pairs).astype(int), 2, 100)
    folder.mkdir(parents=True, exist_ok=True)
    for side in (0, 1):
        with (folder / f"train.{'st'[side]}").open("w", encoding="utf-8") as stream:
            for length in lengths:
                ranks = np.minimum(chance.zipf(1.1, length) - 1, words - 1)
                stream.write(" ".join(lexicon[side][rank] for rank in ranks) + "\n")


def prepare(options: argparse.Namespace, preset: str) -> Path:
    """The corpus of a preset: the given one, or made-up text with the preset's vocabulary."""
    if options.prepared:
        given: Path = options.prepared
        return given
    text = options.work / "text"
    if not (text / "train.t").exists():
        write_text(text, options.pairs)
    out: Path = options.work / f"prepared-{preset}"
    command = [sys.executable, "-m", "dragoman", "prepare", "--out", str(out), "--preset", preset]
    command += ["--source", str(text / "train.s"), "--target", str(text / "train.t")]
    command += ["--source-language", "en", "--target-language", "de"]
    if subprocess.run(command, stdout=sys.stderr, check=False).returncode:
        raise SystemExit(2)
    return out


def run(preset: str, options: argparse.Namespace) -> Measured:
    """Train a preset for a while through the command line."""
    prepared = prepare(options, preset)
    device = torch.device(options.device)
    precision = choose_precision("auto", device)
    peak = matrix_product_peak(device, precision)
    work = options.work / f"run-{preset}"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    name_of = str(precision).removeprefix("torch.")
    settings = {
        "training.max_steps": 10**9,
        "training.validations": 1,
        "training.checkpoint_minutes": 10_000,
        "training.precision": name_of,
    }
    if options.batch_tokens:
        settings["training.batch_tokens"] = options.batch_tokens
    command = [sys.executable, "-m", "dragoman", "train", "--prepared", str(prepared)]
    command += ["--out", str(work / "model"), "--preset", preset, "--device", options.device]
    for name, value in settings.items():
        command += ["--set", f"{name}={value}"]
    launched = Launch(command, work / "model" / "training" / "log.jsonl", {})
    window = measure("dragoman", launched, options.warmup_updates, options.seconds)
    peak = max(peak, matrix_product_peak(device, precision))
    shutil.rmtree(work)
    operations = window.rate * operations_a_token(preset, prepared)
    return Measured(preset, name_of, window, operations, peak)


def operations_a_token(preset: str, prepared: Path) -> float:
    """Floating-point operations of a step for each target token, over the whole corpus."""
    store = CorpusStore.open(prepared / "train.arrow")
    size = Tokenizer.load(prepared / "tokenizer.model").vocabulary_size
    cost = TrainingCost.of(resolve_config(preset).model, size)
    source, target = (
        lengths.astype(np.int64) + 1 for lengths in (store.source_lengths, store.target_lengths)
    )
    return cost.of_lengths(source, target) / int(target.sum())


def table(results: list[Measured], peak_tflops: float | None) -> str:
    """The results as Markdown; TFLOP are 10^12 floating-point operations."""
    lines = [
        "| preset | precision | target tokens/s | target tokens an update | TFLOP/s "
        "| of the measured peak | of the stated peak |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for result in results:
        window, operations = result.window, result.operations
        stated = f"{operations / (peak_tflops * 1e12):.1%}" if peak_tflops else "not given"
        lines.append(
            f"| {result.preset} | {result.precision} | {window.rate:,.0f} "
            f"| {window.tokens / window.updates:,.0f} | {operations / 1e12:,.3f} "
            f"| {operations / result.peak:.1%} of {result.peak / 1e12:,.3f} | {stated} |"
        )
    return "\n".join(lines)


def device_name(device: torch.device) -> str:
    """What the GPU calls itself."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--work", type=Path, required=True, help="folder for everything made")
    parser.add_argument("--prepared", type=Path, help="a folder of dragoman prepare")
    parser.add_argument("--presets", default="paper-base,paper-big", help="default: %(default)s")
    parser.add_argument("--device", default="cuda", help="default: %(default)s")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--warmup-updates", type=int, default=50)
    parser.add_argument("--batch-tokens", type=int, help="default: the preset's")
    parser.add_argument("--pairs", type=int, default=200_000, help="of made-up text")
    parser.add_argument("--peak-tflops", type=float, help="the data sheet's, dense, bfloat16")
    options = parser.parse_args()
    options.presets = options.presets.split(",")
    if unknown := set(options.presets) - set(PRESETS):
        parser.error(f"unknown presets: {', '.join(sorted(unknown))}; known: {', '.join(PRESETS)}")
    return options


def main() -> None:
    options = read_options()
    if torch.device(options.device).type == "cuda" and not torch.cuda.is_available():
        print("error: this PyTorch sees no CUDA GPU", file=sys.stderr)
        raise SystemExit(2)
    accept_interrupts()
    results = [run(preset, options) for preset in options.presets]
    print(f"{device_name(torch.device(options.device))}, PyTorch {torch.__version__}\n")
    print(table(results, options.peak_tflops))


if __name__ == "__main__":
    main()
