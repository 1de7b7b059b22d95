"""A model folder: the same outputs after saving and loading; every kind of damage has its error."""

import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load, save_file
from torch import Tensor

from dragoman.config import (
    Checksums,
    Config,
    ModelConfig,
    TrainingConfig,
    config_to_toml,
    read_config,
)
from dragoman.corpus.tokenizer import Tokenizer
from dragoman.decoding.native import NativeEngine
from dragoman.decoding.scorer import Scorer
from dragoman.decoding.translator import Translator
from dragoman.errors import UserError
from dragoman.model.folder import LoadedModel, load_model, save_model
from dragoman.model.transformer import Transformer

TEXTS = ["keso bara mili {name} topi", "naru keso\nlita % 12", "\u4f60\u597d bara"] * 20
LINES = ["keso bara", "mili {name}", "12 \u4f60\u597d", "naru  topi \u0e01"]


def make_tokenizer(vocabulary_size: int) -> Tokenizer:
    return Tokenizer.train(TEXTS, vocabulary_size)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, LoadedModel]:
    torch.manual_seed(1)
    sizes: dict[str, Any] = {"d_model": 16, "d_ff": 24, "heads": 2, "max_positions": 40}
    model_config = ModelConfig(**sizes, encoder_layers=1, decoder_layers=2, positions="learned")
    training = TrainingConfig(adam_epsilon=1e-9, budget_seconds=12.5)
    config = Config(source_language="en", model=model_config, training=training)
    tokenizer = make_tokenizer(310)
    model = Transformer(config.model, tokenizer.vocabulary_size).eval()
    folder = tmp_path_factory.mktemp("saved") / "models" / "en-de"
    save_model(folder, config, tokenizer, model.state_dict(), "# Card \u00e9\n")
    return folder, LoadedModel(config, tokenizer, model)


@pytest.fixture
def folder(saved: tuple[Path, LoadedModel], tmp_path: Path) -> Path:
    """A copy to damage, without its checksums, so that every other check is tried."""
    copy = Path(shutil.copytree(saved[0], tmp_path / "model"))
    config = read_config(copy / "config.toml").model_copy(update={"checksums": Checksums()})
    (copy / "config.toml").write_text(config_to_toml(config), "utf-8")
    return copy


def test_what_fits_but_is_not_what_was_saved_is_refused(
    saved: tuple[Path, LoadedModel], tmp_path: Path
) -> None:
    copy = Path(shutil.copytree(saved[0], tmp_path / "model"))
    weights = copy / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1  # the sign or a digit of one weight
    weights.write_bytes(content)
    assert "model.safetensors" in refused(copy).message
    shutil.copy(saved[0] / "model.safetensors", weights)
    Tokenizer.train([text[::-1] for text in TEXTS], 310).save(copy / "tokenizer.model")
    assert "tokenizer.model: damaged, changed, or of another model" in refused(copy).message
    shutil.copy(saved[0] / "tokenizer.model", copy)
    settings = copy / "config.toml"
    settings.write_text(settings.read_text("utf-8").replace("heads = 2", "heads = 4"), "utf-8")
    assert "its section [model] was changed" in refused(copy).message


def test_save_and_load_gives_the_same_outputs(saved: tuple[Path, LoadedModel]) -> None:
    path, before = saved
    after = load_model(path)
    assert after.config == read_config(path / "config.toml")
    assert after.config.checksums != Checksums()
    assert after.config.model_copy(update={"checksums": Checksums()}) == before.config
    assert after.tokenizer.to_bytes() == before.tokenizer.to_bytes()
    assert not after.model.training
    for name, weight in before.model.state_dict().items():
        assert torch.equal(weight, after.model.state_dict()[name])
    ids = torch.randint(4, 300, (3, 7))
    assert torch.equal(before.model(ids, ids), after.model(ids, ids))
    expected = Translator(NativeEngine(before)).translate(LINES, n_best=2)
    assert Translator(NativeEngine(after)).translate(LINES, n_best=2) == expected
    native = Translator.load(path, "cpu", engine="native")
    assert native.translate(LINES, n_best=2) == expected
    scores = Scorer(before).score(LINES, LINES)
    assert Scorer.load(str(path), "cpu").score(LINES, LINES) == scores


def test_the_folder_holds_what_it_should_and_no_pickle(saved: tuple[Path, LoadedModel]) -> None:
    names = sorted(path.name for path in saved[0].iterdir())
    assert names == ["README.md", "config.toml", "model.safetensors", "tokenizer.model"]
    assert (saved[0] / "README.md").read_text("utf-8") == "# Card \u00e9\n"


def test_saving_over_a_model_replaces_it(folder: Path, saved: tuple[Path, LoadedModel]) -> None:
    loaded = saved[1]
    weights = {name: weight + 1 for name, weight in loaded.model.state_dict().items()}
    save_model(folder, loaded.config, loaded.tokenizer, weights, "")
    found = load_model(folder).model.state_dict()
    assert all(torch.equal(found[name], weight) for name, weight in weights.items())


def refused(folder: Path) -> UserError:
    with pytest.raises(UserError) as caught:
        load_model(folder)
    assert str(folder) in caught.value.message
    assert "\n" not in caught.value.message
    return caught.value


@pytest.mark.parametrize("name", ["model.safetensors", "config.toml", "tokenizer.model"])
def test_a_missing_file_is_named(folder: Path, name: str) -> None:
    (folder / name).unlink()
    error = refused(folder)
    assert f"{name} missing" in error.message and "dragoman train" in error.hint


def test_a_folder_that_is_none(tmp_path: Path) -> None:
    assert "no such folder" in refused(tmp_path / "nothing").message
    file = tmp_path / "file"
    file.write_text("", "utf-8")
    assert "is a file, not a folder" in refused(file).message
    assert "missing" in refused(tmp_path).message


def truncate_to(share: float) -> Callable[[Path], None]:
    def cut(path: Path) -> None:
        content = path.read_bytes()
        path.write_bytes(content[: int(len(content) * share)])

    return cut


def huge_header(path: Path) -> None:
    path.write_bytes(struct.pack("<Q", 2**60) + path.read_bytes()[8:])


def pickled(path: Path) -> None:
    torch.save(load(path.read_bytes()), path)


DAMAGED_WEIGHTS = {
    "empty": truncate_to(0.0),
    "a few bytes": lambda path: path.write_bytes(path.read_bytes()[:20]),
    "half": truncate_to(0.5),
    "all but the end": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "a byte too many": lambda path: path.write_bytes(path.read_bytes() + b"\0"),
    "text": lambda path: path.write_text("version https://git-lfs.example/spec/v1\n", "utf-8"),
    "pickle": pickled,
    "huge header": huge_header,
}


@pytest.mark.parametrize("damage", DAMAGED_WEIGHTS.values(), ids=DAMAGED_WEIGHTS)
def test_damaged_weights(folder: Path, damage: Callable[[Path], Any]) -> None:
    damage(folder / "model.safetensors")
    error = refused(folder)
    assert "damaged or no safetensors file" in error.message


def tampered(folder: Path, change: Callable[[dict[str, Tensor]], Any]) -> UserError:
    weights = load((folder / "model.safetensors").read_bytes())
    change(weights)
    save_file(weights, folder / "model.safetensors")
    return refused(folder)


def test_wrong_weights_are_all_named(folder: Path) -> None:
    def change(weights: dict[str, Tensor]) -> None:
        name = "decoder.1.feed_forward.inner.weight"
        weights[name] = weights[name].T.contiguous()
        del weights["encoder.0.self_attention.in_projection.weight"]
        weights["decoder.7.extra"] = torch.ones(2)

    message = tampered(folder, change).message
    assert "decoder.1.feed_forward.inner.weight is (16, 24), not (24, 16)" in message
    assert "encoder.0.self_attention.in_projection.weight is missing" in message
    assert "decoder.7.extra is unknown" in message


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_weights_that_are_no_finite_numbers(folder: Path, value: float) -> None:
    def change(weights: dict[str, Tensor]) -> None:
        weights["embedding.weight"][5, 3] = value

    assert "not finite" in tampered(folder, change).message


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.complex64])
def test_weights_that_are_no_real_numbers(folder: Path, dtype: torch.dtype) -> None:
    def change(weights: dict[str, Tensor]) -> None:
        weights["embedding.weight"] = weights["embedding.weight"].to(dtype)

    assert "embedding.weight" in tampered(folder, change).message


def test_another_tokenizer(folder: Path) -> None:
    make_tokenizer(302).save(folder / "tokenizer.model")
    error = refused(folder)
    assert "embedding.weight is (310, 16), not (302, 16)" in error.message
    assert "tokenizer.model" in error.hint


@pytest.mark.parametrize("content", [b"", b"\x0a", b"nonsense", b"\x80\x02}q\x00."])
def test_a_damaged_tokenizer(folder: Path, content: bytes) -> None:
    (folder / "tokenizer.model").write_bytes(content)
    assert "tokenizer.model" in refused(folder).message


DAMAGED_SETTINGS = {
    "typo": (b"d_model", b"d_modle", "d_modle"),
    "no TOML": (b"[model]", b"[model", "not valid TOML"),
    "no UTF-8": (b"small", b"sm\xff", "cannot be read"),
    "out of range": (b"heads = 2", b"heads = 0", "model.heads"),
    "wrong type": (b"heads = 2", b"heads = 'two'", "model.heads"),
    "other sizes": (b"d_ff = 24", b"d_ff = 32", "feed_forward.inner.weight is (24, 16)"),
    "other depth": (b"decoder_layers = 2", b"decoder_layers = 1", "decoder.1"),
    "other kind": (b'"learned"', b'"sinusoidal"', "embedding.positions is unknown"),
}


@pytest.mark.parametrize("damage", DAMAGED_SETTINGS.values(), ids=DAMAGED_SETTINGS)
def test_damaged_settings(folder: Path, damage: tuple[bytes, bytes, str]) -> None:
    before, after, said = damage
    path = folder / "config.toml"
    content = path.read_bytes()
    assert content.count(before) == 1
    path.write_bytes(content.replace(before, after))
    error = refused(folder)
    assert said in error.message and error.message.startswith(str(folder))


def test_a_typo_in_the_settings_has_its_hint(folder: Path) -> None:
    path = folder / "config.toml"
    path.write_bytes(path.read_bytes().replace(b"d_model", b"d_modle"))
    assert "model.d_model" in refused(folder).hint


def test_settings_of_a_giant_are_refused_before_its_memory_is_taken(folder: Path) -> None:
    path = folder / "config.toml"
    content = path.read_bytes().replace(b"d_model = 16", b"d_model = 16384")
    content = content.replace(b"decoder_layers = 2", b"decoder_layers = 256")
    path.write_bytes(content.replace(b"d_ff = 24", b"d_ff = 65536"))  # terabytes
    message = refused(folder).message
    assert "embedding.weight is (310, 16), not (310, 16384)" in message
    assert len(message) < 3000
