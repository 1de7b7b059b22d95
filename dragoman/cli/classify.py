"""dragoman classify"""

import json
import sys
from itertools import islice
from pathlib import Path

from dragoman.cli import options
from dragoman.cli.application import app
from dragoman.errors import UserError
from dragoman.text.lines import read_lines

# Lines classified together; what is classified is printed.
_WINDOW = 2048


@app.command(short_help="Say which label every line has.")
def classify(
    model: options.ModelFolder,
    file: options.Lines = Path("-"),
    data: options.TableFile = None,
    as_json: options.AsJson = False,
    device: options.Device = "auto",
    errors: options.ErrorsOption = options.Errors.STRICT,
) -> None:
    """Say which label every line has, with a model of train --task classification.

    Every line is LABEL<TAB>PROBABILITY; with --json an object with the probabilities of all labels.
    With --data, whose second column holds the true labels, accuracy and macro-F1 go to stderr.

    \b
    dragoman classify --model models/topics new.en
    """
    from dragoman.corpus.pairs import Pair, read_table
    from dragoman.decoding.encoders import TextEncoder
    from dragoman.evaluation.classification import score_labels

    if data is not None and str(file) != "-":
        raise UserError("--data brings the lines", "leave the file out")
    if data is not None:
        pairs = read_table(data, errors.value)
    else:
        pairs = (Pair(line, "") for line in read_lines(file, errors.value))
    encoder = TextEncoder.load(model, "classification", device=device)
    labels, said, true = encoder.config.labels, list[str](), list[str]()
    while window := list(islice(pairs, _WINDOW)):
        for pair, row in zip(window, encoder.classify([p.source for p in window]), strict=True):
            label = labels[int(row.argmax())]
            if as_json:
                probabilities = dict(zip(labels, row.tolist(), strict=True))
                record = {"label": label, "probabilities": probabilities}
                print(json.dumps(record, ensure_ascii=False))
            else:
                print(f"{label}\t{row.max():.4f}")
            if data is not None:
                said.append(label)
                true.append(pair.target)
    if true:
        scores = score_labels(said, true)
        print(
            f"{scores.count:,} sentences: accuracy {scores.accuracy:.1%}, macro-F1 "
            f"{scores.macro_f1:.1%} (the most frequent label: {scores.majority:.1%})",
            file=sys.stderr,
        )
