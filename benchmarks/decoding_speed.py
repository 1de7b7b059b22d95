"""Sentences a second of Dragoman and others on one model: text to text, tokenizing included.

    python benchmarks/decoding_speed.py MODEL SOURCE REFERENCE --environments environments

MODEL is a folder of `dragoman train`; SOURCE and REFERENCE hold one sentence a line. In turn, round
after round, each in a process of its own: Dragoman's `Translator.translate` with both engines and
its command; CTranslate2 called directly on the same converted model, two workers of one thread on
two cores, with whichever of --layouts is fastest for it; `generate` of Hugging Face transformers on
the same weights; Marian on a model of the same sizes. Loading is not in the time; the command's
start, measured beside it, is taken off. Without --environments the last two are left out.

Marian's model is trained for two updates: only its speed counts, its outputs are as long as their
sources, and its BLEU says nothing. Prints the median, least and greatest rate of every system, the
ratio of its median to that of the system it is compared with, BLEU and memory; and how long a first
translation and `--help` take.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from environments import python_of
from marian_layout import write_huggingface
from toolkits import cpu_environment, marian_model

from dragoman.config import SearchConfig
from dragoman.corpus.tokenizer import Tokenizer
from dragoman.decoding.fast import cores, has_wide_vectors
from dragoman.decoding.loading import EngineChoice, open_engine
from dragoman.evaluation.metrics import evaluate_corpus
from dragoman.model.description import describe
from dragoman.model.layers import LAYER_NORM_EPSILON
from dragoman.text.lines import read_lines

_HERE = Path(__file__).parent
_DRAGOMAN = [sys.executable, "-m", "dragoman"]


@dataclass
class Task:
    """What is translated with what; files that the benchmark makes go to `work`."""

    model: Path
    source: Path
    work: Path
    cores: int = field(default_factory=cores)
    penalty: float = SearchConfig().length_penalty

    @cached_property
    def lines(self) -> list[str]:
        return list(read_lines(self.source))

    def settings(self, kind: str, **more: Any) -> dict[str, Any]:
        """What decoding_system.py is told."""
        return {
            "kind": kind,
            "lines": str(self.source),
            "model": str(self.model),
            "tokenizer": str(self.model / "tokenizer.model"),
            "cores": self.cores,
            "penalty": self.penalty,
            **more,
        }


class Process:
    """A system of decoding_system.py, loaded; asked for one pass over the lines at a time."""

    def __init__(self, python: Path | str, settings: dict[str, Any]) -> None:
        command = [str(python), str(_HERE / "decoding_system.py"), json.dumps(settings)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._answer()

    def __call__(self, request: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        print(json.dumps(request), file=self._process.stdin, flush=True)
        return self._answer()

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"error: it ended: {self._process.args!r}")
        answer: dict[str, Any] = json.loads(line)
        return answer


class Command:
    """`dragoman translate`; a pass is its time for all the lines less that for a single one."""

    def __init__(self, task: Task, options: list[str]) -> None:
        self._task, self._options = task, options

    def __call__(self, request: dict[str, Any]) -> dict[str, Any]:
        beam = ["--beam", str(request["beam"])]
        command = [*_DRAGOMAN, "translate", "--model", str(self._task.model), *self._options, *beam]
        start, _ = run([*command, "--text", "Hello"])
        seconds, output = run([*command, str(self._task.source)])
        texts = output.split("\n")[:-1]
        return {"seconds": seconds - start, "texts": texts, "megabytes": None}

    def close(self) -> None:
        """Nothing is kept."""


def run(command: list[str]) -> tuple[float, str]:
    """Seconds and output of a command."""
    begun = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"error: {command}: {done.stderr[-1000:]}")
    return time.perf_counter() - begun, done.stdout


@dataclass
class System:
    """A system, what it is compared with, what it may be asked, and what was measured by beam."""

    run: Process | Command
    beside: str = ""
    layouts: list[Any] = field(default_factory=lambda: [None])
    chosen: dict[int, Any] = field(default_factory=dict)
    rates: dict[int, list[float]] = field(default_factory=dict)
    texts: dict[int, list[str]] = field(default_factory=dict)
    megabytes: float | None = None

    def choose(self, beam: int) -> None:
        """Warm up with every layout, and keep the one that was fastest the second time."""
        times = {}
        for layout in self.layouts * 2:
            answer = self.run({"beam": beam, "batch": layout})
            times[layout] = answer["seconds"]
            self.texts[beam] = answer["texts"]
        self.chosen[beam] = min(times, key=lambda layout: times[layout])
        self.rates[beam] = []

    def measure(self, beam: int) -> None:
        """One pass."""
        answer = self.run({"beam": beam, "batch": self.chosen[beam]})
        self.rates[beam].append(len(answer["texts"]) / answer["seconds"])
        self.megabytes = answer["megabytes"]

    def rate(self, beam: int) -> float:
        """The median of sentences a second."""
        return statistics.median(self.rates[beam])


@contextmanager
def opened(task: Task, names: list[str], environments: Path | None) -> Iterator[dict[str, System]]:
    """The systems of these names, or all; those of other toolkits if there are environments."""
    with ExitStack() as stack:
        systems: dict[str, System] = {}
        for name, make in {**own(task), **others(task, environments)}.items():
            if not names or any(part in name for part in names):
                systems[name] = make()
                stack.callback(systems[name].run.close)
        yield systems


def own(task: Task) -> dict[str, Any]:
    """Dragoman's systems and CTranslate2 alone, which reads what Dragoman converted."""
    found: dict[str, Any] = {}
    layouts: list[Any] = [16, 32, 64, "1000 tokens"]

    def api(engine: str, precision: str, beside: str, shortlist: bool = False) -> Any:
        more = {"engine": engine, "precision": precision, "shortlist": shortlist}
        settings = task.settings("dragoman", **more)
        return lambda: System(Process(sys.executable, settings), beside)

    def raw(precision: str, instructions: str = "") -> Any:
        folder = str(task.model / "ct2" / precision)
        more = {"precision": precision, "converted": folder, "instructions": instructions}
        settings = task.settings("ctranslate2", **more)
        return lambda: System(Process(sys.executable, settings), layouts=layouts)

    for precision in ("int8", "float32"):
        found[f"CTranslate2 {precision}"] = raw(precision)
        if has_wide_vectors():  # what Dragoman asks of it, and it does not do by itself
            found[f"CTranslate2 {precision}, AVX-512"] = raw(precision, "AVX512")
        found[f"Dragoman, ctranslate2 {precision}"] = api(
            "ctranslate2", precision, f"CTranslate2 {precision}"
        )
    for precision in ("bfloat16", "float32"):
        found[f"Dragoman, native {precision}"] = api("native", precision, "CTranslate2 float32")
    if (task.model / "shortlist.safetensors").exists():
        found["Dragoman, int8 with shortlist"] = api(
            "ctranslate2", "int8", "CTranslate2 int8", shortlist=True
        )
    for name, options in {"int8": [], "native bfloat16": ["--engine", "native"]}.items():
        precision = name.split()[-1]
        beside = "CTranslate2 int8" if precision == "int8" else "CTranslate2 float32"
        command = Command(task, [*options, "--set", f"search.precision={precision}"])
        found[f"dragoman translate, {name}"] = lambda c=command, b=beside: System(c, b)
    return found


def others(task: Task, environments: Path | None) -> dict[str, Any]:
    """Other toolkits, each in its environment."""
    if environments is None:
        return {}

    def huggingface() -> System:
        folder = task.work / "huggingface"
        folder.mkdir()
        write_huggingface(task.model, folder)
        settings = task.settings("huggingface", folder=str(folder), epsilon=LAYER_NORM_EPSILON)
        python = python_of(environments, "transformers")
        return System(Process(python, settings), "Dragoman, ctranslate2 int8", [16, 64])

    def marian() -> System:
        python = python_of(environments, "marian")
        settings = task.settings("marian", options=marian_options(task, python))
        return System(Process(python, settings), "Dragoman, ctranslate2 int8")

    return {"Hugging Face generate": huggingface, "Marian": marian}


def marian_options(task: Task, python: Path) -> str:
    """How to decode with a Marian model of the task's sizes, which is trained for two updates."""
    folder = task.work / "marian"
    folder.mkdir()
    tokenizer = Tokenizer.load(task.model / "tokenizer.model")
    names = ["</s>", "<unk>", *map(str, range(4, tokenizer.vocabulary_size))]
    vocabulary = folder / "vocabulary.yml"
    vocabulary.write_text("".join(f'"{name}": {number}\n' for number, name in enumerate(names)))
    words = [" ".join(map(str, ids)) for ids in tokenizer.encode_batch(task.lines)]
    text = folder / "text"
    text.write_text("\n".join([*words, ""]))
    options = [*marian_model(describe(task.model).config.model)]
    options += ["--train-sets", str(text), str(text), "--vocabs", *[str(vocabulary)] * 2]
    options += ["--model", str(folder / "model.npz"), "--tempdir", str(folder), "--seed", "1"]
    options += ["--cpu-threads", "1", "--after", "2u", "--mini-batch", "16", "--max-length", "500"]
    subprocess.run(
        [str(python), "-m", "pymarian", "train", *options],
        check=True,
        capture_output=True,
        env=cpu_environment(1),
    )
    return (
        f"--models {folder / 'model.npz'} --vocabs {vocabulary} {vocabulary} --quiet "
        f"--cpu-threads {task.cores} --mini-batch 32 --maxi-batch 100 --maxi-batch-sort src "
        "--max-length-factor 1 --skip-cost"
    )


def table(systems: dict[str, System], beam: int, references: list[str]) -> Iterator[str]:
    """Lines of Markdown."""
    yield f"\n| beam {beam} | sentences/s | min-max | beside | BLEU | MB |"
    yield "| --- | ---: | ---: | --- | ---: | ---: |"
    for name, system in systems.items():
        rates = system.rates[beam]
        row = f"| {name} | {system.rate(beam):,.0f} | {min(rates):,.0f}-{max(rates):,.0f} | "
        if system.beside in systems:
            row += f"{system.rate(beam) / systems[system.beside].rate(beam):.2f} x {system.beside}"
        elif system.chosen[beam] is not None:
            row += f"batches of {system.chosen[beam]}"
        bleu = (
            ""
            if name == "Marian"
            else f"{evaluate_corpus(system.texts[beam], references, 'unknown').bleu:.2f}"
        )
        memory = "" if system.megabytes is None else f"{system.megabytes:,.0f}"
        yield f"{row} | {bleu} | {memory} |"


def same_texts(systems: dict[str, System], beam: int) -> Iterator[str]:
    """Whether the others run the same model."""
    ours = systems.get("Dragoman, ctranslate2 float32")
    for name in ("CTranslate2 float32", "Hugging Face generate", "Dragoman, native float32"):
        if ours is not None and name in systems:
            pairs = list(zip(ours.texts[beam], systems[name].texts[beam], strict=True))
            same = sum(one == other for one, other in pairs)
            yield f"{name}: {same:,} of {len(pairs):,} texts are those of Dragoman in float32"


def starts(task: Task, rounds: int) -> Iterator[str]:
    """How long the first translation and the help take, from a process that is not there yet."""
    translate = ["translate", "--model", str(task.model), "--text", "Hello"]
    for arguments in (translate, ["--help"]):
        times = [run([*_DRAGOMAN, *arguments])[0] for _ in range(rounds + 2)]
        median = statistics.median(times)
        yield f"dragoman {arguments[0]}: {median:.2f} s, at least {min(times):.2f} s"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("source", type=Path)
    parser.add_argument("reference", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--beams", default="4,1")
    parser.add_argument("--systems", default="", help="parts of names, as int8,Marian; else all")
    parser.add_argument("--environments", type=Path, help="see environments.py")
    given = parser.parse_args()
    beams = [int(beam) for beam in given.beams.split(",")]
    names = [name for name in given.systems.split(",") if name]
    for precision in ("int8", "float32"):  # made where it is not there
        open_engine(given.model, EngineChoice("ctranslate2", "cpu", precision))
    with tempfile.TemporaryDirectory() as work:
        task = Task(given.model, given.source, Path(work))
        with opened(task, names, given.environments) as systems:
            for beam in beams:
                for system in systems.values():
                    system.choose(beam)
                for number in range(given.rounds):
                    for system in systems.values():
                        system.measure(beam)
                    print(f"beam {beam}: round {number + 1}", file=sys.stderr, flush=True)
                print("\n".join(table(systems, beam, list(read_lines(given.reference)))))
                print("\n" + "\n".join(same_texts(systems, beam)), flush=True)
        print("\n" + "\n".join(starts(task, given.rounds)))


if __name__ == "__main__":
    main()
