"""What a training leaves to look at: its log, TensorBoard's files and the report."""

import base64
import hashlib
import importlib.util
import json
import math
import re
import struct
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dragoman.config import Config, config_to_toml
from dragoman.errors import UserError
from dragoman.inspection.report import training_report
from dragoman.inspection.report_charts import Chart, Line, figure, nice_ticks, tick_label
from dragoman.training.meter import Meter
from dragoman.training.progress import read_log
from dragoman.training.tensorboard import TensorBoard

ROOT = Path(__file__).resolve().parents[1]
HOSTILE = '</script><script>alert("1")</script><img src=x onerror=alert(2)>'
ARABIC = "مرحبا بالعالم"
SMALL = [
    f"--set={setting}"
    for setting in (
        "model.d_model=16", "model.d_ff=16", "model.heads=2", "model.encoder_layers=1",
        "model.decoder_layers=1", "data.vocabulary_size=400", "training.batch_tokens=400",
        "training.validations=3",
    )
]  # fmt: skip


class Page(HTMLParser):
    """Elements, attributes and text of a page; every element that is opened is closed."""

    VOID = frozenset({"meta", "path"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {}
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.setdefault(self.open[-1] if self.open else "", []).append(data)


def assert_safe(text: str) -> Page:
    """Nothing on the page comes from elsewhere or runs but its own script."""
    assert len(text.encode()) < 1_000_000
    page = Page(text)
    for tag, attributes in page.elements:
        assert tag not in {"img", "link", "iframe", "object", "form", "base", "a"}
        assert not {"src", "href", "srcset"} & attributes.keys()
        assert not [name for name in attributes if name.startswith("on")]
    assert not re.search(r"url\(|@import|https?:", text)
    code = [a for tag, a in page.elements if tag == "script" and "type" not in a]
    assert len(code) == 1
    digest = base64.b64encode(hashlib.sha256(page.texts["script"][-1].encode()).digest()).decode()
    policy = next(a["content"] for _, a in page.elements if "http-equiv" in a)
    assert policy is not None and f"script-src 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none'")
    for content in page.texts["script"][:-1]:
        json.loads(content)
    return page


def documented_fields() -> dict[str, set[str]]:
    """The fields that docs/training-log.md names for each kind of event."""
    text = (ROOT / "docs" / "training-log.md").read_text("utf-8")
    found = {}
    for part in re.split(r"^### ", text, flags=re.MULTILINE)[1:]:
        rows = re.findall(r"^\| (`.*?) \|", part, re.MULTILINE)
        found[part.split("`")[1]] = set(re.findall(r"`(\w+)`", " ".join(rows)))
    return found


def read_event_files(folder: Path) -> list[tuple[str, int]]:
    """(tag, step) of every value, read as TensorBoard reads: length, checksum, event, checksum."""
    from tensorboardX.proto.event_pb2 import Event

    found = []
    for path in sorted(folder.iterdir()):
        content = path.read_bytes()
        while content:
            (length,) = struct.unpack("<Q", content[:8])
            event = Event.FromString(content[12 : 12 + length])
            content = content[16 + length :]
            found += [(value.tag, event.step) for value in event.summary.value]
    return found


@pytest.fixture
def hostile_corpus(tmp_path: Path) -> list[str | Path]:
    """Options for files in which every text tries to be markup."""
    texts = {"en": [], "ar": [], "valid.en": [], "valid.ar": []}  # type: dict[str, list[str]]
    for number in range(60):
        texts["en"].append(f"{HOSTILE} greeting number {number % 40}")
        texts["ar"].append(f"{ARABIC} {HOSTILE} {number % 40}")
    for number in range(8):
        texts["valid.en"].append(f"{HOSTILE} hello {number}")
        texts["valid.ar"].append(f"{HOSTILE} {ARABIC} {number}")
    for name, lines in texts.items():
        (tmp_path / f"t.{name}").write_text("".join(f"{line}\n" for line in lines), "utf-8")
    return [
        "--source", tmp_path / "t.en", "--target", tmp_path / "t.ar",
        "--valid-source", tmp_path / "t.valid.en", "--valid-target", tmp_path / "t.valid.ar",
    ]  # fmt: skip


def test_a_training_leaves_log_report_and_event_files(
    dragoman: Callable[..., Any],
    hostile_corpus: list[str | Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Meter, "SECONDS", 0.0)
    out = tmp_path / "model"
    options = (*SMALL, "--budget", "6-steps", "--set", "training.tensorboard=true")
    done = dragoman("train", *hostile_corpus, "--out", out, *options)
    assert done.status == 0, done.err
    work = out / "training"
    assert "% of the machine's matrix-product peak, validation and checkpoints" in done.err
    assert f"report: {work / 'report.html'}" in done.err
    assert "of the machine's matrix-product peak" in (out / "README.md").read_text("utf-8")

    events = list(read_log(work / "log.jsonl"))
    found: dict[str, set[str]] = {}
    for event in events:
        found.setdefault(event["event"], set()).update(event)
    assert found == documented_fields()
    assert [event["event"] for event in (events[0], events[-1])] == ["start", "end"]
    assert all(event["utilization"] > 0 for event in events if event["event"] == "train")

    text = (work / "report.html").read_text("utf-8")
    page = assert_safe(text)
    shown = " ".join(page.texts["dd"] + page.texts["td"])
    assert HOSTILE in shown and ARABIC in shown
    assert "duplicate pair" in " ".join(page.texts["th"])
    assert sum(tag == "figure" for tag, _ in page.elements) == 6
    assert 'lang="ar"' in text and 'dir="auto"' in text
    assert events[-1]["bleu_signature"] in shown
    for word in ("Finished after 6 steps", "label_smoothing", "step-00000006", "PyTorch"):
        assert word in text

    scalars = read_event_files(work / "tensorboard")
    assert len(set(scalars)) == len(scalars)
    wanted = {(f"train/{name}", n) for name in ("loss", "utilization") for n in range(1, 7)}
    assert wanted <= set(scalars)
    assert {tag for tag, _ in scalars} >= {"validation/nll", "validation/bleu"}

    _check_unfinished(dragoman, out)


def _check_unfinished(dragoman: Callable[..., Any], out: Path) -> None:
    """A report can be made of a training that a kill cut short, and without its corpus."""
    log = out / "training" / "log.jsonl"
    *lines, _ = log.read_text("utf-8").splitlines(keepends=True)
    log.write_text("".join(lines) + '{"event": "train", "step": 9', "utf-8")
    (out / "model.safetensors").unlink()
    (out / "training" / "corpus" / "prepared.json").unlink()
    path = out.parent / "other.html"
    done = dragoman("report", "--model", out, "--out", path)
    assert (done.status, done.lines) == (0, [str(path)])
    page = assert_safe(path.read_text("utf-8"))
    assert "Not finished: step 6" in " ".join(page.texts["p"])
    assert "is not in the folder any more" in " ".join(page.texts["p"])


def test_no_training_is_one_error(dragoman: Callable[..., Any], tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "none"):
        done = dragoman("report", "--model", folder)
        assert (done.status, done.out) == (2, b"")
        assert f"error: {folder}: no training in this folder" in done.err


def test_without_tensorboardx_nothing_is_begun(
    dragoman: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    files = ("--source", tmp_path / "a.en", "--target", tmp_path / "a.de")
    setting = ("--set", "training.tensorboard=true")
    done = dragoman("train", *files, "--out", tmp_path / "out", *setting)
    assert done.status == 2
    assert "pip install 'dragoman[tensorboard]'" in done.err
    assert not (tmp_path / "out").exists()


def train_event(step: int, **fields: Any) -> dict[str, Any]:
    return {"event": "train", "step": step, "seconds": step / 2, "loss": 9 / step, **fields}


def test_a_resumed_training_has_every_step_once(tmp_path: Path) -> None:
    start = {"event": "start", "step": 0, "seconds": 0.0, "time": "2026-01-02T03:04:05+00:00"}
    first = [start, *(train_event(step) for step in (1, 2, 3, 4))]
    with TensorBoard(tmp_path, []) as board:
        for event in first:
            board.observe(event)
    with TensorBoard(tmp_path, first[:3]) as board:  # the checkpoint was at step 2
        for step in (3, 4, 5):
            board.observe(train_event(step))
    assert read_event_files(tmp_path) == [("train/loss", step) for step in range(1, 6)]


def write_training(folder: Path, events: list[dict[str, Any]]) -> Path:
    work = folder / "training"
    work.mkdir(parents=True)
    (work / "config.toml").write_text(config_to_toml(Config()), "utf-8")
    (work / "log.jsonl").write_text("".join(json.dumps(e) + "\n" for e in events), "utf-8")
    return folder


def test_a_long_training_is_still_a_small_page(tmp_path: Path) -> None:
    samples = [
        {"source": f"{n} " + "s" * 5000, "reference": "r" * 5000, "translation": "t" * 5000}
        for n in range(30)
    ]
    events: list[dict[str, Any]] = []
    for step in range(1, 8_001):
        events.append(train_event(step, tokens_per_second=step, utilization=50.0, nll=1.0))
        if step % 20 == 0:
            scores = {"nll": 9 / step, "bleu": 1.0, "chrf": 2.0, "perplexity": 3.0}
            changed = [s | {"translation": f"{step} {s['translation']}"} for s in samples]
            events.append(train_event(step, samples=changed, **scores) | {"event": "validation"})
    assert_safe(training_report(write_training(tmp_path, events)))


@pytest.mark.parametrize(
    "fields",
    [
        {"loss": math.nan},
        {"loss": 10**400, "seconds": None},
        {"samples": [7, {"source": 3}, {"translation": "\ud800\x1b[2J\u202e"}], "nll": 2.0},
        {"tokens_per_second": "many", "utilization": True},
    ],
)
def test_a_strange_log_makes_a_report_all_the_same(fields: dict[str, Any], tmp_path: Path) -> None:
    events = [train_event(1) | fields, train_event(2, nll=1.0) | {"event": "validation"} | fields]
    text = training_report(write_training(tmp_path, events))
    assert_safe(text.encode("utf-8", "replace").decode())
    assert not {"\x1b", "\u202e"} & set(text)


def test_no_step_yet_is_said(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no training step in this log yet"):
        training_report(write_training(tmp_path, []))


@pytest.mark.parametrize(
    ("low", "high"), [(0, 1), (0, 6000), (1.4, 9.3), (-3, 2e-3), (5, 5), (0, 0), (1e-9, 3e-9)]
)
def test_scales_are_round_and_hold_everything(low: float, high: float) -> None:
    ticks = nice_ticks(low, high, 4)
    assert 2 <= len(ticks) <= 7
    rounding = 1e-6 * (ticks[-1] - ticks[0])
    assert ticks[0] <= low + rounding and ticks[-1] >= high - rounding
    assert len(set(map(tick_label, ticks))) == len(ticks)


def test_a_line_with_many_points_keeps_its_mean_and_its_ends() -> None:
    values = np.sin(np.arange(10_000.0) / 500)
    thin = Line("a", np.arange(10_000.0), values, 0).thinned()
    assert len(thin.steps) <= 400
    assert thin.values.mean() == pytest.approx(values.mean(), abs=1e-3)
    assert thin.steps[0] < 25 and thin.steps[-1] > 9_975


def test_a_chart_says_in_words_what_it_shows() -> None:
    lines = [
        Line("loss", np.array([1.0, 5000.0]), np.array([8.0, 2.5]), 0),
        Line("noise", np.array([1.0]), np.array([99.0]), 0, faint=True),
    ]
    steps = np.array([0.0, 5000.0])
    assert ">step</div>" in Chart("Loss", "nats", lines).render(5000.0, (steps, steps))
    words = Chart("Loss", "nats", lines).describe()
    assert "loss from 8 at step 1 to 2.5 at step 5,000, lowest 2.5, highest 8" in words
    assert "noise" not in words
    assert [figure(value) for value in (0.0, 12345.6, 3.14159, 0.0005)] == [
        "0", "12,346", "3.142", "5.00e-04",
    ]  # fmt: skip
