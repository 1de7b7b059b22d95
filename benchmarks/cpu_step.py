"""Target tokens a second of training steps on a CPU, with and without `prepare_process`.

python benchmarks/cpu_step.py PREPARED [--batches 80] [--rounds 3]

PREPARED is a folder of `dragoman prepare`. Every round runs both variants, each in a process of its
own, over the same batches twice; the second pass counts. Prints each round and the medians.
"""

import argparse
import statistics
import subprocess
import sys
import time
from pathlib import Path


def measure(folder: Path, batches: int, prepared_process: bool) -> float:
    import torch

    from dragoman.config import resolve_config
    from dragoman.corpus.batches import collate, plan_batches
    from dragoman.corpus.store import CorpusStore
    from dragoman.corpus.tokenizer import Tokenizer
    from dragoman.model.transformer import Transformer
    from dragoman.training.objective import batch_loss
    from dragoman.training.optimizer import make_optimizer
    from dragoman.training.process import prepare_process

    if prepared_process:
        prepare_process()
    torch.manual_seed(1)
    config = resolve_config("small")
    store = CorpusStore.open(folder / "train.arrow")
    vocabulary = Tokenizer.load(folder / "tokenizer.model").vocabulary_size
    model = Transformer(config.model, vocabulary).train()
    model.embedding.compute_dtype = torch.bfloat16
    optimizer = make_optimizer(model, config.training)
    lengths = store.source_lengths, store.target_lengths
    plan = plan_batches(*lengths, config.training.batch_tokens, seed=1, epoch=0)[:batches]
    collated = [collate(store, rows) for rows in plan]
    seconds = 0.0
    for _ in range(2):
        start = time.perf_counter()
        for batch in collated:
            loss = batch_loss(model, batch, config.training.label_smoothing)
            (loss.smoothed / loss.tokens).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), config.training.gradient_clip)
            optimizer.step()
            optimizer.zero_grad()
        seconds = time.perf_counter() - start
    return sum(batch.target_tokens for batch in collated) / seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("prepared", type=Path)
    parser.add_argument("--batches", type=int, default=80)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--variant", choices=["with", "without"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.variant:
        print(measure(options.prepared, options.batches, options.variant == "with"))
        return
    rates: dict[str, list[float]] = {"without": [], "with": []}
    for number in range(1, options.rounds + 1):
        for variant, found in rates.items():
            command = [sys.executable, __file__, str(options.prepared), "--variant", variant]
            command += ["--batches", str(options.batches)]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            found.append(float(done.stdout))
            print(
                f"round {number}: {variant} prepare_process {found[-1]:,.0f} tokens/s", flush=True
            )
    slow, fast = (statistics.median(found) for found in rates.values())
    print(f"medians: without {slow:,.0f}, with {fast:,.0f} tokens/s, ratio {fast / slow:.2f}")


if __name__ == "__main__":
    main()
