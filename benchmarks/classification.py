"""What pre-training is worth: sentences told apart from damaged ones, with few labels.

A masked language model learns from text alone. It is then fine-tuned to tell whether a sentence is
as somebody wrote it, or has two neighboring words swapped, one replaced by another word of the
text, or one left out; and so is a model that begins from nothing. Whoever tells these apart knows
which words go together and in what order. First and last word stay, so that no capital letter or
full stop tells; labels are drawn evenly, so that 25% is chance; no sentence is used twice.

    python benchmarks/classification.py --text train.en --test valid.en --work runs/classification
"""

import argparse
import random
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

LABELS = ("original", "swapped", "replaced", "dropped")
_LEAST_WORDS = 5
_VALIDATION = 1000
_COMMAND = (sys.executable, "-m", "dragoman")


def damage(sentence: str, label: str, vocabulary: Sequence[str], chance: random.Random) -> str:
    """The sentence, damaged as the label says, between its first and its last word."""
    words = sentence.split()
    inside = range(1, len(words) - 1)
    match label:
        case "swapped":
            pairs = [at for at in inside[:-1] if words[at] != words[at + 1]]
            at = chance.choice(pairs or inside[:-1])
            words[at], words[at + 1] = words[at + 1], words[at]
        case "replaced":
            at = chance.choice(inside)
            words[at] = chance.choice([word for word in vocabulary if word != words[at]])
        case "dropped":
            del words[chance.choice(inside)]
    return " ".join(words)


def labeled(sentences: Sequence[str], seed: int) -> list[tuple[str, str]]:
    """Every sentence that is long enough, with a label by chance and damaged accordingly."""
    chance = random.Random(seed)
    long = [line for line in sentences if len(line.split()) >= _LEAST_WORDS]
    # As often as in the text: a rare word would tell. A sample is enough to draw from.
    words = [word for line in long for word in line.split()[1:-1]]
    vocabulary = chance.choices(words, k=1000)
    drawn = [(line, chance.choice(LABELS)) for line in long]
    return [(damage(line, label, vocabulary, chance), label) for line, label in drawn]


def write_data(text: Path, test: Path, work: Path, counts: Sequence[int]) -> None:
    """text.txt for pre-training and the labeled tables, all of different sentences."""
    lines = list(dict.fromkeys(text.read_text("utf-8").splitlines()))
    random.Random(1).shuffle(lines)
    wanted = 2 * (max(counts) + _VALIDATION)  # short ones are left out
    table = labeled(lines[:wanted], seed=2)
    if len(table) < max(counts) + _VALIDATION:
        raise SystemExit(f"error: {text} has too few sentences of {_LEAST_WORDS} words")
    _write(work / "text.txt", lines[wanted:])
    valid, rest = table[:_VALIDATION], table[_VALIDATION:]
    _write(work / "valid.sentences", [sentence for sentence, _ in valid])
    _write(work / "valid.labels", [label for _, label in valid])
    for count in counts:
        _write(work / f"train{count}.tsv", ["\t".join(row) for row in rest[:count]])
    rows = labeled(test.read_text("utf-8").splitlines(), seed=3)
    _write(work / "test.tsv", ["\t".join(row) for row in rows])


def _write(path: Path, lines: Sequence[str]) -> None:
    path.write_text("".join(f"{line}\n" for line in lines), "utf-8")


def train(out: Path, options: Sequence[str]) -> Path:
    """`dragoman train`, unless the model is there; one that was stopped goes on."""
    command = [*_COMMAND, "train", "--resume", "--out", str(out), *options]
    if subprocess.run(command, check=False).returncode:
        raise SystemExit(2)
    return out


def measure(model: Path, test: Path) -> tuple[str, str]:
    """Accuracy and macro-F1 of `dragoman classify`, as it prints them."""
    command = [*_COMMAND, "classify", "--model", str(model), "--data", str(test)]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", check=False)
    found = re.search(r"accuracy ([\d.]+%), macro-F1 ([\d.]+%)", done.stderr)
    if found is None:
        raise SystemExit(done.stderr)
    return found[1], found[2]


def main() -> None:
    """Make the data, train everything, print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--text", type=Path, required=True, help="one sentence a line")
    parser.add_argument("--test", type=Path, required=True, help="other sentences")
    parser.add_argument("--work", type=Path, required=True, help="a folder for data and models")
    parser.add_argument("--counts", default="500,2000,10000", help="of labeled sentences")
    parser.add_argument("--pretraining", default="20m", help="the budget of the language model")
    parser.add_argument("--preset", default="small")
    chosen = parser.parse_args()
    counts = [int(count) for count in chosen.counts.split(",")]
    work: Path = chosen.work
    work.mkdir(parents=True, exist_ok=True)
    write_data(chosen.text, chosen.test, work, counts)
    text = ["--task", "mlm", "--text", str(work / "text.txt"), "--preset", chosen.preset]
    masked = train(work / "mlm", [*text, "--budget", chosen.pretraining])
    rows = []
    for count in counts:
        data = ["--task", "classification", "--data", str(work / f"train{count}.tsv")]
        data += ["--valid-source", str(work / "valid.sentences")]
        data += ["--valid-target", str(work / "valid.labels")]
        fresh = train(work / f"fresh{count}", [*data, "--preset", chosen.preset])
        tuned = train(work / f"tuned{count}", [*data, "--init-from", str(masked)])
        scores = [*measure(fresh, work / "test.tsv"), *measure(tuned, work / "test.tsv")]
        rows.append(f"| {count:,} | " + " | ".join(scores) + " |")
    print("| labels | from nothing: accuracy | macro-F1 | pre-trained: accuracy | macro-F1 |")
    print("| ---: | ---: | ---: | ---: | ---: |")
    print("\n".join(rows))


if __name__ == "__main__":
    main()
