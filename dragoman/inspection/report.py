"""The report of a training: one HTML page that needs nothing else, also for one not finished.

Made from what the folder holds: ``training/log.jsonl``, ``training/config.toml``, the prepared
corpus and the checkpoints. Every text from there is escaped; the page's own policy forbids it any
request and any script but its own.
"""

import base64
import hashlib
import math
from datetime import datetime
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from dragoman.config import Config, config_to_toml, read_config, resolve_config
from dragoman.corpus.prepared import TEXT_TASKS
from dragoman.errors import UserError
from dragoman.inspection.plots import running_median
from dragoman.inspection.report_charts import Chart, Line, figure
from dragoman.inspection.report_style import SCRIPT, STYLE
from dragoman.inspection.report_tables import corpus_section, sample_section, table
from dragoman.inspection.training_log import Record, TrainingLog, number, read_training_log
from dragoman.model.description import title
from dragoman.text.lines import atomic_write
from dragoman.training.checkpoints import list_checkpoints
from dragoman.training.progress import SCORES, duration

REPORT = "report.html"
# So few points are shown as they are.
_FEW = 20
# More checkpoints than anybody keeps are not listed one by one.
_CHECKPOINTS = 30


def write_report(folder: Path, path: Path | None = None) -> Path:
    """Write the report of the training in a model folder; where it is.

    path: by default ``training/report.html`` in the folder. Raises UserError where there is no
    training, no step in its log, or a settings file that cannot be read.
    """
    path = path or folder / "training" / REPORT
    page = training_report(folder)
    with atomic_write(path) as stream:
        stream.write(page.encode("utf-8", "replace"))
    return path


def training_report(folder: Path) -> str:
    """The report of the training in a model folder as an HTML page. Raises UserError."""
    work = folder / "training"
    if not (work / "config.toml").is_file():
        raise UserError(
            f"{folder}: no training in this folder",
            "name the folder that was given to dragoman train as --out",
        )
    config = read_config(work / "config.toml")
    log = read_training_log(work / "log.jsonl")
    languages = title(config).replace("->", "→")
    sections = [
        _head(languages, config, log),
        _curves(log),
        _scores(log),
        sample_section(log, config.source_language, config.target_language),
        corpus_section(work / "corpus"),
        _course(log, work / "checkpoints"),
        _settings(config),
        _machine(log),
    ]
    return _page(f"Training {languages}", "\n".join(section for section in sections if section))


def _page(title: str, body: str) -> str:
    digest = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}; base-uri 'none'; form-action 'none'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
<title>{escape(title)}</title>
<style>{STYLE}</style>
</head>
<body>
<main>
{body}
</main>
<script>{SCRIPT}</script>
</body>
</html>
"""


def _last(log: TrainingLog, event: str) -> Record:
    return log.records[event][-1] if log.records[event] else {}


def _head(languages: str, config: Config, log: TrainingLog) -> str:
    end, train, start = _last(log, "end"), _last(log, "train"), _last(log, "start")
    seconds = float(log.clock()[1][-1])
    if end:
        state = f"Finished after {log.last_step:,.0f} steps in {duration(seconds)}."
    else:
        share = number(train, "progress")
        done = f" at {100 * share:.0f}%" if share is not None else ""
        state = f"Not finished: step {log.last_step:,.0f}{done}, {duration(seconds)} so far."
    best = log.best()
    tiles = [
        *((label, _number(end, name, "{:.2f}")) for name, label in SCORES.items()),
        ("perplexity, validation", _number(end, "perplexity", "{:.3f}") or _perplexity(best)),
        ("tokens/s, the whole run", _number(end, "tokens_per_second", "{:,.0f}")),
        ("tokens/s, updates alone", _median(log, "tokens_per_second", "{:,.0f}")),
        ("of the matrix-product peak, updates alone", _median(log, "utilization", "{:.1f}%")),
        ("parameters", _number(start, "parameters", "{:,.0f}")),
        (
            f"training {'rows of text' if config.task in TEXT_TASKS else 'pairs'}",
            _number(start, "pairs", "{:,.0f}"),
        ),
    ]
    items = "".join(
        f"<li><strong>{escape(value)}</strong><span>{escape(name)}</span></li>"
        for name, value in tiles
        if value
    )
    started = _date(log.records["start"][0]) if log.records["start"] else ""
    begun = f" Begun {escape(started)}." if started else ""
    return f"""<h1>{escape(languages)}</h1>
<p class="soft">Dragoman training report, preset <code>{escape(config.preset[:100])}</code>. \
{escape(state)}{begun}</p>
<ul class="tiles">{items}</ul>"""


def _number(record: Record, name: str, form: str) -> str:
    value = number(record, name)
    return "" if value is None else form.format(value)


def _median(log: TrainingLog, name: str, form: str) -> str:
    values = log.column("train", name)[1]
    return form.format(float(np.median(values))) if values.size else ""


def _perplexity(best: tuple[float, float] | None) -> str:
    return figure(math.exp(best[1])) if best and best[1] < 700 else ""


def _curves(log: TrainingLog) -> str:
    best = log.best()
    mark = None
    if best:
        words = f"best validation: step {best[0]:,.0f}, nll {best[1]:.3f}"
        mark = (best[0], f"{words}, perplexity {_perplexity(best)}")
    steps, loss = log.column("train", "loss")
    smooth = running_median(loss) if loss.size > _FEW else loss
    nll = Line("validation nll", *log.column("validation", "nll"), 1, dots=True, exponential=True)
    lines = [Line("noise", steps, loss, 0, faint=True), Line("training loss", steps, smooth, 0)]
    charts = [Chart("Loss", "nats a token", [*lines, nll], from_zero=False, mark=mark)]
    found = [name for name in SCORES if log.has("validation", name)]
    scores = [
        Line(SCORES[name], *log.column("validation", name), tone, dots=True)
        for tone, name in enumerate(found, start=2)
    ]
    charts.append(Chart("Scores at validation", "greedy, 0 to 100", scores))
    for name, label, unit, tone in (
        ("learning_rate", "Learning rate", "of the optimizer", 0),
        ("tokens_per_second", "Speed", "target tokens a second, updates alone", 2),
        ("utilization", "Utilization", "% of the matrix-product peak, updates alone", 3),
        ("gradient_norm", "Gradient norm", "before clipping", 1),
    ):
        charts.append(Chart(label, unit, [Line(label, *log.column("train", name), tone)]))
    clock = log.clock()
    drawn = "".join(
        chart.render(log.last_step, clock)
        for chart in charts
        if any(line.values.size for line in chart.lines)
    )
    return f'<h2>Curves</h2>\n<div class="charts">\n{drawn}</div>'


def _scores(log: TrainingLog) -> str:
    end = _last(log, "end")
    if not end:
        return ""
    rows = [
        [name, _number(end, field, "{:.2f}"), str(end.get(f"{field}_signature", ""))[:300]]
        for field, name in SCORES.items()
        if field in end
    ]
    rows.append(["perplexity", _number(end, "perplexity", "{:.3f}"), "a subword, unsmoothed"])
    searched = f", beam {_number(end, 'beam', '{:.0f}')}" if "beam" in end else ""
    counted = f", {_number(end, 'sentences', '{:,.0f}')} segments" if "sentences" in end else ""
    words = (
        f"Validation data{counted}{searched}. These data chose the weights, so the scores flatter "
        "a little."
    )
    note = f"<p>Note: {escape(str(end['note'])[:1000])}.</p>" if end.get("note") else ""
    return (
        f"<h2>Scores</h2>\n<p>{escape(words)}</p>\n"
        f"{table(['', 'score', 'signature'], rows, numbers=(1,))}{note}"
    )


def _course(log: TrainingLog, checkpoints: Path) -> str:
    """Times, and the checkpoints that are still there."""
    end, starts = _last(log, "end"), log.records["start"]
    validating = float(log.column("validation", "validation_seconds")[1].sum())
    rows = [["training, over all interruptions", duration(float(log.clock()[1][-1]))]]
    if validating:
        rows.append(["of it in validation", duration(validating)])
    rows.append(["validations", f"{len(log.records['validation']):,}"])
    if starts:
        rows.append(["started", " · ".join(_when(start) for start in starts[-20:])])
    for name, field, form in (
        ("target tokens", "tokens", "{:,.0f}"),
        ("target tokens/s, validation and checkpoints included", "tokens_per_second", "{:,.0f}"),
        ("utilization, validation and checkpoints included", "utilization", "{:.1f}%"),
    ):
        if value := _number(end, field, form):
            rows.append([name, value])
    if end.get("kept"):
        rows.append(["the weights are", str(end["kept"])[:500]])
    paths = list_checkpoints(checkpoints)
    best = log.best()
    name = f"step-{best[0]:08.0f}" if best else ""
    names = [path.name + (" (best)" if path.name == name else "") for path in paths]
    if names:
        more = f" and {len(names) - _CHECKPOINTS:,} more" if len(names) > _CHECKPOINTS else ""
        rows.append(["checkpoints kept", ", ".join(names[:_CHECKPOINTS]) + more])
    return f"<h2>Course</h2>\n{table(None, rows)}"


def _when(start: Record) -> str:
    step = number(start, "step") or 0
    return (_date(start) or "?") + (f" (from step {step:,.0f})" if step else "")


def _date(start: Record) -> str:
    """The time of an event "start" to the minute; nothing where it is none."""
    try:
        return datetime.fromisoformat(str(start.get("time"))).strftime("%Y-%m-%d %H:%M UTC")
    except ValueError:
        return ""


def _settings(config: Config) -> str:
    """Every setting; those that are not the preset's are marked."""
    try:
        usual: dict[str, Any] = resolve_config(config.preset).model_dump()
    except UserError:  # a preset of another version
        usual = {}
    parts = []
    for section, values in config.model_dump().items():
        if not isinstance(values, dict) or section == "checksums":
            continue
        rows = []
        for name, value in values.items():
            changed = usual.get(section, {}).get(name, value) != value
            mark = ' class="changed"' if changed else ""
            rows.append(
                f"<tr{mark}><th scope=row>{escape(name)}</th>"
                f"<td>{'—' if value is None else escape(str(value)[:2000])}</td></tr>"
            )
        parts.append(
            f"<div><h3>{escape(section)}</h3><table><tbody>{''.join(rows)}</tbody></table></div>"
        )
    toml = escape(config_to_toml(config))
    return (
        f"<h2>Configuration</h2>\n<p>Preset <code>{escape(config.preset[:100])}</code>; what "
        f'differs from it is marked.</p>\n<div class="settings">{"".join(parts)}</div>\n'
        f"<details><summary>As TOML</summary><pre>{toml}</pre></details>"
    )


_MACHINE = (
    ("device", "device"),
    ("processor", "processor"),
    ("cores", "cores"),
    ("threads", "threads"),
    ("memory_gib", "memory, GiB"),
    ("ranks", "ranks"),
    ("precision", "precision"),
    ("peak", "matrix-product peak, GFLOP/s"),
    ("system", "system"),
    ("dragoman", "Dragoman"),
    ("torch", "PyTorch"),
    ("python", "Python"),
)


def _machine(log: TrainingLog) -> str:
    """Hardware and versions of the last start."""
    start = _last(log, "start")
    if not start:
        return ""
    rows = []
    for field, name in _MACHINE:
        value = start.get(field)
        if field == "peak":
            value = _number({"peak": (number(start, "peak") or 0) / 1e9}, "peak", "{:,.0f}")
        if value not in (None, ""):
            rows.append([name, str(value)[:200]])
    several = len(log.records["start"]) > 1
    title = "Machine and versions" + (" of the last start" if several else "")
    return f"<h2>{title}</h2>\n{table(None, rows)}"
