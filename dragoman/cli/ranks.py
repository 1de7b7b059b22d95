"""A training in several processes: what those do that are not the first."""

from pathlib import Path

from dragoman.config import read_config
from dragoman.training.launch import Launch


def follow_training(out: Path, device: str, launch: Launch) -> None:
    """Train with rank 0, once it has checked and prepared everything in `out`.

    Raises UserError, typer.Exit, and OtherRankFailedError where another rank has said what is
    wrong.
    """
    from dragoman.cli.stages import SETTINGS
    from dragoman.corpus.prepared import load_prepared
    from dragoman.training.distributed import process_group

    with process_group(launch, device) as ranks:
        if not ranks.decide(lambda: False):
            return
        from dragoman.cli.run import Run, train_to_end

        work = out / "training"
        corpus = load_prepared(work / "corpus")
        train_to_end(Run(out, read_config(work / SETTINGS), corpus, ranks))
