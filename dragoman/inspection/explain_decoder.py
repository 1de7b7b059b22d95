"""The second half of the explain page: masked attention, cross-attention, the next word, search.

Letters: T translation with its start or its end.
"""

from dragoman.config import ModelConfig
from dragoman.inspection.explain_numbers import Explained, Numbers
from dragoman.inspection.explain_parts import (
    Texts,
    bar,
    chip,
    decimal,
    percent,
    piece_labels,
    quoted,
    shares,
    stepper,
    strongest,
    table,
)
from dragoman.inspection.explain_readers import reader


def decoder_sections(
    explained: Explained,
    model: ModelConfig,
    texts: Texts,
    source: list[str],
    unspaced: bool,
) -> list[tuple[str, str]]:
    """Name and content of steps 9 to 12; unspaced: whether the target language has no spaces."""
    attention = explained.attention
    reads = piece_labels(attention.target_in, texts, unspaced)
    writes = piece_labels(attention.target_out, texts, unspaced)
    return [
        ("mask", _mask(explained, model, texts, reads, unspaced)),
        ("cross", _cross(explained, texts, writes, source)),
        ("next", _next(explained, model, texts, reads, unspaced)),
        ("search", _search(explained, texts, unspaced)),
    ]


def _mask(
    explained: Explained, model: ModelConfig, texts: Texts, reads: list[str], unspaced: bool
) -> str:
    name = "mask"
    rows = [
        [
            chip(label),
            *(
                f'<span class="cut">{decimal(score, 1)}</span>'
                if column > row
                else decimal(score, 1)
                for column, score in enumerate(line)
            ),
        ]
        for row, (label, line) in enumerate(
            zip(reads, explained.numbers["masked_scores"], strict=True)
        )
    ]
    parts = [
        texts(name, "body", decoder_layers=model.decoder_layers, head=1),
        table(["", *map(chip, reads)], rows, "mask"),
        f'<p class="soft">{texts(name, "caption")}</p>',
        texts(name, "explore"),
        reader(explained, "decoder", texts, (reads, reads)),
        f"<h3>{texts(name, 'why_title')}</h3>",
        texts(name, "why"),
        _look_ahead(explained.numbers["look_ahead"], texts, reads, unspaced),
    ]
    return "\n".join(parts)


def _look_ahead(numbers: Numbers | None, texts: Texts, reads: list[str], unspaced: bool) -> str:
    if numbers is None:
        return ""
    name = "mask"
    word, replacement = (
        chip(piece_labels([numbers[key]], texts, unspaced)[0]) for key in ("word", "replacement")
    )
    rows = [
        [chip(label), decimal(masked, 4), decimal(unmasked, 4)]
        for label, masked, unmasked in zip(
            reads[:-1], numbers["masked"], numbers["unmasked"], strict=False
        )
    ]
    head = [texts("ui", "word"), texts(name, "with_mask"), texts(name, "without_mask")]
    experiment = texts(name, "experiment", word=word, replacement=replacement)
    return experiment + table(head, rows) + texts(name, "result")


def _cross(explained: Explained, texts: Texts, writes: list[str], source: list[str]) -> str:
    weights = explained.attention.cross[-1].mean(0)  # (T, S)
    rows = [
        [chip(label), shares(strongest(row.tolist(), source, 3))]
        for label, row in zip(writes, weights, strict=True)
    ]
    head = [texts("page", "translation"), texts("ui", "looks_most")]
    return "\n".join(
        [
            texts("cross", "body"),
            table(head, rows, "words-table"),
            reader(explained, "cross", texts, (writes, source)),
            texts("cross", "after"),
        ]
    )


def _next(
    explained: Explained, model: ModelConfig, texts: Texts, reads: list[str], unspaced: bool
) -> str:
    name, vocabulary = "next", f"{explained.vocabulary:,}"
    panels = []
    for place, step in enumerate(explained.numbers["next"]):
        used = explained.attention.target_out[place]
        written = " ".join(map(chip, reads[: place + 1]))
        rows = []
        for piece, probability in zip(step["candidates"], step["probabilities"], strict=True):
            label = chip(_label(piece, texts, unspaced, first=place == 0))
            mark = f" <em>{texts(name, 'chosen')}</em>" if piece == used else ""
            rows.append([label + mark, f"{percent(probability, 1)}{bar(probability)}"])
        after = ""
        if used not in step["candidates"]:
            label = chip(_label(used, texts, unspaced, first=place == 0))
            after = f"<p>{texts(name, 'rank', piece=label, rank=step['rank'])} "
            after += f"{percent(step['chosen'], 1)}</p>"
        comes = texts(name, "comes", vocabulary=vocabulary)
        panels.append(
            f"<p>{texts(name, 'so_far')} {written}</p>{table([comes, '%'], rows, 'next')}{after}"
        )
    body = texts(name, "body", width=model.d_model, vocabulary=vocabulary)
    return body + stepper(panels) + texts(name, "output")


def _label(piece: str, texts: Texts, unspaced: bool, first: bool) -> str:
    """A subword alone; it goes on with the word before it unless there is none."""
    if piece == "</s>":
        return f"[{texts('ui', 'end')}]"
    before = "▁" if first or unspaced else "a"
    return piece_labels([before, piece, before], texts, unspaced)[1]


def _search(explained: Explained, texts: Texts, unspaced: bool) -> str:
    name, numbers = "search", explained.numbers["search"]
    head = [texts(name, key) for key in ("hypothesis", "fate", "log_prob", "score")]
    panels = []
    for step in numbers["steps"]:
        rows = []
        for found in step["hypotheses"]:
            fate = "kept" if found["kept"] else "pruned"
            rows.append(_fate(found, fate, texts, unspaced))
        for found in step["finished"]:
            fate = "finished" if found["kept"] else "dropped"
            rows.append(_fate(found, fate, texts, unspaced))
        title = texts(name, "step_title", step=step["step"])
        panels.append(f'<p class="caption">{title}</p>{table(head, rows, "search")}')
    body = texts(name, "body", beam=numbers["beam"])
    after = texts(
        name,
        "after",
        penalty=f"{numbers['length_penalty']:g}",
        log_prob=decimal(numbers["log_prob"]),
        best=decimal(numbers["score"]),
    )
    winner = piece_labels(explained.attention.target_out, texts, unspaced)
    shown = f'<p class="winner">{" ".join(map(chip, winner))}</p>'
    return body + stepper(panels) + texts(name, "note") + after + shown


def _fate(found: Numbers, fate: str, texts: Texts, unspaced: bool) -> list[str]:
    """One hypothesis of a step: its subwords, what became of it, its numbers."""
    pieces = found["tokens"]
    ended = "score" in found
    labels = piece_labels([*pieces, "</s>"] if ended else pieces, texts, unspaced)
    # Of a long hypothesis only what is new is marked.
    words = f"{quoted(' '.join(labels[:-1]))} {chip(labels[-1])}"
    score = decimal(found["score"]) if ended else ""
    name = f'<span class="fate {fate}">{texts("search", fate)}</span>'
    return [words, name, decimal(found["log_prob"]), score]
