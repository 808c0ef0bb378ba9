"""Root modules of a script's training: those whose calls its losses come from.

Backward tells which module a loss came from, and that is too late to change the pass. A module is
therefore taken for a root as it is called: from outside of any other, with gradients on, and with a
parameter that an optimizer updates. `trained` tells afterwards whether it has received gradients.
"""

import functools
from collections.abc import Callable
from typing import Any
from weakref import WeakSet

import torch
from torch import nn
from torch.optim import Optimizer

from autotune.worker.inject.steps import after_steps
from autotune.worker.patches import wrapping
from autotune.worker.protocol import CHECKED_STEPS

Call = Callable[..., Any]
Prepare = Callable[[nn.Module, Call], Call]
"""Function from a root and the call of it to the call that takes its place."""

PLACE = "_compiled_call_impl"
"""Attribute that torch calls in place of a module's hooks and forward, if it is set.

torch leaves it out of copies and pickles of the module; a LightningModule does not.
"""
_NO_BACKWARD = -1
_WRAPPERS = {
    *("DistributedDataParallel", "DataParallel"),
    *("FullyShardedDataParallel", "DeepSpeedEngine"),
}
"""Classes whose forward pass calls the module inside and computes nothing itself."""
_COMPILED = "_torchdynamo_orig_callable"
"""Attribute of a function that torch.compile has made."""
_is_exporting: Callable[[], bool] = getattr(torch.compiler, "is_exporting", bool)


def in_training() -> bool:
    """Return whether gradients are on, and the pass is not traced for an export of the model."""
    return torch.is_grad_enabled() and not torch._C._is_tracing() and not _is_exporting()


def in_backward() -> bool:
    """Return whether a backward pass is under way, as where it computes activations anew."""
    return torch._C._current_graph_task_id() != _NO_BACKWARD


class Roots:
    """Finder of root modules, which replaces what is called of each.

    It looks until the optimizers have taken a few steps, and again once one is given parameters. It
    keeps no root alive.

    Attributes:
        inside: whether a root is being called.
    """

    def __init__(self, prepare: Prepare) -> None:
        self.found: WeakSet[nn.Module] = WeakSet()
        self._prepare = prepare
        self._optimizers: WeakSet[Optimizer] = WeakSet()
        """Those that were given parameters since it began to look.

        Their parameters are looked up at each call: a framework may replace them.
        A parameter must have no weak reference: `torch.utils.swap_tensors` refuses it then, by which
        `model.to(device)` moves sharded parameters.
        """
        self.inside = False
        self._steps_left = 0

    def watch(self) -> None:
        """Look at calls of modules from now on."""
        self._watch_optimizers()
        self._watch_compilation()
        after_steps(self._took_step)
        self._look()

    def _look(self) -> None:
        self._steps_left = CHECKED_STEPS
        setattr(nn.Module, PLACE, _Looking(self))

    def _took_step(self, *_: Any) -> None:
        if self._steps_left == 1:
            self.settle()
        elif self._steps_left:
            self._steps_left -= 1

    def settle(self) -> None:
        """Look for no more roots: calls of all other modules are as torch has them again."""
        self._steps_left = 0
        self._optimizers.clear()
        setattr(nn.Module, PLACE, None)

    def trained(self) -> bool:
        """Return whether a root has gradients; to be called before they are dropped."""
        return any(p.grad is not None for root in self.found for p in root.parameters())

    def takes(self, module: nn.Module) -> bool:
        """Return whether the call of a module that begins now is that of a root."""
        return (
            self._steps_left > 0
            and not self.inside
            and in_training()
            and not in_backward()
            and module not in self.found
            and self._is_updated(module)
            and not _passes_on(module)
        )

    def call_first(self, module: nn.Module, own: Call, *args: Any, **kwargs: Any) -> Any:
        """Call a module as a root, and every time from now on.

        Args:
            own: what the script would call.
        """
        self.found.add(module)
        call = _RootCall(self, module, own)
        call.changed = self._prepare(module, call.call_own)
        # Past torch.compile's wrapper, which would set the attribute of the module inside.
        vars(module)[PLACE] = call
        return call(*args, **kwargs)

    def _is_updated(self, module: nn.Module) -> bool:
        """Return whether a known optimizer updates a parameter of a module."""
        parameters = list(module.parameters())
        if not parameters:
            return False
        updated = {
            id(parameter)
            for optimizer in self._optimizers
            for group in optimizer.param_groups
            for parameter in group["params"]
        }
        return any(id(parameter) in updated for parameter in parameters)

    def _watch_optimizers(self) -> None:
        """Record the optimizers that are given parameters from now on."""

        @wrapping(Optimizer, "add_param_group")
        def added(add: Any, optimizer: Optimizer, param_group: dict[str, Any]) -> None:
            add(optimizer, param_group)
            self._optimizers.add(optimizer)
            self._look()

    def _watch_compilation(self) -> None:
        """Look at modules that the script compiles in place, as torch does it by the same attribute."""

        @wrapping(nn.Module, "compile")
        def compiled(compile_in_place: Any, module: nn.Module, *args: Any, **kwargs: Any) -> None:
            earlier = vars(module).get(PLACE)
            compile_in_place(module, *args, **kwargs)
            own = vars(module)[PLACE]
            if isinstance(earlier, _RootCall):
                # It stays prepared, and calls what torch has compiled.
                earlier.own = own
                vars(module)[PLACE] = earlier
                return

            def call(*args: Any, **kwargs: Any) -> Any:
                if not self.takes(module):
                    return own(*args, **kwargs)
                return self.call_first(module, own, *args, **kwargs)

            vars(module)[PLACE] = call


class _RootCall:
    """Call of a root module in the place of its own.

    Attributes:
        own: what the script would call now.
        changed: what is called with gradients on.
    """

    def __init__(self, roots: Roots, module: nn.Module, own: Call) -> None:
        self.own = own
        self.changed = own
        self._roots = roots
        self._module = module

    def call_own(self, *args: Any, **kwargs: Any) -> Any:
        """Call what the script would call now."""
        return self.own(*args, **kwargs)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._roots.inside or not in_training() or _is_redirected(self._module):
            return self.own(*args, **kwargs)
        self._roots.inside = True
        try:
            return self.changed(*args, **kwargs)
        finally:
            self._roots.inside = False

    def __reduce__(self) -> tuple[Callable[..., None], tuple[()]]:
        """Be nothing in a copy or pickle: Lightning does not leave the attribute out of them."""
        return type(None), ()


class _Looking:
    """Descriptor in the place of the attribute of modules that are not known to be roots."""

    def __init__(self, roots: Roots) -> None:
        self._roots = roots

    def __get__(self, module: nn.Module | None, owner: type | None = None) -> Call | None:
        # Nothing else may be looked at inside of a root: torch.compile may be looking at this.
        if module is None or self._roots.inside or not self._roots.takes(module):
            return None
        return functools.partial(self._roots.call_first, module, module._call_impl)


def _passes_on(module: nn.Module) -> bool:
    """Return whether a module only calls what is inside of it, as wrappers do."""
    is_wrapper = any(kind.__name__ in _WRAPPERS for kind in type(module).__mro__)
    return is_wrapper or _is_redirected(module)


def _is_redirected(module: nn.Module) -> bool:
    """Return whether the script has another function in the place of a module's forward pass.

    Lightning redirects the forward pass inside of a wrapper to the training step, which calls
    modules, and the same one again.
    """
    forward = vars(module).get("forward")
    if forward is None or hasattr(forward, _COMPILED):
        return False
    return getattr(forward, "__self__", None) is not module
