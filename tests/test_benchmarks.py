"""The benchmark scripts: their help, and their own parts without any other toolkit."""

import argparse
import importlib
import itertools
import json
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from dragoman.config import Config, resolve_config
from dragoman.corpus.batches import batches
from dragoman.corpus.store import CorpusStore, write_store
from dragoman.corpus.tokenizer import Tokenizer

FOLDER = Path(__file__).parents[1] / "benchmarks"
SCRIPTS = [
    *"training_speed equal_time precision_curves gpu_training plain_loop cpu_step".split(),
    *"distillation alignment invariance decoding_speed classification".split(),
]
# Alive until it is killed: what a measurement must end by itself.
TICKING = """
import json, time
for update in range(1, 10_000):
    line = {"seconds": time.monotonic(), "update": update, "tokens": 7 * update}
    print(json.dumps(line), flush=True)
    time.sleep(0.01)
"""


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    """Imports a file of benchmarks/ as Python does that runs one of them."""
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory, sentences: list[tuple[str, str]]) -> Path:
    """What the scripts read of a prepared folder."""
    folder = tmp_path_factory.mktemp("prepared")
    tokenizer = Tokenizer.train(itertools.chain.from_iterable(sentences), 350)
    tokenizer.save(folder / "tokenizer.model")
    pairs = tokenizer.encode_pairs(sentences)
    write_store(folder / "train.arrow", pairs, tokenizer.vocabulary_size)
    write_store(folder / "valid.arrow", pairs[:5], tokenizer.vocabulary_size)
    return folder


@pytest.mark.parametrize("name", SCRIPTS)
def test_every_script_has_help(
    name: str,
    script: Callable[[str], ModuleType],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    module = script(name)
    monkeypatch.setattr(sys, "argv", [f"{name}.py", "--help"])
    with pytest.raises(SystemExit) as end:
        module.main()
    shown = capsys.readouterr().out
    assert end.value.code == 0
    assert f"python benchmarks/{name}.py" in shown
    assert "options:" in shown


def test_all_see_the_same_tokens(
    prepared: Path, tmp_path: Path, script: Callable[[str], ModuleType]
) -> None:
    segmentation = script("segmentation")
    words = segmentation.export(prepared, tmp_path)
    store = CorpusStore.open(prepared / "train.arrow")
    epoch = sum(batch.target_tokens for batch in batches(store, 200, seed=1, epoch=0))
    for side, lengths in (("source", words.source_lengths), ("target", words.target_lengths)):
        in_file = segmentation.read_lengths(tmp_path / f"train.{side}")
        assert np.array_equal(in_file, lengths)
    assert words.target_tokens == epoch == int(words.target_lengths.sum())
    known = set((tmp_path / "vocabulary.txt").read_text("ascii").split())
    used = set((tmp_path / "train.source").read_text("ascii").split())
    used |= set((tmp_path / "train.target").read_text("ascii").split())
    assert used <= known
    numbered = (tmp_path / "vocabulary.yml").read_text("ascii").splitlines()
    assert [line.split(": ")[0] for line in numbered[2:]] == sorted(
        known, key=lambda word: int(word[1:])
    )
    assert [int(line.split(": ")[1]) for line in numbered] == list(range(len(known) + 2))


def test_a_part_of_the_corpus_is_its_first_pairs(
    prepared: Path, tmp_path: Path, script: Callable[[str], ModuleType]
) -> None:
    words = script("segmentation").export(prepared, tmp_path, pairs=7)
    assert len(words.target_lengths) == 7
    assert (tmp_path / "train.target").read_text("ascii").count("\n") == 7


def test_unsorted_batches_hold_the_wanted_tokens(script: Callable[[str], ModuleType]) -> None:
    segmentation = script("segmentation")
    chance = np.random.default_rng(3)
    lengths = chance.integers(3, 40, size=(2, 5000))
    words = segmentation.Segmented(Path(), 100, *lengths)
    size = segmentation.batch_size_for(words, 500)
    assert size > 500  # padding
    assert segmentation.unsorted_batch_tokens(words, size) == pytest.approx(500, rel=0.05)


def test_the_plain_loop_trains_on_every_token(
    prepared: Path, script: Callable[[str], ModuleType], capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = {"d_model": 16, "d_ff": 16, "heads": 2, "encoder_layers": 1, "decoder_layers": 1}
    options = argparse.Namespace(
        **sizes, prepared=prepared, dropout=0.0, norm="pre", batch_tokens=200, epochs=3, every=0.0,
        precision="float32",
    )  # fmt: skip
    script("plain_loop").train(options)
    lines = capsys.readouterr().out.splitlines()
    store = CorpusStore.open(prepared / "train.arrow")
    expected = 3 * (int(store.target_lengths.sum()) + len(store))
    assert lines[-1] == f"trained on {expected} target tokens"
    samples = list(script("toolkits").read_samples("plain", ((0.0, line) for line in lines)))
    assert samples[-1].tokens == expected
    losses = [float(line.removeprefix("loss ")) for line in lines if line.startswith("loss ")]
    assert losses[-1] < losses[0]


LOGS: dict[str, tuple[list[tuple[float, str]], list[tuple[float, int, float]]]] = {
    "marian": (
        [
            (5.0, "[training] Using 2 CPUs"),
            (6.0, "[x] Ep. 1 : Up. 5 : Sen. 99 : Cost 9.1 * 900 @ 310 after 1,500 : Time 3s"),
            (9.0, "[x] Ep. 1 : Up. 1,010 : Sen. 9 : Cost 8 * 900 @ 310 after 31,000 : Time 3s"),
        ],
        [(6.0, 5, 1500), (9.0, 1010, 31_000)],
    ),
    "joeynmt": (
        [
            (1.0, "Epoch   1, Step:        5, Batch Loss: 9.1, Tokens per Sec:      200, Lr: 0.1"),
            (3.0, "Epoch   1, Step:       10, Batch Loss: 9.0, Tokens per Sec:      300, Lr: 0.1"),
            (4.0, "Epoch   1, total training loss: 1.0, num. of tokens: 9"),
            (7.0, "Epoch   2, Step:       15, Batch Loss: 9.0, Tokens per Sec:      100, Lr: 0.1"),
        ],
        [(1.0, 5, 0), (3.0, 10, 600), (7.0, 15, 1000)],
    ),
    "dragoman": (
        [
            (0, '{"event": "start", "step": 0}'),
            (0, '{"event": "train", "step": 8, "seconds": 2.5, "tokens_per_second": 70}'),
            (0, '{"event": "train", "step": 17, "seconds": 4.5, "tokens_per_second": 50}'),
        ],
        [(2.5, 8, 0), (4.5, 17, 100)],
    ),
}


@pytest.mark.parametrize("system", LOGS)
def test_a_log_gives_updates_and_tokens(system: str, script: Callable[[str], ModuleType]) -> None:
    lines, expected = LOGS[system]
    found = list(script("toolkits").read_samples(system, lines))
    assert [(sample.seconds, sample.update, sample.tokens) for sample in found] == expected


def test_a_window_begins_behind_the_warm_up(script: Callable[[str], ModuleType]) -> None:
    sample = script("toolkits").Sample
    samples = [sample(0, 1, 0), sample(3, 4, 10), sample(5, 6, 30), sample(8, 9, 90)]
    found = script("measuring").window(samples, 4, 4.0)
    assert (found.seconds, found.updates, found.tokens, found.rate) == (5, 5, 80, 16)
    assert script("measuring").window(samples, 4, 6.0) is None


def test_a_measured_process_is_ended(
    tmp_path: Path, script: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    measuring, toolkits = script("measuring"), script("toolkits")
    ended = []
    end = measuring.end
    monkeypatch.setattr(
        measuring, "end", lambda process, number: (end(process, number), ended.append(process))
    )
    command = [sys.executable, "-c", TICKING]
    launched = toolkits.Launch(command, tmp_path / "output", {})
    found = measuring.measure("plain", launched, warmup_updates=3, seconds=0.2)
    assert found.tokens == 7 * found.updates > 0
    assert [process.returncode is None for process in ended] == [False]


def test_a_process_that_fails_is_told_of(
    tmp_path: Path, script: Callable[[str], ModuleType]
) -> None:
    command = [sys.executable, "-c", "raise SystemExit('no such option')"]
    launched = script("toolkits").Launch(command, tmp_path / "output", {})
    with pytest.raises(SystemExit, match="plain ended too early:\nno such option"):
        script("measuring").measure("plain", launched, 1, 1.0)


def settings_in(command: list[str]) -> Config:
    """What `dragoman train` makes of a command line's --preset and --set."""
    preset = command[command.index("--preset") + 1]
    pairs = itertools.pairwise(command)
    return resolve_config(preset, assignments=[value for name, value in pairs if name == "--set"])


def speed_task(prepared: Path, folder: Path, script: Callable[[str], ModuleType]) -> Any:
    """A task of the sizes `small`."""
    words = script("segmentation").export(prepared, folder)
    toolkits = script("toolkits")
    return toolkits.Task(prepared, words, toolkits.SIZES["small"], 400, 500, 2, "auto")


def test_all_systems_get_the_same_sizes(
    prepared: Path, tmp_path: Path, script: Callable[[str], ModuleType]
) -> None:
    toolkits = script("toolkits")
    task = speed_task(prepared, tmp_path / "words", script)
    model = task.sizes.model
    launched = toolkits.launch("dragoman", task, tmp_path / "a", tmp_path)
    settings = settings_in(launched.command)
    assert settings.model == model
    assert settings.training.batch_tokens == 500
    marian = shlex.join(toolkits.marian_model(model))
    for option in ("dim-emb 256", "dim-ffn 1024", "heads 4", "enc-depth 3", "dec-depth 3"):
        assert option in marian
    joeynmt = json.loads(json.dumps(toolkits.joeynmt_settings(task, tmp_path)))["model"]
    for part in ("encoder", "decoder"):
        layers = joeynmt[part]
        assert (layers["hidden_size"], layers["ff_size"], layers["num_heads"]) == (256, 1024, 4)
        assert (layers["num_layers"], layers["layer_norm"]) == (3, "pre")
    plain = shlex.join(toolkits.launch("plain", task, tmp_path / "b", tmp_path).command)
    for option in ("--d-model 256", "--d-ff 1024", "--heads 4", "--norm pre"):
        assert option in plain


def test_a_speed_table_compares_medians(
    prepared: Path, tmp_path: Path, script: Callable[[str], ModuleType]
) -> None:
    speed = script("training_speed")
    task = speed_task(prepared, tmp_path / "words", script)
    results = [
        speed.Measured(system, speed.Window(2.0, 10, tokens), "float32", {"float32": 1e12})
        for system, tokens in (("dragoman", 9000), ("marian", 2000), ("dragoman", 11_000))
    ]
    lines = speed.table(task, results).splitlines()
    assert "| dragoman | float32 | 5,000 | 4,500 - 5,500 | 1,000 | 1.00 |" in lines[2]
    assert "| marian | float32 | 1,000 | 1,000 - 1,000 | 200 | 5.00 |" in lines[3]


def test_equal_time_gives_dragoman_the_common_sizes(
    tmp_path: Path, script: Callable[[str], ModuleType]
) -> None:
    equal_time, toolkits = script("equal_time"), script("toolkits")
    model = toolkits.SIZES["small"].model.model_copy(update={"dropout": 0.2})
    options = argparse.Namespace(
        text=tmp_path, source_language="en", target_language="de", minutes=1.5, threads=2,
        vocabulary_size=8000,
    )  # fmt: skip
    launched = equal_time.launch_dragoman(options, model, tmp_path)
    settings = settings_in(launched.command)
    assert settings.model == model
    assert settings.data.vocabulary_size == 8000
    assert settings.training.label_smoothing == 0.1
    assert "90s" in launched.command


def test_equal_time_scores_lines(tmp_path: Path, script: Callable[[str], ModuleType]) -> None:
    equal_time = script("equal_time")
    reference = ["ein alter Hund sieht Katze und Baum", "das große Haus"]
    (tmp_path / "test.de").write_text("".join(f"{line}\n" for line in reference), "utf-8")
    options = argparse.Namespace(
        text=tmp_path, source_language="en", target_language="de", test="test"
    )
    result = equal_time.Trained("dragoman", 60.0, 3.0, 12, reference)
    shown = equal_time.report(options, [result])
    assert "| dragoman | 1.0 min | 12 | 100.00 | 100.00 | 3 s |" in shown
    assert "case:mixed" in shown


def test_precision_curves_lie_side_by_side(
    tmp_path: Path, script: Callable[[str], ModuleType]
) -> None:
    module = script("precision_curves")
    log = tmp_path / "log.jsonl"
    events: list[dict[str, Any]] = [{"event": "train", "step": 3}]
    events += [{"event": "validation", "step": step, "nll": 7 - step} for step in (2, 4)]
    log.write_text("".join(json.dumps(event) + "\n" for event in events))
    curve = module.read_curve(log)
    assert curve == {2: 5.0, 4: 3.0}
    curves = {("float32", 1): curve, ("bfloat16", 1): {2: 5.25, 4: 2.75}}
    rows = module.table(curves).splitlines()
    assert rows[2:] == ["| 2 | 5.2500 | 5.0000 | +0.2500 |", "| 4 | 2.7500 | 3.0000 | -0.2500 |"]
    module.draw(curves, tmp_path / "curves.png")
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_without_a_gpu_one_line_says_so(
    script: Callable[[str], ModuleType],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    module = script("gpu_training")
    monkeypatch.setattr(module.torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["gpu_training.py", "--work", str(tmp_path)])
    with pytest.raises(SystemExit) as end:
        module.main()
    assert end.value.code == 2
    assert capsys.readouterr().err == "error: this PyTorch sees no CUDA GPU\n"


def test_gpu_figures_follow_from_rate_and_arithmetic(
    prepared: Path, tmp_path: Path, script: Callable[[str], ModuleType]
) -> None:
    module = script("gpu_training")
    # At least six operations for each parameter that a target token passes (forward, backward).
    assert module.operations_a_token("tiny", prepared) > 6 * 2 * 2 * 128 * 512
    window = module.Window(2.0, 4, 8000)
    result = module.Measured("tiny", "float32", window, 2e12, 4e12)
    row = module.table([result], peak_tflops=8.0).splitlines()[-1]
    assert row == "| tiny | float32 | 4,000 | 2,000 | 2.000 | 50.0% of 4.000 | 25.0% |"
    module.write_text(tmp_path, 50)
    lengths = [
        [len(line.split()) for line in (tmp_path / f"train.{side}").read_text().splitlines()]
        for side in "st"
    ]
    assert lengths[0] == lengths[1]
    assert len(lengths[0]) == 50


@pytest.mark.skipif(sys.platform == "win32", reason="the stand-in for Python is a shell script")
def test_an_environment_that_works_is_reused(
    tmp_path: Path, script: Callable[[str], ModuleType]
) -> None:
    python = tmp_path / "marian" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text("#!/bin/sh\nexit 0\n")
    python.chmod(0o755)
    assert script("environments").python_of(tmp_path, "marian") == python


def test_invariance_counts_the_lines_that_differ(
    script: Callable[[str], ModuleType],
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    module = script("invariance")
    piped = module.piped
    (tmp_path / "text").write_text("".join(f"the cat {n}\n" for n in range(9)))
    command = [model, tmp_path / "text", "--systems", "ctranslate2-float32", "--beam", "1"]
    for damage, status in ((False, 0), (True, 1)):
        if damage:  # as if a text depended on its neighbors
            monkeypatch.setattr(module, "piped", lambda *given: ["?", *piped(*given)[1:]])
        monkeypatch.setattr(sys, "argv", ["invariance.py", *map(str, command)])
        with pytest.raises(SystemExit) as end:
            module.main()
        rows = capsys.readouterr().out.splitlines()[3:]
        assert (end.value.code, len(rows)) == (status, 7)
        assert [row.endswith("| 0 | 0.00% |") for row in rows] == [True] * 5 + [not damage] * 2


def test_labels_are_top_constituents_without_punctuation(
    tmp_path: Path, script: Callable[[str], ModuleType]
) -> None:
    clause = (
        "( (S (PP (IN In) (NP (NNS mice) (CD {n}))) (, ,) (NP (NNS genes)) (VP (VBP act)) (. .)) )"
    )
    trees = [clause.replace("{n}", str(n)) for n in range(1200)]
    trees += ["( (HEADING (NP (NN Abstract))) )", "( (S (VP (VB Act)) (. .)) )"]
    (tmp_path / "trees.ptb").write_text("\n".join(trees), "utf-8")
    module = script("classification")
    module.write_data(tmp_path / "trees.ptb", tmp_path / "trees.ptb", tmp_path, [5])
    assert len((tmp_path / "text.txt").read_text("utf-8").splitlines()) == 1202
    test = [line.split("\t") for line in (tmp_path / "test.tsv").read_text("utf-8").splitlines()]
    assert len(test) == 1201 and test[-1] == ["Act .", "VP"]
    assert test[0] == ["In mice 0 , genes act .", "PP NP VP"]
    assert len((tmp_path / "train5.tsv").read_text("utf-8").splitlines()) == 5
    with pytest.raises(SystemExit, match="beside those to validate on"):
        module.write_data(tmp_path / "trees.ptb", tmp_path / "trees.ptb", tmp_path, [500])
