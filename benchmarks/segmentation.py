"""One segmentation for every toolkit: the ids of a prepared corpus, written as words.

Dragoman's id 1234 becomes the word `t1234`, so that all toolkits train on the same tokens, none is
unknown to any, and no toolkit splits or normalizes anything of its own.
"""

import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from dragoman.corpus.store import CorpusStore
from dragoman.corpus.tokenizer import Tokenizer

SIDES = ("source", "target")
# Ids below this are pad, unk, bos and eos, which each toolkit has of its own.
_FIRST = 4

Lengths = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Segmented:
    """A corpus as words. Lengths are tokens of every pair, eos included, bos not."""

    folder: Path
    vocabulary_size: int
    source_lengths: Lengths
    target_lengths: Lengths

    @property
    def target_tokens(self) -> int:
        """What every toolkit has trained on after one epoch."""
        return int(self.target_lengths.sum())


def prepare(text: Path, languages: tuple[str, str], vocabulary_size: int, out: Path) -> Path:
    """`dragoman prepare` of train.L and valid.L in a folder, unless it is there already."""
    source, target = languages
    command = [sys.executable, "-m", "dragoman", "prepare", "--out", str(out)]
    command += [
        "--source",
        str(text / f"train.{source}"),
        "--target",
        str(text / f"train.{target}"),
    ]
    command += ["--valid-source", str(text / f"valid.{source}")]
    command += ["--valid-target", str(text / f"valid.{target}")]
    command += ["--set", f"data.vocabulary_size={vocabulary_size}"]
    if subprocess.run(command, stdout=sys.stderr, check=False).returncode:
        raise SystemExit(2)
    return out


def export(prepared: Path, folder: Path, pairs: int | None = None) -> Segmented:
    """Write train.S, dev.S and the vocabularies of JoeyNMT and Marian; the first `pairs` or all."""
    folder.mkdir(parents=True, exist_ok=True)
    size = Tokenizer.load(prepared / "tokenizer.model").vocabulary_size
    store = CorpusStore.open(prepared / "train.arrow")
    count = len(store) if pairs is None else min(pairs, len(store))
    _write(folder, "train", store, count)
    valid = CorpusStore.open(prepared / "valid.arrow")
    _write(folder, "dev", valid, len(valid))
    words = [_word(number) for number in range(_FIRST, size)]
    (folder / "vocabulary.txt").write_text("".join(f"{word}\n" for word in words))
    numbered = enumerate(["</s>", "<unk>", *words])
    (folder / "vocabulary.yml").write_text("".join(f"{word}: {n}\n" for n, word in numbered))
    return Segmented(
        folder,
        size,
        store.source_lengths[:count].astype(np.int64) + 1,
        store.target_lengths[:count].astype(np.int64) + 1,
    )


def read_lengths(path: Path) -> Lengths:
    """Tokens of every line of an exported file, eos included: what a toolkit sees there."""
    with path.open(encoding="ascii") as lines:
        return np.array([len(line.split()) + 1 for line in lines], dtype=np.int64)


def batch_size_for(segmented: Segmented, wanted: float, tries: int = 20) -> int:
    """The padded size of batches of unsorted pairs that hold `wanted` real target tokens each.

    JoeyNMT takes pairs in random order until pairs x longest side reaches its batch_size.
    """
    low, high = wanted, 8 * wanted
    for _ in range(tries):
        middle = (low + high) / 2
        if unsorted_batch_tokens(segmented, middle) < wanted:
            low = middle
        else:
            high = middle
    return round(high)


def unsorted_batch_tokens(segmented: Segmented, size: float) -> float:
    """Mean real target tokens of batches of that padded size, pairs in random order."""
    order = np.random.default_rng(1).permutation(len(segmented.target_lengths))
    longest = np.maximum(segmented.source_lengths, segmented.target_lengths)[order]
    batches, rows, widest = 0, 0, 0
    for length in longest.tolist():
        rows, widest = rows + 1, max(widest, length)
        if rows * widest >= size:
            batches, rows, widest = batches + 1, 0, 0
    return segmented.target_tokens / max(1, batches + (rows > 0))


def _write(folder: Path, name: str, store: CorpusStore, count: int) -> None:
    for side, suffix in enumerate(SIDES):
        rows = (store[row][side].tolist() for row in range(count))
        (folder / f"{name}.{suffix}").write_text("".join(_lines(rows)), encoding="ascii")


def _lines(rows: Iterable[list[int]]) -> Iterator[str]:
    for ids in rows:
        yield " ".join(map(_word, ids)) + "\n"


def _word(number: int) -> str:
    return f"t{number}"
