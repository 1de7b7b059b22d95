"""Trains the rows of the paper's Table 3 in turn and prints the table beside the paper's figures.

python benchmarks/paper/table3.py TEXT --work DIR --base small --budget 600-steps
python benchmarks/paper/table3.py TEXT --work DIR --base paper --rows base A-h1 big

TEXT holds train.L and valid.L of both languages. It is prepared once; then each row is a
`dragoman train` in a process of its own, with the same --budget (2m, 600-steps; without one the
preset's). --base paper has the paper's sizes and settings; small (d_model 128, 3 layers, 4,000
subwords) and toy (d_model 32, 400 subwords) have every width and depth of every row in proportion
(8 heads as in the paper; post-norm), batches of about 1,000 tokens, a linear schedule with its peak
at d_model^-0.5 as in Equation 3. --set changes a setting of all rows.

A row that is done is kept in DIR/results.jsonl and not trained again; one that was interrupted goes
on. As in the paper, nothing is averaged: the weights are those of the last validation (of the best
one with --base paper, which validates more than once). Perplexity is per subword on all of the
validation data, BLEU is of beam 4 on up to 500 validation pairs, spread over all of them.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from table3_rows import BASES, ROWS, Base, Row, resolve

from dragoman.config import resolve_config
from dragoman.errors import UserError
from dragoman.inspection.training_log import read_training_log


@dataclass(frozen=True)
class Result:
    """What a row came to, and the settings that it was trained with."""

    row: str
    settings: list[str]
    parameters: int
    updates: int
    minutes: float
    perplexity: float
    bleu: float
    sentences: int
    signature: str


def assignments(row: Row, base: Base, options: argparse.Namespace) -> list[str]:
    """What follows `--set`, for `dragoman train`."""
    settings = resolve(row, base)
    if options.budget:  # which is then the same for every row
        settings.pop("training.max_steps", None)
    return [*(f"{name}={value}" for name, value in settings.items()), *options.set]


def dragoman(*arguments: str | Path) -> None:
    command = [sys.executable, "-m", "dragoman", *map(str, arguments)]
    print("$", *command[1:], file=sys.stderr, flush=True)
    subprocess.run(command, check=True)


def given(settings: Sequence[str]) -> list[str]:
    return [option for setting in settings for option in ("--set", setting)]


def prepare(options: argparse.Namespace, base: Base) -> Path:
    """The prepared corpus that all rows train on; made once."""
    sides = (("source", options.source_language), ("target", options.target_language))
    files: list[str | Path] = []
    for side, language in sides:
        files += [f"--{side}", options.text / f"train.{language}"]
        files += [f"--valid-{side}", options.text / f"valid.{language}"]
        files += [f"--{side}-language", language]
    folder: Path = options.work / "prepared"
    settings = given(assignments(ROWS[0], base, options))
    dragoman("prepare", *files, "--out", folder, "--preset", base.preset, *settings)
    return folder


def train(row: Row, settings: list[str], prepared: Path, options: argparse.Namespace) -> Result:
    """Train a row, or go on with it, and read what came out."""
    out = options.work / "rows" / row.name
    fixed = ["--prepared", prepared, "--out", out, "--device", options.device]
    if options.budget:
        fixed += ["--budget", options.budget]
    preset = BASES[options.base].preset
    dragoman("train", "--resume", *fixed, "--preset", preset, *given(settings))
    return read_result(row, settings, out)


def read_result(row: Row, settings: list[str], model: Path) -> Result:
    """What the log of a finished training says."""
    records = read_training_log(model / "training" / "log.jsonl").records
    start, end = records["start"][-1], records["end"][-1]
    return Result(
        row=row.name,
        settings=settings,
        parameters=start["parameters"],
        updates=int(end["step"]),
        minutes=end["seconds"] / 60,
        perplexity=end["perplexity"],
        bleu=end["bleu"],
        sentences=end["sentences"],
        signature=end["bleu_signature"],
    )


def read_results(path: Path) -> dict[str, Result]:
    """The rows that are done, by name."""
    if not path.is_file():
        return {}
    lines = path.read_text("utf-8").splitlines()
    return {result.row: result for result in (Result(**json.loads(line)) for line in lines)}


def changes_of(row: Row, base: Base) -> str:
    """What a row changes, at the base's sizes, in the letters of the paper."""
    settings = resolve(row, base)
    letters = {"heads": "h", "encoder_layers": "N", "dropout": "P_drop", "label_smoothing": "ε_ls"}
    shown = {name.partition(".")[2]: settings[name] for name in row.changes}
    shown.pop("decoder_layers", None)  # as many as the encoder's
    shown.pop("max_steps", None)
    if shown.get("d_k") == shown.get("d_v"):
        shown.pop("d_v", None)
    return ", ".join(f"{letters.get(name, name)} {value}" for name, value in shown.items())


def table(base: Base, results: dict[str, Result]) -> str:
    """Markdown: every row that is done, in the paper's order, beside the paper's figures."""
    lines = [
        "| row | change | M parameters | updates | perplexity | BLEU "
        "| paper: M parameters | perplexity | BLEU |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for row in ROWS:
        if row.name not in results:
            continue
        result = results[row.name]
        millions = f"{row.millions:g}" if row.millions else ""
        lines.append(
            f"| {row.name} | {changes_of(row, base)} | {result.parameters / 1e6:.2f} | "
            f"{result.updates:,} | {result.perplexity:.2f} | {result.bleu:.1f} | "
            f"{millions} | {row.perplexity:.2f} | {row.bleu:.1f} |"
        )
    last = next(reversed(results.values()))
    lines += ["", f"BLEU: {last.signature}, {last.sentences:,} validation pairs, beam search."]
    return "\n".join(lines)


def chosen_rows(names: Sequence[str]) -> list[Row]:
    """The rows of these names, all of them for none, in the paper's order."""
    known = [row.name for row in ROWS]
    if unknown := [name for name in names if name not in known]:
        raise SystemExit(f"error: no row {unknown[0]!r}; there are {', '.join(known)}")
    return [row for row in ROWS if not names or row.name in names]


def run(options: argparse.Namespace) -> dict[str, Result]:
    """Train what is not done yet; all results of the work folder."""
    base, rows = BASES[options.base], chosen_rows(options.rows)
    settings = {row.name: assignments(row, base, options) for row in rows}
    for assigned in settings.values():  # a mistake shows before anything is trained
        resolve_config(base.preset, assignments=assigned)
    path = options.work / "results.jsonl"
    results = read_results(path)
    for row in rows:
        if row.name in results and results[row.name].settings != settings[row.name]:
            raise SystemExit(f"error: {path} has {row.name} with other settings; another --work?")
    missing = [row for row in rows if row.name not in results]
    options.work.mkdir(parents=True, exist_ok=True)
    prepared = prepare(options, base) if missing else options.work
    for row in missing:
        result = train(row, settings[row.name], prepared, options)
        with path.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(asdict(result)) + "\n")
        results[row.name] = result
        print(f"\n{table(base, results)}\n", file=sys.stderr, flush=True)
    return results


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("text", type=Path)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--base", choices=BASES, default="small")
    parser.add_argument("--rows", nargs="+", default=[], help="default: all")
    parser.add_argument("--budget", help="2m, 600-steps; of each row")
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.NAME=VALUE")
    parser.add_argument("--source-language", default="en")
    parser.add_argument("--target-language", default="de")
    parser.add_argument("--device", default="auto")
    return parser.parse_args()


def main() -> None:
    options = parse()
    try:
        results = run(options)
    except UserError as error:
        raise SystemExit(f"error: {error.message}\nhint: {error.hint}") from None
    except subprocess.CalledProcessError as error:  # it has said why on stderr
        raise SystemExit(f"error: {error.cmd[3]} ended with {error.returncode}") from None
    print(f"{table(BASES[options.base], results)}\n\nBase {options.base}; budget {options.budget}.")


if __name__ == "__main__":
    main()
