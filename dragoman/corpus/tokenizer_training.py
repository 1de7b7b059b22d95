"""Training of the sentencepiece model that `dragoman.corpus.tokenizer` reads and writes with."""

import io
import itertools
import math
import random
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import sentencepiece

from dragoman.errors import UserError
from dragoman.text.protect import ESCAPE, SLOTS, SPACE_MARK, mask_spans

SPECIAL_IDS = range(4)
"""Padding, unknown, beginning and end of a sentence."""
MASK = "<mask>"
"""The control symbol that hides a word from a masked language model."""
LITERAL = re.compile(f"({ESCAPE}[{''.join(SLOTS)}{SPACE_MARK}{ESCAPE}]?|{SPACE_MARK})")
"""An escaped character, a lone escape and sentencepiece's own space sign: spelled in bytes."""
# What has no place in a training text; sentencepiece would misread it, or leave out the whole text.
_UNTRAINABLE = re.compile(f"{LITERAL.pattern}|[\0\u2585\ud800-\udfff]")
# sentencepiece's trainer aborts on a word of 65,536 characters and leaves out a text longer than
# its limit: longer texts are cut before it sees them.
_CHUNK = 1000
_RESERVED = 4 + len(SLOTS) + 256  # pad, unk, bos, eos, the slots, the bytes
_SMALLEST_VOCABULARY = 300


def train_sentencepiece(
    texts: Iterable[str],
    vocabulary_size: int,
    character_coverage: float,
    seed: int,
    max_sentences: int,
    symbols: Sequence[str],
    mask: bool,
) -> bytes:
    """What `Tokenizer.train` does, as the serialized model. Raises UserError as it says."""
    if vocabulary_size < _SMALLEST_VOCABULARY:
        raise UserError(
            f"a vocabulary of {vocabulary_size} is too small: the least is {_SMALLEST_VOCABULARY}",
            "set data.vocabulary_size higher",
        )
    if not 0.98 <= character_coverage <= 1.0:
        raise UserError(
            f"a character coverage of {character_coverage} is out of range",
            "set data.character_coverage between 0.98 and 1.0",
        )
    sample = _sample((text for text in texts if text.strip()), max_sentences, seed)
    if not sample:
        raise UserError(
            "there is no text to train a tokenizer on",
            "every line is blank, or the cleaning dropped every pair",
        )
    special = {"user_defined_symbols": [*SLOTS, *symbols], "control_symbols": [MASK] * mask}
    try:
        return _train_model(_training_texts(sample), vocabulary_size, character_coverage, special)
    except RuntimeError as error:
        if "Vocabulary size is smaller than required_chars" not in str(error):
            raise
    # The characters alone overflow the vocabulary: half of it for them, half for merges.
    frequent = _without_rare(list(_training_texts(sample)), (vocabulary_size - _RESERVED) // 2)
    return _train_model(frequent, vocabulary_size, 1.0, special)


def _sample(texts: Iterable[str], size: int, seed: int) -> list[str]:
    """A uniform sample in one pass (Li 1994, "Algorithm L", ACM TOMS 20(4))."""
    if size < 1:
        raise ValueError("a sample has at least one text")
    supply = iter(texts)
    kept = list(itertools.islice(supply, size))
    chance = random.Random(seed)
    weight = 1.0
    while True:
        # 1 - random() lies in (0, 1], so it has a logarithm; a weight of 1 would have none.
        weight *= math.exp(math.log(1.0 - chance.random()) / size)
        weight = min(weight, 1.0 - 2**-53)
        skip = math.log(1.0 - chance.random()) / math.log1p(-weight)
        text = next(itertools.islice(supply, int(min(skip, 2**62)), None), None)
        if text is None:
            return kept
        kept[chance.randrange(size)] = text


def _training_texts(texts: list[str]) -> Iterator[str]:
    for text in texts:
        masked = _UNTRAINABLE.sub(" ", mask_spans(text).text)
        for start in range(0, len(masked), _CHUNK):
            yield " " + masked[start : start + _CHUNK]


def _train_model(
    texts: Iterable[str], vocabulary_size: int, character_coverage: float, special: dict[str, Any]
) -> bytes:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts),
        model_writer=model,
        vocab_size=vocabulary_size,
        character_coverage=character_coverage,
        required_chars=SPACE_MARK,  # left to bytes, a space would come back as U+2581
        model_type="bpe",
        normalization_rule_name="identity",
        add_dummy_prefix=False,
        remove_extra_whitespaces=False,
        byte_fallback=True,
        split_digits=True,
        hard_vocab_limit=False,
        max_sentence_length=8 * _CHUNK,
        pad_id=SPECIAL_IDS[0],
        unk_id=SPECIAL_IDS[1],
        bos_id=SPECIAL_IDS[2],
        eos_id=SPECIAL_IDS[3],
        num_threads=2,
        minloglevel=3,
        **special,
    )
    return model.getvalue()


def _without_rare(texts: list[str], characters: int) -> list[str]:
    """The texts with all but the `characters` most frequent characters hidden behind a slot.

    A slot takes no part in merges, and sentencepiece itself covers no less than 98%.
    """
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(text)
    for kept in (" ", *SLOTS):
        del counts[kept]
    rare = {ord(character): SLOTS[0] for character, _ in counts.most_common()[characters:]}
    return [text.translate(rare) for text in texts]
