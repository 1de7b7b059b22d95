"""What the next update is computed on: the plan of an epoch, batch by batch in its order."""

from dataclasses import replace
from functools import cached_property
from hashlib import blake2b
from pathlib import Path

from dragoman.config import Config, TrainingConfig
from dragoman.corpus.batches import (
    Batch,
    Collate,
    collate,
    collate_pairs,
    collate_texts,
    plan_batches,
)
from dragoman.corpus.labels import LabelNumbers
from dragoman.corpus.masking import Masker
from dragoman.corpus.prepared import TOKENIZER
from dragoman.corpus.resampling import Resampler
from dragoman.corpus.store import CorpusStore
from dragoman.corpus.tokenizer import Tokenizer
from dragoman.errors import UserError
from dragoman.training.distributed import Ranks
from dragoman.training.state import TrainingState

# Rows whose lengths are in memory a second time while a digest is made.
_DIGEST_ROWS = 1 << 20


class Feed:
    """Batches of a store; where it stands is in the state: `epoch` and `batch`.

    The plan is that of all ranks together; of each batch a rank reads its share. What a resampler
    makes of a row depends on the epoch and the row only, so that a resumed run reads the same.
    """

    def __init__(
        self,
        store: CorpusStore,
        settings: TrainingConfig,
        vocabulary_size: int,
        folder: Path,
        ranks: Ranks,
        collate: Collate = collate_pairs,
        resampler: Resampler | None = None,
    ) -> None:
        self._store, self._settings, self._ranks = store, settings, ranks
        self._collate = collate if resampler is None else _resampling(resampler)
        growth = resampler.growth(store) if resampler else 1.0
        self._batch_tokens = max(1, int(settings.batch_tokens / growth))
        self._vocabulary_size, self._folder = vocabulary_size, folder
        self.plan_epoch(0)

    @cached_property
    def fingerprint(self) -> str:
        """A digest of the lengths of all rows: those of another corpus are others."""
        digest = blake2b(digest_size=16)
        for lengths in (self._store.source_lengths, self._store.target_lengths):
            for start in range(0, len(lengths), _DIGEST_ROWS):
                digest.update(lengths[start : start + _DIGEST_ROWS].astype("<i4").tobytes())
        return digest.hexdigest()

    def plan_epoch(self, epoch: int) -> None:
        """Make the plan of an epoch the one that batches are taken from."""
        lengths = self._store.source_lengths, self._store.target_lengths
        self._plan = plan_batches(*lengths, self._batch_tokens, self._settings.seed, epoch)

    def __len__(self) -> int:
        """Batches of the epoch."""
        return len(self._plan)

    def take(self, state: TrainingState) -> list[Batch]:
        """This rank's share of the next update's batches, over the end of the epoch if need be.

        A batch has fewer rows than there are ranks at times. The share is then one row to compute
        with, so that no rank waits for this one, and no row that counts: `rows` is empty.
        """
        chosen = []
        for _ in range(self._settings.accumulation):
            if state.batch >= len(self._plan):
                state.epoch, state.batch = state.epoch + 1, 0
                self.plan_epoch(state.epoch)
            rows = self._plan[state.batch]
            share = rows[self._ranks.rank :: self._ranks.size]  # they are in order of length
            batch = self._collate(self._store, share if len(share) else rows[:1], state.epoch)
            self._check_ids(batch)
            chosen.append(batch if len(share) else replace(batch, rows=share))
            state.batch += 1
        return chosen

    def _check_ids(self, batch: Batch) -> None:
        if max(batch.source.max(), batch.target_out.max()) >= self._vocabulary_size:
            raise UserError(
                f"{self._folder}: the corpus holds tokens that the vocabulary does not have",
                "its train.arrow is damaged: prepare it anew in another --out",
            )


def make_collate(config: Config, corpus: Path) -> Collate:
    """What makes a batch of rows of a store of a prepared folder, by the configuration's task."""
    match config.task:
        case "lm":
            return collate_texts
        case "mlm":
            return Masker(Tokenizer.load(corpus / TOKENIZER), config.training.seed).collate
        case "classification":
            return LabelNumbers(config.labels, Tokenizer.load(corpus / TOKENIZER)).collate
        case _:
            return collate_pairs


def _resampling(resampler: Resampler) -> Collate:
    """Pairs, cut into subwords anew in every epoch."""
    return lambda store, rows, epoch: collate(store, rows, resampler.in_epoch(epoch))


def make_resampler(config: Config, folder: Path) -> Resampler | None:
    """BPE-dropout with the tokenizer of the corpus in a training's folder, where settings ask.

    Raises UserError for a task without a source to cut anew.
    """
    settings = config.training
    if not settings.bpe_dropout:
        return None
    if config.task != "translation":
        raise UserError("training.bpe_dropout is for translation", "leave it out")
    tokenizer = Tokenizer.load(folder / "corpus" / TOKENIZER)
    longest = min(config.data.max_tokens, config.model.max_positions - 1)
    return Resampler(tokenizer, settings.bpe_dropout, settings.seed, longest)
