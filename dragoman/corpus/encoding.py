"""The second pass over a corpus: chunks of pairs into chunks of ids, and those into the store."""

import functools
import itertools
import multiprocessing
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

import numpy as np

from dragoman.corpus.chunks import is_whole, read_chunk, write_chunk
from dragoman.corpus.cleaning import EXAMPLES, CleaningReport
from dragoman.corpus.context import encode_contexts, fitting
from dragoman.corpus.examination import TRAINING, Roles, read_pairs
from dragoman.corpus.pairs import Pair
from dragoman.corpus.store import Columns, id_type, list_column
from dragoman.corpus.tokenizer import THREADS, Tokenizer


@dataclass(frozen=True, slots=True)
class Encoding:
    """How pairs become ids: `folder` holds the chunks, `name` is that of their making.

    texts: the targets are texts alone, and one that is longer than `limit` is cut.
    """

    folder: Path
    tokenizer: Path
    name: str
    limit: int
    texts: bool = False


def text_pieces(ids: list[int], limit: int) -> list[list[int]]:
    """A text's ids with bos and eos, in pieces of which each predicts at most `limit` of them.

    A piece begins with the last id of the one before it, so that every id is predicted once.
    """
    whole = [Tokenizer.bos_id, *ids, Tokenizer.eos_id]
    return [whole[start : start + limit + 1] for start in range(0, len(whole) - 1, limit)]


def encode_rows(
    tokenizer: Tokenizer,
    pairs: Sequence[Pair],
    limit: int,
    texts: bool,
    threads: int = THREADS,
) -> Iterator[list[tuple[list[int], list[int]]]]:
    """The rows that each pair becomes: one, or none where it is too long; of a text its pieces."""
    contexts = encode_contexts(tokenizer, [pair.context for pair in pairs])
    encoded = tokenizer.encode_pairs(((pair.source, pair.target) for pair in pairs), threads)
    for (source, target), context in zip(encoded, contexts, strict=True):
        if texts:
            yield [([], piece) for piece in text_pieces(target, limit)]
        elif max(len(source), len(target)) <= limit:
            yield [([*fitting(context, limit - len(source)), *source], target)]
        else:
            yield []


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
    pairs = read_pairs(encoding.folder, number, wanted)
    # In a worker every core has a process already.
    threads = 1 if multiprocessing.parent_process() else THREADS
    rows = list(encode_rows(tokenizer, pairs, encoding.limit, encoding.texts, threads))
    long = [(pair.source, pair.target) for pair, ids in zip(pairs, rows, strict=True) if not ids]
    fitting = list(itertools.chain.from_iterable(rows))
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
