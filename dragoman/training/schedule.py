"""Learning-rate schedules: Equation 3 of the paper, linear and cosine decay."""

import math

from dragoman.config import TrainingConfig

# Of a run: a short one must not end before its learning rate has risen.
_LONGEST_WARMUP = 1 / 6


def learning_rate(config: TrainingConfig, d_model: int, step: int, progress: float) -> float:
    """The rate of update `step` (from 1) when a share `progress` of the run is done.

    paper: d_model^-0.5 * min(step^-0.5, step * warmup^-1.5), Equation 3. linear, cosine: warm-up to
    `learning_rate`, over warmup_steps or a sixth of the run if that is shorter, then down to zero
    as progress goes to 1.
    """
    warmup = config.warmup_steps
    if config.schedule == "paper":
        return float(d_model**-0.5 * min(step**-0.5, step * warmup**-1.5))
    progress = min(max(progress, 0.0), 1.0)
    falling = (
        1 - progress if config.schedule == "linear" else (1 + math.cos(math.pi * progress)) / 2
    )
    rising = min(max(step / warmup, progress / _LONGEST_WARMUP), 1.0)
    return config.learning_rate * rising * falling
