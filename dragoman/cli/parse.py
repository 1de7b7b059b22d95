"""dragoman parse"""

import itertools
import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dragoman.cli import options
from dragoman.cli.application import app
from dragoman.errors import UserError

if TYPE_CHECKING:
    from dragoman.decoding.parser import Parse, Parser

_HELP = """\
Parse sentences into constituency trees, in Penn brackets: as many lines out as in.

A sentence is cut into the words of the Penn Treebank: punctuation stands alone, "don't" is
"do n't", a bracket is "-LRB-". With --tokenized its words are what spaces separate. On a terminal
the tree is drawn too.

With --gold it parses the sentences of a treebank and prints how well that was done, as the
program evalb counts with COLLINS.prm: punctuation, traces and functional tags do not count.

\b
dragoman parse --model models/parser "The cat that I saw doesn't sleep."
dragoman parse --model models/parser --input new.en > trees.ptb
dragoman parse --model models/parser --gold test.ptb
"""
# Sentences parsed together; what is parsed is printed.
_WINDOW = 256

_Sentence = Annotated[
    str | None, typer.Argument(metavar="SENTENCE", help="A sentence; else --input or stdin.")
]
_InputFile = Annotated[
    Path | None, typer.Option("--input", metavar="FILE", help="Sentences, one a line.")
]
_GoldFile = Annotated[
    Path | None, typer.Option("--gold", metavar="FILE", help="Measure on the trees of a treebank.")
]
_Tokenized = Annotated[
    bool, typer.Option("--tokenized", help="The words are separated by spaces already.")
]
_Draw = Annotated[
    bool | None,
    typer.Option("--draw/--no-draw", help="Draw each tree as text. [default: on a terminal]"),
]
_Svg = Annotated[
    Path | None, typer.Option("--svg", metavar="FILE", help="Draw the tree of SENTENCE there.")
]
_Unconstrained = Annotated[
    bool,
    typer.Option(
        "--unconstrained", help="Search without the grammar; what is no tree becomes a flat one."
    ),
]


@app.command(short_help="Parse sentences into constituency trees.", help=_HELP)
def parse(
    model: options.ModelFolder,
    sentence: _Sentence = None,
    file: _InputFile = None,
    gold: _GoldFile = None,
    tokenized: _Tokenized = False,
    as_json: options.AsJson = False,
    draw: _Draw = None,
    svg: _Svg = None,
    beam: options.Beam = None,
    length_penalty: options.LengthPenalty = None,
    unconstrained: _Unconstrained = False,
    device: options.Device = "auto",
    errors: options.ErrorsOption = options.Errors.STRICT,
) -> None:
    """Read the options and parse; what they mean is in the help above."""
    from dragoman.cli.destination import check_destination
    from dragoman.text.lines import read_lines
    from dragoman.text.penn_words import penn_words
    from dragoman.text.trees import escape_brackets

    if sum(given is not None for given in (sentence, file, gold)) > 1:
        raise UserError("SENTENCE, --input and --gold exclude each other", "give one of them")
    if svg is not None and sentence is None:
        raise UserError("--svg draws one tree", "give the sentence on the command line")
    check_destination("--svg", svg, [model])
    if gold is not None:
        _measure(_open(model, beam, length_penalty, device), gold, unconstrained, as_json, errors)
        return
    lines = read_lines(file or Path("-"), errors.value) if sentence is None else iter([sentence])
    parser = _open(model, beam, length_penalty, device)
    drawn = sys.stdout.isatty() and not as_json if draw is None else draw
    cut = (lambda line: [escape_brackets(word) for word in line.split()]) if tokenized else None
    words = map(cut or penn_words, lines)
    for parsed in _parse_lines(parser, words, not unconstrained):
        print(_json_line(parsed) if as_json else "" if parsed is None else parsed.tree)
        if parsed is not None and drawn:
            from dragoman.inspection.tree_drawing import draw_text

            print(draw_text(parsed.tree))
        if parsed is not None and svg is not None:
            from dragoman.inspection.tree_drawing import draw_svg
            from dragoman.text.lines import atomic_write

            with atomic_write(svg) as stream:
                stream.write(draw_svg(parsed.tree).encode())


def _open(folder: Path, beam: int | None, length_penalty: float | None, device: str) -> "Parser":
    from dragoman.config import resolve_search
    from dragoman.decoding.parser import Parser
    from dragoman.model.description import describe
    from dragoman.training.precision import choose_device

    given = {"beam": beam, "length_penalty": length_penalty}
    flags = {name: value for name, value in given.items() if value is not None}
    search = resolve_search(describe(folder, "parsing").config.search, flags)
    return Parser.load(folder, choose_device(device), search)


def _parse_lines(
    parser: "Parser", lines: Iterable[list[str]], constrained: bool
) -> Iterator["Parse | None"]:
    """The parse of every line as soon as it is there; None for a blank one."""
    size = 1 if sys.stdin is not None and sys.stdin.isatty() else _WINDOW
    number = 0
    supply = iter(lines)
    while window := list(itertools.islice(supply, size)):
        parses = iter(parser.parse([words for words in window if words], constrained))
        for words in window:
            number += 1
            parsed = next(parses) if words else None
            if parsed is not None and parsed.score is None:
                reason = "too long for the model" if constrained else "no tree was found"
                print(f"warning: line {number:,}: {reason}: the tree is flat", file=sys.stderr)
            yield parsed
        sys.stdout.flush()


def _json_line(parsed: "Parse | None") -> str:
    words = [] if parsed is None else parsed.tree.words()
    tree, score = (None, None) if parsed is None else (str(parsed.tree), parsed.score)
    return json.dumps({"words": words, "tree": tree, "score": score}, ensure_ascii=False)


def _measure(
    parser: "Parser", path: Path, unconstrained: bool, as_json: bool, errors: options.Errors
) -> None:
    """Parse the words of a treebank and print how the trees compare."""
    from dragoman.evaluation.parseval import SHORT, score_trees
    from dragoman.text.trees import read_treebank
    from dragoman.training.progress import say, stage

    gold = [
        tree for _, tree in read_treebank(path, lambda odd: say(f"warning: {odd}"), errors.value)
    ]
    if not gold:
        raise UserError(f"{path}: no tree", "it must hold trees in Penn brackets")
    parses = list["Parse"]()
    with stage("parsing", len(gold)) as advance:
        for start in range(0, len(gold), _WINDOW):
            window = [tree.words() for tree in gold[start : start + _WINDOW]]
            parses += parser.parse(window, not unconstrained)
            advance(len(window))
    predicted = [parse.tree for parse in parses]
    scores = {"all": score_trees(gold, predicted), "short": score_trees(gold, predicted, SHORT)}
    formed = sum(parse.score is not None for parse in parses)
    if as_json:
        record = {name: dict(score.rows()) for name, score in scores.items()}
        print(json.dumps({**record, "beam": parser.search.beam, "well_formed": formed}))
        return
    print(f"{'beam ' + str(parser.search.beam):<30}{'all':>10}{f'≤ {SHORT} words':>14}")
    for (name, value), (_, short) in zip(*(s.rows() for s in scores.values()), strict=True):
        print(f"{name:<30}{value:>10}{short:>14}")
    how = "without the grammar" if unconstrained else "by the grammar"
    print(f"well-formed {how}: {formed:,} of {len(gold):,} ({100 * formed / len(gold):.2f}%)")
