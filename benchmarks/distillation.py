"""A teacher, its student, and a model of the student's size that learned from the references alone.

python benchmarks/distillation.py --teacher DIR --source train.en --target train.de \
    --test-source test.en --test-target test.de --work DIR --preset small-fast --budget 30m

The student (`dragoman distill`, the references mixed in) and the plain model (`dragoman train`)
have the same preset, tokenizer, training time and device. What --work holds already is not made
again. Then all translate the test file with the default engine in rounds, one after the other in
every round; shown are BLEU, the median of sentences a second (text in, text out), and the ratio to
the teacher. The student is measured with its shortlist too.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from dragoman.corpus.shortlist import SHORTLIST
from dragoman.decoding.translator import Translator
from dragoman.evaluation.metrics import evaluate_corpus
from dragoman.text.lines import read_lines


@dataclass(frozen=True)
class Result:
    """How well and how fast a model translates; speed in sentences a second."""

    name: str
    bleu: float
    speed: float
    ratio: float  # to the teacher's speed


def commands(options: argparse.Namespace) -> dict[str, list[str]]:
    """What makes each model, by the name of its folder in --work."""
    pairs = ["--source", str(options.source), "--target", str(options.target)]
    common = ["--preset", options.preset, "--device", options.device, "--resume"]
    if options.budget:
        common += ["--budget", options.budget]
    for assignment in options.assignments:
        common += ["--set", assignment]
    codes = languages(options.teacher)
    return {
        "student": ["distill", "--teacher", str(options.teacher), *pairs, *common],
        "plain": [
            *["train", "--tokenizer", str(options.teacher / "tokenizer.model"), *pairs, *common],
            *["--source-language", codes[0], "--target-language", codes[1]],
        ],
    }


def languages(folder: Path) -> tuple[str, str]:
    """Source and target language of a model."""
    from dragoman.model.description import describe

    config = describe(folder).config
    return config.source_language, config.target_language


def make(options: argparse.Namespace) -> None:
    """Train what is not there yet. Raises SystemExit when a command fails."""
    options.work.mkdir(parents=True, exist_ok=True)
    for name, command in commands(options).items():
        out = options.work / name
        if (out / "model.safetensors").is_file():
            continue
        called = [sys.executable, "-m", "dragoman", *command, "--out", str(out)]
        if subprocess.run(called, check=False).returncode:
            raise SystemExit(f"error: dragoman {command[0]} has failed")


def translators(options: argparse.Namespace) -> dict[str, Translator]:
    """All that is measured, by name."""
    folders = {"teacher": options.teacher}
    folders |= {name: options.work / name for name in ("student", "plain")}
    found = {}
    for name, folder in folders.items():
        found[name] = Translator.load(folder, device=options.device, threads=options.threads)
        if options.beam:
            search = found[name].search.model_copy(update={"beam": options.beam})
            found[name] = Translator(found[name].engine, search)
    student = options.work / "student"
    if (student / SHORTLIST).is_file():
        search = found["student"].search.model_copy(update={"shortlist": True})
        found["student, shortlist"] = Translator.load(
            student, device=options.device, threads=options.threads, search=search
        )
    return found


def measure(
    models: dict[str, Translator], sources: list[str], references: list[str], rounds: int
) -> list[Result]:
    """BLEU and the median speed of every model, the teacher first."""
    for translator in models.values():
        translator.translate(sources[:8])  # what is opened or converted when first needed
    times: dict[str, list[float]] = {name: [] for name in models}
    texts: dict[str, list[str]] = {}
    for _ in range(rounds):
        for name, translator in models.items():
            begun = time.perf_counter()
            found = translator.translate(sources)
            times[name].append(time.perf_counter() - begun)
            texts[name] = [translation.text for translation in found]
    speeds = {name: len(sources) / statistics.median(taken) for name, taken in times.items()}
    first = next(iter(speeds.values()))
    return [
        Result(
            name,
            evaluate_corpus(texts[name], references, translator.config.target_language).bleu,
            speeds[name],
            speeds[name] / first,
        )
        for name, translator in models.items()
    ]


def render(results: list[Result]) -> str:
    """A table of Markdown."""
    lines = ["| model | BLEU | sentences/s | times the teacher |", "| --- | --- | --- | --- |"]
    lines += [f"| {r.name} | {r.bleu:.2f} | {r.speed:,.0f} | {r.ratio:.2f} |" for r in results]
    return "\n".join(lines)


def arguments() -> argparse.Namespace:
    """The command line, read."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name in ("teacher", "source", "target", "test-source", "test-target", "work"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--preset", default="small-fast", help="of the student (small-fast)")
    parser.add_argument("--budget", help="of either training, as in dragoman train")
    parser.add_argument("--set", action="append", default=[], dest="assignments")
    parser.add_argument("--beam", type=int, help="of the measurement (the model's own)")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--threads", type=int, help="workers (one a core)")
    parser.add_argument("--rounds", type=int, default=3)
    return parser.parse_args()


def main() -> None:
    """Train, measure, print the table and keep it in --work/results.json."""
    options = arguments()
    sources, references = (
        list(read_lines(path)) for path in (options.test_source, options.test_target)
    )
    if len(sources) != len(references) or not sources:
        raise SystemExit("error: the test files are empty or have different numbers of lines")
    make(options)
    results = measure(translators(options), sources, references, options.rounds)
    print(render(results))
    content = json.dumps([asdict(result) for result in results], indent=1)
    (options.work / "results.json").write_text(content + "\n", "utf-8")


if __name__ == "__main__":
    main()
