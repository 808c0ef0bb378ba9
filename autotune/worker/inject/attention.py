"""Implementation of attention in calls of roots, also where their activations are computed anew."""

import functools
from collections.abc import Callable
from typing import Any

from autotune.worker.effects import kernels
from autotune.worker.inject.detected import around_checkpoints
from autotune.worker.inject.roots import Call
from autotune.worker.protocol import Knobs


class ChosenAttention:
    """Application of `attention` to calls."""

    def __init__(self, knobs: Knobs, *, gives_way: bool) -> None:
        """Prepare the application of a configuration's value; see kernels.attention."""
        self._knobs = knobs
        self._gives_way = gives_way
        self._inside = False

    def watch(self) -> None:
        """Have activations computed anew as they were computed first, from now on."""
        around_checkpoints(self._pass_on)

    def within(self, call: Call) -> Call:
        """Return a call in which the implementation is chosen; afterwards all is as before."""

        @functools.wraps(call)
        def run(*args: Any, **kwargs: Any) -> Any:
            before, self._inside = self._inside, True
            try:
                with kernels.attention(self._knobs, gives_way=self._gives_way):
                    return call(*args, **kwargs)
            finally:
                self._inside = before

        return run

    def _pass_on(self, enter: Callable[..., Any], function: Call, *args: Any, **kwargs: Any) -> Any:
        # The backward pass calls it, where the setting is the script's again.
        return enter(self.within(function) if self._inside else function, *args, **kwargs)
