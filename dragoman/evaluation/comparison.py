"""Several systems against the same references: scores, intervals, significance, length.

sacreBLEU's metrics are sums over sentences. Each sentence is counted once; a resample, a length
and the corpus as a whole are then sums of rows.

Shapes: N sentences, M statistics of a metric.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from dragoman.errors import UserError
from dragoman.evaluation.metrics import bleu_for, ter_for
from dragoman.text.languages import UNSPACED, base_code
from dragoman.text.lines import one_line

# TER's time and memory grow with the square of a line: 400,000 words on one filled 23 GB.
_TER_CHARACTERS: Final = 5_000
SEED: Final = 12345
"""sacreBLEU's own, so that its command gives the same intervals and p-values."""

FloatArray = npt.NDArray[np.float64]

_WORD_EDGES: Final = (5, 10, 20, 30, 40, 60)
_CHARACTER_EDGES: Final = (10, 20, 40, 60, 80, 120)


@dataclass(frozen=True, slots=True)
class System:
    """What is measured: a name and a translation for every reference."""

    name: str
    translations: Sequence[str]


@dataclass(frozen=True, slots=True)
class Score:
    """A corpus score; low and high are the ends of its 95% interval, mean that of the resamples.

    p_value is that of the difference from the baseline. What was not computed is None.
    """

    value: float
    mean: float | None = None
    low: float | None = None
    high: float | None = None
    p_value: float | None = None

    @property
    def margin(self) -> float | None:
        """Half the width of the interval, what sacreBLEU prints after ±."""
        return None if self.low is None or self.high is None else (self.high - self.low) / 2


@dataclass(frozen=True, slots=True)
class Bucket:
    """The sentences of first to last (None: any more) words or characters."""

    first: int
    last: int | None
    sentences: int

    @property
    def label(self) -> str:
        """The lengths, as a person reads them."""
        return f"{self.first}+" if self.last is None else f"{self.first}-{self.last}"


@dataclass(frozen=True, slots=True)
class SystemResult:
    """The scores of one system by metric, those of each bucket, and chrF of every sentence."""

    name: str
    scores: dict[str, Score]
    by_length: dict[str, list[float]]
    sentence_chrf: list[float]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Systems measured together; the first is the baseline of the p-values.

    unit says what lengths count: "source words", "reference characters" and so on. note is empty,
    or says in one sentence what to know when reading the scores.
    """

    systems: list[SystemResult]
    signatures: dict[str, str]
    sentences: int
    references: int
    language: str
    samples: int
    unit: str
    buckets: list[Bucket]
    note: str = ""

    @property
    def baseline(self) -> SystemResult:
        """The system that the others are compared with."""
        return self.systems[0]

    def to_json(self) -> dict[str, Any]:
        """Everything but the scores of single sentences, as ``json.dumps`` takes it."""
        record = asdict(self) | {"seed": SEED if self.samples else None}
        record["buckets"] = [asdict(b) | {"label": b.label} for b in self.buckets]
        for system in record["systems"]:
            del system["sentence_chrf"]
        return record


@dataclass(frozen=True, slots=True)
class _Metric:
    """How the statistics of sentences, summed, become a score."""

    score: Callable[[FloatArray], float]
    statistics: list[FloatArray]  # (N, M), one a system
    signature: str


def compare(
    systems: Sequence[System],
    references: Sequence[Sequence[str]],
    language: str,
    sources: tuple[Sequence[str], str] | None = None,
    samples: int = 1000,
    segment_scores: Mapping[str, Sequence[Sequence[float]]] | None = None,
) -> Comparison:
    """Score systems with BLEU, chrF2 and TER; the first is the baseline.

    references holds one list of lines or several, language the code of their language, sources the
    source lines and the code of theirs: with them, lengths are those of the source. Intervals and
    p-values come from that many bootstrap resamples (Koehn, 2004), drawn as sacreBLEU draws them;
    0 leaves them out. segment_scores holds further metrics: a score for each sentence of each
    system, whose mean is the score of the corpus.

    Raises UserError when counts differ, when there is nothing to score and for a name given twice.
    """
    _check(systems, references)
    targets = [[one_line(text) for text in reference] for reference in references]
    metrics, note = _metrics(systems, targets, language, samples)
    for name, scores in (segment_scores or {}).items():
        rows = [np.stack([np.asarray(s), np.ones(len(s))], axis=1) for s in scores]
        metrics[name] = _Metric(lambda sums: float(sums[0] / sums[1]), rows, "")
    resampled = _resample(metrics, len(targets[0]), samples) if samples else {}
    unit, buckets, members = _lengths(targets[0], language, sources)
    results = []
    for number, system in enumerate(systems):
        by_length = {
            name: [metric.score(metric.statistics[number][rows].sum(axis=0)) for rows in members]
            for name, metric in metrics.items()
        }
        chrf = metrics["chrF2"]
        results.append(
            SystemResult(
                system.name,
                {
                    name: _score(metric, number, resampled.get(name))
                    for name, metric in metrics.items()
                },
                by_length,
                [chrf.score(row) for row in chrf.statistics[number]],
            )
        )
    return Comparison(
        results,
        {name: metric.signature for name, metric in metrics.items() if metric.signature},
        len(targets[0]),
        len(targets),
        language,
        samples,
        unit,
        buckets,
        note,
    )


def _check(systems: Sequence[System], references: Sequence[Sequence[str]]) -> None:
    if not systems or not references or not references[0]:
        raise UserError(
            "there is nothing to score: no translation and no reference",
            "give at least one of each",
        )
    count = len(references[0])
    hint = "give one for each line, in the same order"
    for number, reference in enumerate(references[1:], start=2):
        if len(reference) != count:
            raise UserError(
                f"reference {number} has {len(reference):,} lines, the first {count:,}", hint
            )
    for system in systems:
        if len(system.translations) != count:
            raise UserError(
                f"{system.name}: {len(system.translations):,} translations but "
                f"{count:,} references",
                hint,
            )
    names = [system.name for system in systems]
    for name in names:
        if names.count(name) > 1:
            raise UserError(f"two systems are called '{name}'", "name them: NAME=PATH")


def _metrics(
    systems: Sequence[System], references: list[list[str]], language: str, samples: int
) -> tuple[dict[str, _Metric], str]:
    from sacrebleu.metrics.chrf import CHRF

    bleu, note = bleu_for(language)
    found: dict[str, _Metric] = {}
    wanted: list[Any] = [bleu, CHRF()]
    texts = itertools.chain(*references, *(system.translations for system in systems))
    longest = max(map(len, texts), default=0)
    if longest <= _TER_CHARACTERS:
        wanted.append(ter_for(language))
    else:
        left_out = f"TER is left out: a line has {longest:,} characters"
        note = f"{note}; {left_out}" if note else left_out
    for measure in wanted:
        measure._ref_cache = measure._cache_references(references)
        # 13a deletes a hyphen before a line break and the other tokenizers do not: the same text
        # would score differently from the same text in a file.
        rows = [
            np.array(
                measure._extract_corpus_statistics([one_line(t) for t in s.translations], None),
                dtype=np.float64,
            )
            for s in systems
        ]
        signature = measure.get_signature()
        if samples:
            signature.update("bs", samples)
            signature.update("seed", str(SEED))
        name = str(measure._compute_score_from_stats(rows[0].sum(axis=0)).name)
        found[name] = _Metric(_scorer(measure), rows, str(signature))
    return found, note


def _scorer(measure: Any) -> Callable[[FloatArray], float]:
    return lambda sums: float(measure._compute_score_from_stats(sums).score)


def _resample(metrics: dict[str, _Metric], count: int, samples: int) -> dict[str, FloatArray]:
    """Scores of (systems, samples) by metric; every system sees the same resamples."""
    generator = np.random.default_rng(SEED)
    scores = {name: np.empty((len(metric.statistics), samples)) for name, metric in metrics.items()}
    for sample in range(samples):
        drawn = generator.choice(count, size=count, replace=True)
        weights = np.bincount(drawn, minlength=count).astype(np.float64)
        for name, metric in metrics.items():
            for number, rows in enumerate(metric.statistics):
                scores[name][number, sample] = metric.score(weights @ rows)
    return scores


def _score(metric: _Metric, number: int, resampled: FloatArray | None) -> Score:
    value = metric.score(metric.statistics[number].sum(axis=0))
    if resampled is None:
        return Score(value)
    own, count = np.sort(resampled[number]), resampled.shape[1]
    p_value = None
    if number:
        baseline = metric.score(metric.statistics[0].sum(axis=0))
        differences = np.abs(resampled[number] - resampled[0])
        beyond = (differences - differences.mean() > abs(value - baseline)).sum()
        p_value = float(beyond + 1) / (count + 1)
    low, high = own[count // 40], own[count - count // 40 - 1]
    return Score(value, float(own.mean()), float(low), float(high), p_value)


def _lengths(
    reference: list[str], language: str, sources: tuple[Sequence[str], str] | None
) -> tuple[str, list[Bucket], list[list[int]]]:
    """The unit of length, the buckets that hold a sentence, and the numbers of those in each."""
    texts, code = (reference, language) if sources is None else sources
    side = "reference" if sources is None else "source"
    unspaced = base_code(code) in UNSPACED
    edges = _CHARACTER_EDGES if unspaced else _WORD_EDGES
    lengths = [len("".join(text.split())) if unspaced else len(text.split()) for text in texts]
    buckets, members = [], []
    for first, last in zip((0, *edges), (*edges, None), strict=True):
        rows = [
            number
            for number, length in enumerate(lengths)
            if (length > first or first == 0) and (last is None or length <= last)
        ]
        if rows:
            buckets.append(Bucket(first + 1 if first else 0, last, len(rows)))
            members.append(rows)
    return f"{side} {'characters' if unspaced else 'words'}", buckets, members
