"""The stages of `dragoman demo`; each one is done once and found done the next time."""

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from dragoman.cli import stages
from dragoman.cli.translation_run import translate_all
from dragoman.config import DataConfig
from dragoman.corpus.cleaning import CleaningReport, clean_pairs
from dragoman.corpus.pairs import Pair, read_table
from dragoman.corpus.prepared import CorpusFiles
from dragoman.corpus.samples import SAMPLES, fetch, nearest_languages
from dragoman.corpus.splitting import split_pairs
from dragoman.decoding.native import NativeEngine
from dragoman.decoding.translator import Translator
from dragoman.errors import UserError
from dragoman.evaluation.metrics import Metrics, evaluate_corpus
from dragoman.evaluation.placeholders import Survival, placeholder_survival
from dragoman.inspection.plots import attention_png
from dragoman.model.folder import load_model
from dragoman.text.display import excerpt
from dragoman.text.lines import atomic_write
from dragoman.training.precision import choose_device
from dragoman.training.progress import duration, say

SAMPLE = SAMPLES["home-assistant"]
SOURCE = "en"
TEST_PAIRS = 1000
SHOWN = 10
# Settings that suit this corpus and ten minutes, beside what its size suggests.
RECIPE: dict[str, Any] = {
    "model": {"dropout": 0.15},
    "training": {"batch_tokens": 1000, "warmup_steps": 300},
}
_SEED = 1
# Subwords of a string whose attention map can be read.
_READABLE = 12


def fetch_sample() -> Path:
    """The sample's file, downloaded unless it is there. Raises UserError."""
    say(f"{SAMPLE.title} {SAMPLE.version} ({SAMPLE.licence}) ...")
    return fetch(SAMPLE)


def list_targets(path: Path) -> list[str]:
    """The languages to translate to."""
    return [language for language in SAMPLE.languages(path) if language != SOURCE]


def check_target(path: Path, target: str) -> None:
    """Raises UserError for a language that the sample does not have."""
    known = list_targets(path)
    if target in known:
        return
    nearest = nearest_languages(target, known)
    meant = f"did you mean {' or '.join(nearest)}? " if nearest else ""
    raise UserError(
        f'the demo has no language "{target}"', f"{meant}dragoman demo --list shows them"
    )


@dataclass(frozen=True)
class Demonstration:
    """One language pair of the sample, from its file at `sample` to results in `folder`."""

    sample: Path
    target: str
    folder: Path
    device: str

    @property
    def model(self) -> Path:
        """The model folder."""
        return self.folder / "model"

    @property
    def results(self) -> Path:
        """What the evaluation found; written last."""
        return self.folder / "results.json"

    def run(self, seconds: float) -> str:
        """Do what is not done yet, training for so long, and tell what came out.

        Raises UserError where the folder holds something else.
        """
        started = time.monotonic()
        self._make_data()
        self._train(seconds, started)
        if self._is_current():
            say(f"reused: results {self.results}")
        else:
            self._evaluate()
        return self._report(json.loads(self.results.read_text(encoding="utf-8")))

    def _make_data(self) -> None:
        """Set the test data aside before anything else sees the pairs."""
        origin = {"sha256": SAMPLE.sha256, "target": self.target, "seed": _SEED}
        marker = self.folder / "data" / "origin.json"
        if marker.is_file():
            if marker.read_text(encoding="utf-8") != json.dumps(origin):
                raise self._other("another language or sample")
            say(f"reused: data {marker.parent}")
            return
        if self.model.exists():
            raise self._other("a model of other data")
        report = CleaningReport()
        extracted = SAMPLE.extract(self.sample, SOURCE, self.target)
        pairs = list(clean_pairs(extracted, DataConfig.model_validate({}), report))
        held_out, rest = split_pairs(pairs, min(TEST_PAIRS, len(pairs) // 10), _SEED)
        say(f"{report.render()}\n{len(held_out):,} pairs set aside as test data")
        marker.parent.mkdir(parents=True, exist_ok=True)
        for name, rows in (("test", held_out), ("train", rest)):
            _write_pairs(marker.parent / f"{name}.jsonl", [pairs[row] for row in rows])
        with atomic_write(marker) as stream:
            stream.write(json.dumps(origin).encode())

    def _other(self, content: str) -> UserError:
        return UserError(f"{self.folder}: this folder holds {content}", "name another --out")

    def _train(self, seconds: float, started: float) -> None:
        if stages.is_finished(self.model):
            say(f"reused: model {self.model}")
        elif stages.has_checkpoints(self.model):
            stages.resume_training(self.model, self.device)
        else:
            files = CorpusFiles(SOURCE, self.target, table=self.folder / "data" / "train.jsonl")
            choices = stages.Choices(flags=RECIPE)
            stages.train_model(
                stages.TrainingRequest(
                    self.model,
                    choices,
                    files,
                    budget_seconds=seconds,
                    device=self.device,
                    started=started,
                )
            )

    def _is_current(self) -> bool:
        weights = self.model / "model.safetensors"
        results = self.results
        return results.is_file() and results.stat().st_mtime >= weights.stat().st_mtime

    def _evaluate(self) -> None:
        started = time.monotonic()
        pairs = list(read_table(self.folder / "data" / "test.jsonl"))
        engine = NativeEngine(load_model(self.model, choose_device(self.device)))
        translator = Translator(engine)
        sources, references = [p.source for p in pairs], [p.target for p in pairs]
        found = translate_all(translator, sources, "translating the test data")
        texts = [translation.text for translation in found]
        metrics = evaluate_corpus(texts, references, self.target)
        survival = placeholder_survival(sources, references, texts)
        by_length = sorted(range(len(pairs)), key=lambda row: (len(sources[row]), row))
        count = min(SHOWN, len(pairs))
        rows = [by_length[(2 * n + 1) * len(pairs) // (2 * count)] for n in range(count)]
        shown = [
            {"source": sources[row], "reference": references[row], "translation": texts[row]}
            for row in rows
        ]
        note = draw_attention(engine, shown, self.folder / "attention.png")
        curve = (self.model / "training" / "curve.png").read_bytes()
        with atomic_write(self.folder / "curve.png") as stream:
            stream.write(curve)
        results = {
            "sample": f"{SAMPLE.name} {SAMPLE.version}",
            "beam": translator.search.beam,
            "metrics": metrics.to_json(),
            "placeholders": asdict(survival),
            "shown": shown,
            "note": note,
            "seconds": round(time.monotonic() - started, 1),
        }
        with atomic_write(self.results) as stream:
            stream.write(json.dumps(results, ensure_ascii=False, indent=1).encode() + b"\n")

    def _report(self, results: dict[str, Any]) -> str:
        metrics, survival = Metrics(**results["metrics"]), Survival(**results["placeholders"])
        lines = [
            f"English -> {self.target}: {SAMPLE.title}",
            f"held-out strings, beam {results['beam']}, in {duration(results['seconds'])}:",
            metrics.render(),
        ]
        if survival.share is not None:
            kept = f"{survival.kept:,} of {survival.total:,} ({100 * survival.share:.1f}%)"
            lines.append(f"placeholders kept: {kept}")
        for number, item in enumerate(results["shown"], start=1):
            lines += [
                "",
                f"{number:2}  source       {excerpt(item['source'])}",
                f"    reference    {excerpt(item['reference'])}",
                f"    translation  {excerpt(item['translation'])}",
            ]
        model, test = self.model, self.folder / "data" / "test.jsonl"
        lines += [
            "",
            f"attention map   {self.folder / 'attention.png'}",
            f"training curve  {self.folder / 'curve.png'}",
            f"report          {model / 'training' / 'report.html'}",
            f"model           {model}",
            *([f"note: {results['note']}"] if results["note"] else []),
            "",
            "go on with:",
            f'  dragoman translate --model {model} --text "Turn off the lights in the kitchen"',
            f"  dragoman evaluate --model {model} --data {test}",
            f"  dragoman info {model}",
            f"  dragoman train --source YOUR.en --target YOUR.{self.target} "
            f"--out models/en-{self.target}",
        ]
        return "\n".join(lines)


def draw_attention(engine: NativeEngine, shown: Sequence[dict[str, str]], path: Path) -> str:
    """Draw what the last decoder layer attends to in one of the strings; a note or nothing."""
    tokenizer = engine.tokenizer

    def encode(item: dict[str, str]) -> tuple[list[int], list[int]]:
        return tokenizer.encode_pair(item["source"].strip(), item["translation"].strip())

    chosen = min(shown, key=lambda item: abs(len(encode(item)[0]) - _READABLE))
    source, target = encode(chosen)
    source, output = [*source, tokenizer.eos_id], [*target, tokenizer.eos_id]
    device = engine.model.embedding.weight.device
    maps = engine.model.attention_maps(
        torch.tensor([source], device=device),
        torch.tensor([[tokenizer.bos_id, *target]], device=device),
    )
    return attention_png(
        maps.cross[-1][0].float().cpu().numpy(),
        tokenizer.pieces(source),
        tokenizer.pieces(output),
        path,
        f"{excerpt(chosen['source'])} → {excerpt(chosen['translation'])}",
    )


def _write_pairs(path: Path, pairs: Sequence[Pair]) -> None:
    with atomic_write(path) as stream:
        for pair in pairs:
            stream.write(json.dumps(asdict(pair), ensure_ascii=False).encode() + b"\n")
