"""Who translates the windows of a pipeline: threads beside the fast engine or a GPU, or processes.

The fast engine has its own workers, one a core: two windows at a time keep them busy while one is
made into tokens and another into text. The native engine on a CPU is faster in processes of one
thread each: copies of this one, which have its model without loading anything. Loads no torch.
"""

import functools
import multiprocessing
import os
import queue
import signal
import sys
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass

from dragoman.corpus.processes import available_cores, follow_parent
from dragoman.decoding.answers import Answer, Form
from dragoman.decoding.loading import FastEngine
from dragoman.decoding.pipeline import Key, helper_thread
from dragoman.decoding.recipe import Recipe
from dragoman.decoding.translator import Translator
from dragoman.model.description import WEIGHTS

_WINDOW = 2048
# Of the native engine on a CPU, whose workers are to be done at about the same time.
_SMALL_WINDOW = 256
# What a process takes beside the weights, in bytes.
_PROCESS = 400 * 1024 * 1024


@dataclass(frozen=True)
class Wanted:
    """What is wanted of every line, and how it is written; can be sent to a process."""

    form: Form
    n_best: int = 1
    explain: bool = False

    def answers(self, translator: Translator, keys: Sequence[Key], first: int) -> list[Answer]:
        """The answers to lines, each with what its translation begins with and its context."""
        texts, prefixes, contexts = zip(*keys, strict=True) if keys else ((), (), ())
        found = translator.translate(
            texts,
            self.n_best,
            prefixes if any(prefixes) else (),
            self.explain,
            self.explain,
            first,
            contexts,
        )
        return [self.form.render(translation) for translation in found]


class Workers:
    """Translates windows as suits the engine and the machine; see `dragoman.decoding.pipeline`.

    typed: one line at a time. threads: how many cores to use; None: all. Made in the main thread,
    before others start: a process that is a copy has no other threads, and what they held is lost.
    """

    def __init__(
        self,
        recipe: Recipe,
        translator: Translator,
        wanted: Wanted,
        threads: int | None,
        typed: bool,
    ) -> None:
        self._wanted, self._translator = wanted, translator
        native = _runs_native_on_cpu(translator)
        self.window, at_once = (_SMALL_WINDOW, 1) if native else (_WINDOW, 2)
        processes = 1
        if typed:
            self.window = 1
        elif native and sys.platform == "linux":  # elsewhere a copy is not safe
            processes = _affordable(recipe, threads or available_cores())
        self.in_flight = max(at_once, processes) + 1
        self._pool = _started(processes, wanted, translator) if processes > 1 else None
        self._tasks: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        self._stopped = False
        self._threads = [helper_thread(self._work, f"translating-{n}") for n in range(at_once)]
        for thread in self._threads:
            thread.start()

    def submit(self, keys: Sequence[Key], first: int) -> Future[list[Answer]]:
        """Begin with a window; see `dragoman.decoding.pipeline.Work`."""
        if self._pool is not None:
            return self._pool.submit(_answers, keys, first)
        future = Future[list[Answer]]()
        work = functools.partial(self._wanted.answers, self._translator, keys, first)
        self._tasks.put(_Task(future, work))
        return future

    def close(self, at_once: bool) -> None:
        """End threads and processes."""
        self._stopped = True
        for _ in self._threads:
            self._tasks.put(None)
        if self._pool is not None:
            if at_once:
                for process in multiprocessing.active_children():
                    process.kill()
            self._pool.shutdown(cancel_futures=True)
        for thread in self._threads:
            thread.join(0.2 if at_once else None)

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:
            if self._stopped:
                continue
            try:
                task.future.set_result(task.work())
            except BaseException as error:
                task.future.set_exception(error)


@dataclass(frozen=True)
class _Task:
    future: Future[list[Answer]]
    work: Callable[[], list[Answer]]


def _runs_native_on_cpu(translator: Translator) -> bool:
    engine = translator.engine
    if isinstance(engine, FastEngine):
        return False
    from dragoman.decoding.native import NativeEngine

    return isinstance(engine, NativeEngine) and engine.model.embedding.weight.device.type == "cpu"


def _affordable(recipe: Recipe, processes: int) -> int:
    """So many processes, or as many as fit into half the memory; each holds all weights."""
    weights = sum((folder / WEIGHTS).stat().st_size for folder in recipe.folders)
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return max(1, min(processes, memory // 2 // (2 * weights + _PROCESS)))


def _started(processes: int, wanted: Wanted, translator: Translator) -> ProcessPoolExecutor:
    pool = ProcessPoolExecutor(
        processes, multiprocessing.get_context("fork"), _inherit, (wanted, translator)
    )
    # Ctrl-C is for this process alone; they start with the first call.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    with warnings.catch_warnings():
        # Python 3.12 warns of copies of a process with threads: those are of libraries, at rest.
        warnings.simplefilter("ignore", DeprecationWarning)
        pool.submit(os.getpid)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return pool


_inherited: list[tuple[Wanted, Translator]] = []
"""In a worker process: what it does, and with what."""


def _inherit(wanted: Wanted, translator: Translator) -> None:
    import torch

    follow_parent()
    torch.set_num_threads(1)
    _inherited.append((wanted, translator))


def _answers(keys: Sequence[Key], first: int) -> list[Answer]:
    """In a worker process."""
    wanted, translator = _inherited[0]
    return wanted.answers(translator, keys, first)
