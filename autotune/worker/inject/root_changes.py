"""Knobs that act on a root module of a script, in force in passes with gradients only.

Between two passes the root is as the script has built it: copies, pickles and checkpoints of it have
the names and the classes that they have without a knob. Only the layers of float8 and the memory format
of channels_last stay.
"""

import copy
import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import nn

from autotune.worker.effects import feeding, kernels, precision
from autotune.worker.effects.kernels import (
    converted_to_float8,
    has_float8_layers,
    has_image_convolutions,
)
from autotune.worker.effects.parallel import blocks
from autotune.worker.inject.batch_samples import is_dataclass, tensors
from autotune.worker.inject.detected import (
    Recomputation,
    around_checkpoints,
    compiled_frames,
    is_sharded,
)
from autotune.worker.inject.graph import may_attend, product_formats
from autotune.worker.inject.roots import PLACE, Call, in_training
from autotune.worker.patches import Arrivals, wrapping
from autotune.worker.protocol import Knobs

COMPILATION = frozenset({"compile", "compile_scope"})
_ABSENT = object()


class Replacement(NamedTuple):
    """Forward function of a module in the place of its own.

    Attributes:
        own: the module's, bound to it.
        changed: what takes its place.
    """

    own: Call
    changed: Call


class RootChanges:
    """Application of some knobs to the roots of a script."""

    def __init__(self, knobs: Knobs, names: frozenset[str], *, in_job: bool = False) -> None:
        self._met: set[str] = set()
        self._recomputation = Recomputation()
        self._attention = ChosenAttention(knobs, gives_way=in_job)
        self._knobs = knobs
        self._names = names
        self._compiles = "compile" in names and knobs["compile"] != "none"
        self._checkpoints_compiled = False
        """True if compiled code computes activations anew, which does not show."""

    def watch(self) -> None:
        """Notice from now on that activations are computed anew; see to attention there.

        Files of safetensors take weights as channels_last leaves them.
        """
        if "activation_checkpointing" in self._names:
            self._recomputation.watch()
        if "attention" in self._names:
            self._attention.watch()
        if "channels_last" in self._names:
            Arrivals({"safetensors.torch": _save_contiguous}).begin()

    def met(self) -> set[str]:
        """Return the knobs that have acted on a root, by what torch does."""
        found = set(self._met)
        if compiled_frames():
            found |= {*COMPILATION, "attention"}  # of attention there is nothing to be seen in it
        if self._recomputation.seen or self._checkpoints_compiled:
            found.add("activation_checkpointing")
        return found & self._names

    def prepare(self, root: nn.Module, own: Call) -> Call:
        """Change a root; return what is called instead of it.

        A knob acts on those of several roots that have something for it to act on.

        Args:
            root: before its first call.
            own: what the script would call.
        """
        knobs, names = self._knobs, self._names
        sharded, has_blocks = any(map(is_sharded, root.parameters())), bool(blocks(root))
        if "float8" in names and not sharded and has_float8_layers(root):
            converted_to_float8(knobs, root)
            self._met.add("float8")
        with _collected(root) as replaced:
            if "activation_checkpointing" in names and has_blocks:
                kernels.checkpoint_activations(knobs, root)
                self._checkpoints_compiled = self._compiles
            compiles = self._compiles and (has_blocks or knobs["compile_scope"] != "blocks")
            if compiles:
                kernels.compile_in_place(knobs, root, sharded=sharded)
        call = _placed(root, replaced, own)
        if compiles and knobs["compile"] in kernels.CUDA_GRAPHS:
            call = _of_own_memory(call)
        if "channels_last" in names and not sharded and has_image_convolutions(root):
            kernels.channels_last(knobs, root)
            self._met.add("channels_last")
            call = _of_images(call)
        if "attention" in names:
            call = self._attended(root, self._attention.within(call))
        return self._in_format(root, call)

    def _attended(self, root: nn.Module, call: Call) -> Call:
        """Return a call that takes in, at first, whether the root attends."""
        looked = False

        @functools.wraps(call)
        def run(*args: Any, **kwargs: Any) -> Any:
            nonlocal looked
            found = call(*args, **kwargs)
            if not torch.compiler.is_compiling() and not looked:
                looked = True
                if may_attend(tensors(found), root.parameters()):
                    self._met.add("attention")
            return found

        return run

    def _in_format(self, root: nn.Module, call: Call) -> Call:
        """Return a call whose products are in another format, and its results in fp32 (precision).

        The loss is computed outside.
        """
        if "precision" not in self._names or self._knobs["precision"] == "tf32":
            return call
        looked = False

        def run(*args: Any, **kwargs: Any) -> Any:
            nonlocal looked
            device = next(root.parameters()).device
            with precision.autocast(self._knobs, device):
                found = call(*args, **kwargs)
            if not looked:
                looked = True
                self._look_at_products(found)
            return _mapped(found, _widened)

        return run

    def _look_at_products(self, found: Any) -> None:
        """Take in the format of the products that a result comes from; compiled code hides them."""
        wanted = precision.AUTOCAST_DTYPES[self._knobs["precision"]]
        formats = product_formats(tensors(found))
        if wanted in formats or (compiled_frames() and not formats):
            self._met.add("precision")


@contextmanager
def _collected(root: nn.Module) -> Iterator[dict[nn.Module, Replacement]]:
    """Collect what replaces forward of modules inside of the context; they have their own after it."""
    before = {module: vars(module).get("forward", _ABSENT) for module in root.modules()}
    found: dict[nn.Module, Replacement] = {}
    try:
        yield found
    finally:
        for module, own in before.items():
            forward = vars(module).get("forward", _ABSENT)
            if forward is not own:
                _set(module, own)
                found[module] = Replacement(module.forward, forward)


def _set(module: nn.Module, forward: Any) -> None:
    """Set forward of a single module; `_ABSENT`: that of its class."""
    if forward is _ABSENT:
        vars(module).pop("forward", None)
    else:
        vars(module)["forward"] = forward


def _placed(root: nn.Module, replaced: Mapping[nn.Module, Replacement], own: Call) -> Call:
    """Return what is called instead of a root, so that it runs these forward functions.

    torch.compile of the whole must see those of all blocks. Otherwise each block changes by itself:
    checkpointing in the script calls it again in the backward pass.
    """
    if root in replaced:
        return _in_force(replaced, own)
    for block, forward in replaced.items():
        own_of_block = vars(block).get(PLACE) or block._call_impl
        vars(block)[PLACE] = _in_force({block: forward}, own_of_block)
    return own


def _in_force(replaced: Mapping[nn.Module, Replacement], own: Call) -> Call:
    """Return a call during which modules have these forward functions, if it is of the training.

    A module that the script has given another one since keeps that.
    """

    @functools.wraps(own)
    def call(*args: Any, **kwargs: Any) -> Any:
        if not in_training():
            return own(*args, **kwargs)
        before = []
        for module, forward in replaced.items():
            if module.forward == forward.own:
                before.append((module, vars(module).get("forward", _ABSENT)))
                vars(module)["forward"] = forward.changed
        try:
            return own(*args, **kwargs)
        finally:
            for module, present in before:
                _set(module, present)

    return call


def _save_contiguous(safetensors: Any) -> None:
    """Have safetensors save tensors of any memory format, which it refuses by itself."""
    for name in ("save", "save_file"):

        @wrapping(safetensors, name)
        def saved(save: Call, tensors: Any, *args: Any, **kwargs: Any) -> Any:
            return save(feeding.mapped(tensors, torch.Tensor.contiguous), *args, **kwargs)


def _of_own_memory(call: Call) -> Call:
    """Return a call whose results stay as they are in later calls: a script may keep them.

    Without gradients nothing compiled is called. Of blocks that are compiled, a root may return what
    one of them has returned.
    """

    def run(*args: Any, **kwargs: Any) -> Any:
        found = call(*args, **kwargs)
        return _mapped(found, torch.clone) if torch.is_grad_enabled() else found

    return run


def _of_images(call: Call) -> Call:
    """Return a call that takes images with the channel innermost (channels_last)."""

    def converted(given: Any) -> Any:
        return feeding.with_channels_last(given) if isinstance(given, torch.Tensor) else given

    def run(*args: Any, **kwargs: Any) -> Any:
        named = {name: converted(given) for name, given in kwargs.items()}
        return call(*map(converted, args), **named)

    return run


def _mapped(found: Any, function: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Return a copy of a model's result with a function applied to its tensors.

    Mappings and dataclasses keep their class.
    """
    if isinstance(found, MutableMapping):
        changed = copy.copy(found)
        for key, value in found.items():
            changed[key] = _mapped(value, function)
        return changed
    if is_dataclass(found):
        replaced = copy.copy(found)
        for field in dataclasses.fields(found):
            value = _mapped(getattr(found, field.name), function)
            object.__setattr__(replaced, field.name, value)
        return replaced
    return feeding.mapped(found, function)


def _widened(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.float() if tensor.dtype in (torch.bfloat16, torch.float16) else tensor


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
