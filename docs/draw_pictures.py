"""Draw the pictures of ``docs/concepts.md`` into ``docs/images``: ``python docs/draw_pictures.py``.

Trains a small model on made-up sentences (a minute or two on two cores; kept in the folder given
by ``--work``) in which "it" may mean an animal or a place, and draws what its heads look at, beside
pictures of the formulas themselves. Takes no other data.
"""

import argparse
import itertools
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import matplotlib
import numpy as np
import torch

from dragoman.config import TrainingConfig, resolve_config
from dragoman.inspection.attention_maps import sentence_attention
from dragoman.inspection.plots import attention_png
from dragoman.model.attention import causal_mask
from dragoman.model.embedding import sinusoidal_positions
from dragoman.model.folder import load_model
from dragoman.training.schedule import learning_rate

matplotlib.use("Agg")
from matplotlib import pyplot
from matplotlib.figure import Figure
from PIL import Image

IMAGES = Path(__file__).with_name("images")
BLUE, ORANGE, GREY = "#2f6fdb", "#d9541e", "#6e7781"

ANIMALS = {
    "cat": "die Katze", "dog": "der Hund", "horse": "das Pferd",
    "mouse": "die Maus", "bird": "der Vogel", "sheep": "das Schaf",
}  # fmt: skip
PLACES = {
    "garden": "im Garten", "kitchen": "in der Küche", "house": "im Haus",
    "forest": "im Wald", "barn": "in der Scheune", "room": "im Zimmer",
}  # fmt: skip
PRONOUNS = {"die": "sie", "der": "er", "das": "es"}
PLACE_PRONOUNS = dict(zip(PLACES, ["er", "sie", "es"] * 2, strict=True))
VERBS = {"sleeps": "schläft", "waits": "wartet", "plays": "spielt", "eats": "frisst"}
ADJECTIVES = {"": "", "old ": "alte ", "small ": "kleine ", "white ": "weiße "}
OF_ANIMALS = {"tired": "müde", "hungry": "hungrig", "glad": "froh", "ill": "krank"}
OF_PLACES = {"warm": "warm", "quiet": "ruhig", "dark": "dunkel", "empty": "leer"}
NAMES = {
    "encoder": ("source tokens looked at", "source tokens that look"),
    "decoder": ("tokens looked back at", "the latest token"),
    "cross": ("source tokens", "translation tokens"),
}
EXAMPLES = (
    "the old cat sleeps in the garden because it is tired.",
    "the old cat sleeps in the garden because it is quiet.",
)


def sentences() -> list[tuple[str, str]]:
    """All pairs of the made-up language, shuffled; what "it" is depends on the last word."""
    pairs = []
    for adjective, animal, verb, place, why in itertools.product(
        ADJECTIVES, ANIMALS, VERBS, PLACES, OF_ANIMALS | OF_PLACES
    ):
        article, noun = ANIMALS[animal].split()
        it = PRONOUNS[article] if why in OF_ANIMALS else PLACE_PRONOUNS[place]
        reason = (OF_ANIMALS | OF_PLACES)[why]
        pairs.append(
            (
                f"the {adjective}{animal} {verb} in the {place} because it is {why}.",
                f"{article} {ADJECTIVES[adjective]}{noun} {VERBS[verb]} {PLACES[place]}, "
                f"weil {it} {reason} ist.",
            )
        )
    random.Random(1).shuffle(pairs)
    return pairs


def train(work: Path) -> Path:
    """The model folder, trained unless it is there; the two examples are not learned."""
    model = work / "model"
    if (model / "model.safetensors").is_file():
        return model
    pairs = [pair for pair in sentences() if pair[0] not in EXAMPLES][:3000]
    work.mkdir(parents=True, exist_ok=True)
    for name, side in (("train.en", 0), ("train.de", 1)):
        text = "".join(f"{pair[side]}\n" for pair in pairs)
        (work / name).write_text(text, encoding="utf-8", newline="\n")
    command = [sys.executable, "-m", "dragoman", "train", "--preset", "tiny", "--out", str(model)]
    command += ["--source", str(work / "train.en"), "--target", str(work / "train.de")]
    for setting in ("model.d_model=64", "model.d_ff=256", "model.heads=4", "training.max_steps=900",
                    "training.validations=4", "data.vocabulary_size=700"):  # fmt: skip
        command += ["--set", setting]
    subprocess.run(command, check=True)
    return model


def draw_attention(model: Path) -> None:
    """Encoder, decoder and cross-attention of the examples."""
    loaded = load_model(model, torch.device("cpu"))
    for name, text in zip(("tired", "quiet"), EXAMPLES, strict=True):
        found = sentence_attention(loaded, text)
        title = f"{text} → {found.translation}"
        for kind in ("encoder", "cross") if name == "tired" else ("cross",):
            queries, keys = found.queries(kind), found.keys(kind)
            path = IMAGES / f"{kind}-{name}.png"
            attention_png(found.weights(kind)[-1], keys, queries, path, title, NAMES[kind])
            shrink(path)
        if name == "tired":
            path = IMAGES / "decoder.png"
            pieces = found.target_in
            title = found.translation
            attention_png(found.decoder[0][0], pieces, pieces, path, title, NAMES["decoder"])
            shrink(path)


def draw_positions(figure: Figure) -> None:
    """The table of positions, and how like each other any two rows of it are."""
    table = sinusoidal_positions(50, 64).numpy()
    left, right = figure.subplots(1, 2, width_ratios=[1.25, 1])
    image = left.imshow(table, aspect="auto", cmap="RdBu", vmin=-1, vmax=1)
    left.set(xlabel="feature", ylabel="position", title="sines and cosines (section 3.5)")
    figure.colorbar(image, ax=left, shrink=0.8)
    for position, color in ((10, BLUE), (30, ORANGE)):
        right.plot(table @ table[position], color=color, label=f"position {position} and others")
    right.set(xlabel="position", title="dot product of two rows", ylim=(14, 40))
    right.legend(frameon=False)


def draw_scaling(figure: Figure) -> None:
    """The softmax of the same scores with and without the division by sqrt(d_k)."""
    chance = torch.Generator().manual_seed(3)
    d_k, places = 64, np.arange(8)
    query = torch.randn(d_k, generator=chance)
    scores = torch.randn(8, d_k, generator=chance) @ query
    panels = figure.subplots(1, 2, sharey=True)
    for axes, values, title, color in (
        (panels[0], scores, "softmax(q·k)", ORANGE),
        (panels[1], scores / d_k**0.5, "softmax(q·k / √64)", BLUE),
    ):
        axes.bar(places, torch.softmax(values, dim=0).numpy(), color=color)
        axes.set(title=title, xlabel="key", ylim=(0, 1))
    panels[0].set_ylabel("weight")


def draw_mask(figure: Figure) -> None:
    """Who may look at whom in the decoder."""
    words = ["<s>", "die", "alte", "Katze", "schläft"]
    axes = figure.subplots()
    axes.imshow(causal_mask(len(words), torch.device("cpu"))[0, 0].numpy(), cmap="Blues", vmax=1.4)
    axes.set_xticks(range(len(words)), words)
    axes.set_yticks(range(len(words)), words)
    axes.set(xlabel="looked at", ylabel="reader", title="blue: may look")


def draw_rate(figure: Figure) -> None:
    """Equation 3 at three widths."""
    steps = np.arange(1, 20_001, 20)
    axes = figure.subplots()
    base = resolve_config("paper-base").training
    for d_model, warmup, color in ((512, 4000, BLUE), (512, 8000, ORANGE), (256, 4000, GREY)):
        training = TrainingConfig.model_validate(base.model_dump() | {"warmup_steps": warmup})
        rates = [learning_rate(training, d_model, int(step), 0.0) for step in steps]
        axes.plot(steps, rates, color=color, label=f"d_model {d_model}, warm-up {warmup:,}")
    axes.set(xlabel="update", title="learning rate (Equation 3)")
    axes.legend(frameon=False)


def save(name: str, draw: Callable[[Figure], None], size: tuple[float, float]) -> None:
    """One picture of a formula."""
    figure = Figure(figsize=size, dpi=110, layout="constrained")
    draw(figure)
    path = IMAGES / name
    figure.savefig(path)
    shrink(path)


def shrink(path: Path) -> None:
    """A palette of 256 colors: a third of the bytes, and hardly a difference to be seen."""
    with Image.open(path) as image:
        smaller = image.convert("RGB").quantize(
            256, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE
        )
    smaller.save(path, optimize=True)


def main() -> None:
    """Draw everything."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, help="where the model is, or is trained to")
    chosen = parser.parse_args()
    pyplot.rcParams.update({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False})
    save("positions.png", draw_positions, (9, 3.4))
    save("scaling.png", draw_scaling, (7, 2.6))
    save("mask.png", draw_mask, (3.6, 3.2))
    save("learning-rate.png", draw_rate, (6.4, 3))
    if chosen.work:
        draw_attention(train(chosen.work))
        return
    with tempfile.TemporaryDirectory() as folder:
        draw_attention(train(Path(folder)))


if __name__ == "__main__":
    main()
