"""Commands that train a language model, write with it and measure it; and those that refuse it."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Outcome
from language_models import TEXTS, make, small
from preparing import write

from dragoman.corpus.tokenizer import Tokenizer
from dragoman.errors import UserError
from dragoman.model.folder import load_any, save_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tokenizer = Tokenizer.train(TEXTS, 350)
    path = tmp_path_factory.mktemp("models") / "lm"
    loaded = make(small(), tokenizer)
    save_model(path, loaded.config, tokenizer, loaded.model.state_dict(), "# a model\n")
    return path


def test_commands_write_and_measure_text(
    folder: Path, dragoman: Callable[..., Outcome], tmp_path: Path
) -> None:
    options = ("generate", "--model", folder, "--max-tokens", "9")
    one = dragoman(*options, "--prompt", "the cat")
    assert one.status == 0 and one.out.decode().startswith("the cat")
    several = dragoman(*options, "--prompt", "the cat", "--samples", "2", "--json")
    records = [json.loads(line) for line in several.lines]
    assert one.out.decode() == f"the cat{records[0]['text']}\n"
    assert records[1]["ended"] in ("end", "length") and records[1]["log_prob"] < 0
    lines = dragoman(*options, "--json", stdin=b"the cat\n\nthe dog\n")
    assert [json.loads(line)["prompt"] for line in lines.lines] == ["the cat", "", "the dog"]
    assert json.loads(lines.lines[0]) == records[0]
    long = dragoman(*options[:3], "--prompt", "the cat", "--max-tokens", "64")
    assert long.status == 2 and "has 64 positions" in long.err
    text = write(tmp_path, "text", ["the cat", "", "the dog"])
    measured = dragoman("perplexity", "--model", folder, text, "--json")
    record = json.loads(measured.out)
    assert (record["texts"], record["words"], record["characters"]) == (2, 6, 16)
    shown = dragoman("perplexity", "--model", folder, stdin=text.read_bytes())
    assert shown.out.decode().startswith("2 texts,") and "a character" in shown.out.decode()
    nothing = dragoman("perplexity", "--model", folder, stdin=b"\n")
    assert nothing.status == 2 and "no text to read" in nothing.err


def test_models_of_other_tasks_are_refused(
    folder: Path, model: Path, dragoman: Callable[..., Outcome]
) -> None:
    for command in ("translate", "attend", "score", "align", "explain", "evaluate"):
        needed = ("a",) if command in ("attend", "explain") else ()
        if command in ("score", "align"):
            needed = ("--source", folder / "config.toml", "--target", folder / "config.toml")
        if command == "evaluate":
            needed = ("--source", folder / "config.toml", "--reference", folder / "config.toml")
        refused = dragoman(command, "--model", folder, *needed)
        assert refused.status == 2, command
        assert f"{folder}: is a language model, not a translation model" in refused.err, command
        assert "hint: it is for: dragoman generate" in refused.err
    refused = dragoman("generate", "--model", model)
    assert f"{model}: is a translation model, not a language model" in refused.err
    assert "dragoman translate" in refused.err
    described = dragoman("info", folder)
    assert described.lines[0] == "a language model (en), preset small"
    with pytest.raises(UserError, match="is a language model"):
        load_any(folder, ("mlm", "classification"))


def test_a_language_model_from_text_to_folder(
    dragoman: Callable[..., Outcome], tmp_path: Path
) -> None:
    text = write(tmp_path, "corpus.en", TEXTS)
    valid = write(tmp_path, "valid.en", ["the red cat sees the dogs", TEXTS[0]])
    sizes = ("model.d_model=16", "model.d_ff=16", "model.heads=2", "training.validations=1")
    settings = [part for size in (*sizes, "data.vocabulary_size=350") for part in ("--set", size)]
    out, options = tmp_path / "lm", ("--preset", "tiny", "--budget", "4-steps", *settings)
    files = ("--text", text, "--valid-text", valid)
    done = dragoman("train", "--task", "lm", *files, "--out", out, *options)
    assert done.status == 0, done.err
    assert "training a language model (en): preset tiny" in done.err
    assert "a character" in done.err and "    prompt       the" in done.err
    card = (out / "README.md").read_text("utf-8")
    assert "dragoman generate --model DIR" in card and "a word" in card and "BLEU" not in card
    report = (out / "training" / "report.html").read_text("utf-8")
    assert "Samples over time: continuation" in report
    log = (out / "training" / "log.jsonl").read_text("utf-8")
    events = [json.loads(line) for line in log.splitlines()]
    (end,) = [event for event in events if event["event"] == "end"]
    assert end["bits_per_character"] > 0 and end["tokens"] > 300
    assert not {"tokenizer.shortlist", "ctranslate2"} & {path.name for path in out.iterdir()}
    averaged = dragoman(
        "average", "--checkpoints", out / "training" / "checkpoints", "--out", tmp_path / "mean"
    )
    assert averaged.status == 0, averaged.err
    assert dragoman("generate", "--model", tmp_path / "mean", "--max-tokens", "3").status == 0
    again = dragoman("train", "--resume", "--out", out)
    assert f"use it: dragoman generate --model {out}" in again.err
    more = ("--out", tmp_path / "more", "--budget", "2-steps", "--set", "training.validations=1")
    tuned = dragoman("train", "--init-from", out, "--text", text, *more)
    assert tuned.status == 0, tuned.err
    assert "vocabulary coverage: target 0" in tuned.err
    wrong = dragoman("train", "--init-from", out, "--source", text, "--target", valid, *more)
    assert wrong.status == 2 and "learns from text alone" in wrong.err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--task", "lm", "--source", "a", "--target", "b"), "--task lm learns from text alone"),
        (("--task", "translation", "--text", "a"), "--task translation does not learn from --text"),
        (("--task", "lm"), "--task lm learns from text alone"),
        (("--set", "task=lm", "--text", "a"), "the task is no setting for --set"),
        (("--task", "speech", "--text", "a"), "'speech' is not one of"),
    ],
)
def test_mixtures_that_mean_nothing_are_named(
    dragoman: Callable[..., Outcome], tmp_path: Path, options: tuple[str, ...], message: str
) -> None:
    refused = dragoman("train", *options, "--out", tmp_path / "out")
    assert refused.status == 2 and message in refused.err
    assert not (tmp_path / "out").exists()
