"""Alignment error rate of every layer and head of a model, and of the head chosen without gold.

python benchmarks/alignment.py MODEL --valid valid.en valid.de

The gold set is `alignment_gold/`: 45 English-German pairs written and linked by hand, each link
sure or only possible; --gold SOURCE TARGET LINKS takes another. Every head, and the mean of the
heads of each layer, is measured at the step that writes a subword and at the one that reads it.
With --valid the column "hiding" is each one's disagreement with hiding words, on so many --pairs of
the validation data: what `dragoman align --choose` goes by. The last line is hiding words itself.
"""

import argparse
from pathlib import Path

from dragoman.corpus.pairs import Pair, read_parallel
from dragoman.inspection.word_alignment import WordAligner
from dragoman.inspection.word_alignment_choice import ENOUGH, MeasuredHead, measure_heads
from dragoman.inspection.word_alignment_gold import alignment_error, read_gold

GOLD = [Path(__file__).parent / "alignment_gold" / f"gold.{name}" for name in ("en", "de", "align")]


def table(by_gold: list[MeasuredHead], by_hiding: list[MeasuredHead]) -> list[str]:
    """A Markdown table, the best first; by_hiding is empty where it was not measured."""
    hiding = {one.head: f"{one.error.rate:.3f}" for one in by_hiding}
    lines = ["| head | AER | precision | recall | hiding |", "| --- | ---: | ---: | ---: | ---: |"]
    for head, error in ((one.head, one.error) for one in by_gold):
        figures = " | ".join(f"{value:.3f}" for value in error)
        lines.append(f"| {head} | {figures} | {hiding.get(head, '')} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    names = ("SOURCE", "TARGET", "LINKS")
    parser.add_argument("--gold", type=Path, nargs=3, metavar=names, default=GOLD)
    parser.add_argument("--valid", type=Path, nargs=2, metavar=names[:2])
    parser.add_argument("--pairs", type=int, default=ENOUGH)
    options = parser.parse_args()
    aligner = WordAligner.load(options.model, "cpu")
    source, target, links = options.gold
    pairs, gold = list(read_parallel(source, target)), read_gold(links)
    by_gold, by_hiding = measure_heads(aligner, pairs, gold), list[MeasuredHead]()
    if options.valid:
        valid: list[Pair] = list(read_parallel(*options.valid))
        by_hiding = measure_heads(aligner, valid[: options.pairs])
    print("\n".join(table(by_gold, by_hiding)))
    if by_hiding:
        rates = {one.head: one.error.rate for one in by_gold}
        chosen = by_hiding[0].head
        print(f"\nchosen without gold: {chosen}, AER {rates[chosen]:.3f}")
    hidden = [frozenset(found.links if found else ()) for found in aligner.align(pairs)]
    error = alignment_error(hidden, gold)
    print(
        f"hiding words: AER {error.rate:.3f}, precision {error.precision:.3f}, "
        f"recall {error.recall:.3f}"
    )


if __name__ == "__main__":
    main()
