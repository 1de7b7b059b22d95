"""A shortlist: what is learned, what a file may hold, and what both engines do with it."""

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dragoman.corpus import shortlist as module
from dragoman.corpus.shortlist import SHORTLIST, Shortlist, learn_shortlist, load_shortlist
from dragoman.corpus.store import CorpusStore, write_store
from dragoman.corpus.tokenizer import Tokenizer
from dragoman.decoding.native import NativeEngine
from dragoman.decoding.translator import Translator
from dragoman.errors import UserError
from dragoman.model.folder import load_model

LINES = ["the red cat sees the dog", "the old house", "the big bird draws the tree", "a cat"]


@pytest.fixture(scope="module")
def learned(
    tmp_path_factory: pytest.TempPathFactory, sentences: list[tuple[str, str]]
) -> tuple[Tokenizer, CorpusStore, Shortlist]:
    """A tokenizer, the pairs that were held out, and the shortlist of the others."""
    folder = tmp_path_factory.mktemp("store")
    tokenizer = Tokenizer.train([text for pair in sentences for text in pair], 350)
    size = tokenizer.vocabulary_size
    encoded = tokenizer.encode_pairs(sentences)
    held_out, rest = encoded[::9], [pair for n, pair in enumerate(encoded) if n % 9]
    write_store(folder / "train.arrow", iter(rest), size)
    write_store(folder / "valid.arrow", iter(held_out), size)
    store = CorpusStore.open(folder / "train.arrow")
    shortlist = learn_shortlist(store, tokenizer, associated=6, frequent=8)
    return tokenizer, CorpusStore.open(folder / "valid.arrow"), shortlist


def whole(tokenizer: Tokenizer) -> Shortlist:
    """A shortlist of everything."""
    size = tokenizer.vocabulary_size
    return Shortlist(
        np.arange(size, dtype=np.int32),
        np.zeros(size + 1, dtype=np.int64),
        np.zeros(0, dtype=np.int32),
        hashlib.sha256(tokenizer.to_bytes()).hexdigest(),
    )


def test_candidates_hold_what_a_reference_needs(
    learned: tuple[Tokenizer, CorpusStore, Shortlist],
) -> None:
    tokenizer, valid, shortlist = learned
    found = total = 0
    for source, target in (valid[row] for row in range(len(valid))):
        candidates = shortlist.union([source.tolist()])
        found += int(np.isin(target, candidates).sum())
        total += len(target)
        assert set(source.tolist()) <= set(candidates.tolist())  # names are copied
        assert {0, 1, 2, 3, *tokenizer.byte_ids} <= set(candidates.tolist())
    assert found / total >= 0.99
    # Not because everything is a candidate.
    assert len(shortlist.associated) < 8 * tokenizer.vocabulary_size


def test_the_best_candidates_are_the_translations(
    learned: tuple[Tokenizer, CorpusStore, Shortlist], sentences: list[tuple[str, str]]
) -> None:
    tokenizer, _, shortlist = learned
    for word, other in (("cat", "Katze"), ("bird", "Vogel"), ("draws", "malt")):
        (source, target) = tokenizer.encode_pair(f"the {word}", f"rot {other}")
        before = set(tokenizer.encode("the")), set(tokenizer.encode("rot"))
        own = set(source) - before[0]
        candidates = set(shortlist.union([list(own)]).tolist())
        assert set(target) - before[1] <= candidates, word


def test_a_model_of_words_is_that_of_the_formula(tmp_path: Path) -> None:
    pairs = [([5, 6], [8, 9]), ([5], [8]), ([6, 7], [9])]
    write_store(tmp_path / "s.arrow", iter(pairs), 10)
    model = module._WordModel(CorpusStore.open(tmp_path / "s.arrow"), 10)
    table: dict[tuple[int, int], float] = {}
    for source, target in pairs:
        for s in (0, *source):
            for t in target:
                table[s, t] = table.get((s, t), 0) + 1
    normalize(table)
    for _ in range(2):
        model.improve()
        sums: dict[tuple[int, int], float] = dict.fromkeys(table, 0.0)
        for source, target in pairs:
            for t in target:
                total = sum(table[s, t] for s in (0, *source))
                for s in (0, *source):
                    sums[s, t] += table[s, t] / total
        normalize(sums)
        table = sums
    found = dict(zip(model._keys.tolist(), model._shares.tolist(), strict=True))
    assert found == pytest.approx({s * 10 + t: share for (s, t), share in table.items()}, rel=1e-5)


def normalize(table: dict[tuple[int, int], float]) -> None:
    sums: dict[int, float] = {}
    for (s, _), value in table.items():
        sums[s] = sums.get(s, 0) + value
    for s, t in table:
        table[s, t] /= sums[s]


def test_blocks_and_tables_do_not_change_what_is_learned(
    learned: tuple[Tokenizer, CorpusStore, Shortlist], monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer, store, _ = learned
    before = learn_shortlist(store, tokenizer)
    monkeypatch.setattr(module, "_BLOCK", 4)
    monkeypatch.setattr(module, "_WAITING", 10)
    after = learn_shortlist(store, tokenizer)
    assert before.associated.tolist() == after.associated.tolist()
    monkeypatch.setattr(module, "_TABLE", 50)
    small = learn_shortlist(store, tokenizer)
    assert len(small.associated) <= 50 + tokenizer.vocabulary_size


@pytest.fixture
def shortlisted(model: Path) -> Iterator[Callable[[Shortlist], Path]]:
    """Gives the model a shortlist for the time of a test."""

    def give(shortlist: Shortlist) -> Path:
        shortlist.save(model / SHORTLIST)
        return model

    yield give
    (model / SHORTLIST).unlink(missing_ok=True)


def translator(folder: Path, engine: str, shortlist: bool) -> Translator:
    found = Translator.load(folder, engine=engine, precision="float32", device="cpu")
    found.search = found.search.model_copy(update={"shortlist": shortlist, "beam": 3})
    return found


@pytest.mark.parametrize("engine", ["native", "ctranslate2"])
def test_a_shortlist_of_everything_changes_nothing(
    engine: str, shortlisted: Callable[[Shortlist], Path], model: Path
) -> None:
    folder = shortlisted(whole(load_model(model).tokenizer))
    usual = translator(folder, engine, False).translate(LINES, 3)
    found = translator(folder, engine, True).translate(LINES, 3)
    for one, other in zip(usual, found, strict=True):
        assert [c.tokens for c in one.candidates] == [c.tokens for c in other.candidates]
        assert one.score == pytest.approx(other.score, abs=1e-4)


def narrow(tokenizer: Tokenizer) -> Shortlist:
    """Everything may be followed by a few symbols, and by itself."""
    size = tokenizer.vocabulary_size
    fixed = np.unique([0, 1, 2, 3, *range(270, 290)]).astype(np.int32)
    return Shortlist(
        fixed,
        np.arange(size + 1, dtype=np.int64),
        np.arange(size, dtype=np.int32),
        hashlib.sha256(tokenizer.to_bytes()).hexdigest(),
    )


@pytest.mark.parametrize("engine", ["native", "ctranslate2"])
def test_nothing_but_candidates_is_written(
    engine: str, shortlisted: Callable[[Shortlist], Path], model: Path
) -> None:
    tokenizer = load_model(model).tokenizer
    shortlist = narrow(tokenizer)
    found = translator(shortlisted(shortlist), engine, True)
    for line in LINES:  # one at a time: CTranslate2 has one set for a batch
        ids, _ = tokenizer.encode_source(line)
        allowed = set(tokenizer.pieces(shortlist.union([ids]).tolist()))
        written = [set(c.tokens) for c in found.translate([line], 3)[0].candidates]
        assert all(tokens <= allowed for tokens in written)
        assert any(written)


def test_the_native_engine_gives_each_sentence_its_own_candidates(
    shortlisted: Callable[[Shortlist], Path], model: Path
) -> None:
    found = translator(shortlisted(narrow(load_model(model).tokenizer)), "native", True)
    together = [t.candidates[0].tokens for t in found.translate(LINES)]
    alone = [found.translate([line])[0].candidates[0].tokens for line in LINES]
    assert together == alone


def test_a_prefix_outside_of_the_shortlist_is_kept(
    shortlisted: Callable[[Shortlist], Path], model: Path
) -> None:
    found = translator(shortlisted(narrow(load_model(model).tokenizer)), "native", True)
    begun = found.translate(LINES[:2], prefixes=["Zebra", ""])
    assert begun[0].text.startswith("Zebra")


@pytest.mark.parametrize("engine", ["native", "ctranslate2"])
def test_a_model_without_a_shortlist_says_so(engine: str, model: Path) -> None:
    with pytest.raises(UserError, match="has no shortlist"):
        translator(model, engine, True).translate(LINES)


def test_a_model_in_memory_searches_among_everything(model: Path) -> None:
    loaded = load_model(model)
    engine = NativeEngine(type(loaded)(loaded.config, loaded.tokenizer, loaded.model))
    search = loaded.config.search.model_copy(update={"shortlist": True})
    with torch.inference_mode():
        assert Translator(engine, search).translate(LINES[:1])[0].text


DAMAGES: dict[str, dict[str, Any]] = {
    "another vocabulary": {"offsets": np.zeros(5, dtype=np.int64)},
    "another type": {"fixed": np.arange(8, dtype=np.int64)},
    "no special symbols": {"fixed": np.array([5, 6, 7], dtype=np.int32)},
    "not sorted": {"fixed": np.array([0, 1, 2, 3, 9, 8], dtype=np.int32)},
    "an id too large": {"fixed": np.array([0, 1, 2, 3, 999_999], dtype=np.int32)},
    "another tokenizer": {"tokenizer": "0" * 64},
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_file_is_refused(
    name: str, learned: tuple[Tokenizer, CorpusStore, Shortlist], tmp_path: Path
) -> None:
    tokenizer, _, shortlist = learned
    values = {**vars(shortlist), **DAMAGES[name]}
    Shortlist(**values).save(tmp_path / SHORTLIST)
    with pytest.raises(UserError, match=SHORTLIST):
        load_shortlist(tmp_path, tokenizer)


def test_what_is_saved_is_loaded(
    learned: tuple[Tokenizer, CorpusStore, Shortlist], tmp_path: Path
) -> None:
    tokenizer, _, shortlist = learned
    shortlist.save(tmp_path / SHORTLIST)
    found = load_shortlist(tmp_path, tokenizer)
    for name in ("fixed", "offsets", "associated"):
        assert np.array_equal(getattr(found, name), getattr(shortlist, name))
    (tmp_path / SHORTLIST).write_bytes(b"\x08\0\0\0\0\0\0\0nonsense")
    with pytest.raises(UserError, match="damaged"):
        load_shortlist(tmp_path, tokenizer)
