"""What the documents tell people to type, typed: each page from its top down, in a made-up folder.

The commands stand as they are printed. To take seconds, not hours, every preset is a model of a few
thousand parameters here, trained for some updates; what a command is asked for besides, it does.
"""

import gzip
import itertools
import random
import re
import runpy
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dragoman.presets import PRESETS
from dragoman.training import planning

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/*.md")])
BLOCK = re.compile(r"^( *)(```|~~~)([^\n]*)\n(.*?)^\1\2$", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"(?:^|\| |-m )dragoman ")

# A part of a command -> why the tests do not run it.
NOT_RUN = {
    "torchrun": "several processes; tests/test_distributed.py starts them",
    "--ray": "needs a Ray cluster; tests of dragoman.scale start one",
}
SMALL: dict[str, dict[str, Any]] = {
    "model": {"d_model": 32, "d_ff": 32, "heads": 2, "encoder_layers": 1, "decoder_layers": 1},
    "data": {"vocabulary_size": 400},
    "training": {"max_steps": 4, "validations": 2, "batch_tokens": 400},
}
WORDS = {"the": "der", "red": "rote", "old": "alte", "dog": "Hund", "man": "Mann", "sees": "sieht"}
# A file of each name in English, German and as a table -> its lines.
PAIRS = {"train": 300, "valid": 10} | dict.fromkeys(
    ("test", "new", "old", "mono", "memory", "strings", "strings-test", "both", "neighbor"), 40
)

Dragoman = Callable[..., Any]  # (arguments, stdin) -> status, out, err, lines: conftest.py


def blocks(page: Path) -> Iterator[tuple[str, str]]:
    """Language and text of every fenced block."""
    for indent, _, language, text in BLOCK.findall(page.read_text("utf-8")):
        yield language.strip(), re.sub(f"^{indent}", "", text, flags=re.MULTILINE)


def commands(page: Path) -> list[str]:
    """The commands of a page, in order; of a page of --help, its examples."""
    found = []
    for language, text in blocks(page):
        text = re.sub(r"\\\n\s*", "", text)  # a long line goes on
        if language == "text":
            found += re.findall(r"^  (dragoman .*)$", text, re.MULTILINE)
        elif language in ("", "sh"):
            found += [line for line in text.splitlines() if COMMAND.search(line)]
    return found


def is_run(command: str) -> bool:
    return not any(part in command for part in NOT_RUN)


@pytest.fixture(scope="module")
def small_presets() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name, preset in PRESETS.items():
            small = {section: preset.get(section, {}) | SMALL[section] for section in SMALL}
            patch.setitem(PRESETS, name, small)
        patch.setattr(planning, "_LONGEST", 0.0)  # of measuring what a --budget is enough for
        yield


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory, small_presets: None) -> Path:
    """The files that the pages speak of, but for models."""
    folder = tmp_path_factory.mktemp("documented")
    chance = random.Random(1)
    for name, count in PAIRS.items():
        rows = [chance.choices(list(WORDS), k=chance.randint(3, 9)) for _ in range(count)]
        english = [" ".join(row) + "." for row in rows]
        german = [" ".join(WORDS[word] for word in row) + "." for row in rows]
        (folder / f"{name}.en").write_text("".join(f"{line}\n" for line in english), "utf-8")
        (folder / f"{name}.de").write_text("".join(f"{line}\n" for line in german), "utf-8")
        table = "".join(f"{e}\t{g}\n" for e, g in zip(english, german, strict=True))
        (folder / f"{name}.tsv").write_text(table, "utf-8")
    texts = (folder / "train.en").read_text("utf-8").splitlines()
    labeled = [f"{text}\t{'red' in text}\n" for text in texts]
    (folder / "labeled.tsv").write_text("".join(labeled), "utf-8")
    trees = [f"(S (NP (DT the) (NN {a})) (VP (VB sees) (NP (NN {b}))) (. .))\n" for a, b in
             itertools.product(WORDS, WORDS)]  # fmt: skip
    for name in ("train.ptb", "test.ptb"):
        (folder / name).write_text("".join(trees), "utf-8")
    for name in ("one.en", "large.en"):
        shutil.copy(folder / "new.en", folder / name)
    (folder / "two.en.gz").write_bytes(gzip.compress((folder / "new.en").read_bytes()))
    return folder


class Reader:
    """Somebody at a terminal in a folder, who has followed other pages before."""

    def __init__(self, dragoman: Dragoman) -> None:
        self.dragoman = dragoman

    def type(self, command: str) -> None:
        """Run a command line with `<`, `>` and `|`, and expect that it does what it should."""
        words = shlex.shlex(command, posix=True, punctuation_chars="<>|")
        words.whitespace_split = True
        text, program, output = b"", list[str](), None
        for word in [*words, "|"]:
            if word == "|":
                text = self.run(program, text, command)
                program = []
            elif program[-1:] == ["<"]:
                program.pop()
                text = Path(word).read_bytes()
            elif program[-1:] == [">"]:
                program.pop()
                output = Path(word)
            else:
                program.append(word)
        if output is not None:
            output.write_bytes(text)

    def run(self, program: list[str], text: bytes, command: str) -> bytes:
        if program[0] != "dragoman":
            return subprocess.run(program, input=text, capture_output=True, check=True).stdout
        if "--out" in program and "--resume" not in program:  # made by an earlier page
            out = Path(program[program.index("--out") + 1])
            shutil.rmtree(out, ignore_errors=True)
        found = self.dragoman(*program[1:], stdin=text)
        assert found.status == 0, f"{command}\n{found.err}"
        return bytes(found.out)


@pytest.fixture
def reader(
    dragoman: Dragoman, prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Reader:
    shutil.copytree(prepared, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return Reader(dragoman)


MODELS = ("models/en-de", "models/large", "models/fast", "en-de", "DIR", "NEW")
# Of other tasks -> what they are trained with.
OTHERS = {
    "models/lm": "--task lm --text train.en",
    "models/parser": "--task parsing --text train.ptb",
    "models/english": "--task mlm --text train.en",
    "models/topics": "--task classification --data labeled.tsv",
}


@pytest.fixture
def models(reader: Reader, prepared: Path) -> None:
    """The models that earlier pages have made; NEW has an adapter."""
    if not (prepared / "NEW").is_dir():
        longer = "--set training.max_steps=250 --set training.learning_rate=0.01"
        reader.type(f"dragoman train --source train.en --target train.de --out DIR {longer}")
        reader.type(
            "dragoman train --init-from DIR --data new.tsv --out NEW --set training.lora_rank=2"
        )
        for name in MODELS:
            shutil.copytree("NEW" if name == "NEW" else "DIR", prepared / name)
        for name, options in OTHERS.items():
            reader.type(f"dragoman train {options} --out {name}")
            shutil.copytree(name, prepared / name)
    for name in (*MODELS, *OTHERS):
        shutil.copytree(prepared / name, name, dirs_exist_ok=True)


@pytest.mark.slow
@pytest.mark.usefixtures("models")
@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if any(map(is_run, commands(page)))],
    ids=lambda page: page.stem,
)
def test_the_commands_of_a_page_run(page: Path, reader: Reader) -> None:
    for command in filter(is_run, commands(page)):
        reader.type(command)
    for number, (language, text) in enumerate(blocks(page)):
        if language == "python":
            script = Path(f"block-{number}.py")
            script.write_text(text, "utf-8")
            runpy.run_path(str(script))


@pytest.mark.slow
def test_what_is_translated_from_a_file_has_its_lines(reader: Reader, models: None) -> None:
    """That the reader above reads and writes where a shell would."""
    reader.type("dragoman translate --model models/en-de < new.en | head -n 7 > new.de")
    assert len(Path("new.de").read_text("utf-8").splitlines()) == 7


def test_every_reason_to_leave_a_command_out_is_needed() -> None:
    every = [command for page in PAGES for command in commands(page)]
    assert [part for part in NOT_RUN if not any(part in command for command in every)] == []


def test_commands_stand_in_fenced_blocks() -> None:
    for page in PAGES:
        outside = BLOCK.sub("", page.read_text("utf-8"))
        assert re.findall(r"^(?: {4}|\t)dragoman .*", outside, re.MULTILINE) == [], page
