"""Distillation: what a student is given to learn, restarts, and the command from end to end."""

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest

from dragoman.cli.distillation import decoder_weights
from dragoman.config import ModelConfig, read_config
from dragoman.corpus.pairs import read_table
from dragoman.corpus.shortlist import SHORTLIST, learn_shortlist, load_shortlist
from dragoman.corpus.store import CorpusStore
from dragoman.corpus.tokenizer import Tokenizer
from dragoman.decoding import teaching
from dragoman.decoding.safeguards import Finding, Kind
from dragoman.decoding.teaching import (
    IDENTITY,
    JOURNAL,
    PAIRS,
    VALID_SOURCE,
    VALID_TARGET,
    Sources,
    check_identity,
    translate_sources,
    write_lesson,
)
from dragoman.decoding.translation import Candidate, Translation
from dragoman.decoding.translator import Translator
from dragoman.errors import UserError
from dragoman.model.transformer import Transformer
from dragoman.text.lines import read_lines

Dragoman = Callable[..., Any]  # (arguments, stdin) -> status, out, err, lines: conftest.py
SMALL = [
    f"--set={setting}"
    for setting in (
        "model.d_model=32",
        "model.d_ff=64",
        "model.encoder_layers=1",
        "model.decoder_layers=1",
        "training.batch_tokens=300",
        "training.precision=float32",
        "training.validations=2",
    )
]


@dataclass
class Teacher:
    """Translates to upper case; counts what it is asked, and stops after some chunks."""

    findings: dict[str, Kind] = field(default_factory=dict)
    stop_after: int | None = None
    asked: list[str] = field(default_factory=list)
    chunks: int = 0

    def translate(
        self, lines: Sequence[str], contexts: Sequence[tuple[str, ...]]
    ) -> list[Translation]:
        assert contexts == [()] * len(lines)
        if self.chunks == self.stop_after:
            raise KeyboardInterrupt
        self.chunks += 1
        self.asked += lines
        return [self._translation(line) for line in lines]

    def _translation(self, line: str) -> Translation:
        text = line.upper()
        found = [Finding(kind, kind) for end, kind in self.findings.items() if line.endswith(end)]
        return Translation(text, 0.0, [Candidate(text, 0.0, 0.0, [])], findings=found)

    def __call__(self) -> Translator:
        return cast(Translator, self)


def write(path: Path, lines: list[str]) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines), "utf-8", newline="\n")
    return path


def nothing(_: int) -> None: ...


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(teaching, "CHUNK", 5)


@pytest.fixture
def sources(tmp_path: Path) -> Sources:
    """23 lines in two files."""
    first = write(tmp_path / "a.en", [f"first line {n}" for n in range(11)])
    second = write(tmp_path / "b.en", [f"second line {n}" for n in range(12)])
    return Sources([first, second], [])


def test_what_was_interrupted_goes_on_without_translating_again(
    sources: Sources, tmp_path: Path
) -> None:
    stopped, done = Teacher(stop_after=2), Teacher()
    with pytest.raises(KeyboardInterrupt):
        translate_sources(stopped, sources, tmp_path, nothing)
    journal = tmp_path / JOURNAL
    with journal.open("ab") as stream:  # a kill in the middle of a write
        stream.write(b'{"text": "FIRST LI')
    advanced: list[int] = []
    assert translate_sources(done, sources, tmp_path, advanced.append) == 23
    assert stopped.asked + done.asked == [line for line, _ in sources.lines()]
    assert len(stopped.asked) == 10 and sum(advanced) == 23
    texts = [json.loads(line)["text"] for line in read_lines(journal)]
    assert texts == [line.upper() for line, _ in sources.lines()]
    idle = Teacher()
    assert translate_sources(idle, sources, tmp_path, nothing) == 23
    assert idle.asked == []


def test_more_translations_than_lines_are_an_error(sources: Sources, tmp_path: Path) -> None:
    translate_sources(Teacher(), sources, tmp_path, nothing)
    shorter = Sources(sources.sources[:1], [])
    with pytest.raises(UserError, match="23 translations of 11 lines"):
        translate_sources(Teacher(), shorter, tmp_path, nothing)
    with pytest.raises(UserError, match="more lines than the sources"):
        write_lesson(tmp_path, shorter, 0, 1)


def test_a_missing_or_a_damaged_translation_is_an_error(sources: Sources, tmp_path: Path) -> None:
    translate_sources(Teacher(), sources, tmp_path, nothing)
    lines = (tmp_path / JOURNAL).read_bytes().splitlines(keepends=True)
    (tmp_path / JOURNAL).write_bytes(b"".join(lines[:-1]))
    with pytest.raises(UserError, match="line 23 is not translated"):
        write_lesson(tmp_path, sources, 0, 1)
    (tmp_path / JOURNAL).write_bytes(b"".join([*lines[:3], b"[]\n", *lines[4:]]))
    with pytest.raises(UserError, match="line 4 is no translation"):
        write_lesson(tmp_path, sources, 0, 1)


def test_unfit_translations_are_left_out_and_counted(tmp_path: Path) -> None:
    source = write(tmp_path / "x.en", ["good", "a copy", "", "a loop", "split is fine", "a copy"])
    teacher = Teacher({"copy": "copy", "loop": "repetition", "fine": "split"})
    sources = Sources([source], [])
    translate_sources(teacher, sources, tmp_path, nothing)
    report = write_lesson(tmp_path, sources, 5, 1)
    pairs = [(pair.source, pair.target) for pair in read_table(tmp_path / PAIRS)]
    assert pairs == [("good", "GOOD"), ("split is fine", "SPLIT IS FINE")]
    assert report.render() == (
        "teacher: 6 lines, 2 translations kept, 3 left out (copy 2, repetition 1), 1 blank"
    )
    assert not (tmp_path / VALID_SOURCE).exists()


def test_nothing_fit_is_an_error(tmp_path: Path) -> None:
    sources = Sources([write(tmp_path / "x.en", ["a copy"])], [])
    translate_sources(Teacher({"copy": "copy"}), sources, tmp_path, nothing)
    with pytest.raises(UserError, match="no translation is fit"):
        write_lesson(tmp_path, sources, 0, 1)


def test_references_are_mixed_in_and_some_held_out(sources: Sources, tmp_path: Path) -> None:
    references = [
        write(tmp_path / f"{path.stem}.de", [f"reference of {line}" for line in read_lines(path)])
        for path in sources.sources
    ]
    with_references = Sources(sources.sources, references)
    translate_sources(Teacher(), with_references, tmp_path, nothing)
    report = write_lesson(tmp_path, with_references, 1000, 1)
    assert (report.kept, report.references, report.held_out) == (22, 22, 1)
    (held_out,) = read_lines(tmp_path / VALID_SOURCE)
    assert list(read_lines(tmp_path / VALID_TARGET)) == [f"reference of {held_out}"]
    pairs = [(pair.source, pair.target) for pair in read_table(tmp_path / PAIRS)]
    rest = [line for line, _ in sources.lines() if line != held_out]
    expected = [pair for s in rest for pair in ((s, s.upper()), (s, f"reference of {s}"))]
    assert pairs == expected


@pytest.mark.parametrize("change", [["one"], ["one", "two", "three"]])
def test_references_of_another_number_of_lines(tmp_path: Path, change: list[str]) -> None:
    source = write(tmp_path / "x.en", ["a", "b"])
    target = write(tmp_path / "x.de", change)
    with pytest.raises(UserError, match="no partner"):
        list(Sources([source], [target]).lines())
    with pytest.raises(UserError, match="1 source files and 2 target files"):
        list(Sources([source], [target, target]).lines())


def test_translations_of_another_teacher_are_not_taken(tmp_path: Path) -> None:
    identity = {"teachers": ["a"], "sources": ["b"], "beam": None}
    check_identity(tmp_path, identity)
    check_identity(tmp_path, identity)
    with pytest.raises(UserError, match="with other teachers"):
        check_identity(tmp_path, identity | {"teachers": ["c"]})
    (tmp_path / IDENTITY).write_text("{", "utf-8")
    with pytest.raises(UserError):
        check_identity(tmp_path, identity)


def test_the_weights_of_a_decoder_are_counted() -> None:
    config = ModelConfig(d_model=32, d_ff=48, heads=4, d_k=5, d_v=7, decoder_layers=3)
    matrices = (
        parameter.numel()
        for name, parameter in Transformer(config, 400).named_parameters()
        if name.startswith("decoder.") and parameter.ndim == 2
    )
    assert decoder_weights(config) == sum(matrices)


def arguments(teacher: Path, source: Path, out: Path) -> list[str | Path]:
    named: list[str | Path] = ["--teacher", teacher, "--source", source, "--out", out]
    return ["distill", *named, "--preset", "tiny", *SMALL, "--budget", "6-steps"]


@pytest.mark.slow
def test_a_student_is_made_interrupted_and_resumed(
    dragoman: Dragoman,
    teacher: Path,
    corpus: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source, out = corpus / "train.en", tmp_path / "student"
    monkeypatch.setattr(teaching, "CHUNK", 50)
    translate, counted = Translator.translate, list[int]()

    def stopping(
        self: Translator, lines: Sequence[str], contexts: Sequence[tuple[str, ...]]
    ) -> list[Translation]:
        if len(counted) == 2:
            raise KeyboardInterrupt
        counted.append(len(lines))
        return translate(self, lines, contexts=contexts)

    with monkeypatch.context() as patched:
        patched.setattr(Translator, "translate", stopping)
        stopped = dragoman(*arguments(teacher, source, out))
    assert stopped.status == 130
    assert f"dragoman distill --resume --out {out}" in stopped.err
    journal = out / "training" / "distillation" / JOURNAL
    before = journal.read_bytes()
    assert before.count(b"\n") == 100

    other = dragoman(*arguments(teacher, corpus / "train.de", out))
    assert (other.status, "with other sources" in other.err) == (2, True)
    done = dragoman("distill", "--resume", "--out", out)
    assert done.status == 0, done.err
    assert journal.read_bytes().startswith(before)
    assert "teacher: 225 lines" in done.err
    config, own = read_config(out / "config.toml"), read_config(teacher / "config.toml")
    assert config.distillation.teachers == [teacher.name]
    assert config.distillation.weights == [own.checksums.weights]
    assert (config.source_language, config.target_language) == ("en", "de")
    card = (out / "README.md").read_text("utf-8")
    assert f"it learned the translations of the model `{teacher.name}`" in card
    assert (out / "tokenizer.model").read_bytes() == (teacher / "tokenizer.model").read_bytes()
    translated = dragoman("translate", "--model", out, "--text", "the red cat sees the dog")
    assert translated.status == 0 and len(translated.lines) == 1

    again = dragoman("distill", "--resume", "--out", out)
    assert (again.status, "is finished" in again.err) == (0, True)
    twice = dragoman(*arguments(teacher, source, out))
    assert (twice.status, "there is a model" in twice.err) == (2, True)


@pytest.mark.slow
def test_a_shortlist_changes_hardly_any_translation(
    dragoman: Dragoman, teacher: Path, corpus: Path, tmp_path: Path
) -> None:
    tokenizer = Tokenizer.load(teacher / "tokenizer.model")
    store = CorpusStore.open(teacher / "training" / "corpus" / "train.arrow")
    learned, kept = learn_shortlist(store, tokenizer), load_shortlist(teacher, tokenizer)
    assert learned.associated.tolist() == kept.associated.tolist()
    ignored = shutil.ignore_patterns("training")
    folder = Path(shutil.copytree(teacher, tmp_path / "copy", ignore=ignored))
    short = learn_shortlist(store, tokenizer, associated=8, frequent=10)
    sentence = tokenizer.encode_source("the red cat sees the dog")[0]
    assert len(short.union([sentence])) < 0.85 * tokenizer.vocabulary_size  # bytes are most of it
    short.save(folder / SHORTLIST)
    for engine in ("native", "ctranslate2"):
        base = ["translate", "--model", folder, corpus / "train.en", "--engine", engine]
        base += ["--set", "search.precision=float32", "--beam", "1"]
        usual = dragoman(*base).lines
        found = dragoman(*base, "--set", "search.shortlist=true").lines
        same = sum(one == other for one, other in zip(usual, found, strict=True))
        assert same >= 0.98 * len(usual)


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory, corpus: Path) -> Path:
    """A model that has begun to learn the small language."""
    from dragoman.cli import stages
    from dragoman.corpus.prepared import CorpusFiles

    settings = [setting.removeprefix("--set=") for setting in SMALL]
    settings += ["data.vocabulary_size=400", "training.learning_rate=0.01"]
    choices = stages.Choices("tiny", assignments=[*settings, "training.warmup_steps=30"])
    files = CorpusFiles("en", "de", corpus / "train.en", corpus / "train.de")
    out = tmp_path_factory.mktemp("teacher") / "large"
    stages.train_model(stages.TrainingRequest(out, choices, files, budget_steps=100))
    return out


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["--preset", "medium"], "the student's decoder has"),
        (["--source", "-"], "-: is read more than once"),
        (["--preset", "smal"], "unknown preset"),
        (["--target", "missing.de"], "missing.de: no such file"),
        (["--source", "missing.en"], "missing.en: no such file"),
        (["--teacher", "missing"], "missing: no such folder"),
    ],
)
def test_mistakes_show_before_anything_is_written(
    dragoman: Dragoman,
    model: Path,
    corpus: Path,
    tmp_path: Path,
    changes: list[str],
    message: str,
) -> None:
    given = {"--teacher": str(model), "--source": str(corpus / "train.en"), "--preset": "tiny"}
    given |= {changes[0]: changes[1]}
    out = tmp_path / "student"
    words = [word for option in given.items() for word in option]
    if given["--preset"] != "medium":  # no larger than the teacher
        words += ["--set=model.d_model=16", "--set=model.d_ff=16", "--set=model.decoder_layers=1"]
    found = dragoman("distill", *words, "--out", out)
    assert found.status == 2
    assert message in found.err and "Traceback" not in found.err
    assert not (out / "training" / "distillation").exists()


def test_resume_wants_all_options_or_none(dragoman: Dragoman, tmp_path: Path) -> None:
    nothing_there = dragoman("distill", "--resume", "--out", tmp_path / "none")
    assert (nothing_there.status, "no distillation to go on" in nothing_there.err) == (2, True)
    part = dragoman("distill", "--resume", "--budget", "9m", "--out", tmp_path / "none")
    assert (part.status, "give all of them again, or none" in part.err) == (2, True)
    few = dragoman("distill", "--teacher", "x", "--out", tmp_path / "none")
    assert (few.status, "a teacher and a source are needed" in few.err) == (2, True)
