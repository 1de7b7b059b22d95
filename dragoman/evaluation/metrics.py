"""Corpus scores as sacreBLEU computes them (Post, 2018), with the signatures that repeat them."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from dragoman.errors import UserError
from dragoman.text.languages import UNSPACED, base_code
from dragoman.text.lines import one_line

if TYPE_CHECKING:
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.ter import TER

_MORPHOLOGICAL = {"ja": "ja", "jpn": "ja", "ko": "ko", "kor": "ko"}
_CHINESE = frozenset({"zh", "zho", "chi", "cmn", "yue"})


@dataclass(frozen=True, slots=True)
class Metrics:
    """Scores of one corpus.

    ``bleu`` and ``chrf`` run from 0 to 100; the signatures are sacreBLEU's and name every setting.
    ``note`` is empty, or says in one sentence what to know when reading the scores.
    """

    bleu: float
    bleu_signature: str
    chrf: float
    chrf_signature: str
    sentences: int
    note: str = ""

    def render(self) -> str:
        """Return the lines to show a person, without a line break at the end."""
        lines = [
            f"BLEU  {self.bleu:6.2f}   {self.bleu_signature}",
            f"chrF2 {self.chrf:6.2f}   {self.chrf_signature}",
            f"{self.sentences:,} sentence{'' if self.sentences == 1 else 's'}",
        ]
        if self.note:
            lines.append(f"note: {self.note}")
        return "\n".join(lines)

    def to_json(self) -> dict[str, str | float | int]:
        """Return the fields as plain values that ``json.dumps`` takes."""
        return asdict(self)


def evaluate_corpus(hypotheses: Sequence[str], references: Sequence[str], language: str) -> Metrics:
    """Score hypotheses against one reference each: BLEU and chrF2, cased, by sacreBLEU.

    ``language`` is the target language code (``de``, ``zh-Hans``, ``pt_BR``); it picks BLEU's
    tokenizer: ``zh``, ``ja-mecab``, ``ko-mecab``, else ``13a``. Without the library that Japanese
    and Korean need, single characters are compared, which the signature and ``note`` say.

    A line break inside a segment counts as a space, as it would in a file of one segment a line.

    Raises UserError when the counts differ or there is nothing to score.
    """
    if len(hypotheses) != len(references):
        raise UserError(
            f"{len(hypotheses):,} translations but {len(references):,} references",
            "give one reference for each translation, in the same order",
        )
    if not references:
        raise UserError(
            "there is nothing to score: no translation and no reference",
            "give at least one of each",
        )
    from sacrebleu.metrics.chrf import CHRF

    bleu, note = bleu_for(language)
    chrf = CHRF()
    # 13a deletes a hyphen before a line break and the other tokenizers do not: the same text would
    # score differently from the same text in a file.
    candidates = [one_line(text) for text in hypotheses]
    targets = [[one_line(text) for text in references]]
    return Metrics(
        bleu=float(bleu.corpus_score(candidates, targets).score),
        bleu_signature=str(bleu.get_signature()),
        chrf=float(chrf.corpus_score(candidates, targets).score),
        chrf_signature=str(chrf.get_signature()),
        sentences=len(references),
        note=note,
    )


def bleu_for(language: str) -> tuple["BLEU", str]:
    """BLEU with the tokenizer for a language code, and a note on the choice or ``""``."""
    from sacrebleu.metrics.bleu import BLEU

    code = base_code(language)
    if code in _CHINESE:
        return BLEU(tokenize="zh", force=True), ""
    if code in _MORPHOLOGICAL:
        wanted = _MORPHOLOGICAL[code]
        try:
            return BLEU(tokenize=f"{wanted}-mecab", force=True), ""
        except (RuntimeError, AssertionError):  # sacreBLEU's: library missing, other dictionary
            note = (
                f"BLEU compares single characters, because the {wanted}-mecab tokenizer is not "
                f'installed (pip install "sacrebleu[{wanted}]"); such scores are higher and '
                "compare only with others of the same signature"
            )
            return BLEU(tokenize="char", force=True), note
    if code in UNSPACED:
        note = (
            "BLEU splits words at spaces, which this language does not write between words: "
            "go by chrF"
        )
        return BLEU(tokenize="13a", force=True), note
    return BLEU(tokenize="13a", force=True), ""


def ter_for(language: str) -> "TER":
    """TER (Snover et al., 2006); of characters, not words, in Chinese and Japanese."""
    from sacrebleu.metrics.ter import TER

    asian = base_code(language) in _CHINESE | {"ja", "jpn"}
    return TER(normalized=asian, asian_support=asian)
