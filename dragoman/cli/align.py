"""dragoman align"""

import json
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dragoman.cli import options
from dragoman.cli.application import app
from dragoman.corpus.pairs import Pair
from dragoman.errors import UserError

if TYPE_CHECKING:
    from dragoman.inspection.word_alignment import AlignmentHead, WordAligner, WordAlignment
    from dragoman.inspection.word_alignment_gold import GoldAlignment

# Pairs aligned together; what is aligned is printed.
_WINDOW = 1024

_PairOfTexts = Annotated[
    tuple[str, str] | None,
    typer.Option("--pair", metavar="SOURCE TARGET", help="One text and its translation."),
]
_Gold = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Links that people made (0-0 sure, 1p2 possible): print the error rate.",
    ),
]
_Choose = Annotated[
    bool,
    typer.Option(
        "--choose",
        help="Choose the head by these pairs, and by --gold if given; the model remembers it.",
    ),
]
_Layer = Annotated[
    int | None, typer.Option(metavar="N", min=1, help="Look at this layer of the decoder.")
]
_Reading = Annotated[
    bool, typer.Option("--reading", help="With --layer: the step that reads a word.")
]
_HeadNumber = Annotated[
    int | None,
    typer.Option("--head", metavar="N", min=0, help="Of --layer; 0 is the mean of its heads."),
]
_Hide = Annotated[
    bool,
    typer.Option(
        "--hide", help="Hide each source word in turn, not attention: more exact, slower."
    ),
]


@app.command(short_help="Link the words of translations to their source words.")
def align(
    model: options.ModelFolder,
    source: options.SourceFile = None,
    target: options.TargetFile = None,
    data: options.TableFile = None,
    pair: _PairOfTexts = None,
    gold: _Gold = None,
    choose: _Choose = False,
    layer: _Layer = None,
    head: _HeadNumber = None,
    reading: _Reading = False,
    hide: _Hide = False,
    as_json: options.AsJson = False,
    source_language: options.WantedSource = None,
    target_language: options.WantedTarget = None,
    device: options.Device = "auto",
    errors: options.ErrorsOption = options.Errors.STRICT,
) -> None:
    """Link the words of given translations to their source words, a line for each pair.

    Every line is SOURCE-TARGET for each target word, 0-0 1-2 2-1: words are what white space
    separates, counted from 0. In a language that writes no spaces each subword is a word; --json
    says which. A pair with a blank side has a blank line.

    A word is linked to the one that a head of the decoder attends to most. Which head was chosen
    at the end of training, on validation data; it is chosen by the first of these pairs where the
    model has no choice yet.

    \b
    dragoman align --model models/en-de --source test.en --target test.de
    dragoman align --model models/en-de --pair "A cat." "Eine Katze."
    """
    from dragoman.inspection.word_alignment import AlignmentHead, WordAligner
    from dragoman.inspection.word_alignment_gold import read_gold

    if pair is not None and (source or target or data):
        raise UserError("--pair and files together", "give one of them")
    if layer is None and (head is not None or reading):
        raise UserError("--head and --reading are of a layer", "give --layer too")
    if (layer is not None) + hide + choose > 1:
        raise UserError("--layer, --hide and --choose exclude each other", "give one of them")
    files = (source, target, data)
    if pair is not None:
        pairs = iter([Pair(*pair)])
    else:
        pairs = options.corpus_files(("", ""), files, (None, None), None, errors).pairs()
    wanted = None if gold is None else read_gold(gold, errors.value)
    aligner = WordAligner.load(model, device)
    options.check_languages(aligner.config, source_language, target_language)
    job = _Job(aligner, model, pairs, wanted)
    if hide:
        job.run(None, as_json)
    elif layer is None:
        job.run(job.choice(choose), as_json)
    else:
        job.run(aligner.checked(AlignmentHead(layer, head or 0, reading)), as_json)


class _Job:
    """One run of the command: pairs in, a line for each of them out."""

    def __init__(
        self,
        aligner: "WordAligner",
        model: Path,
        pairs: Iterator[Pair],
        gold: "list[GoldAlignment] | None",
    ) -> None:
        self._aligner, self._model, self._pairs, self._gold = aligner, model, pairs, gold

    def choice(self, anew: bool) -> "AlignmentHead":
        """The head that the model remembers, or one chosen by the first pairs."""
        from itertools import chain

        from dragoman.inspection.word_alignment_choice import (
            ENOUGH,
            load_choice,
            measure_heads,
            save_choice,
        )

        known = None if anew else load_choice(self._model, self._aligner)
        if known is not None:
            return known
        by_gold = anew and self._gold is not None
        first = list(islice(self._pairs, None if by_gold else ENOUGH))
        self._pairs = chain(first, self._pairs)
        best = measure_heads(self._aligner, first, self._gold if by_gold else None)[0]
        by = "the gold alignments" if by_gold else "hiding words of these pairs"
        note = f"chosen by {by}: {best.head}"
        if anew:
            save_choice(self._model, best.head)
        else:
            note += "; 'dragoman align --choose' keeps one"
        print(note, file=sys.stderr)
        return best.head

    def run(self, head: "AlignmentHead | None", as_json: bool) -> None:
        """Print the links of every pair, and the error rate where there is a gold alignment."""
        from dragoman.inspection.word_alignment_gold import alignment_error, check_gold

        done, found = 0, list["WordAlignment | None"]()
        window = _WINDOW if head is not None else 1
        while pairs := list(islice(self._pairs, window)):
            for alignment in self._aligner.align(pairs, head):
                done += 1
                print(_line(alignment, as_json))
                if alignment is None:
                    limit = self._aligner.config.model.max_positions - 1
                    problem = f"more than {limit:,} tokens: left without links"
                    print(f"pair {done:,}: {problem}", file=sys.stderr)
                if self._gold is not None:
                    found.append(alignment)
        if self._gold is not None:
            check_gold(self._gold, [one.size if one else None for one in found])
            links = [frozenset(one.links if one else ()) for one in found]
            error = alignment_error(links, self._gold)
            print(
                f"alignment error rate {error.rate:.3f}, precision {error.precision:.3f}, "
                f"recall {error.recall:.3f} over {done:,} pairs",
                file=sys.stderr,
            )


def _line(alignment: "WordAlignment | None", as_json: bool) -> str:
    if not as_json:
        return alignment.pharaoh if alignment else ""
    record = {
        "source": alignment.source if alignment else [],
        "target": alignment.target if alignment else [],
        "links": alignment.links if alignment else [],
    }
    return json.dumps(record, ensure_ascii=False)
