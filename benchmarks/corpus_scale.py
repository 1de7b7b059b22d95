"""Preparation and first training steps as a corpus grows: time a pair, and peak memory.

"CPU µs" is what preparation took of all cores together for a pair: the clock of a busy machine says
little.

    python benchmarks/corpus_scale.py --pairs 20000 200000 2000000

For each size it makes a corpus of its own in a temporary folder (about 190 bytes a pair; a
preparation needs about 400 more at its peak), runs `dragoman prepare` and `dragoman train` for some
steps of preset tiny as anybody would, and reads from /proc what their processes hold: resident
memory of the main process at its peak, and of it and its workers together, where what they share
counts for each. 20 million pairs need 12 GB of disk.
"""

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

WORDS = 30_000
_GENERATED = 20_000  # pairs made at once


@dataclass(frozen=True)
class Usage:
    """What a command took: seconds by the clock and of all cores, megabytes of the main process and
    of it with its children."""

    seconds: float
    processor: float
    main: float
    total: float


def vocabulary(letters: str, chance: np.random.Generator) -> np.ndarray:
    """Made-up words of 2 to 11 letters, frequent ones shorter, as those of a language are."""
    kinds = np.array(list(letters))
    sizes = np.clip(2 + np.log2(1 + np.arange(WORDS)) / 2 + chance.normal(0, 1.5, WORDS), 2, 11)
    return np.array(["".join(chance.choice(kinds, int(size))) for size in sizes])


def write_corpus(folder: Path, pairs: int) -> tuple[Path, Path]:
    """Sentences of Zipf-like words, about 13 of them (3 to 60), and word-by-word translations."""
    chance = np.random.default_rng(0)
    source_words = vocabulary("aaeeiioouubcdfghklmnprstt", chance)
    target_words = vocabulary("aaeeeiiouäöübdfghklmnrsttwz", chance)
    share = 1 / (10 + np.arange(WORDS))
    steps = np.cumsum(share / share.sum())
    paths = folder / "train.en", folder / "train.de"
    with (
        paths[0].open("w", encoding="utf-8") as source,
        paths[1].open("w", encoding="utf-8") as out,
    ):
        for start in range(0, pairs, _GENERATED):
            count = min(_GENERATED, pairs - start)
            sizes = np.clip(np.exp(chance.normal(2.45, 0.5, count)), 3, 60).astype(int)
            drawn = np.searchsorted(steps, chance.random(int(sizes.sum())))
            drawn = np.minimum(drawn, WORDS - 1)
            ends = np.cumsum(sizes).tolist()
            first, second = source_words[drawn].tolist(), target_words[drawn].tolist()
            for begin, end in zip([0, *ends[:-1]], ends, strict=True):
                source.write(" ".join(first[begin:end]).capitalize() + ".\n")
                out.write(" ".join(second[begin:end]).capitalize() + ".\n")
    return paths


def resident(process: int) -> tuple[float, float]:
    """Resident megabytes of a process, at its peak so far, and now with all its children."""
    try:
        status = Path(f"/proc/{process}/status").read_text()
        tasks = list(Path(f"/proc/{process}/task").iterdir())
        children = [child for task in tasks for child in (task / "children").read_text().split()]
    except OSError:  # it has just ended
        return 0.0, 0.0
    sizes = {
        name: float(line.split()[1]) / 1024
        for line in status.splitlines()
        if (name := line.partition(":")[0]) in ("VmHWM", "VmRSS")
    }
    held = sum(resident(int(child))[1] for child in children)
    return sizes.get("VmHWM", 0.0), sizes.get("VmRSS", 0.0) + held


def measure(*arguments: str | Path) -> Usage:
    """Run one dragoman command to its end and watch its memory."""
    started, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "dragoman", *map(str, arguments)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    main = total = 0.0
    while process.poll() is None:
        now = resident(process.pid)
        main, total = max(main, now[0]), max(total, now[1])
        time.sleep(0.1)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)}: exit status {process.returncode}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Usage(time.monotonic() - started, processor, main, total)


def run(pairs: int, steps: int, workers: int, parent: Path | None) -> None:
    with tempfile.TemporaryDirectory(dir=parent) as name:
        folder = Path(name)
        started = time.monotonic()
        source, target = write_corpus(folder, pairs)
        generated = time.monotonic() - started
        # A model of so few steps says nothing short: no search that would take longer than them.
        settings = ("training.validations=1", "search.beam=1", "search.max_extra_tokens=0")
        prepared = measure(
            *("prepare", "--source", source, "--target", target, "--out", folder / "corpus"),
            *("--workers", str(workers), "--preset", "tiny", "--set", "data.validation_size=20"),
        )
        trained = measure(
            *("train", "--prepared", folder / "corpus", "--out", folder / "model"),
            *("--preset", "tiny", "--budget", f"{steps}-steps", "--device", "cpu"),
            *(argument for setting in settings for argument in ("--set", setting)),
        )
    print(
        f"{pairs:>11,} {1e6 * generated / pairs:>9.1f} {prepared.seconds:>9.1f} "
        f"{1e6 * prepared.processor / pairs:>8.1f} {prepared.main:>8.0f} {prepared.total:>8.0f} "
        f"{trained.seconds:>8.1f} {trained.main:>8.0f}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, nargs="+", default=[20_000, 200_000, 2_000_000])
    parser.add_argument("--steps", type=int, default=20, help="training steps")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--folder", type=Path, help="where the temporary folder goes")
    chosen = parser.parse_args()
    print(f"workers {chosen.workers}, training steps {chosen.steps}, megabytes of 2**20 bytes")
    print(
        f"{'pairs':>11} {'made µs':>9} {'prepare s':>9} {'CPU µs':>8} {'main MB':>8} "
        f"{'all MB':>8} {'train s':>8} {'main MB':>8}"
    )
    for pairs in chosen.pairs:
        run(pairs, chosen.steps, chosen.workers, chosen.folder)


if __name__ == "__main__":
    main()
