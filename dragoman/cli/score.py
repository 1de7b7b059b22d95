"""dragoman score"""

import math
import re
import sys
from itertools import islice

from dragoman.cli import options
from dragoman.cli.application import app
from dragoman.errors import UserError

# Pairs scored together; what is scored is printed.
_WINDOW = 2048


@app.command()
def score(
    model: options.ModelFolder,
    source: options.SourceFile = None,
    target: options.TargetFile = None,
    data: options.TableFile = None,
    source_language: options.WantedSource = None,
    target_language: options.WantedTarget = None,
    device: options.Device = "auto",
    errors: options.ErrorsOption = options.Errors.STRICT,
) -> None:
    """Say how probable given translations are to a model, a line for each pair.

    Every line is SCORE<TAB>LOG_PROB<TAB>TOKENS, without a header: log-probability divided by the
    length penalty, as translate --scores prints it; log-probability in nats, end of sentence
    included; number of target subwords, end included. The perplexity of all goes to stderr.

    \b
    dragoman score --model models/en-de --source test.en --target test.de > scores.tsv
    """
    from dragoman.decoding.scorer import Scorer

    files = options.corpus_files(("", ""), (source, target, data), (None, None), None, errors)
    scorer = Scorer.load(model, device)
    options.check_languages(scorer.config, source_language, target_language)
    pairs, total, tokens, done = files.pairs(), 0.0, 0, 0
    while window := list(islice(pairs, _WINDOW)):
        try:
            scores = scorer.score(
                [pair.source for pair in window], [pair.target for pair in window]
            )
        except UserError as error:
            raise _with_place(error, done) from None
        for result in scores:
            print(f"{result.score:.4f}\t{result.log_prob:.4f}\t{len(result.tokens)}")
            total, tokens = total + result.log_prob, tokens + len(result.tokens)
        done += len(window)
    if tokens:
        summary = f"perplexity {math.exp(-total / tokens):.3f} over {tokens:,} subwords"
        print(f"{done:,} pairs, {summary}", file=sys.stderr)


def _with_place(error: UserError, done: int) -> UserError:
    """The scorer counts from the first pair of its window, a person from the first line."""
    message = re.sub(r"(?<=^pair )\d+", lambda found: str(int(found[0]) + done), error.message)
    return UserError(message, error.hint)
