"""dragoman score"""

import math
import sys
from itertools import islice

from dragoman.cli import options
from dragoman.cli.application import app

# Pairs scored together; what is scored is printed.
_WINDOW = 2048


@app.command(short_help="Say how probable given translations are.")
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
        sources, targets = [pair.source for pair in window], [pair.target for pair in window]
        for result in scorer.score(sources, targets, first=done + 1):
            print(f"{result.score:.4f}\t{result.log_prob:.4f}\t{len(result.tokens)}")
            total, tokens = total + result.log_prob, tokens + len(result.tokens)
        done += len(window)
    if tokens:
        summary = f"perplexity {math.exp(-total / tokens):.3f} over {tokens:,} subwords"
        print(f"{done:,} pairs, {summary}", file=sys.stderr)
