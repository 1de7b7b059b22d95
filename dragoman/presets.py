"""Presets: settings that go together, by name; `dragoman.config` makes a configuration of one."""

from typing import Any

_PAPER_TRAINING = {
    "batch_tokens": 25_000,
    "schedule": "paper",
    "warmup_steps": 4000,
    "max_steps": 100_000,
    "gradient_clip": 0.0,
    "patience": 10_000,
}
PRESETS: dict[str, dict[str, dict[str, Any]]] = {
    "tiny": {
        "model": {
            "d_model": 128,
            "d_ff": 512,
            "encoder_layers": 2,
            "decoder_layers": 2,
            "dropout": 0.1,
        },
        "data": {"vocabulary_size": 2000},
        "training": {"batch_tokens": 1000, "learning_rate": 3e-3, "warmup_steps": 200},
    },
    "small": {
        "model": {"dropout": 0.2},
    },
    # A deep encoder and a decoder of one layer (Kasai et al. 2021, arXiv 2006.10369). The encoder
    # reads a sentence once and at once; the decoder runs again for every token of every hypothesis.
    # So what it loses in depth is given to the encoder, which hardly takes time. Beside small:
    # about as many parameters, a third of the decoder.
    "small-fast": {
        "model": {"dropout": 0.2, "encoder_layers": 6, "decoder_layers": 1},
    },
    "medium": {
        "model": {
            "d_model": 512,
            "d_ff": 2048,
            "heads": 8,
            "encoder_layers": 6,
            "decoder_layers": 6,
        },
        "data": {"vocabulary_size": 16_000},
        "training": {"batch_tokens": 8000, "learning_rate": 1e-3, "warmup_steps": 2000},
    },
    # Likewise beside medium: as many layers and one more, a sixth of the decoder.
    "medium-fast": {
        "model": {
            "d_model": 512,
            "d_ff": 2048,
            "heads": 8,
            "encoder_layers": 12,
            "decoder_layers": 1,
        },
        "data": {"vocabulary_size": 16_000},
        "training": {"batch_tokens": 8000, "learning_rate": 1e-3, "warmup_steps": 2000},
    },
    "paper-base": {
        "model": {
            "d_model": 512,
            "d_ff": 2048,
            "heads": 8,
            "encoder_layers": 6,
            "decoder_layers": 6,
            "norm": "post",
        },
        "data": {"vocabulary_size": 37_000},
        # About one validation, with its checkpoint, every ten minutes of the paper's 12 hours.
        "training": _PAPER_TRAINING | {"validations": 72},
    },
    "paper-big": {
        "model": {
            "d_model": 1024,
            "d_ff": 4096,
            "heads": 16,
            "encoder_layers": 6,
            "decoder_layers": 6,
            "dropout": 0.3,
            "norm": "post",
        },
        "data": {"vocabulary_size": 37_000},
        "training": _PAPER_TRAINING
        | {"max_steps": 300_000, "average_checkpoints": 20, "validations": 504},
    },
}


def preset_for(pairs: int) -> str:
    """The preset that suits a corpus of so many pairs on two cores.

    Never a -fast one: those are for students of `dragoman distill`, or for who asks for them.
    """
    if pairs < 3_000:
        return "tiny"
    return "small" if pairs < 1_000_000 else "medium"
