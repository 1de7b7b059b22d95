"""The second pass over a corpus: chunks of pairs into chunks of ids, and those into the store."""

import functools
import multiprocessing
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

import numpy as np

from dragoman.corpus.chunks import is_whole, read_chunk, write_chunk
from dragoman.corpus.cleaning import EXAMPLES, CleaningReport
from dragoman.corpus.examination import TRAINING, Roles, read_texts
from dragoman.corpus.pairs import Pair
from dragoman.corpus.store import Columns, id_type, list_column
from dragoman.corpus.tokenizer import THREADS, Tokenizer


@dataclass(frozen=True, slots=True)
class Encoding:
    """How pairs become ids: `folder` holds the chunks, `name` is that of their making."""

    folder: Path
    tokenizer: Path
    name: str
    limit: int


def encode_chunk(encoding: Encoding, chunk: tuple[int, Roles]) -> int:
    """Encode the training rows of one chunk, unless that was done; how many they were.

    Raises UserError when the disk is full.
    """
    number, roles = chunk
    wanted = roles == TRAINING
    count = int(np.count_nonzero(wanted))
    path = _path(encoding, number)
    digest = blake2b(roles.tobytes(), digest_size=16).hexdigest()
    if is_whole(path) and read_chunk(path)[1]["roles"] == digest:
        return count
    tokenizer = _open(encoding.tokenizer)
    sources, targets = read_texts(encoding.folder, number, wanted)
    pairs = list(zip(sources, targets, strict=True))
    # In a worker every core has a process already.
    threads = 1 if multiprocessing.parent_process() else THREADS
    encoded = tokenizer.encode_pairs(pairs, threads)
    fits = [max(map(len, ids)) <= encoding.limit for ids in encoded]
    long = [pair for pair, fitting in zip(pairs, fits, strict=True) if not fitting]
    fitting = [ids for ids, fit in zip(encoded, fits, strict=True) if fit]
    kind, size = id_type(tokenizer.vocabulary_size), tokenizer.vocabulary_size
    columns = {
        name: list_column([ids[side] for ids in fitting], kind, size)
        for side, name in enumerate(("source", "target"))
    }
    write_chunk(path, columns, {"roles": digest, "long": len(long), "examples": long[:EXAMPLES]})
    return count


def encoded_columns(
    encoding: Encoding, chunks: int, report: CleaningReport, reason: str
) -> Iterator[Columns]:
    """The ids of every chunk, for the store; pairs that were too long go into the report."""
    for number in range(chunks):
        batch, notes = read_chunk(_path(encoding, number), ("source", "target"))
        if notes["long"]:
            examples = [(0, Pair(*texts)) for texts in notes["examples"]]
            report.count(reason, notes["long"], examples)
            report.kept -= notes["long"]
        yield batch.column(0), batch.column(1)


def _path(encoding: Encoding, number: int) -> Path:
    return encoding.folder / f"ids-{encoding.name}-{number:06d}.arrow"


@functools.lru_cache(maxsize=1)
def _open(path: Path) -> Tokenizer:
    return Tokenizer.load(path)
