"""Hooks on the optimizer steps of a script that train.

torch.distributed.checkpoint takes a step with zero gradients and learning rates, so that an optimizer
has a state which can be saved or loaded. No hook is called for it.
"""

import functools
from collections.abc import Callable
from typing import Any

from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils.hooks import RemovableHandle

from autotune.worker.patches import Arrivals, wrapping

Hook = Callable[..., object]
"""Function of an optimizer, and of the arguments of its step."""
_MAKER = "_init_optim_state"


class _State:
    """Optimizer state of this process: `made` while torch makes one by a step."""

    made = False


def before_steps(hook: Hook) -> RemovableHandle:
    """Call a function before every step that trains, from now on."""
    _watch()
    return register_optimizer_step_pre_hook(_of_training(hook))


def after_steps(hook: Hook) -> RemovableHandle:
    """Call a function after every step that trains, from now on."""
    _watch()
    return register_optimizer_step_post_hook(_of_training(hook))


def _of_training(hook: Hook) -> Callable[..., None]:
    def called(*given: Any) -> None:
        if not _State.made:
            hook(*given)

    return called


@functools.cache
def _watch() -> None:
    """Notice from now on where torch makes a state."""
    Arrivals({"torch.distributed.checkpoint.state_dict": _mark}).begin()


def _mark(module: Any) -> None:
    if not hasattr(module, _MAKER):
        return

    @wrapping(module, _MAKER)
    def made(make: Callable[..., None], *args: Any, **kwargs: Any) -> None:
        _State.made = True
        try:
            make(*args, **kwargs)
        finally:
            _State.made = False
