"""Virtual environments of other toolkits: made with pip on first use, then reused.

A folder holds one environment per toolkit, by its name (a link to an environment made before will
do). Dragoman and the plain PyTorch loop run in the Python that runs the benchmark.
"""

import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

# sentencepiece 0.2 and setuptools 80 took away what JoeyNMT 2.3.0 and pymarian import.
_SETUPTOOLS = "setuptools<80"
_PACKAGES = {
    "marian": ["pymarian==1.12.42", "sentencepiece", _SETUPTOOLS],
    "transformers": [
        "transformers==5.24.0",
        f"torch=={version('torch').partition('+')[0]}",
        "sentencepiece",
        "safetensors",
    ],
    "joeynmt": [
        "joeynmt==2.3.0",
        f"torch=={version('torch').partition('+')[0]}",
        "sentencepiece<0.2",
        "importlib_metadata",
        _SETUPTOOLS,
    ],
}
_MODULES = {"marian": "pymarian", "joeynmt": "joeynmt", "transformers": "transformers"}


def python_of(folder: Path, toolkit: str) -> Path:
    """The interpreter that has a toolkit; makes its environment when there is none that works.

    Raises SystemExit with pip's last lines when it cannot be installed.
    """
    # Not resolved: an environment's interpreter is a link, and what it is called decides what it
    # imports.
    home = Path(os.path.abspath(folder)) / toolkit
    python = home / ("Scripts" if os.name == "nt" else "bin") / "python"
    if _works(python, toolkit):
        return python
    packages = _PACKAGES[toolkit]
    print(f"installing {', '.join(packages)} into {home} ...", file=sys.stderr, flush=True)
    subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
    done = subprocess.run(
        [str(python), "-m", "pip", "install", "--disable-pip-version-check", *packages],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode or not _works(python, toolkit):
        last = "\n".join((done.stdout + done.stderr).splitlines()[-8:])
        raise SystemExit(f"error: {toolkit} could not be installed:\n{last}")
    return python


def version_of(python: Path, toolkit: str) -> str:
    """The toolkit's version in an environment."""
    code = f"from importlib.metadata import version; print(version('{_MODULES[toolkit]}'))"
    done = subprocess.run([str(python), "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def _works(python: Path, toolkit: str) -> bool:
    if not python.is_file():
        return False
    command = [str(python), "-c", f"import {_MODULES[toolkit]}, sentencepiece"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0
