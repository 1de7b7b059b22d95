"""The command line: one small function a command, which composes the rest and decides nothing."""

import errno
import os
import sys
import threading

import typer

from dragoman.cli import (
    align,
    attend,
    average,
    classify,
    demo,
    distill,
    embed,
    evaluate,
    explain,
    fill,
    generate,
    info,
    merge,
    parse,
    perplexity,
    prepare,
    pronouns,
    report,
    score,
    train,
    translate,
)
from dragoman.cli.application import app
from dragoman.errors import UserError
from dragoman.text.display import printable
from dragoman.training.launch import OtherRankFailedError

__all__ = ["app", "main"]

_MODULES = (
    train,
    translate,
    evaluate,
    score,
    generate,
    perplexity,
    fill,
    embed,
    classify,
    parse,
    explain,
    attend,
    align,
    pronouns,
    info,
    report,
    prepare,
    average,
    merge,
    distill,
    demo,
)
_ORDER = [module.__name__.rpartition(".")[2] for module in _MODULES]
app.registered_commands.sort(key=lambda command: _ORDER.index(command.callback.__name__))  # type: ignore[union-attr]

# Typer has a copy of Click of its own or needs the package, by its version.
_ClickError = typer.BadParameter.__mro__[2]


def main() -> None:
    """Run the command of sys.argv; a mistake of the person is two lines on stderr and status 2."""
    try:
        status = _run()
    except SystemExit as end:  # what Click makes of a broken pipe
        status = end.code if isinstance(end.code, int) else 1
    if threading.active_count() > 1:
        from dragoman.decoding.pipeline import at_work

        if at_work():  # they were left behind on purpose, and may not outlive the interpreter
            sys.stderr.flush()
            os._exit(status)
    sys.exit(status)


def _run() -> int:
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - to the end of the process
    if sys.stdout is None:
        return _complain("standard output is closed", "leave it open, or send it to a file")
    try:
        status = typer.main.get_command(app).main(prog_name="dragoman", standalone_mode=False)
        sys.stdout.flush()
        return status if isinstance(status, int) else 0
    except UserError as error:
        return _complain(error.message, error.hint)
    except OtherRankFailedError:
        return 1
    except BrokenPipeError:
        # Whoever read the results wanted no more; the interpreter must not try again at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        if error.errno is None:  # no answer of the system's: a mistake of ours
            raise
        return _complain(*_of_system(error))
    except (KeyboardInterrupt, typer.Abort):
        print("interrupted", file=sys.stderr)
        return 130
    except Exception as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            print(error, file=sys.stderr)
            return 2
        if str(error).startswith("Symlink loop"):  # of pathlib: a RuntimeError until Python 3.13
            return _complain(str(error), "remove one of these links")
        if _is_out_of_memory(error):
            return _complain(
                "not enough memory",
                "set a smaller model, training.batch_tokens or search.batch_tokens",
            )
        if not isinstance(error, _ClickError):
            raise
        context = getattr(error, "ctx", None)
        hint = f"see: {context.command_path} --help" if context else ""
        return _complain(error.format_message(), hint)  # type: ignore[attr-defined]


def _of_system(error: OSError) -> tuple[str, str]:
    """Message and hint for what the system refused and nobody nearer explained."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "no space left on the device", "free some space and run again"
    reason = error.strerror or str(error)
    if error.filename is None:
        return reason, "the system refused it: check the disk, the memory and the limits"
    return f"{os.fsdecode(error.filename)}: {reason}", "check the path and the disk"


def _is_out_of_memory(error: Exception) -> bool:
    # PyTorch has a class of its own for a GPU, and none for a processor's memory.
    return (
        isinstance(error, MemoryError)
        or type(error).__name__ == "OutOfMemoryError"
        or (isinstance(error, RuntimeError) and "can't allocate memory" in str(error))
    )


def _complain(message: str, hint: str) -> int:
    # One line each, whatever a file's name holds.
    print(f"error: {printable(message)}", file=sys.stderr)
    if hint:
        print(f"hint: {printable(hint)}", file=sys.stderr)
    return 2
