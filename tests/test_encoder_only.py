"""Encoder-only models: their losses, vectors, hidden words and labels."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from dragoman.config import Config, DataConfig, ModelConfig, Parent, TrainingConfig
from dragoman.corpus.batches import batches, pad
from dragoman.corpus.labels import LabelNumbers, find_labels
from dragoman.corpus.prepared import TOKENIZER, TRAIN, VALID
from dragoman.corpus.store import CorpusStore, write_store
from dragoman.corpus.tokenizer import Tokenizer
from dragoman.decoding.encoders import TextEncoder
from dragoman.errors import UserError
from dragoman.evaluation.classification import score_labels
from dragoman.model.assembly import build_model
from dragoman.model.classifier import Classifier
from dragoman.model.description import describe
from dragoman.model.folder import Loaded, save_model
from dragoman.model.stacks import EncoderOnly
from dragoman.model.transformer import Transformer
from dragoman.training.distributed import Ranks
from dragoman.training.feed import make_collate
from dragoman.training.fine_tuning import initial_model, keep_parent, parent_of
from dragoman.training.loss import cross_entropy
from dragoman.training.objective import batch_loss, predictions
from dragoman.training.trainer import StopRequestedError, Trainer

NOUNS = ["cat", "dog", "mat", "house", "tree", "bird"]
TEXTS = [f"The {a} sat on the {b}." for a, b in itertools.product(NOUNS, NOUNS)]
SIZES: dict[str, Any] = {"d_model": 16, "d_ff": 24, "heads": 2, "encoder_layers": 2}
WORDS = Tokenizer.train([*TEXTS, "short", "long"], 340, mask=True)
LABELS = ["long", "short"]


def label_of(text: str) -> str:
    return "short" if "cat" in text else "long"


def make_config(task: str, **training: Any) -> Config:
    settings: dict[str, Any] = {
        "batch_tokens": 120, "max_steps": 8, "validations": 2, "warmup_steps": 2,
        "learning_rate": 0.01, "precision": "float32",
    }  # fmt: skip
    values = {
        "task": task,
        "labels": LABELS if task == "classification" else [],
        "model": ModelConfig(**SIZES, decoder_layers=1, max_positions=64),
        "data": DataConfig(max_tokens=20),
        "training": TrainingConfig(**(settings | training)),
    }
    return Config.model_validate(values)


@pytest.fixture(scope="module")
def corpora(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A folder by task, with its corpus in it."""
    found = {}
    texts = [WORDS.encode(text) for text in TEXTS]
    labels = [WORDS.encode(label_of(text)) for text in TEXTS]
    rows = {
        "mlm": [([], [Tokenizer.bos_id, *ids, Tokenizer.eos_id]) for ids in texts],
        "classification": list(zip(texts, labels, strict=True)),
    }
    for task, pairs in rows.items():
        found[task] = tmp_path_factory.mktemp(task)
        corpus = found[task] / "corpus"
        corpus.mkdir()
        WORDS.save(corpus / TOKENIZER)
        for name in (TRAIN, VALID):
            write_store(corpus / name, pairs, WORDS.vocabulary_size)
    return found


def make_model(task: str, seed: int = 1) -> EncoderOnly:
    torch.manual_seed(seed)
    model = build_model(make_config(task), WORDS.vocabulary_size)
    assert isinstance(model, EncoderOnly)
    return model


def save(folder: Path, task: str) -> Path:
    weights = make_model(task).state_dict()
    save_model(folder, make_config(task), WORDS, dict(weights), "# A model\n")
    return folder


def batches_of(corpora: dict[str, Path], task: str, size: int = 120) -> list[Any]:
    corpus = corpora[task] / "corpus"
    collate = make_collate(make_config(task), corpus)
    return list(batches(CorpusStore.open(corpus / TRAIN), size, 1, 0, collate=collate))


def test_the_loss_of_hidden_words_is_that_of_the_padded_whole(corpora: dict[str, Path]) -> None:
    model = make_model("mlm").eval()
    for batch in batches_of(corpora, "mlm", 400):
        ids, labels = torch.from_numpy(batch.target_in), torch.from_numpy(batch.target_out)
        assert 0 < int((labels > 0).sum()) < int((ids > 0).sum()) / 2
        loss = batch_loss(model, batch, 0.1)
        padded = model.hidden(ids, ids).flatten(0, 1)
        whole = cross_entropy(padded, model.embedding.weight, labels.flatten(), 0.1, 0)
        assert loss.tokens == whole.tokens == batch.target_tokens
        assert_close(loss.smoothed, whole.smoothed)
        gradients = [
            torch.autograd.grad(one.smoothed, list(model.parameters())) for one in (loss, whole)
        ]
        for ours, theirs in zip(*gradients, strict=True):
            assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_the_loss_of_labels_is_the_cross_entropy_of_mean_states(corpora: dict[str, Path]) -> None:
    model = make_model("classification").eval()
    assert isinstance(model, Classifier)
    for batch in batches_of(corpora, "classification"):
        loss = batch_loss(model, batch, 0.1)
        ids = torch.from_numpy(batch.target_in)
        states = model.hidden(ids, ids)
        means = [x[row > 0].mean(dim=0) for x, row in zip(states, ids, strict=True)]
        logits = torch.stack(means) @ model.head.weight.T
        labels = torch.from_numpy(batch.target_out[:, 0]) - 1
        wanted = torch.nn.functional.cross_entropy(
            logits, labels, reduction="sum", label_smoothing=0.1
        )
        assert loss.tokens == len(ids)
        assert_close(loss.smoothed, wanted, rtol=1e-4, atol=1e-4)


def test_predictions_are_the_likeliest_of_every_label(corpora: dict[str, Path]) -> None:
    model = make_model("mlm").eval()
    given = batches_of(corpora, "mlm")
    labels, likeliest = predictions(model, iter(given))
    wanted, places = [], []
    for batch in given:
        ids, out = torch.from_numpy(batch.target_in), torch.from_numpy(batch.target_out)
        wanted.append(model(ids, ids).argmax(dim=2)[out > 0])
        places.append(out[out > 0])
    assert labels.equal(torch.cat(places)) and likeliest.equal(torch.cat(wanted))


@pytest.mark.parametrize("task", ["mlm", "classification"])
def test_interrupted_and_resumed_is_uninterrupted(
    corpora: dict[str, Path], tmp_path: Path, task: str
) -> None:
    config = make_config(task, patience=100)

    def trainer(name: str, seed: int, stop_at: int | None = None) -> Trainer:
        folder = tmp_path / name
        if not folder.exists():
            folder.mkdir()
            (folder / "corpus").symlink_to(corpora[task] / "corpus")
        store = CorpusStore.open(folder / "corpus" / TRAIN)
        made = Trainer(
            config, make_model(task, seed), store, folder, Ranks(torch.device("cpu")),
            lambda model: {"nll": 1.0}, lambda event: None, lambda: made.state.step == stop_at,
        )  # fmt: skip
        return made

    whole = trainer("whole", 1)
    whole.run()
    assert whole.state.epoch > 0
    with pytest.raises(StopRequestedError):
        trainer("parts", 1, stop_at=5).run()
    second = trainer("parts", 9)
    assert second.resume(lambda problem: None)
    second.run()
    ours, theirs = second.model.state_dict(), whole.model.state_dict()
    assert [name for name in ours if not ours[name].equal(theirs[name])] == []


def test_a_vector_does_not_depend_on_its_neighbors(tmp_path: Path) -> None:
    encoder = TextEncoder.load(save(tmp_path / "m", "mlm"), "mlm", device="cpu")
    lines = ["The cat sat.", "", "a much longer line of other words than the others", "mat"]
    together = encoder.embed(lines)
    assert together.shape == (4, 16) and together.dtype == np.float32
    for line, vector in zip(lines, together, strict=True):
        np.testing.assert_allclose(encoder.embed([line])[0], vector, atol=1e-5)
        ids = torch.tensor([[*WORDS.encode(line), Tokenizer.eos_id]])
        mean = encoder.model.eval().hidden(ids, ids)[0].mean(dim=0).detach().numpy()
        if ids.shape[1] <= 21:
            np.testing.assert_allclose(mean, vector, atol=1e-5)


def test_a_long_line_is_read_in_parts_that_count_by_their_tokens() -> None:
    model = make_model("mlm").eval()
    encoder = TextEncoder(Loaded(make_config("mlm"), WORDS, model))
    line = " ".join(["The cat sat on the mat."] * 9)
    ids = WORDS.encode(line)
    parts = [torch.tensor([[*ids[at : at + 20], 3]]) for at in range(0, len(ids), 20)]
    assert len(parts) > 2 and parts[-1].shape[1] < 21
    states = torch.cat([model.hidden(part, part)[0] for part in parts])
    np.testing.assert_allclose(
        encoder.embed([line])[0], states.mean(dim=0).detach().numpy(), atol=1e-5
    )


def test_a_mask_is_filled_with_what_the_model_holds_likeliest() -> None:
    model = make_model("mlm").eval()
    encoder = TextEncoder(Loaded(make_config("mlm"), WORDS, model))
    first, second = encoder.fill("The <mask> sat on the mat<mask>.", best=400)
    the, rest = WORDS.encode("The"), WORDS.encode("sat on the mat")
    mask, dot = WORDS.mask_id, WORDS.encode("mat.")[-1]
    ids = torch.tensor([[*the, mask, *rest, mask, dot, Tokenizer.eos_id]])
    probabilities = model(ids, ids)[0].detach().softmax(dim=1)
    place = len(the)
    for found, at, space in ((first, place, "▁"), (second, place + 1 + len(rest), "")):
        expected = {
            WORDS.pieces([number])[0]: float(probabilities[at, number])
            for number in range(max(WORDS.byte_ids) + 1, WORDS.vocabulary_size)
        }
        own = {f"{space}{filling.word}": filling.probability for filling in found}
        wanted = {
            piece: value for piece, value in expected.items()
            if piece.startswith("▁") == bool(space) and piece != "▁"
        }  # fmt: skip
        assert own == pytest.approx(wanted, abs=1e-6)
        assert [f.probability for f in found] == sorted(own.values(), reverse=True)
    assert len(encoder.fill("<mask>", best=3)[0]) == 3


@pytest.mark.parametrize(
    ("text", "message"), [("no gap", "no <mask>"), ("<mask>" + " cat" * 70, "the model reads 63")]
)
def test_what_cannot_be_filled_is_refused(text: str, message: str) -> None:
    encoder = TextEncoder(Loaded(make_config("mlm"), WORDS, make_model("mlm").eval()))
    with pytest.raises(UserError, match=message):
        encoder.fill(text)


def test_classification_gives_probabilities_of_the_labels() -> None:
    model = make_model("classification").eval()
    assert isinstance(model, Classifier)
    encoder = TextEncoder(Loaded(make_config("classification"), WORDS, model))
    found = encoder.classify(["The cat sat.", "mat"])
    ids = torch.tensor([[*WORDS.encode("The cat sat."), Tokenizer.eos_id]])
    wanted = model.label_logits(ids).softmax(dim=1)[0]
    assert found[0].tolist() == pytest.approx(wanted.tolist(), abs=1e-6)
    np.testing.assert_allclose(found.sum(axis=1), 1.0, atol=1e-6)


@pytest.mark.parametrize("task", ["translation", "classification"])
def test_an_encoder_begins_as_that_of_a_masked_language_model(tmp_path: Path, task: str) -> None:
    parent = describe(save(tmp_path / "mlm", "mlm"))
    keep_parent(parent, tmp_path / "parent")
    config = make_config(task).model_copy(update={"parent": parent_of(parent)})
    model = initial_model(config, WORDS.vocabulary_size, tmp_path / "parent").eval()
    texts = [[*WORDS.encode(text), Tokenizer.eos_id] for text in ("The cat sat.", "mat")]
    ids = torch.from_numpy(pad([np.array(ids) for ids in texts])[0])
    states = make_model("mlm").eval().hidden(ids, ids)
    found = model.encode(ids) if isinstance(model, Transformer) else model.hidden(ids, ids)
    assert_close(found[ids > 0], states[ids > 0])
    fresh = build_model(config.model_copy(update={"parent": Parent()}), WORDS.vocabulary_size)
    assert fresh.state_dict().keys() == model.state_dict().keys()


def test_scores_of_labels_by_hand() -> None:
    # a: TP 1, FP 1, FN 1 -> 1/2; b: TP 2, FP 1, FN 0 -> 4/5; c: TP 0, FN 1 -> 0
    scores = score_labels(["a", "a", "b", "b", "b"], ["a", "b", "b", "b", "c"])
    assert scores.f1 == {"a": pytest.approx(2 / 3), "b": pytest.approx(2 / 3), "c": 0}
    assert scores.accuracy == 3 / 5 and scores.majority == 3 / 5
    assert scores.macro_f1 == pytest.approx(4 / 9)
    # A label that is only said counts too; all right is 1.
    assert score_labels(["x", "y"], ["x", "x"]).macro_f1 == pytest.approx((2 / 3 + 0) / 2)
    assert score_labels([1, 2, 2], [1, 2, 2]).macro_f1 == 1.0


def test_labels_are_found_and_numbered(corpora: dict[str, Path]) -> None:
    corpus = corpora["classification"] / "corpus"
    assert find_labels(corpus) == LABELS
    (batch,) = batches_of(corpora, "classification", 10_000)
    texts = [WORDS.decode(ids) for ids in batch.target_in.tolist()]
    assert texts == [TEXTS[row] for row in batch.rows]
    labels = [LABELS[number - 1] for number in batch.target_out[:, 0].tolist()]
    assert labels == [label_of(text) for text in texts]
    store = CorpusStore.open(corpus / TRAIN)
    with pytest.raises(UserError, match="do not know"):
        LabelNumbers(["short"], WORDS).collate(store, np.arange(len(store)), 0)


def test_one_label_is_no_classification(tmp_path: Path) -> None:
    WORDS.save(tmp_path / TOKENIZER)
    pairs = [(WORDS.encode(text), WORDS.encode("short")) for text in TEXTS]
    for name in (TRAIN, VALID):
        write_store(tmp_path / name, pairs, WORDS.vocabulary_size)
    with pytest.raises(UserError, match="1 different label"):
        find_labels(tmp_path)


def test_masks_of_validation_are_always_the_same(corpora: dict[str, Path]) -> None:
    config = make_config("mlm")
    one, other = (make_collate(config, corpora["mlm"] / "corpus") for _ in range(2))
    store = CorpusStore.open(corpora["mlm"] / "corpus" / VALID)
    rows = np.arange(len(store))
    assert (one(store, rows, 0).target_in == other(store, rows, 0).target_in).all()
