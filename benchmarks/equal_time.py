"""Translation quality after equal time: Dragoman, Marian and JoeyNMT on the same pairs.

python benchmarks/equal_time.py TEXT --work DIR --environments DIR --minutes 15

TEXT holds train.L and valid.L of both languages and the test files (--test names them). Each one
starts from raw text; what it needs to segment it counts. Dragoman has a time budget; the others
are asked to stop when the time is over (SIGTERM and SIGINT, at which each writes its model) and
are not charged for writing it. They do not validate, which would cost them time, and their last
model is taken. All have the same sizes (dropout 0.2, label smoothing 0.1, vocabulary 8,000), and
translate with beam 4.
"""

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from environments import python_of
from measuring import (
    accept_interrupts,
    end,
    keep_to_processors,
    output_of,
    started,
)
from toolkits import (
    SIZES,
    Launch,
    cpu_environment,
    joeynmt_model,
    marian_model,
)

from dragoman.config import ModelConfig

SYSTEMS = ("dragoman", "marian", "joeynmt")
_NEVER = 10**9
_UPDATES = {
    "dragoman": r'"step": (\d+)',
    "marian": r"Up\. ([\d,]+) :",
    "joeynmt": r"Step:\s+(\d+),",
}
_STOP = {"marian": signal.SIGTERM, "joeynmt": signal.SIGINT}


@dataclass(frozen=True)
class Trained:
    """A system's run; seconds of wall clock."""

    system: str
    training_seconds: float
    translation_seconds: float
    updates: int
    translation: list[str]


def run(system: str, options: argparse.Namespace) -> Trained:
    """Train for the time, then translate the test file."""
    work = options.work / system
    if work.exists():
        raise SystemExit(f"error: {work}: is there already; name another --work")
    work.mkdir(parents=True)
    model = SIZES[options.sizes].model.model_copy(update={"dropout": 0.2})
    begun = time.monotonic()
    launched = LAUNCHES[system](options, model, work)
    with started(launched) as process:
        try:
            if options.processor_time and system != "dragoman":
                wait_for_processor_time(process, 60 * options.minutes * options.threads)
            limit = None if system == "dragoman" else begun + 60 * options.minutes
            process.wait(None if limit is None else max(0.1, limit - time.monotonic()))
        except subprocess.TimeoutExpired:
            passed = time.monotonic() - begun
            end(process, _STOP[system])
        else:
            passed = time.monotonic() - begun
            if process.returncode or system != "dragoman":
                raise SystemExit(f"error: {system} ended early:\n{output_of(launched)[-2000:]}")
    begun = time.monotonic()
    translation = translate(system, options, work)
    taken = time.monotonic() - begun
    return Trained(system, passed, taken, updates_of(system, launched), translation)


def wait_for_processor_time(process: subprocess.Popen[bytes], seconds: float) -> None:
    """Until all threads of a process have computed for so long; as a time-out, or at its end."""
    while process.poll() is None:
        stat = Path(f"/proc/{process.pid}/stat").read_text("ascii").rpartition(")")[2].split()
        if sum(map(int, stat[11:13])) / os.sysconf("SC_CLK_TCK") >= seconds:
            raise subprocess.TimeoutExpired(process.args, seconds)
        time.sleep(1)


def updates_of(system: str, launched: Launch) -> int:
    """How many updates the last line of its log tells of."""
    found = re.findall(_UPDATES[system], launched.log.read_text("utf-8"))
    return int(found[-1].replace(",", "")) if found else 0


def text_files(options: argparse.Namespace, name: str) -> list[Path]:
    """Source and target file of a part of the data."""
    languages = (options.source_language, options.target_language)
    return [options.text / f"{name}.{language}" for language in languages]


def launch_dragoman(options: argparse.Namespace, model: ModelConfig, work: Path) -> Launch:
    """`dragoman train` with a budget, its own settings, and the sizes of all."""
    source, target = text_files(options, "train")
    valid_source, valid_target = text_files(options, "valid")
    command = [sys.executable, "-m", "dragoman", "train", "--device", "cpu", "--preset", "small"]
    command += ["--source", str(source), "--target", str(target), "--out", str(work / "model")]
    command += ["--valid-source", str(valid_source), "--valid-target", str(valid_target)]
    command += ["--budget", f"{options.minutes * 60:g}s"]
    command += ["--set", f"data.vocabulary_size={options.vocabulary_size}"]
    for field in "d_model d_ff heads encoder_layers decoder_layers dropout norm".split():
        command += ["--set", f"model.{field}={getattr(model, field)}"]
    log = work / "model" / "training" / "log.jsonl"
    return Launch(command, log, cpu_environment(options.threads))


def launch_marian(options: argparse.Namespace, model: ModelConfig, work: Path) -> Launch:
    """Marian with its built-in sentencepiece, inverse square root decay and smoothed weights."""
    vocabulary, size = str(work / "vocabulary.spm"), str(options.vocabulary_size)
    command = [str(python_of(options.environments, "marian")), "-m", "pymarian", "train"]
    command += marian_model(model)
    command += ["--train-sets", *map(str, text_files(options, "train"))]
    command += ["--vocabs", vocabulary, vocabulary, "--dim-vocabs", size, size]
    command += ["--model", str(work / "model.npz"), "--tempdir", str(work), "--seed", "1"]
    command += ["--cpu-threads", str(options.threads), "--sync-sgd", "--shuffle-in-ram"]
    command += ["--mini-batch-words", "2000", "--mini-batch", "64", "--maxi-batch", "500"]
    command += ["--max-length", "200", "--cost-type", "ce-mean-words", "--clip-norm", "1"]
    command += ["--optimizer", "adam", "--optimizer-params", "0.9", "0.98", "1e-09"]
    command += ["--learn-rate", "0.001", "--lr-warmup", "200", "--lr-decay-inv-sqrt", "200"]
    command += ["--exponential-smoothing", "0.001", "--after", f"{_NEVER}e"]
    command += ["--disp-freq", "10", "--save-freq", f"{_NEVER}u", "--overwrite"]
    return Launch(command, work / "output", cpu_environment(1))


def launch_joeynmt(options: argparse.Namespace, model: ModelConfig, work: Path) -> Launch:
    """JoeyNMT with sentencepiece and inverse square root decay."""
    python = python_of(options.environments, "joeynmt")
    train_sentencepiece(text_files(options, "train"), options.vocabulary_size, work)
    settings = joeynmt_settings(options, model, work)
    (work / "config.json").write_text(json.dumps(settings))
    command = [str(python), "-m", "joeynmt", "train", str(work / "config.json"), "--skip-test"]
    return Launch(command, work / "output", cpu_environment(options.threads))


LAUNCHES = {"dragoman": launch_dragoman, "marian": launch_marian, "joeynmt": launch_joeynmt}


def train_sentencepiece(files: list[Path], vocabulary_size: int, work: Path) -> None:
    """A joint model for JoeyNMT, and the list of its pieces."""
    import sentencepiece

    sentencepiece.SentencePieceTrainer.train(
        input=",".join(map(str, files)),
        model_prefix=str(work / "subwords"),
        vocab_size=vocabulary_size,
        model_type="bpe",
        character_coverage=1.0,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    with (work / "subwords.vocab").open(encoding="utf-8", newline="\n") as lines:
        pieces = [line.partition("\t")[0] for line in lines]
    # The first three are unk, bos and eos, which JoeyNMT has of its own.
    (work / "vocabulary.txt").write_text("".join(f"{piece}\n" for piece in pieces[3:]), "utf-8")


def joeynmt_settings(options: argparse.Namespace, model: ModelConfig, work: Path) -> dict[str, Any]:
    """JoeyNMT's configuration file (JSON is YAML)."""
    side = {
        "level": "bpe",
        "voc_file": str(work / "vocabulary.txt"),
        "tokenizer_type": "sentencepiece",
        "tokenizer_cfg": {"model_file": str(work / "subwords.model")},
    }
    return {
        "name": "equal_time",
        "model_dir": str(work / "model"),
        "use_cuda": False,
        "num_workers": 0,
        "random_seed": 1,
        "data": {
            "train": str(options.text / "train"),
            "dev": str(options.text / "valid"),
            "dataset_type": "plain",
            "src": side | {"lang": options.source_language},
            "trg": side | {"lang": options.target_language},
        },
        "testing": {
            "load_model": str(work / "model" / "latest.ckpt"),
            "beam_size": 4,
            "beam_alpha": 0.6,
            "batch_size": 64,
            "max_output_length": 100,
        },
        "training": {
            # Padding of unsorted pairs included: about 1,300 target tokens.
            "batch_size": 2048,
            "batch_type": "token",
            "normalization": "tokens",
            "optimizer": "adam",
            "adam_betas": [0.9, 0.98],
            "learning_rate": 0.001,
            "learning_rate_min": 0.0,
            "learning_rate_warmup": 200,
            "scheduling": "warmupinversesquareroot",
            "label_smoothing": 0.1,
            "clip_grad_norm": 1.0,
            "epochs": _NEVER,
            "logging_freq": 10,
            "validation_freq": 10 * _NEVER,
        },
        "model": joeynmt_model(model),
    }


def translate(system: str, options: argparse.Namespace, work: Path) -> list[str]:
    """The test source in the target language, line by line, with beam 4."""
    source = text_files(options, options.test)[0]
    environment = cpu_environment(options.threads)
    if system == "dragoman":
        command = [sys.executable, "-m", "dragoman", "translate", "--model", str(work / "model")]
        command += ["--beam", "4", "--device", "cpu"]
    elif system == "marian":
        environment = cpu_environment(1)
        command = [str(python_of(options.environments, system)), "-m", "pymarian", "decode"]
        command += ["--models", str(work / "model.npz"), "--cpu-threads", str(options.threads)]
        command += ["--vocabs", *[str(work / "vocabulary.spm")] * 2, "--beam-size", "4"]
        command += ["--normalize", "0.6", "--max-length", "200", "--max-length-crop"]
        command += ["--mini-batch", "32", "--maxi-batch", "100", "--maxi-batch-sort", "src"]
        command += ["--quiet", "--quiet-translation"]
    else:
        python = python_of(options.environments, system)
        command = [str(python), "-m", "joeynmt", "translate", str(work / "config.json")]
    output = Launch(command, work / "translation.log" / "output", environment)
    output.log.parent.mkdir()
    with source.open("rb") as stdin, output.log.open("wb") as stderr:
        done = subprocess.run(
            command,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=stderr,
            env=os.environ | environment,
            check=False,
        )
    lines = done.stdout.decode("utf-8").split("\n")[:-1]
    expected = source.read_bytes().count(b"\n")
    if done.returncode or len(lines) != expected:
        raise SystemExit(
            f"error: {system}: {len(lines)} translations of {expected} lines:\n"
            f"{output_of(output)[-2000:]}"
        )
    return lines


def report(options: argparse.Namespace, results: list[Trained]) -> str:
    """A table of scores as Markdown, and what they are."""
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF

    reference = text_files(options, options.test)[1].read_text("utf-8").split("\n")[:-1]
    bleu, chrf = BLEU(), CHRF()
    lines = [
        "| system | training, wall clock | updates | BLEU | chrF2 | translating the test |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for result in results:
        scores = [metric.corpus_score(result.translation, [reference]) for metric in (bleu, chrf)]
        lines.append(
            f"| {result.system} | {result.training_seconds / 60:.1f} min | {result.updates:,} "
            f"| {scores[0].score:.2f} | {scores[1].score:.2f} "
            f"| {result.translation_seconds:.0f} s |"
        )
    signatures = [f"`{metric.get_signature()}`" for metric in (bleu, chrf)]
    lines += ["", f"{options.test}, cased and detokenized: {', '.join(signatures)}"]
    return "\n".join(lines)


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("text", type=Path, help="folder with train.L, valid.L and the test files")
    parser.add_argument("--work", type=Path, required=True, help="folder for everything made")
    parser.add_argument(
        "--environments",
        type=Path,
        required=True,
        help="folder of virtual environments, made on first use",
    )
    parser.add_argument("--minutes", type=float, default=15.0)
    parser.add_argument(
        "--processor-time",
        action="store_true",
        help="of the others: minutes in which all threads compute, for a machine that is shared",
    )
    parser.add_argument("--systems", default=",".join(SYSTEMS), help="default: %(default)s")
    parser.add_argument("--test", default="test2016", metavar="NAME", help="default: %(default)s")
    parser.add_argument("--source-language", default="en", metavar="L")
    parser.add_argument("--target-language", default="de", metavar="L")
    parser.add_argument("--sizes", choices=list(SIZES), default="small")
    parser.add_argument("--vocabulary-size", type=int, default=8000)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    options.text, options.work = options.text.absolute(), options.work.absolute()
    options.systems = options.systems.split(",")
    if unknown := set(options.systems) - set(SYSTEMS):
        parser.error(f"unknown systems: {', '.join(sorted(unknown))}; known: {', '.join(SYSTEMS)}")
    return options


def main() -> None:
    options = read_options()
    for name in ("train", "valid", options.test):
        for path in text_files(options, name):
            if not path.is_file():
                raise SystemExit(f"error: {path}: no such file")
    accept_interrupts()
    keep_to_processors(options.threads)
    for toolkit in options.systems:
        if toolkit != "dragoman":  # installing is no part of anybody's time
            python_of(options.environments, toolkit)
    results = []
    for system in options.systems:
        results.append(run(system, options))
        print(f"{system}: done", file=sys.stderr, flush=True)
    print(report(options, results))


if __name__ == "__main__":
    main()
