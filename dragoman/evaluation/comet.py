"""COMET, a learned metric (Rei et al., 2020), where its package and a checkpoint are there."""

import os
from collections.abc import Sequence
from pathlib import Path

from dragoman.errors import UserError

_OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}


def comet_scores(
    sources: Sequence[str],
    systems: Sequence[Sequence[str]],
    reference: Sequence[str],
    checkpoint: Path,
) -> list[list[float]]:
    """The COMET score of every sentence of every system, against one reference, on the CPU.

    checkpoint is a ``model.ckpt`` as the package stores it, with its ``hparams.yaml`` in the folder
    above. It is loaded by that package, which may unpickle it: name only a file you trust. Nothing
    is downloaded. Raises UserError when the package or the file is missing or cannot be used.
    """
    if not checkpoint.is_file():
        raise UserError(
            f"{checkpoint}: no such file",
            "--comet takes the checkpoints/model.ckpt of a COMET model that you downloaded",
        )
    os.environ.update(_OFFLINE)  # before its libraries read them
    try:
        from comet import load_from_checkpoint
    except ImportError:
        raise UserError(
            "COMET is not installed", 'pip install "dragoman[comet]", or leave --comet out'
        ) from None
    try:
        model = load_from_checkpoint(str(checkpoint))
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(
            f"{checkpoint}: COMET cannot load it: {reason}",
            "its encoder must be in the local cache as well: nothing is downloaded here",
        ) from None
    scores = []
    for translations in systems:
        rows = [
            {"src": source, "mt": translation, "ref": target}
            for source, translation, target in zip(sources, translations, reference, strict=True)
        ]
        found = model.predict(rows, batch_size=8, gpus=0, progress_bar=False)
        scores.append([float(score) for score in found.scores])
    return scores
