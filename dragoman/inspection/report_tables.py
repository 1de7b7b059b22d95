"""Tables of the training report: sample translations over time, the corpus, anything in rows."""

import json
import re
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from dragoman.corpus.prepared import REPORT, TEXT_TASKS, load_prepared
from dragoman.errors import UserError
from dragoman.inspection.training_log import TrainingLog
from dragoman.text.display import excerpt

# Characters of one text, rows of one sample, samples and examples of one reason that are shown.
_TEXT, _ROWS, _SAMPLES, _EXAMPLES = 500, 24, 6, 3
# Bytes of a preparation's report that are read: a few examples of a few reasons.
_LARGEST_REPORT = 4 * 1024 * 1024
_LANGUAGE = re.compile(r"[A-Za-z]{2,3}(-[A-Za-z0-9]{2,8})*")


def table(head: list[str] | None, rows: list[list[str]], numbers: Sequence[int] = ()) -> str:
    """Rows of texts as an HTML table, escaped; without a head the first column names the rows."""
    cells = []
    for row in rows:
        first = f"<th scope=row>{escape(row[0])}</th>"
        rest = "".join(
            f"<td{' class=number' if place in numbers else ''}>{escape(text)}</td>"
            for place, text in enumerate(row[1:], start=1)
        )
        cells.append(f"<tr>{first}{rest}</tr>")
    top = ""
    if head:
        names = "".join(
            f"<th scope=col{' class=number' if place in numbers else ''}>{escape(text)}</th>"
            for place, text in enumerate(head)
        )
        top = f"<thead><tr>{names}</tr></thead>"
    return f'<div class="wide"><table>{top}<tbody>{"".join(cells)}</tbody></table></div>'


def sample_section(log: TrainingLog, source_language: str, target_language: str) -> str:
    """What the model made of some validation texts, from validation to validation.

    The last text of a sample is what changes; the others are what it was made of.
    """
    samples: dict[tuple[tuple[str, str], ...], list[tuple[float, str]]] = {}
    made = ""
    for record in log.records["validation"]:
        for sample in filter(None, _dicts(record.get("samples"))):
            *given, made = sample
            key = tuple((name, _text(sample, name)) for name in given)
            samples.setdefault(key, []).append((record["step"], _text(sample, made)))
    if not samples:
        return ""
    source, target = _language(source_language), _language(target_language)
    parts = []
    for given_texts, versions in list(samples.items())[:_SAMPLES]:
        rows = "".join(
            f'<tr><td class="number">{steps}</td>'
            f'<td class="text" dir="auto"{target}>{_shown(version)}</td></tr>'
            for steps, version in _changes(versions)
        )
        terms = "".join(
            f'<dt>{escape(name)}</dt><dd class="text" dir="auto"'
            f"{source if name == 'source' else target}>{_shown(text)}</dd>\n"
            for name, text in given_texts
        )
        parts.append(f"""<div class="sample"><dl>
{terms}</dl>
<table><thead><tr><th scope=col class="number">step</th><th scope=col>{escape(made)}</th></tr>
</thead><tbody>{rows}</tbody></table></div>""")
    return f"<h2>Samples over time: {escape(made)}</h2>\n" + "\n".join(parts)


def _changes(versions: list[tuple[float, str]]) -> list[tuple[str, str]]:
    """(steps, text) of each run of equal translations, evenly chosen when they are many."""
    runs: list[tuple[float, float, str]] = []
    for step, text in versions:
        if runs and runs[-1][2] == text:
            runs[-1] = (runs[-1][0], step, text)
        else:
            runs.append((step, step, text))
    if len(runs) > _ROWS:
        last = len(runs) - 1
        runs = [runs[place * last // (_ROWS - 1)] for place in range(_ROWS)]
    return [
        (f"{first:,.0f}" if first == last else f"{first:,.0f} to {last:,.0f}", text)
        for first, last, text in runs
    ]


def corpus_section(folder: Path) -> str:
    """What the model learned from and what cleaning left out. Without the corpus: a line."""
    try:
        corpus = load_prepared(folder)
        with (folder / REPORT).open("rb") as stream:
            report = json.loads(stream.read(_LARGEST_REPORT))
    except (UserError, OSError, ValueError, RecursionError):
        return "<h2>Corpus</h2>\n<p>The prepared corpus is not in the folder any more.</p>"
    texts = corpus.task in TEXT_TASKS
    unit, row = ("texts", "rows of text") if texts else ("pairs", "pairs")
    rows = [
        ["from", ", ".join(corpus.inputs)[:2000]],
        [f"training {row}", f"{corpus.training_pairs:,}"],
        [f"validation {row}", f"{corpus.validation_pairs:,}"],
    ]
    report = report if isinstance(report, dict) else {}
    total, kept = report.get("total"), report.get("kept")
    if isinstance(total, int) and isinstance(kept, int) and total:
        rows.append([f"{unit} read", f"{total:,}"])
        rows.append(["kept by cleaning", f"{kept:,} ({100 * kept / total:.1f}%)"])
    return f"<h2>Corpus</h2>\n{table(None, rows)}\n{_dropped(report, unit)}"


def _dropped(report: dict[str, Any], unit: str) -> str:
    """Counts and examples of what was left out, by reason."""
    dropped = report.get("dropped")
    dropped = dropped if isinstance(dropped, dict) else {}
    counts = {str(reason): n for reason, n in dropped.items() if isinstance(n, int) and n}
    if not counts:
        return "<p>Nothing was left out.</p>"
    examples = report.get("examples")
    examples = examples if isinstance(examples, dict) else {}
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:50]
    parts = [
        "<h3>Left out</h3>",
        table(["reason", unit], [[reason[:200], f"{n:,}"] for reason, n in ordered], (1,)),
    ]
    shown = "".join(
        f"<tr><th scope=row>{escape(reason[:200])}</th>"
        f'<td class="number">{_line(example)}</td>'
        f'<td dir="auto">{_shown(_text(example, "source"))}</td>'
        f'<td dir="auto">{_shown(_text(example, "target"))}</td></tr>'
        for reason, _ in ordered
        for example in _dicts(examples.get(reason))[:_EXAMPLES]
    )
    if shown:
        parts.append(
            '<details><summary>Examples</summary><div class="wide"><table><thead><tr>'
            "<th scope=col>reason</th><th scope=col class=number>line</th>"
            "<th scope=col>source</th><th scope=col>target</th></tr></thead>"
            f"<tbody>{shown}</tbody></table></div></details>"
        )
    return "\n".join(parts)


def _dicts(value: object) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _text(record: dict[str, Any], name: str) -> str:
    value = record.get(name)
    return value if isinstance(value, str) else ""


def _line(example: dict[str, Any]) -> str:
    line = example.get("line")
    return f"{line:,}" if isinstance(line, int) and line > 0 else "—"


def _shown(text: str) -> str:
    """A text, cut short, with what cannot be seen as escapes."""
    return escape(excerpt(text, _TEXT)) or "<em>empty</em>"


def _language(code: str) -> str:
    """The attribute lang for a language code; none for a word that is no code."""
    code = code.replace("_", "-")
    return f' lang="{code}"' if _LANGUAGE.fullmatch(code) else ""
