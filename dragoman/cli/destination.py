"""Where a command is to write: looked at before any work is done, and written as a whole."""

import errno
import os
import secrets
import shutil
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from dragoman.errors import UserError


def check_destination(name: str, path: Path | None, read: Iterable[Path | None]) -> None:
    """Refuse a file that could not be written, or that is one of those that are read.

    name is that of the option; of a folder that is read, these are the files of a model.
    Raises UserError.
    """
    from dragoman.model.description import CARD, SETTINGS, TOKENIZER, WEIGHTS

    if path is None:
        return
    if str(path) == "-":
        raise UserError(f"{name} -: is no file", f"leave {name} out, or name a file")
    if path.is_dir():
        raise UserError(f"{path}: is a folder, not a file", "name a file in it")
    if not path.parent.is_dir():
        raise UserError(f"{path}: its folder does not exist", f"mkdir -p {path.parent}")
    if path.exists() and not stat.S_ISREG(path.stat().st_mode):
        return  # a pipe, a device
    files = list[Path]()
    for other in read:
        if other is not None and other.is_dir():
            files += [other / part for part in (WEIGHTS, SETTINGS, TOKENIZER, CARD)]
        elif other is not None:
            files.append(other)
    for file in files:
        if os.path.realpath(path) == os.path.realpath(file) or (
            path.exists() and file.exists() and path.samefile(file)
        ):
            raise UserError(f"{path}: is read and would be written over", f"name another {name}")


@contextmanager
def whole_folder(out: Path) -> Iterator[Path]:
    """A folder to fill, which is called `out` once the block has ended well.

    So a kill leaves no half of a model, and of two commands one gets the name. Raises UserError
    where it is taken; what the block raises goes on.
    """
    real = Path(os.path.realpath(out))
    temporary = real.parent / f".{real.name[:40]}.{secrets.token_hex(6)}.tmp"
    try:
        temporary.mkdir(parents=True)
        yield temporary
        temporary.rename(real)  # onto nothing, or an empty folder
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            raise UserError(f"{out}: this folder is not empty", "name another --out") from None
        raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
