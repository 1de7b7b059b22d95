"""Small corpora to prepare, and what comes out; for the tests of preparation."""

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dragoman.config import DataConfig
from dragoman.corpus.preparation import (
    Advance,
    prepare_corpus,
)
from dragoman.corpus.prepared import (
    COMPLETE,
    FILES,
    TOKENIZER,
    CorpusFiles,
    PreparedCorpus,
)
from dragoman.corpus.store import CorpusStore
from dragoman.corpus.tokenizer import Tokenizer

NOUNS = {"cat": "Katze", "dog": "Hund", "house": "Haus", "tree": "Baum", "bird": "Vogel"}
VERBS = {"sees": "sieht", "finds": "findet", "draws": "malt", "{verb}": "{verb}"}
SETTINGS = DataConfig.model_validate({"vocabulary_size": 400, "max_tokens": 40})
SENTENCES = [
    (f"the {a} {v} the {b}", f"{NOUNS[a]} {VERBS[v]} {NOUNS[b]}")
    for a, v, b in itertools.product(NOUNS, VERBS, NOUNS)
]


@contextmanager
def quiet(name: str, total: int | None) -> Iterator[Advance]:
    done: list[int] = []
    yield done.append
    if total is not None:
        assert sum(done) == total, name


def write(folder: Path, name: str, lines: list[str]) -> Path:
    path = folder / name
    path.write_text("".join(f"{line}\n" for line in lines), "utf-8", newline="\n")
    return path


def parallel(folder: Path, sentences: list[tuple[str, str]], name: str = "train") -> CorpusFiles:
    source = write(folder, f"{name}.en", [source for source, _ in sentences])
    target = write(folder, f"{name}.de", [target for _, target in sentences])
    return CorpusFiles("en", "de", source, target)


def prepare(files: CorpusFiles, folder: Path, settings: DataConfig = SETTINGS) -> PreparedCorpus:
    return prepare_corpus(files, folder, lambda _: settings, quiet)


def stored(folder: Path, name: str) -> list[tuple[str, str]]:
    """The pairs of a store as masked text."""
    tokenizer, store = Tokenizer.load(folder / TOKENIZER), CorpusStore.open(folder / name)
    rows = [store[row] for row in range(len(store))]
    return [(tokenizer.decode(s.tolist()), tokenizer.decode(t.tolist())) for s, t in rows]


def contents(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in (*FILES, COMPLETE)}
