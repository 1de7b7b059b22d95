"""Trains variants of settings in turn on one prepared corpus and prints how well each validates.

python benchmarks/tune.py PREPARED --out FOLDER --budget 15m \\
    --variant "plain:" --variant "r-drop: training.r_drop=5" \\
    --variant "thin: model.d_model=128 model.d_ff=512 model.encoder_layers=4"

PREPARED is a folder of `dragoman prepare`. A variant is a name, a colon and settings between
blanks; --variants FILE has one a line (blank lines and lines that begin with # count for nothing).
--preset and --set are for all of them. --seeds 3 trains each with three seeds and prints means.
Each is a `dragoman train` in a process of its own, with the same --budget (15m, 5000-steps), in
FOLDER/NAME-SEED; what is there already is not trained again, and what was interrupted goes on.
BLEU and chrF are those of `dragoman evaluate` on the validation text, or with --test SOURCE
REFERENCE on those files; nll is that of the weights that were kept, on the validation data.
"""

import argparse
import json
import re
import statistics
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Variant:
    name: str
    settings: list[str]


@dataclass(frozen=True)
class Outcome:
    nll: float
    bleu: float
    chrf: float
    step: int
    minutes: float
    signature: str


def parse_variant(text: str) -> Variant:
    name, colon, settings = text.partition(":")
    if not colon or not re.fullmatch(r"[\w.+-]+", name.strip()):
        raise SystemExit(f"error: variant {text!r}: write NAME: section.setting=value ...")
    return Variant(name.strip(), settings.split())


def read_variants(texts: Iterable[str], path: Path | None) -> list[Variant]:
    lines = path.read_text(encoding="utf-8").splitlines() if path is not None else []
    kept = [line for line in lines if line.strip() and not line.lstrip().startswith("#")]
    variants = [parse_variant(text) for text in (*texts, *kept)]
    names = [variant.name for variant in variants]
    if not variants or len(set(names)) < len(names):
        raise SystemExit("error: give variants, each with a name of its own")
    return variants


def dragoman(*arguments: str | Path, capture: bool = False) -> str:
    command = [sys.executable, "-m", "dragoman", *map(str, arguments)]
    print("$", *command[1:], file=sys.stderr, flush=True)
    done = subprocess.run(command, stdout=subprocess.PIPE if capture else None, check=True)
    return done.stdout.decode() if capture else ""


def train(options: argparse.Namespace, variant: Variant, seed: int) -> Path:
    """The folder of the finished model."""
    out: Path = options.out / f"{variant.name}-{seed}"
    if (out / "model.safetensors").is_file():
        return out
    if any(out.glob("training/checkpoints/step-*")):
        dragoman("train", "--resume", "--out", out)
        return out
    settings = [*options.set, *variant.settings, f"training.seed={seed}"]
    given = [option for setting in settings for option in ("--set", setting)]
    preset = ["--preset", options.preset] if options.preset else []
    fixed = ["--prepared", options.prepared, "--out", out, "--budget", options.budget]
    dragoman("train", *fixed, *preset, *given)
    return out


def measure(options: argparse.Namespace, model: Path) -> Outcome:
    log = (model / "training" / "log.jsonl").read_text(encoding="utf-8")
    events: list[dict[str, Any]] = [json.loads(line) for line in log.splitlines()]
    end = next(event for event in reversed(events) if event["event"] == "end")
    source, reference = options.test or validation_text(options)
    cached = model / "training" / f"scores-{source.name}.json"
    if not cached.is_file():
        files = ["--source", source, "--reference", reference]
        found = dragoman("evaluate", "--model", model, *files, "--json", capture=True)
        cached.write_text(found, encoding="utf-8")
    found = json.loads(cached.read_text(encoding="utf-8"))
    (system,) = found["systems"]
    scores = system["scores"]
    return Outcome(
        nll=end["nll"],
        bleu=scores["BLEU"]["value"],
        chrf=scores["chrF2"]["value"],
        step=end["step"],
        minutes=end["seconds"] / 60,
        signature=found["signatures"]["BLEU"],
    )


def validation_text(options: argparse.Namespace) -> list[Path]:
    """The two sides of the validation data as files beside the models."""
    text = (options.prepared / "valid.jsonl").read_text(encoding="utf-8")
    pairs = [json.loads(line) for line in text.split("\n") if line]
    paths = [options.out / "valid.source", options.out / "valid.target"]
    for path, side in zip(paths, ("source", "target"), strict=True):
        lines = "".join(f"{pair[side]}\n" for pair in pairs)
        path.write_text(lines, encoding="utf-8", newline="\n")
    return paths


def table(found: list[tuple[Variant, list[Outcome]]]) -> str:
    """Markdown, the best nll first; with several seeds means, and the deviation of BLEU."""
    rows = ["| variant | nll | BLEU | chrF2 | updates | minutes | settings |"]
    rows.append("| --- | ---: | ---: | ---: | ---: | ---: | --- |")
    for variant, outcomes in sorted(
        found, key=lambda pair: statistics.mean(outcome.nll for outcome in pair[1])
    ):
        mean = {
            name: statistics.mean(getattr(outcome, name) for outcome in outcomes)
            for name in ("nll", "bleu", "chrf", "step", "minutes")
        }
        spread = (
            f" ± {statistics.stdev(outcome.bleu for outcome in outcomes):.2f}"
            if len(outcomes) > 1
            else ""
        )
        settings = " ".join(f"`{setting}`" for setting in variant.settings)
        rows.append(
            f"| {variant.name} | {mean['nll']:.4f} | {mean['bleu']:.2f}{spread} | "
            f"{mean['chrf']:.2f} | {mean['step']:,.0f} | {mean['minutes']:.1f} | {settings} |"
        )
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("prepared", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--budget", required=True)
    parser.add_argument("--variant", action="append", default=[])
    parser.add_argument("--variants", type=Path)
    parser.add_argument("--preset")
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--test", nargs=2, type=Path, metavar=("SOURCE", "REFERENCE"))
    options = parser.parse_args()
    variants = read_variants(options.variant, options.variants)
    options.out.mkdir(parents=True, exist_ok=True)
    found: list[tuple[Variant, list[Outcome]]] = []
    for variant in variants:
        outcomes = []
        for seed in range(1, options.seeds + 1):
            try:
                outcomes.append(measure(options, train(options, variant, seed)))
            except subprocess.CalledProcessError as error:  # it has said why on stderr
                print(f"{variant.name}: failed, status {error.returncode}", file=sys.stderr)
        if outcomes:
            found.append((variant, outcomes))
            print(f"\n{table(found)}\n", file=sys.stderr, flush=True)
    if not found:
        raise SystemExit("error: no variant was trained to its end")
    print(f"{table(found)}\n\nBLEU: {found[0][1][0].signature}; budget {options.budget}")


if __name__ == "__main__":
    main()
