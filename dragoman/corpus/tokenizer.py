"""Subwords that lose nothing: sentencepiece byte-pair encoding with bytes to fall back on.

The text that is encoded is the text that `dragoman.text.protect` has masked: a protected span is a
slot character, which is one subword of its own, and a character that only looks like a slot is
written behind `ESCAPE`. One space goes in front before encoding and comes off after decoding, so
that a word has the same subwords at the start of a text as within it.
"""

import itertools
import os
import re
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import sentencepiece

from dragoman.corpus.tokenizer_training import (
    LITERAL,
    MASK,
    SPECIAL_IDS,
    train_sentencepiece,
)
from dragoman.errors import UserError
from dragoman.text.lines import atomic_write
from dragoman.text.protect import SLOTS, SPACE_MARK, mask_pair, mask_spans, unmask

_SURROGATE = re.compile("[\ud800-\udfff]")
_LARGEST_FILE = 256 * 2**20
THREADS = min(8, os.cpu_count() or 1)
_THREADED_BATCH = 256  # texts from which on threads pay for their start
_BATCH = 4  # up to so many texts, each alone costs less: a batch starts a thread at any rate
_PROBE = f"{SLOTS[0]}  \u00c5\u212b\ufb01\u3000\u00a0\n\t Dragoman 123 \U0001f600\0{SLOTS[-1]} "

_seed_lock = threading.Lock()
sentencepiece.set_min_log_level(3)


class Tokenizer:
    """Text to subword ids and back, without loss.

    `decode(encode(text)) == text` for every text without lone surrogates, and `encode` never gives
    `unk_id`. An instance may be used by several threads at once.

    Args:
        model: a serialized sentencepiece model, as `to_bytes` gives it.

    Raises:
        UserError: `model` is not a whole model of Dragoman's own making.
    """

    pad_id, unk_id, bos_id, eos_id = SPECIAL_IDS

    def __init__(self, model: bytes) -> None:
        self._model = model
        self._shown = dict[int, str]()  # what `pieces` has given for an id
        self._processor = _open_model(model)
        self.vocabulary_size: int = self._processor.get_piece_size()
        """The number of ids: those that `encode` gives are below it."""
        try:
            self._bytes = [self._piece_bytes(number) for number in range(self.vocabulary_size)]
            self._byte_ids = [self._processor.piece_to_id(f"<0x{byte:02X}>") for byte in range(256)]
            sound = self._is_sound()
        except ValueError:  # a piece that is not UTF-8, or not what its kind says
            sound = False
        if not sound:
            raise UserError(
                "not a tokenizer of Dragoman, or a damaged one",
                "it must be the tokenizer.model of a folder that Dragoman wrote",
            )

    @property
    def byte_ids(self) -> list[int]:
        """The ids that each stand for one byte of a character which has no id, by byte."""
        return list(self._byte_ids)

    @property
    def mask_id(self) -> int | None:
        """The id that hides a word, which `encode` never gives; None where there is none."""
        number: int = self._processor.piece_to_id(MASK)
        return number if self._processor.is_control(number) else None

    @classmethod
    def load(cls, path: Path) -> "Tokenizer":
        """Opens a tokenizer file; `UserError` names the file if it cannot be read or is damaged."""
        try:
            with path.open("rb") as stream:
                model = stream.read(_LARGEST_FILE + 1)
        except OSError as error:
            problem = f"{path}: cannot read the tokenizer: {error.strerror}"
            raise UserError(problem, "check the path, or copy the file again") from error
        try:
            return cls(model)
        except UserError as error:
            raise UserError(f"{path}: {error.message}", error.hint) from error

    @classmethod
    def train(
        cls,
        texts: Iterable[str],
        vocabulary_size: int,
        character_coverage: float = 0.9999,
        seed: int = 0,
        max_sentences: int = 2_000_000,
        symbols: Sequence[str] = (),
        mask: bool = False,
    ) -> "Tokenizer":
        """Trains byte-pair encoding on texts as people wrote them: they are masked here.

        Args:
            texts: both languages; read once; blank ones count for nothing.
            vocabulary_size: the most ids wanted. Fewer come of data that supports fewer, and where
                the characters alone would fill the vocabulary the rare ones are left to bytes.
            character_coverage: the share of the running text whose characters get an id each,
                0.98 to 1.0; the remaining, rarest ones are spelled in bytes.
            seed: picks the sample when there are more than `max_sentences` texts.
            max_sentences: how many texts to learn from at most; memory grows with this only.
            symbols: texts that are always one subword, `▁` being a space.
            mask: whether it has the symbol `mask_id`, for masked language models.

        Raises:
            UserError: no text, a vocabulary too small for the bytes and the slots, or a coverage
                out of range.
        """
        return cls(
            train_sentencepiece(
                texts, vocabulary_size, character_coverage, seed, max_sentences, symbols, mask
            )
        )

    def save(self, path: Path) -> None:
        """Writes the model to a file, whole or not at all."""
        with atomic_write(path) as stream:
            stream.write(self._model)

    def to_bytes(self) -> bytes:
        """The serialized sentencepiece model: what `save` writes."""
        return self._model

    def encode(self, text: str, sample: float = 0.0, seed: int | None = None) -> list[int]:
        """The ids of a masked text, without bos and eos; the empty text has none.

        Args:
            text: slot characters in it become slots; `ESCAPE` and what it escapes become bytes.
            sample: the probability of leaving out a merge (BPE-dropout, arXiv 1910.13267).
            seed: makes `sample` repeat itself; calls without one give something else each time,
                unless a call with a seed went before, from which they go on.

        Raises:
            UserError: the text holds a lone surrogate, which is no character.
        """
        return self.encode_batch([text], sample, seed)[0]

    def encode_batch(
        self,
        texts: Sequence[str],
        sample: float = 0.0,
        seed: int | None = None,
        threads: int = THREADS,
    ) -> list[list[int]]:
        """`encode` for many texts, in threads when they are many and `sample` is 0.

        A seed is for the whole batch: two equal texts of it are cut differently.
        """
        parts: list[str] = []  # what sentencepiece encodes, all in one call
        cut: dict[int, list[str]] = {}  # row -> its pieces, literal characters at odd places
        for row, text in enumerate(texts):
            if LITERAL.search(text):
                cut[row] = LITERAL.split(" " + text)
                parts.extend(cut[row][::2])
            else:
                parts.append(" " + text if text else text)
        encoded = self._encode_parts(parts, sample, seed, threads)
        if not cut:
            return encoded
        supply = iter(encoded)
        return [
            self._join(cut[row], supply) if row in cut else next(supply)
            for row in range(len(texts))
        ]

    def decode(self, ids: Sequence[int]) -> str:
        """The masked text of the ids; pad, bos and eos are passed over wherever they stand.

        Bytes that are not UTF-8, which a model may well produce, become U+FFFD.

        Raises:
            ValueError: an id outside of the vocabulary.
        """
        if len(ids) and not 0 <= min(ids) <= max(ids) < self.vocabulary_size:
            raise ValueError(f"ids outside of 0..{self.vocabulary_size - 1}")
        table = self._bytes
        text = b"".join([table[number] for number in ids]).decode("utf-8", errors="replace")
        return text.removeprefix(" ")

    def completions(self, number: int) -> list[int]:
        """The ids whose bytes begin with those of this one, itself among them."""
        start = self._bytes[number]
        return [other for other, found in enumerate(self._bytes) if found.startswith(start)]

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """One printable string for each id, for display: `▁` is a space, `⟨1⟩` the first slot."""
        shown = self._shown
        return [shown.get(number) or self._display(int(number)) for number in ids]

    def encode_source(self, text: str) -> tuple[list[int], list[str]]:
        """Masks a source text and encodes it: its ids and the spans that its slots stand for."""
        return self.encode_sources([text])[0]

    def encode_sources(self, texts: Sequence[str]) -> list[tuple[list[int], list[str]]]:
        """`encode_source` for many texts, in less time for each."""
        masked = [mask_spans(text) for text in texts]
        encoded = self.encode_batch([text for text, _ in masked])
        return [(ids, spans) for ids, (_, spans) in zip(encoded, masked, strict=True)]

    def encode_pair(self, source: str, target: str) -> tuple[list[int], list[int]]:
        """Masks a training pair with slots that both sides share and encodes it."""
        return self.encode_pairs([(source, target)])[0]

    def encode_pairs(
        self, pairs: Iterable[tuple[str, str]], threads: int = THREADS
    ) -> list[tuple[list[int], list[int]]]:
        """`encode_pair` for many (source, target), in less time for each."""
        masked = itertools.chain.from_iterable(mask_pair(*pair) for pair in pairs)
        encoded = iter(self.encode_batch([text for text, _ in masked], threads=threads))
        return list(zip(encoded, encoded, strict=True))

    def decode_target(self, ids: Sequence[int], spans: Sequence[str]) -> str:
        """The text of a translation, its slots replaced by the spans of its source."""
        return unmask(self.decode(ids), list(spans))

    def _encode_parts(
        self, parts: list[str], sample: float, seed: int | None, threads: int
    ) -> list[list[int]]:
        encode = self._processor.encode
        try:
            if sample <= 0 and len(parts) > _BATCH:
                threads = threads if len(parts) >= _THREADED_BATCH else 1
                together: list[list[int]] = encode(parts, out_type=int, num_threads=threads)
                return together
            if sample <= 0:
                return [encode(part, out_type=int) for part in parts]
            # The seed belongs to the process: nobody else may set it before it is used.
            with nullcontext() if seed is None else _seed_lock:
                if seed is not None:
                    sentencepiece.set_random_generator_seed(seed & 0x7FFFFFFF)
                choice: dict[str, Any] = {"enable_sampling": True, "nbest_size": -1}
                return [encode(part, out_type=int, alpha=sample, **choice) for part in parts]
        except (RuntimeError, TypeError, UnicodeError):
            _refuse_surrogates(parts)
            raise

    def _join(self, parts: list[str], supply: Iterator[list[int]]) -> list[int]:
        ids: list[int] = []
        for place, part in enumerate(parts):
            if place % 2:
                ids.extend(self._byte_ids[byte] for byte in part.encode())
            else:
                ids.extend(next(supply))
        return ids

    def _piece_bytes(self, number: int) -> bytes:
        if self._processor.is_control(number):
            return b""
        piece = self._processor.id_to_piece(number)
        if self._processor.is_unknown(number):
            return "\ufffd".encode()
        if self._processor.is_byte(number):
            return bytes([int(piece[1:-1], 16)])
        return piece.replace(SPACE_MARK, " ").encode()

    def _display(self, number: int) -> str:
        piece: str = self._processor.id_to_piece(number)
        shown = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in piece)
        if piece in SLOTS:
            shown = f"⟨{SLOTS.index(piece) + 1}⟩"
        return self._shown.setdefault(number, shown)

    def _is_sound(self) -> bool:
        processor = self._processor
        special = (processor.pad_id(), processor.unk_id(), processor.bos_id(), processor.eos_id())
        needed = [*self._byte_ids, *(processor.piece_to_id(slot) for slot in SLOTS)]
        return (
            special == (self.pad_id, self.unk_id, self.bos_id, self.eos_id)
            and self.unk_id not in needed
            and self.decode(self.encode(_PROBE)) == _PROBE
        )


def _open_model(model: bytes) -> sentencepiece.SentencePieceProcessor:
    try:
        # sentencepiece takes nothing at all for a model and complains on the terminal later.
        if not 0 < len(model) <= _LARGEST_FILE:
            raise ValueError(f"{len(model)} bytes")
        return sentencepiece.SentencePieceProcessor(model_proto=model)
    except (RuntimeError, ValueError) as error:
        raise UserError(
            "not a tokenizer, or a damaged one", "copy or train the model folder again"
        ) from error


def _refuse_surrogates(texts: Iterable[str]) -> None:
    for text in texts:
        found = _SURROGATE.search(text)
        if found:
            raise UserError(
                f"the text holds a lone surrogate (U+{ord(found[0]):04X}), which is no character",
                "it was damaged before it came here, often by cutting a JSON string",
            )
