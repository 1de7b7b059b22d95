"""The Transformer and what it replaced, at equal parameters and equal time.

python benchmarks/paper/architectures.py TEXT --work DIR --minutes 5

TEXT holds train.L, valid.L and test2016.L of both languages. A Transformer (preset small), LSTM and
GRU encoder-decoders with attention, and the convolutional one are trained by `dragoman train` on
one prepared corpus for so many minutes each; the others' width is chosen so that they have as many
parameters as the Transformer. All are translated by PyTorch with beam 4. Then, of untrained models
of these sizes, the time of a training step by the length of its sentences, and of small models
(d_model 64) how well they copy symbols over a distance (architectures_probe.py says how).

What is done is kept in DIR/results.json and not done again. Prints Markdown.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from architectures_probe import DISTANCES, LENGTHS, VOCABULARY, copying, tokens_per_second

from dragoman.config import Config, resolve_config
from dragoman.corpus.prepared import TOKENIZER
from dragoman.corpus.tokenizer import Tokenizer
from dragoman.inspection.training_log import read_training_log
from dragoman.model.assembly import build_model
from dragoman.model.sequence_model import parameter_count

# Depths as is usual for each. Three tokens of kernel: six layers see 13 tokens.
SETTINGS: dict[str, dict[str, Any]] = {
    "transformer": {},
    "lstm": {"encoder_layers": 2, "decoder_layers": 2},
    "gru": {"encoder_layers": 2, "decoder_layers": 2},
    "convolutional": {"encoder_layers": 6, "decoder_layers": 6},
}
_STEP = 2  # of a width, which is even
Results = dict[str, dict[str, Any]]


def config_of(kind: str, width: int, preset: str = "small") -> Config:
    """The configuration of a kind, of a width in features."""
    model = {"kind": kind, **SETTINGS[kind], "d_model": width}
    return resolve_config(preset, flags={"model": model})


def parameters(config: Config, vocabulary_size: int) -> int:
    """How many a model has; makes none."""
    import torch

    with torch.device("meta"):
        return parameter_count(build_model(config, vocabulary_size))


def equal_width(kind: str, wanted: int, vocabulary_size: int, preset: str = "small") -> int:
    """The width at which a kind has nearest to so many parameters."""
    low, high = _STEP, 2048
    while high - low > _STEP:
        middle = (low + high) // 2 // _STEP * _STEP
        if parameters(config_of(kind, middle, preset), vocabulary_size) < wanted:
            low = middle
        else:
            high = middle

    def distance(width: int) -> int:
        return abs(parameters(config_of(kind, width, preset), vocabulary_size) - wanted)

    return min(low, high, key=distance)


def equal_configs(
    vocabulary_size: int, preset: str = "small", width: int = 256
) -> dict[str, Config]:
    """All kinds, with as many parameters as the Transformer of a preset and a width."""
    wanted = parameters(config_of("transformer", width, preset), vocabulary_size)
    widths = {
        kind: width if kind == "transformer" else equal_width(kind, wanted, vocabulary_size, preset)
        for kind in SETTINGS
    }
    return {kind: config_of(kind, width, preset) for kind, width in widths.items()}


def dragoman(*arguments: str | Path) -> str:
    """Run a command; what it printed."""
    command = [sys.executable, "-m", "dragoman", *map(str, arguments)]
    print("$", *command[1:], file=sys.stderr, flush=True)
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def text(options: argparse.Namespace, name: str) -> list[Path]:
    return [options.text / f"{name}.{language}" for language in ("en", "de")]


def prepare(options: argparse.Namespace) -> Path:
    """The corpus that all train on."""
    (source, target), (valid_source, valid_target) = text(options, "train"), text(options, "valid")
    folder: Path = options.work / "prepared"
    given = ["--valid-source", valid_source, "--valid-target", valid_target, "--out", folder]
    dragoman("prepare", "--source", source, "--target", target, *given)
    return folder


def train(config: Config, prepared: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Train a kind and translate the test text; what came of it."""
    model = config.model
    out = options.work / model.kind
    settings = SETTINGS[model.kind] | {"kind": model.kind, "d_model": model.d_model}
    assigned = [f"--set=model.{name}={value}" for name, value in settings.items()]
    given = ["--preset", "small", "--budget", f"{options.minutes * 60:g}s", "--device", "cpu"]
    assigned += [f"--set={value}" for value in options.set]
    dragoman("train", "--resume", "--prepared", prepared, "--out", out, *given, *assigned)
    source, target = text(options, "test2016")
    given = ["--json", "--engine", "native", "--device", "cpu", "--output", out / "test2016.txt"]
    files = ["--source", source, "--reference", target]
    measured = json.loads(dragoman("evaluate", "--model", out, *files, *given))
    (system,) = measured["systems"]
    records = read_training_log(out / "training" / "log.jsonl").records
    start, end = records["start"][-1], records["end"][-1]
    return {
        "d_model": model.d_model,
        "layers": [model.encoder_layers, model.decoder_layers],
        "parameters": start["parameters"],
        "precision": start["precision"],
        "updates": int(end["step"]),
        "tokens": int(end["tokens"]),
        "seconds": end["seconds"],
        "nll": end["nll"],
        "perplexity": end["perplexity"],
        "scores": {name: score["value"] for name, score in system["scores"].items()},
        "signature": measured["signatures"]["BLEU"],
    }


def table(rows: list[list[str]]) -> str:
    """Markdown of a heading and rows; the first column is of words."""
    heading, *body = rows
    marks = ["---", *["---:"] * (len(heading) - 1)]
    return "\n".join(f"| {' | '.join(row)} |" for row in [heading, marks, *body])


def report(results: Results, minutes: float) -> str:
    """All that is done, as Markdown."""
    parts = []
    if trained := results["training"]:
        rows = [
            ["model", "layers", "d_model", "M parameters", "updates", "M tokens", "nll", "BLEU"]
        ]
        for kind, found in trained.items():
            size, seen = f"{found['parameters'] / 1e6:.2f}", f"{found['tokens'] / 1e6:.2f}"
            learned = f"{found['nll']:.3f}", f"{found['scores']['BLEU']:.2f}"
            layers = " + ".join(map(str, found["layers"]))
            width, updates = str(found["d_model"]), f"{found['updates']:,}"
            rows.append([kind, layers, width, size, updates, seen, *learned])
        signature = found["signature"]
        parts += [table(rows), f"{minutes:g} minutes each; test2016, `{signature}`."]
    if speeds := results["lengths"]:
        rows = [["tokens/s of a training step, sentences of", *map(str, LENGTHS)]]
        for kind, found in speeds.items():
            rows.append([kind, *(f"{found[str(length)]:,.0f}" for length in LENGTHS)])
        parts.append(table(rows))
    if copied := results["copying"]:
        rows = [["symbols copied right, over a distance of", *map(str, DISTANCES), "M parameters"]]
        for kind, found in copied.items():
            rates = [f"{100 * found['accuracy'][str(far)]:.0f}%" for far in DISTANCES]
            rows.append([kind, *rates, f"{found['parameters'] / 1e6:.2f}"])
        parts.append(table(rows))
    return "\n\n".join(parts)


def run(options: argparse.Namespace) -> Results:
    """Do what is not done yet."""
    path = options.work / "results.json"
    results: Results = {"training": {}, "lengths": {}, "copying": {}}
    if path.is_file():
        results = json.loads(path.read_text("utf-8"))
    prepared = prepare(options)
    vocabulary_size = Tokenizer.load(prepared / TOKENIZER).vocabulary_size
    configs = equal_configs(vocabulary_size)
    small = equal_configs(VOCABULARY, "tiny", 64)
    for kind, config in configs.items():
        jobs = {
            "training": lambda config=config: train(config, prepared, options),
            "lengths": lambda config=config: tokens_per_second(config, vocabulary_size),
            "copying": lambda kind=kind: copying(small[kind], options.copying_updates),
        }
        for name in options.parts:
            if kind in options.kinds and kind not in results[name]:
                results[name][kind] = jobs[name]()
                print(f"{kind}, {name}: {results[name][kind]}", file=sys.stderr, flush=True)
                path.write_text(json.dumps(results, indent=1), "utf-8")
    return results


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("text", type=Path)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=5.0, help="of training, for each model")
    parser.add_argument("--copying-updates", type=int, default=1500)
    parser.add_argument("--kinds", nargs="+", choices=SETTINGS, default=list(SETTINGS))
    parser.add_argument("--parts", nargs="+", default=["training", "lengths", "copying"])
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.NAME=VALUE")
    return parser.parse_args()


def main() -> None:
    options = parse()
    options.work.mkdir(parents=True, exist_ok=True)
    try:
        results = run(options)
    except subprocess.CalledProcessError as error:  # it has said why on stderr
        raise SystemExit(f"error: {error.cmd[3]} ended with {error.returncode}") from None
    print(report(results, options.minutes))


if __name__ == "__main__":
    main()
