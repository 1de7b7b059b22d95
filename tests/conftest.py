"""What tests of the command line share: a small language, its corpus, a model, and a way to run."""

import io
import itertools
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from dragoman.cli import main
from dragoman.config import config_from_toml
from dragoman.corpus.tokenizer import Tokenizer
from dragoman.model.folder import save_model
from dragoman.model.transformer import Transformer

ADJECTIVES = {"red": "rot", "old": "alt", "big": "groß"}
NOUNS = {"cat": "Katze", "dog": "Hund", "house": "Haus", "tree": "Baum", "bird": "Vogel"}
VERBS = {"sees": "sieht", "finds": "findet", "draws": "malt"}
SENTENCES = [
    (f"the {x} {a} {v} the {b}", f"{ADJECTIVES[x]} {NOUNS[a]} {VERBS[v]} {NOUNS[b]}")
    for x, a, v, b in itertools.product(ADJECTIVES, NOUNS, VERBS, NOUNS)
]
RANDOM_MODEL = """
source_language = "en"
target_language = "de"
[model]
d_model = 16
d_ff = 16
heads = 2
encoder_layers = 1
decoder_layers = 1
[data]
max_tokens = 30
[search]
max_extra_tokens = 3
"""


@dataclass(frozen=True)
class Outcome:
    """What a command left: exit status, stdout as bytes, stderr as text."""

    status: int
    out: bytes
    err: str

    @property
    def lines(self) -> list[str]:
        """The lines of stdout, which ends at a line end."""
        *lines, rest = self.out.decode().split("\n")
        assert rest == ""
        return lines


@pytest.fixture
def dragoman(
    monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]
) -> Callable[..., Outcome]:
    """Runs a command line in this process; its stdin is the bytes given."""

    def run(*arguments: str | Path, stdin: bytes = b"") -> Outcome:
        monkeypatch.setattr(sys, "argv", ["dragoman", *map(str, arguments)])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        capsysbinary.readouterr()
        with pytest.raises(SystemExit) as end:
            main()
        captured = capsysbinary.readouterr()
        assert isinstance(end.value.code, int)
        return Outcome(end.value.code, captured.out, captured.err.decode())

    return run


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A headless Chromium of the system; what needs one is left out where there is none.

    Of a module, not of the session: as long as it runs, so does an event loop of this thread.
    """
    driver = pytest.importorskip("playwright.sync_api")
    names = ("chromium", "chromium-browser", "google-chrome")
    path = next(filter(None, map(shutil.which, names)), None)
    if path is None:
        pytest.skip("there is no Chromium on this machine")
    with driver.sync_playwright() as play:
        chromium = play.chromium.launch(executable_path=path)
        yield chromium
        chromium.close()


@pytest.fixture(scope="session")
def sentences() -> list[tuple[str, str]]:
    """225 pairs of a language small enough to be learned in seconds."""
    return SENTENCES


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with train.en and train.de."""
    folder = tmp_path_factory.mktemp("corpus")
    for name, side in (("train.en", 0), ("train.de", 1)):
        text = "".join(f"{pair[side]}\n" for pair in SENTENCES)
        (folder / name).write_text(text, "utf-8", newline="\n")
    return folder


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of random weights: what it writes is as odd as text can be."""
    folder = tmp_path_factory.mktemp("models") / "random"
    config = config_from_toml(RANDOM_MODEL, "settings")
    tokenizer = Tokenizer.train(itertools.chain.from_iterable(SENTENCES), 350)
    torch.manual_seed(1)
    network = Transformer(config.model, tokenizer.vocabulary_size)
    weights = network.state_dict()
    weights["embedding.weight"] *= 4
    save_model(folder, config, tokenizer, weights, "# en -> de\n\n## Results\n\nBLEU 0\n")
    return folder
