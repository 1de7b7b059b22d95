"""One search behind two engines: the same text, whatever runs it, in whatever batch or thread."""

import math
import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from dragoman.config import Config, DataConfig, ModelConfig, SearchConfig
from dragoman.corpus.tokenizer import Tokenizer
from dragoman.decoding import loading
from dragoman.decoding.conversion import write_ctranslate2
from dragoman.decoding.engine import Engine, Request, output_limit
from dragoman.decoding.fast import CTranslate2Engine
from dragoman.decoding.hypothesis import Hypothesis, length_penalty
from dragoman.decoding.loading import EngineChoice, FastEngine, open_engine
from dragoman.decoding.native import NativeEngine
from dragoman.decoding.step import pad_rows
from dragoman.decoding.translator import Translator
from dragoman.errors import UserError
from dragoman.model.folder import LoadedModel, save_model
from dragoman.model.transformer import Transformer

Ids = list[int]


@dataclass(frozen=True)
class Engines:
    """Both engines of one model, and sources for it."""

    loaded: LoadedModel
    native: NativeEngine
    fast: CTranslate2Engine
    sources: list[Ids]


def make_engines(loaded: LoadedModel, folder: Path, sources: list[Ids]) -> Engines:
    write_ctranslate2(loaded, folder, "float32")
    fast = CTranslate2Engine(loaded.config, loaded.tokenizer, folder, "float32", threads=2)
    return Engines(loaded, NativeEngine(loaded), fast, sources)


def small_model(tokenizer: Tokenizer) -> LoadedModel:
    sizes = {"d_model": 48, "d_ff": 96, "heads": 4, "max_positions": 64}
    config = Config(
        source_language="en",
        target_language="de",
        model=ModelConfig(**sizes, encoder_layers=1, decoder_layers=1, dropout=0.0),
        data=DataConfig(max_tokens=24),
        search=SearchConfig(max_extra_tokens=10),
    )
    torch.manual_seed(1)
    return LoadedModel(config, tokenizer, Transformer(config.model, tokenizer.vocabulary_size))


@pytest.fixture(scope="module")
def tokenizer(sentences: list[tuple[str, str]]) -> Tokenizer:
    return Tokenizer.train([side for pair in sentences for side in pair], 350)


@pytest.fixture(scope="module")
def trained(
    tokenizer: Tokenizer,
    sentences: list[tuple[str, str]],
    tmp_path_factory: pytest.TempPathFactory,
) -> Engines:
    """Trained for a few seconds: mostly right, and never sure of itself."""
    loaded = small_model(tokenizer)
    model = loaded.model
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    pairs = [tokenizer.encode_pair(*pair) for pair in sentences]
    bos, eos = tokenizer.bos_id, tokenizer.eos_id
    chance = random.Random(2)
    for _ in range(60):
        batch = chance.sample(pairs, 32)
        logits = model(
            pad_rows([[*source, eos] for source, _ in batch]),
            pad_rows([[bos, *target] for _, target in batch]),
        )
        labels = pad_rows([[*target, eos] for _, target in batch])
        loss = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), labels.flatten(), ignore_index=0, label_smoothing=0.1
        )
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    model.eval()
    words = sorted({word for source, _ in sentences for word in source.split()})
    texts = [" ".join(chance.choices(words, k=chance.randint(1, 9))) for _ in range(150)]
    sources = [tokenizer.encode_source(text)[0] for text in texts]
    return make_engines(loaded, tmp_path_factory.mktemp("trained"), sources)


@pytest.fixture(scope="module")
def untrained(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Engines:
    """Random weights: translations that never end, that end at once, that repeat."""
    loaded = small_model(tokenizer)
    loaded.model.eval()
    chance = random.Random(3)
    sources = [
        [chance.randrange(4, tokenizer.vocabulary_size) for _ in range(chance.randint(1, 20))]
        for _ in range(40)
    ]
    return make_engines(loaded, tmp_path_factory.mktemp("untrained"), sources)


def best(engine: Engine, sources: list[Ids], search: SearchConfig) -> list[Hypothesis]:
    return [found[0] for found in engine.search(sources, Request(search))]


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0])
@pytest.mark.parametrize("beam", [1, 4])
def test_both_engines_find_the_same(trained: Engines, beam: int, alpha: float) -> None:
    """Float32: at least 98% of the texts, and scores within 1e-3 where the texts are equal."""
    search = SearchConfig(beam=beam, length_penalty=alpha, max_extra_tokens=10)
    native = best(trained.native, trained.sources, search)
    fast = best(trained.fast, trained.sources, search)
    same = [(a, b) for a, b in zip(native, fast, strict=True) if a.tokens == b.tokens]
    assert len(same) >= 0.98 * len(native)
    for one, other in same:
        assert one.log_prob == pytest.approx(other.log_prob, abs=1e-3)
        assert one.score == pytest.approx(other.score, abs=1e-3)
        assert one.finished == other.finished


@pytest.mark.parametrize("beam", [1, 3])
def test_what_an_untrained_model_writes(untrained: Engines, beam: int) -> None:
    """Limits, cut outputs and empty ones: the corners where two searches could differ."""
    search = SearchConfig(beam=beam, max_extra_tokens=4)
    native = best(untrained.native, untrained.sources, search)
    fast = best(untrained.fast, untrained.sources, search)
    same = [(a, b) for a, b in zip(native, fast, strict=True) if a.tokens == b.tokens]
    assert len(same) >= 0.98 * len(native)
    for one, other in same:
        assert one.log_prob == pytest.approx(other.log_prob, abs=1e-3)
        assert one.finished == other.finished
    for source, hypothesis in zip(untrained.sources, fast, strict=True):
        limit = output_limit(source, search, untrained.loaded.config)
        assert 1 <= len(hypothesis.tokens) <= limit


def test_scores_are_those_of_the_formula(trained: Engines) -> None:
    search = SearchConfig(beam=4, length_penalty=0.6)
    sources = trained.sources[:20]
    for source, found in zip(
        sources, trained.fast.search(sources, Request(search, 4)), strict=True
    ):
        assert 1 <= len(found) <= 4
        assert len({tuple(one.tokens) for one in found}) == len(found)
        assert [one.score for one in found] == sorted((one.score for one in found), reverse=True)
        targets = [one.tokens for one in found]
        log_probs = trained.fast.token_log_probs([source] * len(found), targets)
        for one, each in zip(found, log_probs, strict=True):
            assert one.log_prob == pytest.approx(math.fsum(each), abs=1e-3)
            penalty = length_penalty(len(one.tokens) + 1, 0.6)
            assert one.score == pytest.approx(one.log_prob / penalty)


@pytest.mark.parametrize("size", [1, 7, 64])
@pytest.mark.parametrize("beam", [1, 4])
def test_the_batch_changes_no_text(trained: Engines, size: int, beam: int) -> None:
    search = SearchConfig(beam=beam)
    sources = trained.sources[:70]
    expected = [one.tokens for one in best(trained.fast, sources, search)]
    chunks = [sources[start : start + size] for start in range(0, len(sources), size)]
    found = [one.tokens for chunk in chunks for one in best(trained.fast, chunk, search)]
    assert found == expected
    tight = search.model_copy(update={"batch_tokens": 16})
    assert [one.tokens for one in best(trained.fast, sources, tight)] == expected
    backwards = best(trained.fast, sources[::-1], search)
    assert [one.tokens for one in backwards][::-1] == expected


def test_the_rare_long_neighbor_lengthens_nothing(untrained: Engines) -> None:
    """A batch has one limit in CTranslate2, a sentence its own here."""
    search = SearchConfig(beam=2, max_extra_tokens=0)
    short, long = [10], list(range(10, 40))
    alone = untrained.fast.search([short], Request(search))
    together = untrained.fast.search([short, long], Request(search))
    assert [one.tokens for one in together[0]] == [one.tokens for one in alone[0]]
    assert all(len(one.tokens) <= 2 for one in together[0])


def test_no_n_tokens_stand_twice(untrained: Engines) -> None:
    request = Request(SearchConfig(beam=2, max_extra_tokens=20), no_repeat_ngram=2)
    for found in untrained.fast.search(untrained.sources[:10], request):
        for one in found:
            grams = list(zip(one.tokens, one.tokens[1:], strict=False))
            assert len(set(grams)) == len(grams)


def test_nothing_to_do(trained: Engines) -> None:
    assert trained.fast.search([], Request(SearchConfig())) == []


@pytest.fixture
def folder(untrained: Engines, tmp_path: Path) -> Path:
    loaded = untrained.loaded
    save_model(tmp_path, loaded.config, loaded.tokenizer, loaded.model.state_dict(), "card")
    return tmp_path


BEYOND: dict[str, SearchConfig] = {
    "sampling": SearchConfig(sample=True, seed=1),
    "a beam too wide for the vocabulary": SearchConfig(beam=44, max_extra_tokens=2),
}


@pytest.mark.parametrize("search", BEYOND.values(), ids=BEYOND)
def test_what_the_fast_engine_lacks_the_native_one_does(
    folder: Path, untrained: Engines, search: SearchConfig
) -> None:
    said: list[str] = []
    engine = open_engine(folder, EngineChoice(device="cpu", threads=1), said.append)
    assert isinstance(engine, FastEngine)
    sources, request = untrained.sources[:3], Request(search)
    assert engine.search(sources, request) == untrained.native.search(sources, request)
    engine.search(sources, request)
    assert sum("the native engine is used" in line for line in said) == 1
    strict = open_engine(folder, EngineChoice("ctranslate2", "cpu", threads=1))
    with pytest.raises(UserError, match="the ctranslate2 engine cannot do this"):
        strict.search(sources, request)


@pytest.mark.parametrize("name", ["native", "fast"])
def test_threads_may_share_an_engine(trained: Engines, name: str) -> None:
    engine: Engine = getattr(trained, name)
    translator = Translator(engine)
    lines = [trained.loaded.tokenizer.decode(source) for source in trained.sources[:24]]
    expected = [one.text for one in translator.translate(lines)]
    barrier = threading.Barrier(4)

    def work(number: int) -> list[str]:
        barrier.wait()
        order = lines[number * 5 :] + lines[: number * 5]
        found = [one.text for one in translator.translate(order)]
        return found[len(lines) - number * 5 :] + found[: len(lines) - number * 5]

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(work, range(4))) == [expected] * 4


def test_an_ensemble_is_native(folder: Path) -> None:
    engine = loading.open_ensemble([folder, folder], EngineChoice(device="cpu"))
    assert isinstance(engine, NativeEngine) and len(engine.models) == 2
    with pytest.raises(UserError, match="runs one model"):
        loading.open_ensemble([folder, folder], EngineChoice("ctranslate2"))


def test_bfloat16_computes_in_bfloat16(folder: Path, untrained: Engines) -> None:
    engine = open_engine(folder, EngineChoice(device="cpu", precision="bfloat16"))
    assert isinstance(engine, NativeEngine)
    assert engine.model.embedding.weight.dtype == torch.bfloat16
    search = SearchConfig(beam=1, max_extra_tokens=2)
    near = best(engine, untrained.sources, search)
    exact = best(untrained.native, untrained.sources, search)
    first = [a.tokens[0] == b.tokens[0] for a, b in zip(near, exact, strict=True)]
    assert sum(first) >= 0.7 * len(first)


def test_the_command_line_chooses_an_engine(dragoman: Callable[..., Any], folder: Path) -> None:
    def translate(*options: str) -> Any:
        return dragoman("translate", "--model", folder, "--text", "the red cat", *options)

    fast = translate("--engine", "ctranslate2", "--device", "cpu", "--scores")
    assert fast.status == 0 and (folder / "ct2" / "int8" / "model.bin").is_file()
    exact = translate("--engine", "ctranslate2", "--set", "search.precision=float32", "--scores")
    native = translate("--engine", "native", "--device", "cpu", "--scores")
    assert exact.out == native.out != b""
    refused = translate("--engine", "ctranslate2", "--set", "search.sample=true")
    assert refused.status == 2 and "hint: use --engine" in refused.err
    assert translate("--engine", "marian").status == 2


def test_opening_the_fast_engine_leaves_the_threads_of_pytorch(folder: Path) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        engine = open_engine(folder, EngineChoice(engine="ctranslate2", precision="float32"))
        engine.search([[5, 6, 7]], Request(engine.config.search))
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
