"""One system of decoding_speed.py in a process of its own; imports nothing it does not need.

    python benchmarks/decoding_system.py '{"kind": "ctranslate2", "lines": "test.en", ...}'

It loads a model, says so, and then translates all the lines once for every request on stdin, a JSON
object with `beam` and, for some, `batch`: how many sentences, or "4000 tokens", are searched
together. It answers with the seconds from text to text, the texts, and its largest resident size.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

Request = dict[str, Any]
Translate = Callable[[list[str], Request], list[str]]
BOS, EOS = 2, 3
# What an output may have beyond its source, as Dragoman's default has it.
EXTRA = 50


def dragoman(settings: Request) -> Translate:
    """`Translator.translate`."""
    from dragoman.config import SearchConfig
    from dragoman.decoding.translator import Translator

    def load(beam: int) -> Translator:
        search = SearchConfig(
            beam=beam,
            length_penalty=settings["penalty"],
            shortlist=settings["shortlist"],
            precision=settings["precision"],
        )
        return Translator.load(settings["model"], search=search, engine=settings["engine"])

    first = load(4)
    translators = {4: first}

    def translate(lines: list[str], request: Request) -> list[str]:
        beam = request["beam"]
        if beam not in translators:  # one engine for all: only the search differs
            search = first.search.model_copy(update={"beam": beam})
            translators[beam] = Translator(first.engine, search)
        return [found.text for found in translators[beam].translate(lines)]

    return translate


def ctranslate2(settings: Request) -> Translate:
    """`translate_batch` alone, one worker of one thread a core, which is its best layout."""
    os.environ.pop("CT2_FORCE_CPU_ISA", None)  # Dragoman has set it for itself
    if settings["instructions"]:
        os.environ["CT2_FORCE_CPU_ISA"] = settings["instructions"]
    import ctranslate2 as library

    encode, decode = _tokenizer(settings)
    translator = library.Translator(
        settings["converted"],
        compute_type=settings["precision"],
        inter_threads=settings["cores"],
        intra_threads=1,
    )

    def translate(lines: list[str], request: Request) -> list[str]:
        words = [[*map(str, ids), str(EOS)] for ids in encode(lines)]
        size, _, unit = str(request["batch"]).partition(" ")
        results = translator.translate_batch(
            words,
            beam_size=request["beam"],
            length_penalty=settings["penalty"],
            max_batch_size=int(size),
            batch_type=unit or "examples",
            max_decoding_length=max(map(len, words)) + EXTRA,
        )
        return decode([list(map(int, result.hypotheses[0])) for result in results])

    return translate


def huggingface(settings: Request) -> Translate:
    """`generate` of transformers on the same weights; sorted batches, all cores for each."""
    import torch
    import transformers
    from safetensors.torch import load_file

    torch.set_num_threads(settings["cores"])
    folder = Path(settings["folder"])
    config = json.loads((folder / "config.json").read_text())
    kind = config.pop("class")
    found = getattr(transformers, f"{kind}Config")(**config)
    class_ = {"Marian": "MarianMTModel", "Pegasus": "PegasusForConditionalGeneration"}[kind]
    model = getattr(transformers, class_)(found).eval()
    missing, unexpected = model.load_state_dict(
        load_file(folder / "model.safetensors"), strict=False
    )
    tied = {"lm_head.weight", *(f"model.{side}.embed_tokens.weight" for side in SIDES)}
    if unexpected or not set(missing) <= tied:
        raise SystemExit(f"error: missing {missing}, unexpected {unexpected}")
    for module in model.modules():
        if isinstance(module, torch.nn.LayerNorm):
            module.eps = settings["epsilon"]
    encode, decode = _tokenizer(settings)

    @torch.inference_mode()
    def translate(lines: list[str], request: Request) -> list[str]:
        rows = [[*ids, EOS] for ids in encode(lines)]
        order = sorted(range(len(rows)), key=lambda number: -len(rows[number]))
        outputs: list[list[int]] = [[] for _ in rows]
        for start in range(0, len(order), request["batch"]):
            numbers = order[start : start + request["batch"]]
            longest = len(rows[numbers[0]])
            ids = torch.tensor([rows[n] + [0] * (longest - len(rows[n])) for n in numbers])
            results = model.generate(
                input_ids=ids,
                attention_mask=(ids != 0).long(),
                num_beams=request["beam"],
                do_sample=False,
                length_penalty=settings["penalty"],
                max_new_tokens=longest + EXTRA,
            )
            for number, result in zip(numbers, results.tolist(), strict=True):
                end = result.index(EOS, 1) if EOS in result[1:] else len(result)
                outputs[number] = result[1:end]
        return decode(outputs)

    return translate


SIDES = ("encoder", "decoder")


def marian(settings: Request) -> Translate:
    """pymarian on a model of the same sizes whose outputs are as long as their sources."""
    from pymarian import Translator

    encode, decode = _tokenizer(settings)
    translators: dict[int, Any] = {}

    def translate(lines: list[str], request: Request) -> list[str]:
        beam = request["beam"]
        if beam not in translators:
            translators[beam] = Translator(
                f"{settings['options']} --beam-size {beam} --normalize {settings['penalty']}"
            )
        words = [" ".join(map(str, ids)) for ids in encode(lines)]
        found = translators[beam].translate("\n".join(words)).split("\n")
        return decode([[int(w) for w in row.split() if w.isdigit()] for row in found[: len(words)]])

    return translate


def _tokenizer(
    settings: Request,
) -> tuple[Callable[[list[str]], list[list[int]]], Callable[[list[list[int]]], list[str]]]:
    """sentencepiece as Dragoman's tokenizer calls it for lines without placeholders."""
    import sentencepiece

    processor = sentencepiece.SentencePieceProcessor(model_file=settings["tokenizer"])

    def encode(lines: list[str]) -> list[list[int]]:
        ids: list[list[int]] = processor.encode([" " + line for line in lines], out_type=int)
        return ids

    def decode(rows: list[list[int]]) -> list[str]:
        texts: list[str] = processor.decode(rows)
        return [text.strip() for text in texts]

    return encode, decode


def largest_size() -> float:
    """Megabytes of memory at most; not from getrusage, which counts the parent before the start."""
    status = Path("/proc/self/status").read_text()
    size = next(row.split()[1] for row in status.splitlines() if row.startswith("VmHWM"))
    return int(size) * 1024 / 1e6


KINDS = {
    "dragoman": dragoman,
    "ctranslate2": ctranslate2,
    "huggingface": huggingface,
    "marian": marian,
}


def main() -> None:
    """Answer requests until stdin ends."""
    settings = json.loads(sys.argv[1])
    answers = sys.stdout
    sys.stdout = sys.stderr  # what libraries print is no answer
    lines = Path(settings["lines"]).read_text("utf-8").split("\n")[:-1]
    translate = KINDS[settings["kind"]](settings)
    print("{}", file=answers, flush=True)
    for request in map(json.loads, sys.stdin):
        begun = time.perf_counter()
        texts = translate(lines, request)
        seconds = time.perf_counter() - begun
        answer = {"seconds": seconds, "texts": texts, "megabytes": largest_size()}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
