"""What pre-training is worth: the top constituents of sentences, told with few labels.

The label of a sentence is what its clause consists of by a treebank, such as "PP NP VP" for "In
mice, the gene is silent" (the probing task TopConst of Conneau et al. 2018, arXiv 1805.01070): the
seven most frequent sequences, without punctuation, and "other". A masked language model learns from
the words of all trees, without the trees; it is then fine-tuned on some labels, and so is a model
that begins from nothing.

    python benchmarks/classification.py --treebank train.ptb --test dev.ptb --work runs/labels
"""

import argparse
import random
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from dragoman.text.trees import Tree, read_treebank

OTHER = "other"
_LABELS = 7
_VALIDATION = 1000
_COMMAND = (sys.executable, "-m", "dragoman")


def top_constituents(tree: Tree) -> str | None:
    """What a clause consists of, punctuation left out; None for what is no clause, as a heading."""
    if tree.label != "S":
        return None
    return " ".join(child.label for child in tree.children if child.label[0].isalpha())


def read_rows(path: Path) -> list[tuple[str, str | None]]:
    """Words and top constituents of every tree."""
    trees = [placed.tree for placed in read_treebank(path, lambda problem: None)]
    return [(" ".join(tree.words()), top_constituents(tree)) for tree in trees]


def write_data(treebank: Path, test: Path, work: Path, counts: Sequence[int]) -> None:
    """text.txt for pre-training, and the labeled tables."""
    rows = read_rows(treebank)
    _write(work / "text.txt", [words for words, _ in rows])
    frequent = Counter(label for _, label in rows if label is not None).most_common(_LABELS)
    known = {label for label, _ in frequent}

    def labeled(found: Sequence[tuple[str, str | None]]) -> list[tuple[str, str]]:
        return [(words, label if label in known else OTHER) for words, label in found if label]

    table = list(dict.fromkeys(labeled(rows)))
    random.Random(1).shuffle(table)
    valid, rest = table[:_VALIDATION], table[_VALIDATION:]
    if len(rest) < max(counts):
        raise SystemExit(f"error: {treebank} has {len(rest):,} clauses beside those to validate on")
    _write(work / "valid.sentences", [words for words, _ in valid])
    _write(work / "valid.labels", [label for _, label in valid])
    for count in counts:
        _write(work / f"train{count}.tsv", ["\t".join(row) for row in rest[:count]])
    _write(work / "test.tsv", ["\t".join(row) for row in labeled(read_rows(test))])


def _write(path: Path, lines: Sequence[str]) -> None:
    path.write_text("".join(f"{line}\n" for line in lines), "utf-8")


def train(out: Path, options: Sequence[str]) -> Path:
    """`dragoman train`, unless the model is there; one that was stopped goes on."""
    command = [*_COMMAND, "train", "--resume", "--out", str(out), *options]
    if subprocess.run(command, check=False).returncode:
        raise SystemExit(2)
    return out


def measure(model: Path, test: Path) -> tuple[str, ...]:
    """Accuracy, macro-F1 and the share of the most frequent label, by `dragoman classify`."""
    command = [*_COMMAND, "classify", "--model", str(model), "--data", str(test)]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", check=False)
    found = re.search(r"accuracy ([\d.]+%), macro-F1 ([\d.]+%).* label: ([\d.]+%)", done.stderr)
    if found is None:
        raise SystemExit(done.stderr)
    return found.groups()


def main() -> None:
    """Make the data, train everything, print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--treebank", type=Path, required=True, help="trees in Penn brackets")
    parser.add_argument("--test", type=Path, required=True, help="other trees")
    parser.add_argument("--work", type=Path, required=True, help="a folder for data and models")
    parser.add_argument("--counts", default="500,2000,10000", help="of labeled sentences")
    parser.add_argument("--pretraining", default="20m", help="the budget of the language model")
    parser.add_argument("--preset", default="small")
    chosen = parser.parse_args()
    counts = [int(count) for count in chosen.counts.split(",")]
    work: Path = chosen.work
    work.mkdir(parents=True, exist_ok=True)
    write_data(chosen.treebank, chosen.test, work, counts)
    text = ["--task", "mlm", "--text", str(work / "text.txt"), "--preset", chosen.preset]
    masked = train(work / "mlm", [*text, "--budget", chosen.pretraining])
    print("| labels | from nothing: accuracy | macro-F1 | pre-trained: accuracy | macro-F1 |")
    print("| ---: | ---: | ---: | ---: | ---: |")
    for count in counts:
        data = ["--task", "classification", "--data", str(work / f"train{count}.tsv")]
        data += ["--valid-source", str(work / "valid.sentences")]
        data += ["--valid-target", str(work / "valid.labels")]
        fresh = train(work / f"fresh{count}", [*data, "--preset", chosen.preset])
        tuned = train(work / f"tuned{count}", [*data, "--init-from", str(masked)])
        *scores, majority = measure(fresh, work / "test.tsv")
        scores += measure(tuned, work / "test.tsv")[:2]
        print(f"| {count:,} | " + " | ".join(scores) + " |", flush=True)
    print(f"Always the most frequent label: accuracy {majority}")


if __name__ == "__main__":
    main()
