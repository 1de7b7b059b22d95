"""dragoman score"""

import json
import sys
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dragoman.cli import options
from dragoman.cli.application import app
from dragoman.errors import UserError

if TYPE_CHECKING:
    from dragoman.decoding.scorer import Score

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
    as_json: options.AsJson = False,
    attention: Annotated[
        bool, typer.Option("--attention", help="With --json: the attention to the source.")
    ] = False,
    device: options.Device = "auto",
    errors: options.ErrorsOption = options.Errors.STRICT,
) -> None:
    """Say how probable given translations are to a model, a line for each pair.

    Every line is SCORE<TAB>LOG_PROB<TAB>TOKENS, without a header: log-probability divided by the
    length penalty, as translate --scores prints it; log-probability in nats, end of sentence
    included; number of target subwords, end included. The perplexity of all goes to stderr.

    With --json every line is an object with score, log_prob, tokens and token_log_probs, both with
    the end of sentence; with --attention also source_tokens, and attention: a row for each token
    over the source, the mean of all heads and layers of the cross-attention.

    \b
    dragoman score --model models/en-de --source test.en --target test.de
    """
    from dragoman.corpus.context import Preceding
    from dragoman.decoding.perplexity import perplexity
    from dragoman.decoding.scorer import Scorer

    if attention and not as_json:
        raise UserError("--attention is a part of the JSON", "give --json too")
    files = options.corpus_files(("", ""), (source, target, data), (None, None), None, errors)
    scorer = Scorer.load(model, device)
    options.check_languages(scorer.config, source_language, target_language)
    pairs, total, tokens, done = files.pairs(), 0.0, 0, 0
    preceding = Preceding(scorer.config.data.context_sentences)
    while window := list(islice(pairs, _WINDOW)):
        sources, targets = [pair.source for pair in window], [pair.target for pair in window]
        contexts = list(map(preceding.of, sources))
        for result in scorer.score(sources, targets, done + 1, attention, contexts):
            if as_json:
                print(_json_line(result))
            else:
                print(f"{result.score:.4f}\t{result.log_prob:.4f}\t{len(result.tokens)}")
            total, tokens = total + result.log_prob, tokens + len(result.tokens)
        done += len(window)
    if tokens:
        summary = f"perplexity {perplexity(-total / tokens):.3f} over {tokens:,} subwords"
        print(f"{done:,} pairs, {summary}", file=sys.stderr)


def _json_line(result: "Score") -> str:
    record: dict[str, Any] = {
        "score": result.score,
        "log_prob": result.log_prob,
        "tokens": result.tokens,
        "token_log_probs": result.token_log_probs,
    }
    if result.attention is not None:
        record |= {"source_tokens": result.source_tokens, "attention": result.attention}
    return json.dumps(record, ensure_ascii=False)
