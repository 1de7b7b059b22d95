"""The rows of the paper's Table 3 (section 6.2) as settings, at the paper's sizes or others.

A row is what differs from the base model: values for `--set`, in the sizes of the paper. A base of
other sizes scales widths and depths of every row by its own ratio to the paper's.
"""

from dataclasses import dataclass, field

Settings = dict[str, float | int | str]

_PAPER_WIDTH, _PAPER_LAYERS = 512, 6
_WIDTHS = ("model.d_model", "model.d_ff", "model.d_k", "model.d_v")
_DEPTHS = ("model.encoder_layers", "model.decoder_layers")


@dataclass(frozen=True)
class Row:
    """A row: what changes, and what the paper prints (parameters in millions; None: base's)."""

    name: str
    changes: Settings
    perplexity: float
    bleu: float
    millions: float | None = None


@dataclass(frozen=True)
class Base:
    """The base model of a table: a preset and what is set over it; the peak of its learning rate.

    learning_rate: None where the schedule is Equation 3, which has no other.
    """

    preset: str
    width: int
    layers: int
    settings: Settings = field(default_factory=dict)
    learning_rate: float | None = None


def _heads(count: int) -> Settings:
    # "keeping the amount of computation constant": heads times d_k is 512.
    return {"model.heads": count, "model.d_k": 512 // count, "model.d_v": 512 // count}


def _layers(count: int) -> Settings:
    return dict.fromkeys(_DEPTHS, count)


def _width(d_model: int) -> Settings:
    return {"model.d_model": d_model, "model.d_k": d_model // 8, "model.d_v": d_model // 8}


ROWS = (
    Row("base", {}, 4.92, 25.8, 65),
    Row("A-h1", _heads(1), 5.29, 24.9),
    Row("A-h4", _heads(4), 5.00, 25.5),
    Row("A-h16", _heads(16), 4.91, 25.8),
    Row("A-h32", _heads(32), 5.01, 25.4),
    Row("B-dk16", {"model.d_k": 16}, 5.16, 25.1, 58),
    Row("B-dk32", {"model.d_k": 32}, 5.01, 25.4, 60),
    Row("C-N2", _layers(2), 6.11, 23.7, 36),
    Row("C-N4", _layers(4), 5.19, 25.3, 50),
    Row("C-N8", _layers(8), 4.88, 25.5, 80),
    Row("C-dmodel256", _width(256), 5.75, 24.5, 28),
    Row("C-dmodel1024", _width(1024), 4.66, 26.0, 168),
    Row("C-dff1024", {"model.d_ff": 1024}, 5.12, 25.4, 53),
    Row("C-dff4096", {"model.d_ff": 4096}, 4.75, 26.2, 90),
    Row("D-dropout0.0", {"model.dropout": 0.0}, 5.77, 24.6),
    Row("D-dropout0.2", {"model.dropout": 0.2}, 4.95, 25.5),
    Row("D-smoothing0.0", {"training.label_smoothing": 0.0}, 4.67, 25.3),
    Row("D-smoothing0.2", {"training.label_smoothing": 0.2}, 5.47, 25.7),
    Row("E-learned", {"model.positions": "learned"}, 4.92, 25.7),
    Row(
        "big",
        {
            "model.d_model": 1024,
            "model.d_ff": 4096,
            "model.heads": 16,
            "model.dropout": 0.3,
            "training.max_steps": 300_000,
        },
        4.33,
        26.4,
        213,
    ),
)


def _smaller(width: int, layers: int, vocabulary_size: int, learning_rate: float) -> Base:
    """The paper's base model with other widths and depths, trained as suits a short run."""
    settings: Settings = {
        "model.d_model": width,
        "model.d_ff": 4 * width,
        "model.heads": 8,
        "model.norm": "post",
        **_layers(layers),
        "data.vocabulary_size": vocabulary_size,
        # One validation, at the end: nothing is averaged and nothing chosen.
        "training.validations": 1,
    }
    return Base("tiny", width, layers, settings, learning_rate)


BASES = {
    "paper": Base("paper-base", _PAPER_WIDTH, _PAPER_LAYERS),
    "small": _smaller(128, 3, 4000, 2e-3),
    "toy": _smaller(32, 3, 400, 3e-3),
}


def resolve(row: Row, base: Base) -> Settings:
    """The values for `--set` over the base's preset that make a row.

    Widths and depths keep their ratio to the base model's. The rate keeps Equation 3's d_model^-0.5
    where the schedule is another one.
    """
    settings = {**base.settings, "training.average_checkpoints": 1}
    for name, value in row.changes.items():
        if name in _WIDTHS:
            value = _exactly(row, name, value, base.width, _PAPER_WIDTH)
        elif name in _DEPTHS:
            value = _exactly(row, name, value, base.layers, _PAPER_LAYERS)
        settings[name] = value
    if base.learning_rate is not None:
        narrower = base.width / float(settings["model.d_model"])
        settings["training.learning_rate"] = base.learning_rate * narrower**0.5
    return settings


def _exactly(row: Row, name: str, value: float | int | str, own: int, paper: int) -> int:
    scaled, rest = divmod(int(value) * own, paper)
    if rest or not scaled:
        raise ValueError(f"{row.name}: {name} = {value} has no whole counterpart in this base")
    return scaled
