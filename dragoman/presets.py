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

TASKS: dict[str, dict[str, dict[str, Any]]] = {
    # A smoothed model is less sure of what it writes than it could be.
    "lm": {"training": {"label_smoothing": 0.0}},
    "mlm": {"training": {"label_smoothing": 0.0}},
    # Few sentences of one label each: about 30 an update.
    "classification": {"training": {"batch_tokens": 500}},
    # Section 6.3 of the paper.
    "parsing": {"search": {"beam": 21, "length_penalty": 0.3, "max_extra_tokens": 300}},
}
"""What a task wants other than translation does; weaker than any preset."""

# What models that are no Transformers read of the settings in [model].
_RECURRENT = {"kind", "d_model", "encoder_layers", "decoder_layers", "dropout", "max_positions"}
_READ = {
    "lstm": _RECURRENT,
    "gru": _RECURRENT,
    "convolutional": _RECURRENT | {"positions", "kernel_width"},
}


def is_read(name: str, kind: str) -> bool:
    """Whether a model of this kind reads a setting of [model]."""
    return name in _READ[kind] if kind in _READ else name != "kernel_width"


def preset_of_kind(preset: str, kind: str) -> dict[str, dict[str, Any]]:
    """The settings of a preset, which is made for Transformers, that a kind of model reads."""
    values = PRESETS[preset]
    model = {name: value for name, value in values["model"].items() if is_read(name, kind)}
    return values | {"model": model}


def preset_for(pairs: int) -> str:
    """The preset that suits a corpus of so many pairs on two cores.

    Never a -fast one: those are for students of `dragoman distill`, or for who asks for them.
    """
    if pairs < 3_000:
        return "tiny"
    return "small" if pairs < 1_000_000 else "medium"
