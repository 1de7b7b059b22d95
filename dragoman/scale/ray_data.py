"""Work by Ray Data: what `dragoman.corpus.processes` does on one machine.

Each item, such as a chunk of a corpus, is one row of a dataset, and the same function maps over
them; results come back in order, so that a corpus is the same to the byte. Every machine of the
cluster must see the folders of the job under the same paths.
"""

import itertools
import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Self, TypeVar

from dragoman.errors import UserError

Item = TypeVar("Item")
Result = TypeVar("Result")

_ITEMS_PER_CORE = 8
_RETRIES = 3  # of an item whose worker died; Ray Data's own number has no end


class RayData:
    """A Ray cluster as the place where items are worked on.

    Args:
        address: "local" starts one on this machine; "auto" is the one that runs here; else
            ``host:port`` or ``ray://host:port``.

    Raises:
        UserError: Ray is not installed, or no cluster answers at the address.
    """

    def __init__(self, address: str) -> None:
        self._address = address
        self._ray: Any = None

    def __enter__(self) -> Self:
        try:
            import ray
            import ray.data
        except ImportError as error:
            raise UserError(
                f"Ray Data cannot be used: {error}", 'install it: pip install "dragoman[scale]"'
            ) from None
        try:
            ray.init(
                address=self._address,
                log_to_driver=False,
                logging_level=logging.ERROR,
                include_dashboard=False if self._address == "local" else None,
            )
        except Exception as error:  # it raises of every kind, and bare ones
            raise UserError(
                f"no Ray cluster answers at {self._address}: {str(error).partition(chr(10))[0]}",
                "start one: ray start --head; or give --ray local",
            ) from None
        self._ray = ray
        logging.getLogger("ray.data").setLevel(logging.CRITICAL)  # what it says is raised, too
        context = ray.data.DataContext.get_current()
        context.enable_progress_bars = False
        context.print_on_execution_start = False
        context.execution_options.preserve_order = True
        return self

    def __exit__(self, *_: object) -> None:
        self._ray.shutdown()

    def map(self, function: Callable[[Item], Result], items: Iterable[Item], /) -> Iterator[Result]:
        """The results in the order of the items, some items for each core at a time.

        Ray gives what a dead worker had to do to another one, three times. Raises UserError as
        `function` does, and when workers die again and again or the cluster goes.
        """
        cores = int(self._ray.cluster_resources().get("CPU", 1))
        supply = iter(items)
        while group := list(itertools.islice(supply, _ITEMS_PER_CORE * cores)):
            data = self._ray.data.from_items(
                [{"item": item} for item in group], override_num_blocks=len(group)
            )
            for row in self._rows(data.map(_Task(function), max_retries=_RETRIES)):
                if (problem := row["problem"]) is not None:
                    raise UserError(*problem)
                yield row["result"]

    def _rows(self, data: Any) -> Iterator[dict[str, Any]]:
        try:
            yield from data.iter_rows()
        except self._ray.exceptions.RayTaskError:  # an error of ours
            raise
        except self._ray.exceptions.RayError as error:
            raise UserError(
                f"the Ray cluster failed: {str(error).strip().partition(chr(10))[0]}",
                "look at its memory and its machines, and run the command again: what was done "
                "is kept",
            ) from None


class _Task:
    """The function of a row; a mistake of the user comes back as one instead of a failed task."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self._function = function

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        try:
            return {"result": self._function(row["item"]), "problem": None}
        except UserError as error:
            return {"result": 0, "problem": [error.message, error.hint]}
