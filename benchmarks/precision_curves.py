"""Validation loss of bfloat16 against float32, on the same data and seeds.

python benchmarks/precision_curves.py PREPARED --work DIR --steps 2000 --seeds 1,2

PREPARED is a folder of `dragoman prepare`. Every run is a `dragoman train` of its own; all validate
at the same steps. Prints a Markdown table of nats a token and the difference (bfloat16 - float32)
and writes precision_curves.png to the folder of --work. Where the processor has no bfloat16 of its
own it is computed by emulation: slower, to the same results.
"""

import argparse
import shutil
import statistics
import subprocess
import sys
from pathlib import Path

from dragoman.training.progress import read_log

PRECISIONS = ("bfloat16", "float32")

Curve = dict[int, float]  # step -> nats a token
Curves = dict[tuple[str, int], Curve]  # precision, seed


def train(options: argparse.Namespace, precision: str, seed: int) -> Curve:
    """The validation loss of one run by step, smoothing left out."""
    out = options.work / f"{precision}-{seed}"
    shutil.rmtree(out, ignore_errors=True)
    command = [sys.executable, "-m", "dragoman", "train", "--prepared", str(options.prepared)]
    command += ["--out", str(out), "--preset", options.preset, "--device", options.device]
    settings = {
        "training.max_steps": options.steps,
        "training.validations": options.validations,
        "training.patience": options.validations + 1,
        "training.precision": precision,
        "training.seed": seed,
    }
    for name, value in settings.items():
        command += ["--set", f"{name}={value}"]
    for assignment in options.set:
        command += ["--set", assignment]
    if subprocess.run(command, stdout=sys.stderr, check=False).returncode:
        raise SystemExit(2)
    return read_curve(out / "training" / "log.jsonl")


def read_curve(log: Path) -> Curve:
    """The validations in a log.jsonl."""
    return {e["step"]: float(e["nll"]) for e in read_log(log) if e["event"] == "validation"}


def table(curves: Curves) -> str:
    """Every validation of every seed side by side, as Markdown."""
    seeds = sorted({seed for _, seed in curves})
    head = [f"{precision}, seed {seed}" for seed in seeds for precision in PRECISIONS]
    lines = [f"| step | {' | '.join(head)} | mean difference |", "| ---: " * (len(head) + 2) + "|"]
    for step in sorted(set.intersection(*(set(curve) for curve in curves.values()))):
        values = [curves[precision, seed][step] for seed in seeds for precision in PRECISIONS]
        difference = mean_difference(curves, seeds, step)
        shown = " | ".join(f"{value:.4f}" for value in values)
        lines.append(f"| {step:,} | {shown} | {difference:+.4f} |")
    return "\n".join(lines)


def mean_difference(curves: Curves, seeds: list[int], step: int) -> float:
    """Nats a token by which bfloat16 is worse than float32 at a step, over the seeds."""
    return statistics.mean(
        curves["bfloat16", seed][step] - curves["float32", seed][step] for seed in seeds
    )


def draw(curves: Curves, path: Path) -> None:
    """The curves as a picture: color by seed, dashed for float32."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.add_subplot()
    seeds = sorted({seed for _, seed in curves})
    for (precision, seed), curve in sorted(curves.items()):
        axes.plot(
            list(curve),
            list(curve.values()),
            "--" if precision == "float32" else "-",
            color=f"C{seeds.index(seed)}",
            label=f"{precision}, seed {seed}",
        )
    axes.set_xlabel("update")
    axes.set_ylabel("validation loss (nats a token)")
    axes.legend()
    figure.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("prepared", type=Path, help="a folder of dragoman prepare")
    parser.add_argument("--work", type=Path, required=True, help="folder for everything made")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--validations", type=int, default=10)
    parser.add_argument("--seeds", default="1,2", help="default: %(default)s")
    parser.add_argument("--preset", default="small")
    parser.add_argument("--device", default="cpu")
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="as of dragoman train"
    )
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    curves: Curves = {}
    for seed in map(int, options.seeds.split(",")):
        for precision in PRECISIONS:
            curves[precision, seed] = train(options, precision, seed)
    draw(curves, options.work / "precision_curves.png")
    print(table(curves))


if __name__ == "__main__":
    main()
