"""A plain PyTorch training loop around nn.Transformer: what one writes without a toolkit.

python benchmarks/plain_loop.py PREPARED [--precision auto] [--epochs N]

AdamW, padded batches sorted by length, nn.CrossEntropyLoss with label smoothing, one embedding
matrix for source, target and output, fused attention (nn.Transformer takes it by itself), bfloat16
autocast where the CPU's bfloat16 is measured to pay. Prints JSON lines: seconds, updates, target
tokens so far.
"""

import argparse
import itertools
import json
import math
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn

from dragoman.corpus.batches import Batch, batches
from dragoman.corpus.store import CorpusStore
from dragoman.corpus.tokenizer import Tokenizer
from dragoman.training.precision import choose_precision

_LONGEST = 1024


class PlainTransformer(nn.Module):
    """nn.Transformer between a shared embedding and a tied output layer."""

    def __init__(self, vocabulary_size: int, options: argparse.Namespace) -> None:
        super().__init__()
        width = options.d_model
        self.positions: Tensor
        self.embedding = nn.Embedding(vocabulary_size, width, padding_idx=Tokenizer.pad_id)
        nn.init.normal_(self.embedding.weight, std=width**-0.5)
        self.register_buffer("positions", sinusoids(_LONGEST, width))
        self.dropout = nn.Dropout(options.dropout)
        with warnings.catch_warnings():
            # Pre-norm has no nested tensors, which only inference would use.
            warnings.filterwarnings("ignore", "enable_nested_tensor")
            self.transformer = nn.Transformer(
                width,
                options.heads,
                options.encoder_layers,
                options.decoder_layers,
                options.d_ff,
                options.dropout,
                batch_first=True,
                norm_first=options.norm == "pre",
            )
        self.output = nn.Linear(width, vocabulary_size, bias=False)
        self.output.weight = self.embedding.weight

    def forward(self, source: Tensor, target_in: Tensor) -> Tensor:
        """(B, S), (B, T) -> logits (B, T, V)."""
        source_padding = source == Tokenizer.pad_id
        length = target_in.shape[1]
        causal = torch.ones(length, length, dtype=torch.bool).triu(1)
        hidden = self.transformer(
            self.embed(source),
            self.embed(target_in),
            tgt_mask=causal,
            src_key_padding_mask=source_padding,
            tgt_key_padding_mask=target_in == Tokenizer.pad_id,
            memory_key_padding_mask=source_padding,
            tgt_is_causal=True,
        )
        logits: Tensor = self.output(hidden)
        return logits

    def embed(self, ids: Tensor) -> Tensor:
        """(B, L) -> (B, L, D)."""
        scaled = self.embedding(ids) * math.sqrt(self.embedding.embedding_dim)
        embedded: Tensor = self.dropout(scaled + self.positions[: ids.shape[1]])
        return embedded


def sinusoids(length: int, width: int) -> Tensor:
    """Positions of section 3.5 of the paper: (length, width)."""
    angles = torch.arange(length)[:, None] * 10_000.0 ** (-torch.arange(0, width, 2) / width)
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)


def epochs(store: CorpusStore, options: argparse.Namespace) -> Iterator[Batch]:
    """The batches of one epoch after the other."""
    for epoch in range(options.epochs) if options.epochs else itertools.count():
        yield from batches(store, options.batch_tokens, seed=1, epoch=epoch)


def train(options: argparse.Namespace) -> None:
    """Train until stopped, or for so many epochs."""
    precision = choose_precision(options.precision, torch.device("cpu"))
    print(f"precision: {str(precision).removeprefix('torch.')}", flush=True)
    torch.manual_seed(1)
    vocabulary_size = Tokenizer.load(options.prepared / "tokenizer.model").vocabulary_size
    model = PlainTransformer(vocabulary_size, options).train()
    criterion = nn.CrossEntropyLoss(ignore_index=Tokenizer.pad_id, label_smoothing=0.1)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=1e-3, betas=(0.9, 0.98), eps=1e-9, fused=True
    )
    warmup = torch.optim.lr_scheduler.LinearLR(optimizer, 1 / 400, total_iters=400)
    store = CorpusStore.open(options.prepared / "train.arrow")
    tokens, reported = 0, 0.0
    for update, batch in enumerate(epochs(store, options), start=1):
        source, target_in, target_out = map(
            torch.from_numpy, (batch.source, batch.target_in, batch.target_out)
        )
        with torch.autocast("cpu", torch.bfloat16, enabled=precision is torch.bfloat16):
            logits = model(source, target_in)
        loss = criterion(logits.float().flatten(0, 1), target_out.flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        warmup.step()
        tokens += batch.target_tokens
        now = time.monotonic()
        if now - reported >= options.every:
            reported = now
            print(f"loss {loss.item():.3f}", flush=True)
            print(json.dumps({"seconds": now, "update": update, "tokens": tokens}), flush=True)
    print(f"trained on {tokens} target tokens")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("prepared", type=Path, help="a folder of dragoman prepare")
    parser.add_argument("--d-model", type=int, default=256)
    parser.add_argument("--d-ff", type=int, default=1024)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--encoder-layers", type=int, default=3)
    parser.add_argument("--decoder-layers", type=int, default=3)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--norm", choices=["pre", "post"], default="pre")
    parser.add_argument("--batch-tokens", type=int, default=2000)
    parser.add_argument("--precision", choices=["auto", "bfloat16", "float32"], default="auto")
    parser.add_argument("--epochs", type=int, help="stop after so many (default: when killed)")
    parser.add_argument("--every", type=float, default=1.0, help="seconds between two lines")
    train(parser.parse_args())


if __name__ == "__main__":
    main()
