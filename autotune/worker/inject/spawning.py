"""A script that starts its ranks itself: seen where it does so, as nobody could follow it there."""

import functools
import sys
from collections.abc import Callable
from typing import Any, NoReturn

import torch.multiprocessing  # with it comes the module that is looked up below


def watch(found: Callable[[str], NoReturn]) -> None:
    """Have torch.multiprocessing.spawn end in `found`, which is told what to do instead."""

    # The name of the module is taken by its function.
    spawning: Any = sys.modules[f"{torch.multiprocessing.__name__}.spawn"]

    @functools.wraps(spawning.start_processes)
    def refused(*args: Any, **kwargs: Any) -> NoReturn:
        found(
            "the script starts its ranks itself (torch.multiprocessing.spawn): have each rank started "
            "from outside, as under torchrun, by an argument of the script or by its environment"
        )

    owners: tuple[Any, ...] = (torch.multiprocessing, spawning)
    for owner in owners:
        owner.start_processes = refused
