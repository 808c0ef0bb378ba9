"""Knobs that act on a script from outside, through the classes and hooks of torch that it uses.

The functions of `effects` do the work, as for the built-in loop. `idle` names a knob that has found
nothing to act on: the result of a run must not be attributed to it.
"""

import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from weakref import WeakSet

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from autotune.worker.effects import kernels, parallel, precision, process
from autotune.worker.effects.compression import HOOKED, compress_gradients
from autotune.worker.effects.feeding import OF_LOADER
from autotune.worker.effects.parallel import DDP_ARGUMENTS
from autotune.worker.gradients import parameters_of
from autotune.worker.inject import sharding
from autotune.worker.inject.constructed import construct_by
from autotune.worker.inject.detected import is_sharded
from autotune.worker.inject.loaders import LoaderChanges
from autotune.worker.inject.place import is_first
from autotune.worker.inject.root_changes import COMPILATION, RootChanges
from autotune.worker.inject.roots import Roots
from autotune.worker.inject.steps import before_steps
from autotune.worker.protocol import COMPRESSION_WARM_UP, Knobs

VARIABLES = frozenset({"cpu_threads", *process.VARIABLES_OF})
"""Knobs that are variables of the environment: set before torch was used, see effects.process."""
SETTINGS = frozenset({"cpu_affinity", "cudnn_benchmark", "freeze_gc"})
"""Knobs that are settings of the process."""
DDP = frozenset({*DDP_ARGUMENTS, *HOOKED, "first_bucket_mb"})
"""Knobs that act where a script wraps its model in DistributedDataParallel."""
SHARDING = frozenset({"parallelism", "fsdp_prefetch", "fsdp_reduce_dtype"})
"""Knobs that act where a script calls fully_shard, or has DistributedDataParallel instead."""
ROOT = frozenset(
    {
        *COMPILATION,
        *("precision", "activation_checkpointing", "attention", "channels_last", "float8"),
    }
)
"""Knobs that act on the modules whose calls the losses come from."""
LOADER = frozenset(OF_LOADER)
"""Knobs that act where a script makes a DataLoader."""
OPTIMIZER = frozenset({"optimizer_kernels"})
"""Knobs that act before the first step of an optimizer."""


@dataclass
class ScriptObjects:
    """Objects that a script has built.

    Attributes:
        model: last one in DistributedDataParallel; None where there is none.
        inner: module that it wraps.
    """

    model: DistributedDataParallel | None = None
    inner: nn.Module | None = None


class Changes:
    """Application of some knobs of a configuration to a script.

    Call `begin` before the script runs. They apply to all that it builds from then on.

    Attributes:
        built: objects that it has built so far.
    """

    def __init__(
        self,
        knobs: Knobs,
        names: tuple[str, ...],
        baseline: Mapping[str, Any] | None = None,
        *,
        in_job: bool = False,
    ) -> None:
        """Prepare the changes.

        Args:
            knobs: a value for every knob.
            names: of the knobs to apply; the script keeps its own settings of all others.
            baseline: their values in the baseline, as far as they are known.
            in_job: whether the script is the user's own job. It goes on where a trial fails, and begins
                to compress gradients where PyTorch does: a trial's few steps would harm it.
        """
        self._knobs = knobs
        self._in_job = in_job
        self._names = frozenset(names)
        self.built = ScriptObjects()
        self._met: set[str] = set()
        self._said: set[str] = set()
        self._threads = 0
        self._changed: WeakSet[Optimizer] = WeakSet()
        self._optimizers: WeakSet[Optimizer] = WeakSet()
        self._sharded = False
        self._root = RootChanges(knobs, self._names & ROOT, in_job=in_job)
        self._roots = Roots(self._root.prepare)
        self._loaders = LoaderChanges(knobs, self._names & LOADER, baseline or {})
        self._updates = 0
        self._stepped: WeakSet[Optimizer] = WeakSet()
        """Optimizers that have stepped in the present step of the training."""

    def begin(self) -> None:
        """Patch what the script will use."""
        self._begin_process()
        construct_by(DistributedDataParallel, self._build_ddp)
        if self._names & SHARDING:
            construct_by(Optimizer, self._build_optimizer)
            sharding.change_calls(self._knobs, self._names, self._shards)
        if self._names & LOADER:
            self._loaders.watch()
        if self._names & {*OPTIMIZER, *SHARDING, "channels_last"}:
            before_steps(self._before_update)
        if self._names & ROOT:
            self._root.watch()
            self._roots.watch()

    def met(self, name: str) -> None:
        """Record that a knob was applied elsewhere."""
        self._met.add(name)

    def idle(self, *, draws: bool = True) -> list[str]:
        """Return names of knobs that have found nothing to act on so far.

        Args:
            draws: whether the training draws its batches from a DataLoader; if not, knobs of a
                DataLoader count as idle.
        """
        met = set(self._met)
        if self._loaders.acted:
            met |= LOADER
        if self._roots.trained():
            met |= self._root.met()
        return sorted(self._names - (met if draws else met - LOADER))

    def set_back(self) -> list[str]:
        """Return names of knobs of the process that the script has set to something else."""
        knobs, names, back = self._knobs, self._names, set()
        wants_tf32 = "precision" in names and knobs["precision"] == "tf32"
        if wants_tf32 and not precision.matmul_in_tf32():
            back.add("precision")
        if torch.backends.cudnn.benchmark != knobs["cudnn_benchmark"]:
            back.add("cudnn_benchmark")
        if torch.get_num_threads() != self._threads:
            back.add("cpu_threads")
        return sorted(back & names)

    # Knobs of the process

    def _begin_process(self) -> None:
        """Apply SETTINGS, and precision as far as it is one."""
        knobs, names = self._knobs, self._names
        self._threads = torch.get_num_threads()
        done = {*VARIABLES}
        if "cudnn_benchmark" in names:
            torch.backends.cudnn.benchmark = knobs["cudnn_benchmark"]
            done.add("cudnn_benchmark")
        if "attention" in names:
            kernels.flash_attention(knobs)
        if "precision" in names and knobs["precision"] == "tf32":
            precision.float32_matmul(knobs)
            done.add("precision")
        if "freeze_gc" in names:
            before_steps(self._collect_garbage)
        self._met |= names & done

    def _collect_garbage(self, optimizer: Optimizer, *_: Any) -> None:
        """Collect garbage before few steps of the training, in each of which several may step."""
        begins = not self._stepped or optimizer in self._stepped
        if begins:
            self._stepped.clear()
            process.garbage_collection(self._knobs, self._updates)
            self._updates += 1
            self._met.add("freeze_gc")
        self._stepped.add(optimizer)

    # Objects that the script builds

    def _build_ddp(self, build: Callable[..., None], bound: inspect.BoundArguments) -> None:
        knobs, names, arguments = self._knobs, self._names, bound.arguments
        if "parallelism" in names and knobs["parallelism"] in parallel.SHARDING:
            self._shard_instead(arguments)
            return
        if "channels_last" in names and kernels.has_image_convolutions(arguments["module"]):
            # The wrapper lays out gradients as parameters are then.
            kernels.channels_last(knobs, arguments["module"])
        wanted = parallel.ddp_arguments(knobs)
        for name in names & DDP_ARGUMENTS.keys():
            argument = DDP_ARGUMENTS[name]
            # An argument that torch has renamed may be given by its old name.
            arguments.pop(name, None)
            arguments.pop(argument, None)
            if argument in wanted:
                arguments[argument] = wanted[argument]
        if "first_bucket_mb" in names:
            parallel.first_bucket(knobs)
        build(*bound.args, **bound.kwargs)
        self.built.model = model = arguments["self"]
        self.built.inner = model.module
        if names & {*HOOKED}:
            compress_gradients(knobs, model, None if self._in_job else COMPRESSION_WARM_UP)
        self._met |= names & {*DDP_ARGUMENTS, *HOOKED}
        if "first_bucket_mb" in names and arguments.get("bucket_cap_mb") is None:
            self._met.add("first_bucket_mb")  # else DDP has all buckets of one size

    def _shard_instead(self, arguments: dict[str, Any]) -> None:
        """Shard the module that the script gives to DistributedDataParallel.

        Raises:
            ValueError: it names ranks of its own.
        """
        if arguments.get("process_group") is not None:
            raise ValueError(
                f"parallelism={self._knobs['parallelism']}: the script gives DistributedDataParallel "
                "a process group of its own; take the knob out of the search space"
            )
        module = arguments["module"]
        sharding.shard(arguments["self"], module, self._knobs, self._optimizers)
        self.built.inner = module
        self._shards()
        # They are at the values that say nothing beside sharding.
        self._met |= self._names & {*DDP_ARGUMENTS, *HOOKED, "first_bucket_mb"}

    def _shards(self) -> None:
        self._sharded = True

    def _build_optimizer(self, build: Callable[..., None], bound: inspect.BoundArguments) -> None:
        self._optimizers.add(bound.arguments["self"])
        build(*bound.args, **bound.kwargs)

    def _before_update(self, optimizer: Optimizer, *_: Any) -> None:
        """Apply the knobs of an optimizer before its first step; see whether it updates parts."""
        if optimizer not in self._changed:
            self._changed.add(optimizer)
            self._before_first_update(optimizer)
        elif "optimizer_kernels" in self._names and kernels.has_lost_kernels(
            self._knobs, optimizer
        ):
            self._choose_kernels(optimizer)

    def _before_first_update(self, optimizer: Optimizer) -> None:
        if self._sharded and any(map(is_sharded, parameters_of(optimizer))):
            self._met |= self._names & SHARDING
        if "channels_last" in self._names:
            kernels.lay_out_state(optimizer)
        if "optimizer_kernels" in self._names:
            self._choose_kernels(optimizer)

    def _choose_kernels(self, optimizer: Optimizer) -> None:
        """Choose the kernels of an optimizer.

        Raises:
            ValueError: it has none of that kind, and this is a trial. A job may have other optimizers
                later than a trial sees them.
        """
        try:
            kernels.optimizer_kernels(self._knobs, optimizer)
        except ValueError as error:
            if not self._in_job:
                raise
            self._say(f"{error}; it is left as it is")
        else:
            self._met.add("optimizer_kernels")

    def _say(self, text: str) -> None:
        """Say something once, for all ranks."""
        if text not in self._said and is_first():
            print(f"autotune: {text}", file=sys.stderr)
        self._said.add(text)
