"""Sentences a second of both engines, beside CTranslate2 called directly on the same model.

python benchmarks/translation_speed.py MODEL SOURCE REFERENCE [--rounds 3] [--beams 4,1]

MODEL is a folder of `dragoman train`; SOURCE and REFERENCE hold one sentence a line. Dragoman's
rows go from text to text: tokenizing, search, detokenizing and safeguards are in the time, loading
and conversion are not. The row "plain" is `translate_batch` of CTranslate2 alone on lines that are
tokenized already, one worker of one thread a core, sorted into batches of 64 sentences; its BLEU is
of the same tokenizer's text. Systems take turns; prints the median, least and greatest.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import ctranslate2

from dragoman.config import SearchConfig
from dragoman.corpus.tokenizer import Tokenizer
from dragoman.decoding.fast import cores
from dragoman.decoding.translator import Translator
from dragoman.evaluation.metrics import evaluate_corpus
from dragoman.text.lines import read_lines

System = Callable[[list[str]], list[str]]


def own(folder: Path, engine: str, precision: str, beam: int, length_penalty: float) -> System:
    search = SearchConfig(beam=beam, length_penalty=length_penalty)
    translator = Translator.load(folder, search=search, engine=engine, precision=precision)

    def run(lines: list[str]) -> list[str]:
        return [translation.text for translation in translator.translate(lines)]

    return run


def plain(folder: Path, precision: str, beam: int, lines: list[str]) -> System:
    """CTranslate2 alone; what the engine's own folder holds is made by a first own() call."""
    tokenizer = Tokenizer.load(folder / "tokenizer.model")
    translator = ctranslate2.Translator(
        str(folder / "ct2" / precision),
        compute_type=precision,
        inter_threads=cores(),
        intra_threads=1,
    )
    encoded = [[*tokenizer.encode_source(line)[0], Tokenizer.eos_id] for line in lines]
    words = [[str(number) for number in ids] for ids in encoded]

    def run(_: list[str]) -> list[str]:
        results = translator.translate_batch(words, max_batch_size=64, beam_size=beam)
        return [tokenizer.decode(list(map(int, result.hypotheses[0]))) for result in results]

    return run


def systems(folder: Path, lines: list[str], beams: list[int], penalty: float) -> dict[str, System]:
    found: dict[str, System] = {}
    for beam in beams:
        for precision in ("int8", "float32"):
            name = f"beam {beam}, ctranslate2 {precision}"
            found[name] = own(folder, "ctranslate2", precision, beam, penalty)
            if (folder / "ct2" / precision).is_dir():
                found[f"beam {beam}, plain {precision}"] = plain(folder, precision, beam, lines)
        found[f"beam {beam}, native float32"] = own(folder, "native", "float32", beam, penalty)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("source", type=Path)
    parser.add_argument("reference", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--beams", default="4,1")
    options = parser.parse_args()
    lines, references = list(read_lines(options.source)), list(read_lines(options.reference))
    beams = [int(beam) for beam in options.beams.split(",")]
    penalty = SearchConfig().length_penalty
    runs = systems(options.model, lines, beams, penalty)
    texts: dict[str, list[str]] = {}
    rates: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(options.rounds + 1):  # the first warms up and gives the texts
        for name, run in runs.items():
            begun = time.perf_counter()
            found = run(lines)
            if number:
                rates[name].append(len(lines) / (time.perf_counter() - begun))
            else:
                texts[name] = found
        print(f"round {number} of {options.rounds}", file=sys.stderr, flush=True)
    print("| system | sentences/s | min-max | BLEU |\n| --- | ---: | ---: | ---: |")
    for name, values in rates.items():
        bleu = evaluate_corpus(texts[name], references, "unknown").bleu
        spread = f"{min(values):,.0f}-{max(values):,.0f}"
        print(f"| {name} | {statistics.median(values):,.0f} | {spread} | {bleu:.2f} |")


if __name__ == "__main__":
    main()
