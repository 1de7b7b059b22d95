"""The fast engine: CTranslate2 on a CPU; loads no torch.

Its beam search is that of `dragoman.decoding.search`: an end counts where it is among the N best
continuations of a step, and a sentence is done when N hypotheses have ended. CTranslate2 divides by
n^alpha; its hypotheses are ranked anew here, by the formula of the native engine.

Shapes: N beams.
"""

import os
import threading
from collections.abc import Iterable, Iterator, Sequence
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
# Most sentences of a batch, and most sentences x beam: more leave the cache of a core at a step.
_SENTENCES, _ROWS = 32, 64
# CTranslate2 keeps to AVX2 unless told otherwise before it first computes, for processors that slow
# down where vectors are wider. Those with the last of these do not: it is a tenth faster on them.
_INSTRUCTIONS = "CT2_FORCE_CPU_ISA"
_WIDE = frozenset(("avx512f", "avx512cd", "avx512bw", "avx512dq", "avx512vl", "avx512_vbmi2"))


def cores() -> int:
    """CPU cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def has_wide_vectors() -> bool:
    """Whether this processor has AVX-512 and does not slow down for it."""
    try:
        with Path("/proc/cpuinfo").open("rb") as stream:
            flags = next((line for line in stream if line.startswith(b"flags")), b"")
    except OSError:  # another system than Linux
        return False
    return _WIDE.issubset(flags.decode(errors="replace").split())


def unsupported(request: Request, vocabulary_size: int) -> str | None:
    """What of the request CTranslate2 cannot do; None if it can do everything."""
    if request.search.beam > vocabulary_size // 8:  # it looks at 2 N symbols of the first step
        return f"a beam of {request.search.beam} with {vocabulary_size:,} subwords"
    return request.native_only()


def vocabulary_map(shortlist: Shortlist, names: Sequence[str]) -> bytes:
    """A shortlist as CTranslate2 reads it: SOURCE<TAB>CANDIDATES lines, no source: for all.

    names are the tokens by id. What is for all stands in no other line: CTranslate2 adds the
    candidates of a batch to a tree, one by one.
    """
    offsets, associated = shortlist.offsets.tolist(), shortlist.associated.tolist()
    fixed = shortlist.fixed.tolist()
    lines, known = ["\t" + " ".join(names[number] for number in fixed)], set(fixed)
    for source, name in enumerate(names):
        own = set(associated[offsets[source] : offsets[source + 1]]) - known
        if own:
            lines.append(f"{name}\t{' '.join([names[number] for number in sorted(own)])}")
    return "\n".join([*lines, ""]).encode()


@dataclass(frozen=True)
class _Job:
    """Sources searched together: their numbers, what CTranslate2 will answer, and its translator.

    The translator must live until it has answered.
    """

    numbers: list[int]
    futures: list[Any]
    translator: ctranslate2.Translator


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
        self._ids = {name: number for number, name in enumerate(self._names)}
        self._opening, self._has_shortlist = threading.Lock(), False
        if has_wide_vectors():
            os.environ.setdefault(_INSTRUCTIONS, "AVX512")
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
        """The n_best hypotheses of every source, best first."""
        results: list[list[Hypothesis]] = [[] for _ in sources]
        for number, found in self.search_each(sources, request):
            results[number] = found
        return results

    def search_each(
        self, sources: Sequence[Sequence[int]], request: Request
    ) -> Iterator[tuple[int, list[Hypothesis]]]:
        """What `search` finds, with the number of its source, as it is found: long ones first.

        The search begins with the call, not with the first result that is asked for.
        """
        limits = [output_limit(source, request.search, self.config) for source in sources]
        batches = self._batches(sources, range(len(sources)), request)
        jobs = [
            self._start(sources, numbers, request, max(limits[number] for number in numbers) + 1)
            for numbers in batches
        ]
        return self._results(sources, limits, jobs, request)

    def _results(
        self,
        sources: Sequence[Sequence[int]],
        limits: Sequence[int],
        jobs: Iterable[_Job],
        request: Request,
    ) -> Iterator[tuple[int, list[Hypothesis]]]:
        strict, known = list[_Job](), dict[int, list[list[int]]]()
        for job in jobs:
            open_ = list[int]()
            for number, future in zip(job.numbers, job.futures, strict=True):
                result, limit = future.result(), limits[number]
                found = result.hypotheses  # a copy, each time
                if all(_ended(words, limit) for words in found):
                    if not request.no_repeat_ngram:
                        yield number, self._hypotheses(found, result.scores, request)
                    else:  # its probabilities leave out what would repeat
                        known[number] = [self._tokens(words) for words in found]
                elif request.search.beam == 1 and (tokens := self._tokens(found[0])):
                    known[number] = [tokens[:limit]]  # greedy search would have come to the same
                else:
                    open_.append(number)
            # While the workers are at the next batches.
            strict += self._start_strictly(sources, limits, open_, request)
        # Log-probabilities are computed anew: CTranslate2's are among the symbols allowed at a
        # step, the native engine's do not depend on what is.
        known |= {
            number: [self._tokens(words) for words in future.result().hypotheses]
            for job in strict
            for number, future in zip(job.numbers, job.futures, strict=True)
        }
        yield from self._rescored(sources, known, request)

    def _start_strictly(
        self,
        sources: Sequence[Sequence[int]],
        limits: Sequence[int],
        numbers: Sequence[int],
        request: Request,
    ) -> Iterator[_Job]:
        """Begin anew with the few sources that need it: a token at least, the limit at most.

        What is open at the limit ends there.
        """
        for limit in {limits[number] for number in numbers}:  # CTranslate2 has one for a batch
            equal = [number for number in numbers if limits[number] == limit]
            for batch in self._batches(sources, equal, request):
                # Steps up to the limit, and not the end after it: `_rescored` adds that.
                yield self._start(sources, batch, request, limit, min_length=1)

    def _rescored(
        self,
        sources: Sequence[Sequence[int]],
        rows: dict[int, list[list[int]]],
        request: Request,
    ) -> Iterator[tuple[int, list[Hypothesis]]]:
        """The different rows of each source as hypotheses with log-probabilities of their own."""
        different = {
            number: list(dict.fromkeys(map(tuple, found))) for number, found in rows.items()
        }
        all_rows = [tokens for found in different.values() for tokens in found]
        all_sources = [sources[number] for number, found in different.items() for _ in found]
        log_probs = iter(self.token_log_probs(all_sources, all_rows) if all_rows else [])
        for number, found in different.items():
            hypotheses = []
            for tokens in found:
                log_prob = sum(next(log_probs))
                penalty = length_penalty(len(tokens) + 1, request.search.length_penalty)
                hypotheses.append(Hypothesis(list(tokens), log_prob, log_prob / penalty))
            hypotheses.sort(key=lambda hypothesis: -hypothesis.score)
            yield number, hypotheses[: request.n_best]

    def _batches(
        self, sources: Sequence[Sequence[int]], numbers: Iterable[int], request: Request
    ) -> Iterator[list[int]]:
        """Sources of about one length together, long ones first, within the token budget."""
        order = sorted(numbers, key=lambda number: -len(sources[number]))
        most = max(1, min(_SENTENCES, _ROWS // request.search.beam))
        if not request.no_repeat_ngram:  # what is searched again has other work beside it
            most = min(most, -(-len(order) // self._workers))  # a small input is for all workers
        start = 0
        while start < len(order):
            width = (len(sources[order[start]]) + 1) * request.search.beam
            count = max(1, min(most, request.search.batch_tokens // width))
            yield order[start : start + count]
            start += count

    def _start(
        self,
        sources: Sequence[Sequence[int]],
        numbers: list[int],
        request: Request,
        limit: int,
        min_length: int = 0,
    ) -> _Job:
        """Begin with a batch; limit: the most tokens of an output, with end-of-sentence."""
        beam = request.search.beam
        shortlist = request.search.shortlist and self._model_folder is not None
        translator = self._opened(shortlist)
        futures: list[Any] = translator.translate_batch(
            [self._words(sources[number]) for number in numbers],
            asynchronous=True,
            beam_size=beam,
            num_hypotheses=beam,
            length_penalty=_exponent(request.search.length_penalty),
            max_input_length=0,
            min_decoding_length=min_length,
            no_repeat_ngram_size=request.no_repeat_ngram,
            use_vmap=shortlist,
            max_decoding_length=limit,
            return_scores=True,
            return_end_token=True,
        )
        return _Job(numbers, futures, translator)

    def _words(self, ids: Sequence[int]) -> list[str]:
        names = self._names
        return [*[names[number] for number in ids], _EOS]

    def _tokens(self, words: Sequence[str]) -> list[int]:
        """The ids of an output, without its end."""
        ids = self._ids
        return [ids[word] for word in words if word != _EOS]

    def _hypotheses(
        self, found: Sequence[Sequence[str]], scores: Sequence[float], request: Request
    ) -> list[Hypothesis]:
        """The n_best of what has ended."""
        alpha = request.search.length_penalty
        exponent = _exponent(alpha)
        ranked = []
        for words, score in zip(found, scores, strict=True):
            length = len(words)
            log_prob = score * length**exponent
            ranked.append((log_prob / length_penalty(length, alpha), log_prob, words))
        ranked.sort(key=lambda each: -each[0])
        return [
            Hypothesis(self._tokens(words), log_prob, score)
            for score, log_prob, words in ranked[: request.n_best]
        ]

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


def _exponent(alpha: float) -> float:
    return max(_EXPONENT * alpha, _SMALLEST_EXPONENT)


def _ended(words: Sequence[str], limit: int) -> bool:
    """Whether an output is not empty, has ended and is no longer than its own limit."""
    return 1 < len(words) <= limit + 1 and words[-1] == _EOS
