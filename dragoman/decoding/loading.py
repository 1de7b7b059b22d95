"""A model folder, opened with the engine that suits; loads torch only where it is needed.

auto is CTranslate2 on a CPU, in int8, or in float32 where int8 is refused (see
`dragoman.decoding.converted`); what it cannot do, such as sampling, the native engine does. On a
GPU, and for a model that CTranslate2 cannot run, it is the native engine.
"""

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from dragoman.decoding.converted import Precision, find_form, make_form, refusal
from dragoman.decoding.engine import Engine, Request
from dragoman.decoding.hypothesis import Hypothesis
from dragoman.errors import UserError
from dragoman.model.description import ModelDescription, describe

if TYPE_CHECKING:
    from dragoman.decoding.fast import CTranslate2Engine
    from dragoman.decoding.native import NativeEngine

EngineName = Literal["auto", "native", "ctranslate2"]
EnginePrecision = Literal["auto", "float32", "bfloat16", "int8"]
Say = Callable[[str], None]

_say = logging.getLogger("dragoman").info


@dataclass(frozen=True)
class EngineChoice:
    """How to run a model.

    engine: auto, native or ctranslate2. device: auto, cpu, cuda, cuda:N. precision: auto, float32,
    bfloat16 (native) or int8 (ctranslate2). threads: workers of the fast engine; None: one a core.
    """

    engine: str = "auto"
    device: str = "auto"
    precision: str = "auto"
    threads: int | None = None

    def __post_init__(self) -> None:
        for name, value, known in (
            ("engine", self.engine, get_args(EngineName)),
            ("precision", self.precision, get_args(EnginePrecision)),
        ):
            if value not in known:
                raise UserError(f"unknown {name} '{value}'", f"it is one of {', '.join(known)}")


def open_engine(
    model: Path | ModelDescription, choice: EngineChoice | None = None, say: Say = _say
) -> Engine:
    """An engine for a model folder.

    say is told what takes time, and why the native engine takes over. Raises UserError for a folder
    that is no model, and where the engine that was asked for cannot run it.
    """
    choice = choice or EngineChoice()
    description = describe(model) if isinstance(model, Path) else model
    reason = _not_fast(description, choice)
    if choice.engine == "native" or (choice.engine == "auto" and reason is not None):
        if choice.engine == "auto" and not _asks_for_native(choice):
            say(f"the native engine is used: {reason}")
        return _open_native(description.folder, choice)
    if reason is not None:
        raise UserError(f"the ctranslate2 engine cannot run this: {reason}", "use --engine native")
    try:
        fast = _open_fast(description, choice, say)
    except (UserError, RuntimeError, ValueError) as error:  # the latter are CTranslate2's own
        if choice.engine == "ctranslate2" or choice.precision == "int8":
            raise (
                error
                if isinstance(error, UserError)
                else UserError(
                    f"the ctranslate2 engine cannot run this model: {error}", "use --engine native"
                )
            ) from error
        message = error.message if isinstance(error, UserError) else str(error)
        say(f"the native engine is used: {message}")
        return _open_native(description.folder, choice)
    return FastEngine(description, fast, choice, say)


def open_ensemble(folders: Sequence[Path], choice: EngineChoice | None = None) -> Engine:
    """The native engine for several model folders. Raises UserError as `NativeEngine.load` does."""
    choice = choice or EngineChoice()
    if choice.engine == "ctranslate2" or choice.precision == "int8":
        raise UserError("the ctranslate2 engine runs one model", "use --engine native")
    return _native_engine(folders, choice)


class FastEngine:
    """CTranslate2, and where a request is beyond it the native engine, opened when first needed.

    With the engine named ctranslate2 such a request raises UserError.
    """

    def __init__(
        self,
        description: ModelDescription,
        fast: "CTranslate2Engine",
        choice: EngineChoice,
        say: Say,
    ) -> None:
        self.config = description.config
        self.tokenizer = description.tokenizer
        self.fast = fast
        self._folder, self._choice, self._say = description.folder, choice, say
        self._native: NativeEngine | None = None
        self._opening = threading.Lock()

    def search(self, sources: Sequence[Sequence[int]], request: Request) -> list[list[Hypothesis]]:
        """Hypotheses of every source, best first."""
        return self._engine_for(request).search(sources, request)

    def search_each(
        self, sources: Sequence[Sequence[int]], request: Request
    ) -> Iterator[tuple[int, list[Hypothesis]]]:
        """The same, each as soon as it is found; the search begins with the call."""
        return self._engine_for(request).search_each(sources, request)

    def _engine_for(self, request: Request) -> Engine:
        from dragoman.decoding.fast import unsupported

        reason = unsupported(request, self.tokenizer.vocabulary_size)
        if reason is None:
            return self.fast
        if self._choice.engine == "ctranslate2":
            raise UserError(
                f"the ctranslate2 engine cannot do this: {reason}", "use --engine auto or native"
            )
        return self.native(reason)

    def native(self, reason: str) -> "NativeEngine":
        """The native engine of the same model, opened once."""
        with self._opening:
            if self._native is None:
                self._say(f"the native engine is used: {reason}")
                self._native = _open_native(self._folder, self._choice)
            return self._native


def _asks_for_native(choice: EngineChoice) -> bool:
    return choice.precision == "bfloat16" or choice.device not in ("auto", "cpu")


def _not_fast(description: ModelDescription, choice: EngineChoice) -> str | None:
    """Why the fast engine is no choice here, before anything is tried; None if it is one."""
    if choice.precision == "bfloat16":
        return "bfloat16 is for the native engine"
    if choice.device not in ("auto", "cpu"):
        return f"device {choice.device}; it is for CPUs"
    if choice.device == "auto" and choice.engine == "auto" and _sees_gpu():
        return "there is a GPU"
    return refusal(description.config.model)


def _sees_gpu() -> bool:
    import ctranslate2

    if ctranslate2.get_cuda_device_count() == 0:  # torch is not asked where there is none
        return False
    import torch

    return torch.cuda.is_available()


def _open_fast(
    description: ModelDescription, choice: EngineChoice, say: Say
) -> "CTranslate2Engine":
    """Raises UserError when every precision that may be used is refused."""
    from dragoman.decoding.fast import CTranslate2Engine

    wanted: list[Precision] = ["int8", "float32"]
    if choice.precision != "auto":
        wanted = [precision for precision in wanted if precision == choice.precision]
    refused = []
    for precision in wanted:
        found = find_form(description, precision)
        known = found is not None
        if found is None:
            say(f"converting the model for the fast engine ({precision}), once")
            found = make_form(description, precision)
        folder, form = found
        if form.refused is None:
            return CTranslate2Engine(
                description.config,
                description.tokenizer,
                folder,
                precision,
                choice.threads,
                description.folder,
            )
        refused.append(f"{precision} is refused: {form.refused}")
        if precision != wanted[-1] and not known:  # once is enough
            say(refused[-1])
    raise UserError("; ".join(refused), "use --engine native")


def _open_native(folder: Path, choice: EngineChoice) -> "NativeEngine":
    if choice.precision == "int8":
        raise UserError("int8 is for the ctranslate2 engine", "use float32 or bfloat16")
    return _native_engine([folder], choice)


def _native_engine(folders: Sequence[Path], choice: EngineChoice) -> "NativeEngine":
    import torch

    from dragoman.decoding.native import NativeEngine
    from dragoman.training.precision import choose_device

    engine = NativeEngine.load(folders, choose_device(choice.device))
    if choice.precision == "bfloat16":
        for model in engine.models:
            model.to(torch.bfloat16)
            model.embedding.compute_dtype = torch.bfloat16
    return engine
