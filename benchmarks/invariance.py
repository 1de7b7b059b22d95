"""Whether a translation depends on what is translated beside it; it must not.

python benchmarks/invariance.py MODEL SOURCE [--systems native-float32,...] [--lines N]

Translates the lines of SOURCE as `dragoman translate` does, then again in batches of 1, 7 and 64
lines, backwards, in an order by chance, and with one and two workers, and counts the lines whose
text is another. In float32 none may be, in the faster precisions 1%: more is exit status 1.
"""

import argparse
import random
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path

from dragoman.config import SearchConfig
from dragoman.decoding.answers import Form
from dragoman.decoding.loading import EngineChoice
from dragoman.decoding.pipeline import Entry, Pace, Pipeline
from dragoman.decoding.recipe import Recipe
from dragoman.decoding.translator import Translator
from dragoman.decoding.workers import Wanted, Workers
from dragoman.model.description import describe
from dragoman.text.lines import read_lines

SYSTEMS = ("ctranslate2-float32", "ctranslate2-int8", "native-float32", "native-bfloat16")
MOST_FAST = 0.01  # share of lines that may differ where the arithmetic is not float32


def piped(recipe: Recipe, translator: Translator, lines: list[str], workers: int) -> list[str]:
    """As the command translates a file, with so many workers."""
    entries = [Entry(line, "", "", number) for number, line in enumerate(lines, start=1)]
    work = Workers(recipe, translator, Wanted(Form()), workers, typed=False)
    with Pipeline(entries, work, Pace()) as pipeline:
        answers = list(chain.from_iterable(pipeline))
    return [answer.written(0).decode().removesuffix("\n") for _, answer in answers]


def variants(
    recipe: Recipe, translator: Translator, lines: list[str]
) -> Iterator[tuple[str, Callable[[], list[str]]]]:
    """Names, and functions that give a text for each line, in the order of the lines."""

    def texts(part: list[str]) -> list[str]:
        return [translation.text for translation in translator.translate(part)]

    def cut(size: int) -> list[str]:
        parts = [lines[start : start + size] for start in range(0, len(lines), size)]
        return list(chain.from_iterable(map(texts, parts)))

    def ordered(order: list[int]) -> list[str]:
        found = dict(zip(order, texts([lines[number] for number in order]), strict=True))
        return [found[number] for number in range(len(lines))]

    numbers = list(range(len(lines)))
    for size in (1, 7, 64):
        yield f"{size} a batch", lambda size=size: cut(size)  # type: ignore[misc]
    yield "backwards", lambda: ordered(numbers[::-1])
    yield "any order", lambda: ordered(random.Random(1).sample(numbers, len(numbers)))
    for workers in (1, 2):
        yield (
            f"{workers} worker{'s'[: workers - 1]}",
            lambda workers=workers: piped(  # type: ignore[misc]
                replace(recipe, choice=replace(recipe.choice, threads=workers)),
                translator,
                lines,
                workers,
            ),
        )


def measure(system: str, recipe: Recipe, lines: list[str]) -> bool:
    """Print a row a variant; whether every one is within the promise."""
    engine, precision = system.split("-")
    recipe = replace(recipe, choice=EngineChoice(engine, "cpu", precision, threads=1))
    translator = recipe.open(lambda text: print(text, file=sys.stderr))
    expected = [translation.text for translation in translator.translate(lines)]
    kept = True
    for name, run in variants(recipe, translator, lines):
        found = run()
        different = sum(one != other for one, other in zip(expected, found, strict=True))
        kept &= different <= (0 if precision == "float32" else MOST_FAST * len(lines))
        share = f"{different / len(lines):.2%}"
        print(f"| {engine} {precision} | {name} | {different:,} | {share} |", flush=True)
    return kept


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("source", type=Path)
    parser.add_argument("--systems", default=",".join(SYSTEMS), help="some of the default")
    parser.add_argument("--lines", type=int, help="so many of the lines; default: all")
    parser.add_argument("--beam", type=int, default=SearchConfig().beam)
    options = parser.parse_args()
    lines = list(read_lines(options.source))[: options.lines]
    search = describe(options.model).config.search.model_copy(update={"beam": options.beam})
    recipe = Recipe((options.model,), search, EngineChoice())
    print(f"{len(lines):,} lines, beam {options.beam}")
    print("| system | translated | lines that differ | share |\n| --- | --- | ---: | ---: |")
    kept = [measure(system, recipe, lines) for system in options.systems.split(",")]
    sys.exit(0 if all(kept) else 1)


if __name__ == "__main__":
    main()
