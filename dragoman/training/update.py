"""One optimizer update: forward, backward, accumulation, clipping, what is not finite."""

import itertools
import math

import torch
from torch import Tensor, nn

from dragoman.config import Config
from dragoman.corpus.batches import Batch
from dragoman.training.distributed import EveryRankError, Ranks, accumulating
from dragoman.training.loss import Loss
from dragoman.training.moving_average import update_average
from dragoman.training.optimizer import Adam
from dragoman.training.schedule import learning_rate
from dragoman.training.state import TrainingState
from dragoman.training.utilization import TrainingCost


class Updater:
    """Makes updates with an optimizer; objective(batch) -> sums of the smoothed loss and the nll.

    With several ranks the objective's backward pass averages gradients over them.
    """

    def __init__(
        self,
        config: Config,
        objective: nn.Module,
        optimizer: Adam,
        ranks: Ranks,
        cost: TrainingCost,
    ) -> None:
        """cost: what a batch costs, which the state counts."""
        self._config, self._settings = config, config.training
        self._objective, self._optimizer, self._ranks = objective, optimizer, ranks
        self._cost = cost

    def update(
        self, batches: list[Batch], state: TrainingState, progress: float
    ) -> tuple[Loss, float]:
        """Update on batches, together one large batch; the loss and the norm of its gradient.

        Each rank gives its share of the batches; loss and norm are those of all of them. Counts the
        update in `state`. Raises UserError, with nothing updated, when the loss or the norm is
        not finite.
        """
        settings = self._settings
        rate = learning_rate(settings, self._config.model.d_model, state.step + 1, progress)
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        loss, flops = self._backward(batches)
        norm = self._optimizer.clip(settings.gradient_clip)
        if not (math.isfinite(norm) and math.isfinite(float(loss.smoothed))):
            self._refuse_non_finite(batches, state, float(loss.smoothed), norm)
        self._optimizer.step()
        self._optimizer.zero_grad()
        state.step += 1
        if settings.ema_decay:
            update_average(self._optimizer, settings.ema_decay, state.step)
        state.tokens += loss.tokens
        state.flops += flops
        return loss, norm

    def _backward(self, batches: list[Batch]) -> tuple[Loss, int]:
        """Gradients of the mean over the tokens of all batches and ranks; the sums, the cost."""
        full = [batch for batch in batches if len(batch.rows)]
        own = sum(batch.target_tokens for batch in full)
        costs = sum(self._cost.of_batch(batch) for batch in full)
        tokens, flops = map(int, self._ranks.sum(own, costs))
        smoothed = nll = torch.zeros(())
        for number, batch in enumerate(batches, start=1):
            with accumulating(self._objective, last=number == len(batches)):
                loss: tuple[Tensor, Tensor] = self._objective(batch)
                # A share that is empty is computed all the same, and counts for nothing.
                counted = loss if len(batch.rows) else (loss[0] * 0.0, loss[1] * 0.0)
                # The ranks' gradients are averaged, and are to be added up.
                (counted[0] / (tokens / self._ranks.size)).backward()
            smoothed = smoothed + counted[0].detach().cpu()
            nll = nll + counted[1].detach().cpu()
        if self._ranks.size == 1:
            return Loss(smoothed, nll, tokens), flops
        sums = torch.tensor(self._ranks.sum(float(smoothed), float(nll)), dtype=torch.float64)
        return Loss(sums[0], sums[1], tokens), flops

    def _refuse_non_finite(
        self, batches: list[Batch], state: TrainingState, loss: float, norm: float
    ) -> None:
        own = [int(row) for batch in batches for row in batch.rows]
        rows = list(itertools.chain.from_iterable(self._ranks.gather(own)))
        shown = ", ".join(str(row) for row in rows[:8]) + (", ..." if len(rows) > 8 else "")
        raise EveryRankError(
            f"step {state.step + 1}, epoch {state.epoch}, batch {state.batch - 1}: "
            f"the loss is {loss} and the gradient norm {norm} (corpus rows {shown})",
            "lower training.learning_rate, raise training.warmup_steps, or set "
            "training.precision=float32 in training/config.toml; then go on with --resume",
        )
