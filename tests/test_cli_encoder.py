"""train --task mlm and classification, --init-encoder-from, fill, embed, classify: end to end."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from conftest import Outcome

from dragoman.config import read_config
from dragoman.corpus.store import CorpusStore
from dragoman.corpus.tokenizer import Tokenizer
from dragoman.model.description import file_digest
from dragoman.training.progress import read_log

Dragoman = Callable[..., Outcome]
SIZES = ("d_model=16", "d_ff=16", "heads=2", "encoder_layers=1", "decoder_layers=1")
SMALL = [f"--set=model.{size}" for size in SIZES]
QUICK = ["--set=training.precision=float32", "--set=training.validations=1", "--budget=2-steps"]
VOCABULARY = "--set=data.vocabulary_size=400"
LINES = ["the red cat sees the old dog", "", "the dog", "a {name} of <b>no</b> kind"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("encoders")


@pytest.fixture
def masked(folder: Path, corpus: Path, dragoman: Dragoman) -> Path:
    """A masked language model of a vocabulary for both languages; trained once."""
    if not (out := folder / "mlm").exists():
        text = corpus / "both.txt"
        both = [(corpus / f"train.{code}").read_text("utf-8") for code in ("en", "de")]
        text.write_text("".join(both), "utf-8")
        train = ["train", "--task", "mlm", "--text", text, "--out", out]
        found = dragoman(*train, *SMALL, VOCABULARY, *QUICK)
        assert found.status == 0, found.err
        assert "training a masked language model" in found.err and "hidden tokens" in found.err
    return out


@pytest.fixture
def classifier(folder: Path, corpus: Path, masked: Path, dragoman: Dragoman) -> Path:
    """A classifier that began as the masked language model; trained once."""
    table = corpus / "labeled.tsv"
    if not (out := folder / "classifier").exists():
        texts = (corpus / "train.en").read_text("utf-8").splitlines()
        rows = [f"{text}\t{'with cat' if 'cat' in text else 'without'}\n" for text in texts]
        table.write_text("".join(rows), "utf-8")
        train = ["train", "--task", "classification", "--data", table, "--out", out]
        found = dragoman(*train, "--init-from", masked, *QUICK)
        assert found.status == 0, found.err
        assert "vocabulary coverage: source" in found.err and "target 0" not in found.err
    return out


def test_a_masked_language_model_is_a_model_folder(masked: Path, dragoman: Dragoman) -> None:
    tokenizer, config = Tokenizer.load(masked / "tokenizer.model"), read_config(
        masked / "config.toml"
    )  # fmt: skip
    assert tokenizer.mask_id is not None and config.task == "mlm"
    assert config.training.label_smoothing == 0.0
    (event,) = (e for e in read_log(masked / "training/log.jsonl") if e["event"] == "validation")
    assert 0 <= event["accuracy"] <= 100 and event["perplexity"] > 1
    assert "<mask>" in (masked / "README.md").read_text("utf-8")
    found = dragoman("info", masked)
    assert found.status == 0 and "masked language model" in found.out.decode()


def test_fill_prints_words_and_json(masked: Path, dragoman: Dragoman) -> None:
    text = "the <mask> dog <mask>"
    found = dragoman("fill", "--model", masked, "--best", "3", text)
    rows = [line.split("\t") for line in found.lines]
    assert [row[0] for row in rows] == ["1"] * 3 + ["2"] * 3
    record = json.loads(dragoman("fill", "--model", masked, "--best", "3", "--json", text).out)
    every = [filling for mask in record["masks"] for filling in mask]
    assert [row[2] for row in rows] == [filling["word"] for filling in every]
    assert [float(row[1]) for row in rows] == pytest.approx(
        [filling["probability"] for filling in every], abs=6e-5
    )
    wrong = dragoman("fill", "--model", masked, "nothing hidden")
    assert wrong.status == 2 and wrong.err.startswith("error: no <mask> in the text\nhint:")


def test_embed_gives_a_vector_a_line_in_either_form(
    masked: Path, classifier: Path, tmp_path: Path, dragoman: Dragoman
) -> None:
    text = "".join(f"{line}\n" for line in LINES)
    (tmp_path / "lines.txt").write_text(text, "utf-8")
    printed = dragoman("embed", "--model", masked, stdin=text.encode())
    vectors = np.array([json.loads(line) for line in printed.lines])
    assert vectors.shape == (len(LINES), 16)
    out = tmp_path / "vectors.npy"
    found = dragoman("embed", "--model", masked, tmp_path / "lines.txt", "--out", out)
    assert (found.status, found.out) == (0, b"")
    saved = np.load(out, allow_pickle=False)
    assert saved.dtype == np.float32
    np.testing.assert_allclose(saved, vectors, rtol=1e-5, atol=1e-6)
    assert dragoman("embed", "--model", classifier, stdin=b"a\n").status == 0
    nothing = dragoman("embed", "--model", masked, "--out", out)
    assert nothing.status == 0 and np.load(out).shape == (0, 16)


def test_vectors_of_many_windows_are_one_array(
    masked: Path, tmp_path: Path, dragoman: Dragoman, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dragoman.cli.embed._WINDOW", 2)
    text = "".join(f"the dog {'sees ' * number}\n" for number in range(5)).encode()
    out = tmp_path / "vectors.npy"
    assert dragoman("embed", "--model", masked, "--out", out, stdin=text).status == 0
    printed = [json.loads(line) for line in dragoman("embed", "--model", masked, stdin=text).lines]
    np.testing.assert_allclose(np.load(out), printed, rtol=1e-5, atol=1e-6)


def test_a_file_that_is_read_is_not_written_over(
    masked: Path, tmp_path: Path, dragoman: Dragoman
) -> None:
    path = tmp_path / "lines.txt"
    path.write_text("a\n")
    found = dragoman("embed", "--model", masked, path, "--out", path)
    assert found.status == 2 and path.read_text() == "a\n"


def test_a_classifier_tells_and_measures_labels(
    classifier: Path, corpus: Path, dragoman: Dragoman
) -> None:
    config = read_config(classifier / "config.toml")
    assert config.labels == ["with cat", "without"]
    assert config.training.batch_tokens == 500
    texts = (corpus / "train.en").read_bytes()
    found = dragoman("classify", "--model", classifier, stdin=texts)
    told = [line.split("\t") for line in found.lines]
    assert len(told) == texts.count(b"\n") and {label for label, _ in told} <= {*config.labels}
    as_json = dragoman("classify", "--model", classifier, "--json", stdin=texts)
    for (label, probability), line in zip(told, as_json.lines, strict=True):
        record = json.loads(line)
        assert record["label"] == label and [*record["probabilities"]] == config.labels
        assert record["probabilities"][label] == pytest.approx(float(probability), abs=6e-5)
    table = corpus / "labeled.tsv"
    measured = dragoman("classify", "--model", classifier, "--data", table)
    true = [line.split("\t")[1] for line in table.read_text("utf-8").splitlines()]
    accuracy = sum(label == t for (label, _), t in zip(told, true, strict=True)) / len(true)
    assert measured.lines == found.lines and f"accuracy {accuracy:.1%}" in measured.err
    card = (classifier / "README.md").read_text("utf-8")
    assert "macro-F1" in card and "- without: F1" in card


def test_labels_of_new_data_must_be_known_to_a_classifier_that_goes_on(
    classifier: Path, corpus: Path, tmp_path: Path, dragoman: Dragoman
) -> None:
    table = tmp_path / "new.tsv"
    rows = (corpus / "labeled.tsv").read_text("utf-8").splitlines()
    table.write_text("".join(f"{row}\n" for row in rows), "utf-8")
    train = ["train", "--init-from", classifier, "--data", table, *QUICK]
    assert dragoman(*train, "--out", tmp_path / "on").status == 0
    table.write_text("".join(f"{row}s\n" for row in rows), "utf-8")
    found = dragoman(*train, "--out", tmp_path / "off")
    assert found.status == 2 and "which the classifier to begin with does not know" in found.err


def test_a_translation_model_begins_with_the_encoder(
    masked: Path, corpus: Path, tmp_path: Path, dragoman: Dragoman
) -> None:
    out = tmp_path / "translation"
    sides = ["--source", corpus / "train.en", "--target", corpus / "train.de"]
    train = ["train", *sides, "--init-encoder-from", masked]
    found = dragoman(*train, "--out", out, "--set=model.decoder_layers=2", *QUICK)
    assert found.status == 0, found.err
    assert "vocabulary coverage: source" in found.err and "; target" in found.err
    config, own = read_config(out / "config.toml"), read_config(masked / "config.toml")
    assert (config.task, config.model.decoder_layers) == ("translation", 2)
    assert config.training.learning_rate == 3e-3  # of its preset, tiny, not a tenth
    assert config.model.encoder_layers == own.model.encoder_layers
    assert config.parent.weights == file_digest(masked / "model.safetensors")
    assert file_digest(out / "tokenizer.model") == file_digest(masked / "tokenizer.model")
    assert dragoman("translate", "--model", out, "--text", "the dog").status == 0
    store = CorpusStore.open(out / "training/corpus/train.arrow")
    assert store.source_lengths.min() > 0 and store.target_lengths.min() > 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--set=model.d_model=32"], "model.d_model = 32, but the model to begin with has 16"),
        (["--set=model.encoder_layers=2"], "model.encoder_layers = 2, but"),
        (["--set=training.lora_rank=2"], "adapters go on with a model of the same task"),
        (["--preset=medium"], "the model to begin with has the preset tiny"),
        (["--tokenizer=x"], "brings its tokenizer"),
        (["--init-from=x"], "--init-from brings an encoder"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_what_does_not_fit_the_encoder_is_one_error(
    masked: Path,
    corpus: Path,
    tmp_path: Path,
    dragoman: Dragoman,
    options: list[str],
    message: str,
) -> None:
    sides = ["--source", corpus / "train.en", "--target", corpus / "train.de"]
    train = ["train", *sides, "--init-encoder-from", masked, "--out", tmp_path / "new"]
    found = dragoman(*train, *options)
    assert found.status == 2 and message in found.err and found.err.count("error:") == 1
    assert not (tmp_path / "new").exists()


def test_other_models_are_refused(
    masked: Path, model: Path, corpus: Path, tmp_path: Path, dragoman: Dragoman
) -> None:
    for command in (["fill", "<mask>"], ["embed"], ["classify"]):
        found = dragoman(command[0], "--model", model, *command[1:])
        assert found.status == 2 and "is a translation model, not" in found.err
    sides = ["--source", corpus / "train.en", "--target", corpus / "train.de"]
    found = dragoman("train", *sides, "--init-encoder-from", model, "--out", tmp_path / "new")
    assert found.status == 2 and "is a translation model, not a masked" in found.err
    found = dragoman("translate", "--model", masked, "--text", "a")
    assert found.status == 2 and "is a masked language model, not" in found.err
