"""What README.md tells people to type, typed."""

import random
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
WORDS = {"the": "der", "red": "rote", "old": "alte", "dog": "Hund", "man": "Mann", "sees": "sieht"}


def code_blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, flags=re.MULTILINE | re.DOTALL)


def write_corpus(folder: Path) -> None:
    chance = random.Random(1)
    for name, count in (("train", 200), ("test", 5), ("new", 3)):
        lines = [
            [chance.choice(list(WORDS)) for _ in range(chance.randint(3, 9))] for _ in range(count)
        ]
        english = "".join(" ".join(line) + ".\n" for line in lines)
        german = "".join(" ".join(WORDS[word] for word in line) + ".\n" for line in lines)
        (folder / f"{name}.en").write_text(english, encoding="utf-8")
        (folder / f"{name}.de").write_text(german, encoding="utf-8")


@pytest.mark.slow
def test_the_commands_and_the_python_of_the_readme_run(tmp_path: Path) -> None:
    write_corpus(tmp_path)
    (commands,) = (block for block in code_blocks("") if "--source train.en" in block)
    lines = commands.strip().splitlines()
    assert [shlex.split(line)[1] for line in lines] == [
        "train",
        "translate",
        "evaluate",
        "score",
        "info",
    ]
    dragoman = f"{shlex.quote(sys.executable)} -m dragoman"
    for line in lines:
        command = line.replace("dragoman", dragoman, 1)
        done = subprocess.run(
            ["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{line}\n{done.stderr}"
    assert len((tmp_path / "new.de").read_text(encoding="utf-8").splitlines()) == 3
    (python,) = code_blocks("python")
    done = subprocess.run(
        [sys.executable, "-c", python], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
