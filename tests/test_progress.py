"""What a run shows and what it logs."""

import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len

from dragoman.training import progress
from dragoman.training.progress import (
    EventLog,
    TrainingDisplay,
    duration,
    read_log,
    stage,
    training_line,
)


def train_event(step: int) -> dict[str, Any]:
    return {
        "event": "train",
        "step": step,
        "epoch": 0,
        "seconds": 30.0,
        "progress": 0.25,
        "loss": 4.0,
        "nll": 3.9,
        "tokens_per_second": 12345,
        "utilization": 48.7,
    }


def validation_event(step: int) -> dict[str, Any]:
    sample = {"source": "a [bold]b[/]", "reference": "c\nd", "translation": "e\x1b[2J"}
    return {
        "event": "validation",
        "step": step,
        "epoch": 0,
        "seconds": 31.0,
        "best": True,
        "nll": 2.0,
        "perplexity": 7.389,
        "bleu": 12.3,
        "chrf": 34.5,
        "samples": [sample, sample],
    }


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_elsewhere_than_on_a_terminal_there_are_few_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(0, 100, 5))
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    stream = io.StringIO()
    with TrainingDisplay(stream) as display:
        for step in range(1, 14):
            display.observe(train_event(step))
    lines = stream.getvalue().splitlines()
    # The clock is read twice for a line that is printed, five seconds apart.
    assert [line.split("step ")[1].split()[0] for line in lines] == ["1", "7", "13"]
    assert lines[0].split("  ") == [
        " 25.0%",
        "step 1",
        "epoch 1",
        "loss 4.000",
        "12,345 tokens/s (49% of peak)",
        "1:30 left",
    ]


@pytest.mark.parametrize("kind", [io.StringIO, Terminal])
def test_every_validation_is_shown_with_a_sample(
    kind: type[io.StringIO], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    stream = kind()
    with TrainingDisplay(stream) as display:
        display.observe(train_event(5))
        display.observe(validation_event(6))
    text = stream.getvalue()
    assert "validation at step 6 (0:31):  nll 2.000  perplexity 7.39  BLEU 12.3  chrF 34.5" in text
    assert text.count("a [bold]b[/]") == 1
    assert r"reference    c\nd" in text
    assert "\x1b[2J" not in text
    assert ("━" in text) == (kind is Terminal)


@pytest.mark.parametrize("columns", [30, 55, 80, 100, 200])
def test_nothing_is_wider_than_the_terminal(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", str(columns))
    long = "ein sehr langer Satz mit 漢字 " * 9
    sample = {"source": long, "reference": long, "translation": long}
    stream = Terminal()
    with TrainingDisplay(stream) as display:
        display.observe({"event": "start", "step": 0, "seconds": 0.0})
        for step in (5, 1_234_567):
            display.observe(train_event(step))
            display._progress.refresh()  # type: ignore[union-attr]
            display.observe(validation_event(step) | {"samples": [sample], "seconds": 99_999.0})
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", stream.getvalue())
    lines = [cell_len(line) for line in re.split(r"[\r\n]+", shown)]
    assert max(lines) <= columns
    assert ("of peak" in shown) == (columns >= 80)
    assert "25.0%" in shown and "validation at step" in shown
    assert ("(best)" in shown) == (columns >= 80)


def test_a_line_gives_up_the_least_first() -> None:
    lines = [training_line(train_event(5), width) for width in range(90, 0, -1)]
    kept = [
        [word in line for word in ("epoch", "step", "loss", "tokens", "left")] for line in lines
    ]
    assert kept == sorted(kept, key=sum, reverse=True)
    assert lines[0] == training_line(train_event(5))
    assert lines[-1] == " 25.0%  1:30 left"
    assert all(len(line) <= width for line, width in zip(lines, range(90, 17, -1), strict=False))


def test_a_run_that_goes_on_has_no_end_yet(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    with EventLog(path, 0) as log:
        log.observe(train_event(3))
        log.observe({"event": "end", "step": 3})
    with EventLog(path, 3):
        assert list(read_log(path)) == [train_event(3)]


def test_a_stage_is_one_line_where_there_is_no_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with stage("counting", 1000) as advance:
        for _ in range(10):
            advance(100)
    with stage("thinking") as advance:
        advance(1)
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "counting (1,000) ...\nthinking ...\n")


def test_a_log_cut_short_by_a_kill_goes_on_after_its_last_whole_line(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    whole = [train_event(1), validation_event(2), train_event(3)]
    path.write_text("".join(json.dumps(event) + "\n" for event in whole), "utf-8")
    with path.open("ab") as stream:
        stream.write(b'{"event": "train", "step": 4, "lo')
    assert list(read_log(path)) == whole
    with EventLog(path, last_step=3) as log:
        log.observe(train_event(4))
    assert [json.loads(line) for line in path.read_text("utf-8").splitlines()] == [
        *whole,
        train_event(4),
    ]


def test_events_after_the_checkpoint_are_dropped_when_a_run_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    for last_step, expected in ((0, [1, 2, 3]), (2, [1, 2, 1, 2, 3]), (0, [1, 2, 3])):
        with EventLog(path, last_step) as log:
            for step in (1, 2, 3):
                log.observe(train_event(step))
        assert [event["step"] for event in read_log(path)] == expected


def test_an_event_is_in_the_file_before_the_log_is_closed(tmp_path: Path) -> None:
    with EventLog(tmp_path / "log.jsonl", 0) as log:
        log.observe(train_event(1))
        assert len(list(read_log(tmp_path / "log.jsonl"))) == 1


def test_no_log_has_no_events(tmp_path: Path) -> None:
    assert list(read_log(tmp_path / "none.jsonl")) == []


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0:00"), (59.6, "1:00"), (61, "1:01"), (3600, "1:00:00")]
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text
