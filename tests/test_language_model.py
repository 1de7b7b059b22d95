"""A language model: texts as rows, its loss packed or not, what it writes, what surprises it."""

import math
from pathlib import Path

import pytest
import torch
from language_models import TEXTS, make, small
from preparing import quiet, stored, write
from torch.nn import functional
from torch.testing import assert_close

from dragoman.config import DataConfig, TrainingConfig
from dragoman.corpus.batches import Batch, batches, collate_texts
from dragoman.corpus.blocks import cut_texts
from dragoman.corpus.encoding import text_pieces
from dragoman.corpus.pairs import join_texts, read_table
from dragoman.corpus.preparation import prepare_corpus
from dragoman.corpus.prepared import TOKENIZER, TRAIN, VALID, VALID_TEXT, CorpusFiles
from dragoman.corpus.store import CorpusStore, write_store
from dragoman.corpus.tokenizer import Tokenizer
from dragoman.decoding.generation import Wish, Writer, unsettled
from dragoman.decoding.perplexity import Reader, windows
from dragoman.decoding.step import FORBIDDEN
from dragoman.model.folder import Loaded
from dragoman.model.stacks import DecoderOnly
from dragoman.text.normalize import normalize_key
from dragoman.training.distributed import Ranks
from dragoman.training.objective import batch_loss
from dragoman.training.trainer import StopRequestedError, Trainer

PROMPTS = ["the red cat", "", "the old house draws the", "x"]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train(TEXTS, 350)


def test_every_token_of_a_long_text_is_predicted_once_and_from_the_one_before() -> None:
    ids = list(range(10, 31))
    whole = [Tokenizer.bos_id, *ids, Tokenizer.eos_id]
    for limit in (1, 2, 7, 21, 22, 50):
        pieces = text_pieces(ids, limit)
        assert [token for piece in pieces for token in piece[1:]] == whole[1:]
        assert [piece[0] for piece in pieces] == whole[: len(whole) - 1 : limit]
        assert max(map(len, pieces)) <= limit + 1
    assert text_pieces([], 8) == [[Tokenizer.bos_id, Tokenizer.eos_id]]


@pytest.mark.parametrize("texts", ["lines", "paragraphs"])
@pytest.mark.parametrize("lines", [1, 2, 5, 100])
def test_blocks_of_texts_hold_the_texts_of_the_file(tmp_path: Path, texts: str, lines: int) -> None:
    content = "\n\none\ntwo \n \n\nthree\r\n\r\nfour\nfive\nsix\n\t\n\nseven\n\n\neight"
    path = tmp_path / "text"
    path.write_bytes(content.encode())
    blocks = list(cut_texts(path, lines, "strict", texts))
    wanted = list(join_texts([line.removesuffix("\r") for line in content.split("\n")], texts))
    assert [pair.target for block in blocks for pair in block.pairs()] == wanted
    assert [block.number for block in blocks] == list(range(len(blocks)))
    assert all(pair.source == "" for block in blocks for pair in block.pairs())
    if texts == "paragraphs":
        assert wanted == ["one\ntwo ", "three", "four\nfive\nsix", "seven", "eight"]
    if texts == "paragraphs" and lines == 2:
        first = content.split("\n").index("four") + 1
        assert any(block.first <= first for block in blocks if "four" in block.contents[0].decode())


def test_a_text_corpus_keeps_long_texts_and_leaks_none(tmp_path: Path) -> None:
    long = " ".join(TEXTS[:30])
    path = write(tmp_path, "text.en", [*TEXTS, long, "", TEXTS[3].upper(), TEXTS[5], "{x} <b> {x}"])
    settings = DataConfig(vocabulary_size=350, max_tokens=16)
    files = CorpusFiles("en", "en", text=path, task="lm")
    corpus = prepare_corpus(files, tmp_path / "out", lambda _: settings, quiet)
    train = [target for _, target in stored(corpus.folder, TRAIN)]
    valid = [pair.target for pair in read_table(corpus.folder / VALID_TEXT)]
    assert valid and not {*map(normalize_key, valid)} & {*map(normalize_key, train)}
    assert {source for source, _ in stored(corpus.folder, TRAIN)} == {""}
    assert "{x} <b> {x}" in [*train, *valid]  # no slots
    stores = [CorpusStore.open(corpus.folder / name) for name in (TRAIN, VALID)]
    assert [len(store) for store in stores] == [corpus.training_pairs, corpus.validation_pairs]
    assert max(stores[0].target_lengths) == 17 and corpus.task == "lm"
    tokenizer = Tokenizer.load(corpus.folder / TOKENIZER)
    kept = dict.fromkeys([*TEXTS, long, TEXTS[3].upper(), "{x} <b> {x}"])
    predicted = sum(int(store.target_lengths.sum()) - len(store) for store in stores)
    assert predicted == sum(len(tokenizer.encode(text)) + 1 for text in kept)
    assert f"{len(TEXTS) + 5:,} texts read, {len(kept):,} kept" in corpus.report
    again = prepare_corpus(files, tmp_path / "out", lambda _: settings, quiet)
    assert again.reused


def batch_of(texts: list[list[int]], tmp_path: Path) -> Batch:
    write_store(tmp_path / "store", [([], text) for text in texts], 350)
    store = CorpusStore.open(tmp_path / "store")
    (batch,) = batches(store, 10_000, 0, 0, collate=collate_texts)
    return batch


@pytest.mark.parametrize("width", [32, 36])  # with the kernels, and what they cannot do
@pytest.mark.parametrize("window", [None, 3])
def test_packed_rows_have_the_loss_of_padded_rows_and_of_each_text_alone(
    tokenizer: Tokenizer, tmp_path: Path, width: int, window: int | None
) -> None:
    model = make(small(window, width), tokenizer).model
    texts = [text_pieces(tokenizer.encode(text), 16)[0] for text in (*TEXTS[:5], "a", "")]
    batch = batch_of(texts, tmp_path)
    packed = batch_loss(model, batch, 0.0)
    labels = torch.from_numpy(batch.target_out)
    logits = model(torch.from_numpy(batch.source), torch.from_numpy(batch.target_in))
    padded = functional.cross_entropy(
        logits.flatten(0, 1), labels.flatten(), ignore_index=0, reduction="sum"
    )
    alone = sum(float(batch_loss(model, batch_of([text], tmp_path), 0.0).nll) for text in texts)
    assert packed.tokens == sum(len(text) - 1 for text in texts)
    assert_close(float(packed.nll), float(padded), rtol=1e-5, atol=0)
    assert_close(alone, float(padded), rtol=1e-5, atol=0)


def without_cache(loaded: Loaded, prompt: str, count: int) -> list[int]:
    """The likeliest tokens, each from the whole text before it."""
    ids = [Tokenizer.bos_id, *loaded.tokenizer.encode(prompt)]
    start = len(ids)
    for _ in range(count):
        with torch.no_grad():
            logits = loaded.model(torch.tensor([[3]]), torch.tensor([ids]))[0, -1]
        logits[FORBIDDEN] = -math.inf
        if (symbol := int(logits.argmax())) == Tokenizer.eos_id:
            break
        ids.append(symbol)
    return ids[start:]


@pytest.mark.parametrize("window", [None, 2])
def test_cached_generation_is_that_without_a_cache(
    tokenizer: Tokenizer, window: int | None
) -> None:
    loaded = make(small(window), tokenizer)
    found = Writer(loaded).write(PROMPTS, Wish(max_tokens=20, temperature=0))
    wanted = [without_cache(loaded, prompt, 20) for prompt in PROMPTS]
    assert [texts[0].tokens for texts in found] == wanted
    assert any(len(set(tokens)) > 3 for tokens in wanted)


def test_the_log_prob_of_what_is_drawn_is_the_models_own(tokenizer: Tokenizer) -> None:
    loaded = make(small(), tokenizer)
    for prompt in PROMPTS:
        wish = Wish(max_tokens=12, temperature=2.0, top_k=9, samples=3)
        for writing in Writer(loaded).write([prompt], wish)[0]:
            ends = [Tokenizer.eos_id] if writing.ended == "end" else []
            start = [Tokenizer.bos_id, *tokenizer.encode(prompt)]
            ids = torch.tensor([[*start, *writing.tokens, *ends]])
            with torch.no_grad():
                logits = loaded.model(torch.tensor([[3]]), ids[:, :-1])[0]
            logits[:, FORBIDDEN] = -math.inf
            chosen = logits.log_softmax(1).gather(1, ids[0, 1:, None])[len(start) - 1 :]
            assert_close(writing.log_prob, float(chosen.sum()), rtol=1e-4, atol=1e-4)


def test_texts_depend_on_seed_and_prompt_and_on_nothing_else(tokenizer: Tokenizer) -> None:
    writer = Writer(make(small(), tokenizer))
    wish = Wish(max_tokens=15, samples=3, top_p=0.9)
    together = [[text.tokens for text in texts] for texts in writer.write(PROMPTS, wish)]
    alone = [[text.tokens for text in writer.write([prompt], wish)[0]] for prompt in PROMPTS]
    assert together == alone
    one = [writer.write([prompt], Wish(max_tokens=15, top_p=0.9))[0][0] for prompt in PROMPTS]
    assert [text.tokens for text in one] == [texts[0] for texts in together]
    assert together[0][0] != together[0][1]
    other = writer.write(PROMPTS, Wish(max_tokens=15, samples=3, top_p=0.9, seed=2))
    assert [[text.tokens for text in texts] for texts in other] != together
    greedy = writer.write(PROMPTS, Wish(max_tokens=15, top_k=1))
    likeliest = writer.write(PROMPTS, Wish(max_tokens=15, temperature=0))
    assert [t[0].tokens for t in greedy] == [t[0].tokens for t in likeliest]


def test_a_text_ends_before_a_stop_string_and_grows_to_what_it_is(tokenizer: Tokenizer) -> None:
    writer = Writer(make(small(), tokenizer))
    (whole,) = writer.write(["the"], Wish(max_tokens=30, seed=3))[0]
    assert len(whole.text) > 12
    stop = whole.text[7:10]
    seen: list[str] = []
    (cut,) = writer.write(
        ["the"], Wish(max_tokens=30, seed=3, stop=("no such text", stop)),
        lambda text: seen.append(text.settled),
    )[0]  # fmt: skip
    assert (cut.text, cut.ended) == (whole.text[: whole.text.index(stop)], "stop")
    assert len(cut.tokens) < len(whole.tokens)
    # What is shown at once stays: all but what may yet become a stop string.
    for before in seen[:-1]:
        assert cut.text.startswith(before[: len(before) - unsettled(before, (stop,))])


def test_what_may_begin_a_stop_string_is_not_shown_yet() -> None:
    assert unsettled("one. tw", ("two", ".")) == 2
    assert unsettled("one", ()) == unsettled("one", ("two",)) == 0
    assert unsettled("a\n", ("\n\n", "x")) == 1
    assert unsettled("aab", ("abc", "aabd")) == 3


def test_windows_predict_every_token_once_from_half_a_window_or_more() -> None:
    for length in (2, 3, 9, 10, 11, 40, 57):
        ids = list(range(length))
        for size in (1, 2, 10, 16, 100):
            found = list(windows(ids, size))
            counted = [token for window, n in found for token in window[len(window) - n :]]
            assert counted == ids[1:]
            assert all(len(window) <= size + 1 for window, _ in found)
            for window, n in found[1:]:
                assert len(window) - 1 - n >= min(size // 2, size - 1)


def test_surprise_is_the_sum_over_all_texts_in_any_unit(tokenizer: Tokenizer) -> None:
    loaded = make(small(), tokenizer)
    reader, texts = Reader(loaded), ["the red cat", "a  b", "ö{x}\u2581"]
    found = reader.read(texts)
    nats, tokens = 0.0, 0
    for text in texts:
        escaped = text.replace("\u2581", "\U000f00ff\u2581")
        ids = torch.tensor([[Tokenizer.bos_id, *tokenizer.encode(escaped), Tokenizer.eos_id]])
        with torch.no_grad():
            logits = loaded.model(torch.tensor([[3]]), ids[:, :-1])[0]
        assert ids.shape[1] - 1 <= reader.window
        nats += float(functional.cross_entropy(logits, ids[0, 1:], reduction="sum"))
        tokens += ids.shape[1] - 1
    assert_close(found.nats, nats, rtol=1e-5, atol=0)
    assert (found.tokens, found.words, found.characters) == (tokens, 3 + 2 + 1 + 3, 11 + 4 + 5 + 3)
    parts = reader.read(texts[:1]) + reader.read(texts[1:])
    assert parts.tokens == tokens and math.isclose(parts.nats, found.nats, rel_tol=1e-5)
    record = found.to_json()
    assert math.isclose(record["bits_per_word"] * 9 * math.log(2), found.nats)
    assert f"perplexity {math.exp(found.nats / tokens):,.2f}" in found.render()


def test_a_long_text_is_read_in_windows(tokenizer: Tokenizer) -> None:
    loaded = make(small(), tokenizer)
    text = " ".join(TEXTS[:20])
    ids = [Tokenizer.bos_id, *tokenizer.encode(text), Tokenizer.eos_id]
    nats = 0.0
    for window, counted in windows(ids, 16):
        with torch.no_grad():
            logits = loaded.model(torch.tensor([[3]]), torch.tensor([window[:-1]]))[0, -counted:]
        labels = torch.tensor(window[len(window) - counted :])
        nats += float(functional.cross_entropy(logits, labels, reduction="sum"))
    found = Reader(loaded).read([text])
    assert found.tokens == len(ids) - 1 > 64  # more than there are positions
    assert_close(found.nats, nats, rtol=1e-5, atol=0)


def test_training_stopped_and_resumed_is_uninterrupted(
    tokenizer: Tokenizer, tmp_path: Path
) -> None:
    pieces = [piece for text in TEXTS for piece in text_pieces(tokenizer.encode(text), 16)]
    write_store(tmp_path / "store", [([], piece) for piece in pieces], tokenizer.vocabulary_size)
    store = CorpusStore.open(tmp_path / "store")
    training = TrainingConfig(batch_tokens=80, max_steps=8, validations=2, warmup_steps=2)
    config = small().model_copy(update={"training": training})
    config = config.model_copy(update={"model": config.model.model_copy(update={"dropout": 0.2})})

    def trainer(name: str, stop_at: int | None = None, seed: int = 0) -> Trainer:
        torch.manual_seed(seed)
        model = DecoderOnly(config.model, tokenizer.vocabulary_size)
        made = Trainer(
            config, model, store, tmp_path / name, Ranks(torch.device("cpu")),
            lambda _: {"nll": 1.0}, lambda _: None, lambda: made.state.step == stop_at,
        )  # fmt: skip
        return made

    whole = trainer("whole")
    whole.run()
    with pytest.raises(StopRequestedError):
        trainer("parts", stop_at=3).run()
    second = trainer("parts", seed=99)
    assert second.resume(lambda message: pytest.fail(message))
    second.run()
    ours, theirs = whole.model.state_dict(), second.model.state_dict()
    assert [name for name in ours if not torch.equal(ours[name], theirs[name])] == []
    assert whole.state.tokens == second.state.tokens
