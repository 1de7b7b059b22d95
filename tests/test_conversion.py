"""The converted forms of a model: the same log-probabilities, made once, refused when wrong."""

import json
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from dragoman.config import Config, ModelConfig
from dragoman.corpus.tokenizer import Tokenizer
from dragoman.decoding import conversion, converted
from dragoman.decoding.conversion import differences, write_ctranslate2
from dragoman.decoding.converted import Quality, find_form, make_form, refusal
from dragoman.decoding.fast import CTranslate2Engine
from dragoman.decoding.loading import EngineChoice, FastEngine, open_engine
from dragoman.decoding.native import NativeEngine
from dragoman.errors import UserError
from dragoman.model.description import describe
from dragoman.model.folder import LoadedModel, load_model, save_model
from dragoman.model.transformer import Transformer

SIZES: dict[str, dict[str, Any]] = {
    "pre, sinusoidal": {},
    "post, learned": {"norm": "post", "positions": "learned"},
    "narrow heads": {"d_k": 8, "d_v": 8, "heads": 2},
    "gated": {"feed_forward": "gated"},
    "one head, unequal stacks": {"heads": 1, "encoder_layers": 3, "decoder_layers": 1},
}


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    # Tabs, line breaks and odd spaces are subwords too: none may trip over a vocabulary file.
    return Tokenizer.train(["ba ke\tmi\nno\u00a0tu\u3000ra so li"] * 20, 340)


def make_model(tokenizer: Tokenizer, **changes: Any) -> LoadedModel:
    sizes: dict[str, Any] = {"d_model": 32, "d_ff": 48, "heads": 4, "max_positions": 40}
    stacks = {"encoder_layers": 2, "decoder_layers": 2}
    config = Config(model=ModelConfig(**(sizes | stacks | changes)))
    torch.manual_seed(1)
    model = Transformer(config.model, tokenizer.vocabulary_size).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name or "bias" in name:
                parameter.add_(0.3 * torch.randn_like(parameter))
    return LoadedModel(config, tokenizer, model)


@pytest.fixture
def folder(tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DRAGOMAN_CACHE", str(tmp_path / "cache"))
    loaded = make_model(tokenizer)
    save_model(tmp_path / "model", loaded.config, tokenizer, loaded.model.state_dict(), "card")
    return tmp_path / "model"


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_float32_has_the_same_log_probabilities(
    tokenizer: Tokenizer, sizes: dict[str, Any], tmp_path: Path
) -> None:
    loaded = make_model(tokenizer, **sizes)
    before = {name: tensor.clone() for name, tensor in loaded.model.state_dict().items()}
    write_ctranslate2(loaded, tmp_path, "float32")
    engine = CTranslate2Engine(loaded.config, tokenizer, tmp_path, "float32", threads=1)
    largest, mean = differences(loaded, engine)
    assert largest < 1e-4 and mean < 1e-5
    write_ctranslate2(loaded, tmp_path, "int8")
    for name, tensor in loaded.model.state_dict().items():
        assert torch.equal(tensor, before[name])  # quantizing changes no weight of the model


def test_int8_is_near(tokenizer: Tokenizer, tmp_path: Path) -> None:
    loaded = make_model(tokenizer)
    write_ctranslate2(loaded, tmp_path, "int8")
    engine = CTranslate2Engine(loaded.config, tokenizer, tmp_path, "int8", threads=1)
    assert 0 < differences(loaded, engine)[1] < 0.25


def test_a_symbol_that_no_translation_holds_is_never_found(
    tokenizer: Tokenizer, tmp_path: Path
) -> None:
    loaded = make_model(tokenizer)
    with torch.no_grad():  # unknown, begin and padding would be the likeliest
        loaded.model.decoder_norm.bias[0] = 20.0
        loaded.model.embedding.weight[[0, 1, 2], 0] = 5.0
    write_ctranslate2(loaded, tmp_path, "float32")
    engine = CTranslate2Engine(loaded.config, tokenizer, tmp_path, "float32", threads=1)
    assert differences(loaded, engine)[0] < 1e-3
    from dragoman.decoding.engine import Request

    for found in engine.search([[10, 11], [12]], Request(loaded.config.search)):
        for hypothesis in found:
            assert not {0, 1, 2} & set(hypothesis.tokens)


def test_different_key_and_value_widths_are_refused(tokenizer: Tokenizer, tmp_path: Path) -> None:
    loaded = make_model(tokenizer, d_k=8, d_v=4)
    assert refusal(loaded.config.model) == "d_k is 8 and d_v is 4"
    save_model(tmp_path, loaded.config, tokenizer, loaded.model.state_dict(), "")
    with pytest.raises(UserError, match="d_k is 8 and d_v is 4"):
        open_engine(tmp_path, EngineChoice("ctranslate2", "cpu"))
    said: list[str] = []
    engine = open_engine(tmp_path, EngineChoice(device="cpu"), said.append)
    assert isinstance(engine, NativeEngine)
    assert said == ["the native engine is used: d_k is 8 and d_v is 4"]
    open_engine(tmp_path, EngineChoice("native", "cpu"), said.append)
    assert len(said) == 1
    assert not (tmp_path / "ct2").exists()


def test_a_form_is_made_once_and_found_again(folder: Path) -> None:
    said: list[str] = []
    choice = EngineChoice(device="cpu", threads=1)
    assert isinstance(open_engine(folder, choice, said.append), FastEngine)
    assert said == ["converting the model for the fast engine (int8), once"]
    record = json.loads((folder / "ct2/int8/dragoman.json").read_text())
    assert record["refused"] is None and record["identity"]["precision"] == "int8"
    assert isinstance(open_engine(folder, choice, said.append), FastEngine)
    assert len(said) == 1
    assert [path.name for path in (folder / "ct2").iterdir() if path.name != ".lock"] == ["int8"]


def test_starting_with_a_form_loads_no_torch(folder: Path) -> None:
    make_form(describe(folder), "int8")
    program = (
        "import sys\n"
        "from dragoman.decoding.translator import Translator\n"
        "Translator.load(sys.argv[1], 'cpu').translate(['ba ke'])\n"
        "sys.exit('torch' in sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", program, str(folder)], check=True)


@pytest.mark.parametrize("damage", ["weights", "cut", "record", "file", "leftovers"])
def test_a_stale_or_damaged_form_is_made_anew(
    folder: Path, tokenizer: Tokenizer, damage: str
) -> None:
    make_form(describe(folder), "int8")
    form = folder / "ct2" / "int8"
    if damage == "weights":  # another model in the same folder
        other = make_model(tokenizer, norm="post")
        save_model(folder, other.config, tokenizer, other.model.state_dict(), "card")
    elif damage == "cut":
        (form / "model.bin").write_bytes((form / "model.bin").read_bytes()[:1000])
    elif damage == "record":
        (form / "dragoman.json").write_text('{"identity": [1], "files": 3}')
    elif damage == "file":
        (form / "shared_vocabulary.json").unlink()
    else:
        shutil.move(form, folder / "ct2" / ".int8-killed")
    description = describe(folder)
    assert find_form(description, "int8") is None
    engine = open_engine(folder, EngineChoice(device="cpu", threads=1))
    assert isinstance(engine, FastEngine)
    assert differences(load_model(folder), engine.fast)[1] < 0.25
    assert find_form(description, "int8") is not None
    assert not (folder / "ct2" / ".int8-killed").exists()


def test_a_mismatch_refuses_the_fast_engine(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversion, "LAYER_NORM_EPSILON", 100.0)  # what a wrong conversion is like
    said: list[str] = []
    engine = open_engine(folder, EngineChoice(device="cpu", threads=1), said.append)
    assert isinstance(engine, NativeEngine)
    assert "int8 is refused: its log-probabilities differ" in said[-1]
    assert "float32 is refused: its log-probabilities differ" in said[-1]
    assert not (folder / "ct2/int8/model.bin").exists()
    # Told again without converting again; whoever insists gets an error.
    again: list[str] = []
    open_engine(folder, EngineChoice(device="cpu"), again.append)
    assert not any("converting" in line for line in again)
    with pytest.raises(UserError, match="float32 is refused"):
        open_engine(folder, EngineChoice("ctranslate2", "cpu"))
    with pytest.raises(UserError, match="int8 is refused"):
        open_engine(folder, EngineChoice(device="cpu", precision="int8"))


@pytest.mark.parametrize(("lost", "refused"), [(0.2, False), (-1.0, False), (0.4, True)])
def test_int8_may_lose_so_much_bleu(folder: Path, lost: float, refused: bool) -> None:
    description = describe(folder)
    _, form = make_form(description, "int8", quality=Quality(30.0, lambda engine: 30.0 - lost))
    wanted = "it would lose 0.40 BLEU on the validation text" if refused else None
    assert form.refused == wanted
    assert form.native_bleu == 30.0 and form.bleu == pytest.approx(30.0 - lost)
    engine = open_engine(folder, EngineChoice(device="cpu", threads=1))
    assert isinstance(engine, FastEngine)
    assert engine.fast.precision == ("float32" if refused else "int8")


def test_a_folder_that_cannot_be_written(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The form goes to the cache; where that cannot be written either, the native engine works."""

    def refuse(*arguments: Any, **options: Any) -> str:
        if Path(options["dir"]).is_relative_to(folder) or hopeless:
            raise PermissionError(13, "Permission denied")
        return made(*arguments, **options)

    made = converted.tempfile.mkdtemp
    monkeypatch.setattr(converted.tempfile, "mkdtemp", refuse)
    hopeless = True
    said: list[str] = []
    engine = open_engine(folder, EngineChoice(device="cpu", threads=1), said.append)
    assert isinstance(engine, NativeEngine)
    assert "Permission denied" in said[-1]
    hopeless = False
    assert isinstance(open_engine(folder, EngineChoice(device="cpu", threads=1)), FastEngine)
    assert len(list((tmp_path / "cache" / "ct2").glob("*/int8/model.bin"))) == 1


def test_the_record_is_readable_by_those_who_may_read_the_model(folder: Path) -> None:
    place, form = make_form(describe(folder), "float32")
    assert form.files.keys() == {"model.bin", "config.json", "shared_vocabulary.json"}
    assert stat.S_IMODE(place.stat().st_mode) == stat.S_IMODE(folder.stat().st_mode)


def test_names_that_are_none(folder: Path) -> None:
    with pytest.raises(UserError, match="unknown engine 'marian'"):
        EngineChoice("marian")
    with pytest.raises(UserError, match="unknown precision 'int4'"):
        EngineChoice(precision="int4")
    with pytest.raises(UserError, match="int8 is for the ctranslate2 engine"):
        open_engine(folder, EngineChoice("native", "cpu", "int8"))
    with pytest.raises(UserError, match="bfloat16 is for the native engine"):
        open_engine(folder, EngineChoice("ctranslate2", "cpu", "bfloat16"))
