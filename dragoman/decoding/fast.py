"""The fast engine: CTranslate2 on a CPU; loads no torch.

Its beam search is that of `dragoman.decoding.search`: an end counts where it is among the N best
continuations of a step, and a sentence is done when N hypotheses have ended. CTranslate2 divides by
n^alpha; its hypotheses are ranked anew here, by the formula of the native engine.

Shapes: N beams.
"""

import os
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ctranslate2

from dragoman.config import Config
from dragoman.corpus.shortlist import Shortlist, load_shortlist
from dragoman.corpus.tokenizer import Tokenizer
from dragoman.decoding.engine import Request, output_limit
from dragoman.decoding.hypothesis import Hypothesis, length_penalty

# CTranslate2's n^x nearest to ((5 + n) / 6)^alpha: x / alpha at lengths of some 12 subwords. It
# decides only which hypotheses come back when more than N have ended.
_EXPONENT = 0.7
# An exponent of 0 would make CTranslate2 stop as soon as the best open hypothesis ends.
_SMALLEST_EXPONENT = 1e-6
_EOS = str(Tokenizer.eos_id)


def cores() -> int:
    """CPU cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def unsupported(request: Request, vocabulary_size: int) -> str | None:
    """What of the request CTranslate2 cannot do; None if it can do everything."""
    if request.search.beam > vocabulary_size // 8:  # it looks at 2 N symbols of the first step
        return f"a beam of {request.search.beam} with {vocabulary_size:,} subwords"
    return request.native_only()


def vocabulary_map(shortlist: Shortlist, names: Sequence[str]) -> bytes:
    """A shortlist as CTranslate2 reads it: SOURCE<TAB>CANDIDATES lines, no source: for all.

    names are the tokens by id.
    """
    offsets, associated = shortlist.offsets.tolist(), shortlist.associated.tolist()
    lines = ["\t" + " ".join(names[number] for number in shortlist.fixed.tolist())]
    for source, name in enumerate(names):
        candidates = associated[offsets[source] : offsets[source + 1]]
        lines.append(f"{name}\t{' '.join([names[number] for number in candidates])}")
    return "\n".join([*lines, ""]).encode()


@dataclass(frozen=True)
class _Answers:
    """What CTranslate2 will answer, and its translator, which must live until it has."""

    futures: list[Any]
    translator: ctranslate2.Translator


@dataclass(frozen=True)
class _Job:
    """Sources searched together: their numbers and what CTranslate2 will answer."""

    numbers: list[int]
    answers: _Answers


class CTranslate2Engine:
    """Searches with a converted model. May be used by several threads at once.

    Args:
        config, tokenizer: of the model folder.
        folder: what `dragoman.decoding.conversion` wrote.
        precision: int8 or float32, what the conversion has.
        threads: workers of one thread each; None: one a core.
        model_folder: where the shortlist is, for requests that ask for one; None: the whole
            vocabulary takes part in every search.
    """

    def __init__(
        self,
        config: Config,
        tokenizer: Tokenizer,
        folder: Path,
        precision: str,
        threads: int | None = None,
        model_folder: Path | None = None,
    ) -> None:
        self.config, self.tokenizer, self.precision = config, tokenizer, precision
        self._workers = threads or cores()
        self._folder, self._model_folder = folder, model_folder
        self._names = [str(number) for number in range(tokenizer.vocabulary_size)]
        self._opening, self._has_shortlist = threading.Lock(), False
        self._translator = self._open(config.search.shortlist)

    def _open(self, shortlist: bool) -> ctranslate2.Translator:
        """The converted model, with a vocabulary map where it is to have a shortlist."""
        files = None
        if shortlist and self._model_folder is not None:
            found = load_shortlist(self._model_folder, self.tokenizer)
            files = {path.name: path.read_bytes() for path in self._folder.iterdir()}
            files["vmap.txt"] = vocabulary_map(found, self._names)
            self._has_shortlist = True
        options: dict[str, Any] = {
            "device": "cpu",
            "compute_type": self.precision,
            "inter_threads": self._workers,
            "intra_threads": 1,  # one worker of two threads is far slower than two of one
            "max_queued_batches": -1,
            "files": files,
        }
        # CTranslate2 sets the OpenMP threads of the thread that opens it to intra_threads: in this
        # one, PyTorch would compute on one core from then on.
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(ctranslate2.Translator, str(self._folder), **options).result()

    def _opened(self, shortlist: bool) -> ctranslate2.Translator:
        """The model for a search; it is opened anew when first one has a shortlist."""
        with self._opening:
            if shortlist and not self._has_shortlist:
                self._translator = self._open(True)
            return self._translator

    def search(self, sources: Sequence[Sequence[int]], request: Request) -> list[list[Hypothesis]]:
        """Hypotheses of every source, best first, at most the beam's width of each."""
        if request.no_repeat_ngram:  # its probabilities leave out what would repeat
            return [self._search_strictly(source, request) for source in sources]
        jobs = [
            self._start(sources, numbers, request) for numbers in self._batches(sources, request)
        ]
        results: list[list[Hypothesis]] = [[] for _ in sources]
        again = []
        for job in jobs:
            for number, future in zip(job.numbers, job.answers.futures, strict=True):
                limit = output_limit(sources[number], request.search, self.config)
                found = self._hypotheses(future.result(), request.search.length_penalty)
                results[number] = found
                if not all(one.finished and 0 < len(one.tokens) <= limit for one in found):
                    again.append(number)
        for number in again:
            results[number] = self._search_strictly(sources[number], request)
        return results

    def _batches(self, sources: Sequence[Sequence[int]], request: Request) -> Iterator[list[int]]:
        """Sources of about one length together, long ones first, within the token budget."""
        order = sorted(range(len(sources)), key=lambda number: -len(sources[number]))
        share = -(-len(order) // self._workers)  # a small input is for all the workers
        start = 0
        while start < len(order):
            width = (len(sources[order[start]]) + 1) * request.search.beam
            count = max(1, min(share, request.search.batch_tokens // width))
            yield order[start : start + count]
            start += count

    def _start(
        self, sources: Sequence[Sequence[int]], numbers: list[int], request: Request
    ) -> _Job:
        limits = [output_limit(sources[n], request.search, self.config) for n in numbers]
        return _Job(numbers, self._translate([sources[n] for n in numbers], request, max(limits)))

    def _translate(
        self,
        batch: Sequence[Sequence[int]],
        request: Request,
        limit: int,
        min_length: int = 0,
    ) -> _Answers:
        beam = request.search.beam
        shortlist = request.search.shortlist and self._model_folder is not None
        translator = self._opened(shortlist)
        futures: list[Any] = translator.translate_batch(
            [self._words(ids) for ids in batch],
            asynchronous=True,
            beam_size=beam,
            num_hypotheses=beam,
            length_penalty=max(_EXPONENT * request.search.length_penalty, _SMALLEST_EXPONENT),
            max_input_length=0,
            min_decoding_length=min_length,
            no_repeat_ngram_size=request.no_repeat_ngram,
            use_vmap=shortlist,
            max_decoding_length=limit + 1,  # with end-of-sentence
            return_scores=True,
            return_end_token=True,
        )
        return _Answers(futures, translator)

    def _words(self, ids: Sequence[int]) -> list[str]:
        names = self._names
        return [*(names[number] for number in ids), _EOS]

    def _hypotheses(self, result: Any, alpha: float) -> list[Hypothesis]:
        found = []
        exponent = max(_EXPONENT * alpha, _SMALLEST_EXPONENT)
        for words, score in zip(result.hypotheses, result.scores, strict=True):
            finished = bool(words) and words[-1] == _EOS
            length = len(words)
            log_prob = score * length**exponent
            tokens = list(map(int, words[:-1] if finished else words))
            score = log_prob / length_penalty(length, alpha)
            found.append(Hypothesis(tokens, log_prob, score, finished))
        found.sort(key=lambda hypothesis: -hypothesis.score)
        return found

    def _search_strictly(self, source: Sequence[int], request: Request) -> list[Hypothesis]:
        """One sentence alone, at least one token and at most its limit; for the few that need it.

        What is open at the limit ends there. Log-probabilities are computed anew: CTranslate2's are
        among the symbols allowed at a step, the native engine's do not depend on what is.
        """
        limit = output_limit(source, request.search, self.config)
        # Steps up to the limit, and not the end after it: that comes with the log-probabilities.
        answers = self._translate([source], request, limit - 1, min_length=1)
        alpha = request.search.length_penalty
        rows = dict.fromkeys(
            tuple(one.tokens) for one in self._hypotheses(answers.futures[0].result(), alpha)
        )
        found = []
        for tokens, log_probs in zip(
            rows, self.token_log_probs([source] * len(rows), list(rows)), strict=True
        ):
            log_prob = sum(log_probs)
            score = log_prob / length_penalty(len(tokens) + 1, alpha)
            found.append(Hypothesis(list(tokens), log_prob, score))
        found.sort(key=lambda hypothesis: -hypothesis.score)
        return found

    def token_log_probs(
        self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]
    ) -> list[list[float]]:
        """The log-probability of every token of the targets and of the end: teacher-forced."""
        results = self._translator.score_batch(
            [self._words(ids) for ids in sources],
            [self._words(ids)[:-1] for ids in targets],
            max_batch_size=1024,
            batch_type="tokens",
            max_input_length=0,
        )
        return [list(result.log_probs) for result in results]
