"""From the settings of a study to what launchers, ranks and watches take."""

import dataclasses
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from autotune.config import StudySpec, fields, scripts
from autotune.errors import BadInput
from autotune.measurement import numerics
from autotune.measurement.estimate import STEADY_BLOCKS
from autotune.measurement.settling import Settling
from autotune.measurement.watch import BLOCKS_FOR_PROOF, FEWEST_BLOCKS, Limits
from autotune.paths import compiled
from autotune.runs import commanded
from autotune.search.space import Space
from autotune.worker.files import TrialFiles
from autotune.worker.protocol import (
    COMPRESSION_WARM_UP,
    BlockPlan,
    Deadlines,
    Script,
    TrialRequest,
)
from launchers import Busy, Launcher, Resources, Slot, open_launcher, refuse
from search_spaces import Facts, infeasible
from search_spaces.constraints import global_batch

_INDUCTOR_CACHE = "TORCHINDUCTOR_CACHE_DIR"
_PROFILED_STEPS = 8
_LOOKED_AT = 4
"""Optimizer steps of a script under survey."""
_COMPILING, _AUTOTUNING = 3.0, 10.0
"""Times the start-up deadline. A compiled step takes tens of seconds the first time where the plain one
takes one, and minutes for large models; max-autotune times some twenty kernels for every shape of a
product, on all ranks of a node at once. A deadline that is too long costs time only when a trial hangs,
one that is too short loses configurations that work: these are allowances, not measurements."""
_STARTUP_SHARE = 0.1
"""Of the wall time: what one hang may cost because its trial may be compiling."""
_OVERRUN = 2.0
"""A block may become so many times longer than asked for before `min_steps` gives way."""
_HURRIED_BLOCKS = 6
"""In the time of a whole run, where that is short: its first step, its warm-up, what counts."""
_NOTHING_SEEN = Settling()
FEW_BLOCKS = 2
_FEW_STEPS = BlockPlan(seconds=0.0, min_steps=COMPRESSION_WARM_UP + 2, max_blocks=FEW_BLOCKS)
"""The first block is a single step. The optimizer's state is there from the second step on, what
gradient compression keeps after its warm-up."""


OpenLauncher = Callable[[StudySpec, Path, Busy], Launcher]
"""Opens the launcher of a study, whose agents print into the folder."""


def launcher_of(spec: StudySpec, folder: Path, busy: Busy = refuse) -> Launcher:
    """The launcher that a study asks for, open; its agents print into the folder, and what is compiled
    is kept there for its later trials.

    Raises:
        LauncherError: the resources are not there.
    """
    cache = os.environ.get(
        _INDUCTOR_CACHE, str(compiled(folder))
    )  # the user's own, if there is one
    env = {_INDUCTOR_CACHE: cache, **spec.env}
    return open_launcher(spec.launcher, resources(spec), str(folder), spec.ray_address, busy, env)


def resources(spec: StudySpec) -> Resources:
    """What one trial of a study takes."""
    wanted = spec.resources
    return Resources(
        workers=wanted.known_workers,
        gpus_per_worker=wanted.gpus_per_worker,
        cpus_per_worker=wanted.cpus_per_worker,
        slots=wanted.slots,
        device=wanted.device,
    )


class Plan:
    """A study on a launcher: what may be tried there, and how each run of it is made.

    Attributes:
        spec: the study's settings.
        launcher: open.
        facts: what constraints may ask about the study on this launcher, by the devices of the first
            slot.
    """

    def __init__(self, spec: StudySpec, launcher: Launcher) -> None:
        self.spec = spec
        self.launcher = launcher
        self.facts = dataclasses.replace(
            facts_of(launcher),
            global_batch=spec.global_batch(launcher.workers),
            rules=spec.rules,
        )

    @property
    def baseline(self) -> dict[str, Any]:
        """The user's configuration today, a value for every knob."""
        return self.spec.full_baseline()

    def of(self, spec: StudySpec) -> "Plan":
        """The same with other settings."""
        return Plan(spec, self.launcher)

    def space(self) -> Space:
        """What may be tried.

        Raises:
            BadInput: a value is still to be found.
        """
        if self.spec.asks_for_largest:
            raise BadInput(
                "search_space.micro_batch: only `autotune start` finds max; give numbers here"
            )
        return Space(self.spec.values(), self.baseline, self.facts, self.launcher.refusal)

    def check_baseline(self) -> None:
        """See that the baseline can run here.

        Raises:
            BadInput: it cannot, with the reasons.
        """
        problems = infeasible(self.baseline, self.facts)
        if refusal := self.launcher.refusal(self.baseline):
            problems = [*problems, refusal]
        if problems:
            raise BadInput(
                "the baseline cannot run here: " + "; ".join(problems) + "; change `baseline`"
            )

    def memory_of_rank(self) -> float | None:
        """Bytes that a rank has for itself; None on the CPU, where the limit counts what a rank has
        asked for, and its peak what it has touched."""
        slot = self.launcher.slots[0]
        if slot.device != "cuda":
            return None
        device: int = min(device["memory_bytes"] for device in slot.environment["devices"])
        own = device * min(1.0, slot.devices_per_rank)
        return min(own, self.spec.resources.memory_per_worker or own)

    def request(
        self, slot: Slot, knobs: dict[str, Any], *, name: str, workdir: Path, log_dir: Path
    ) -> TrialRequest:
        """A timed trial of this configuration, ready to launch on this slot.

        Args:
            name: unique among all trials of the launcher.
            workdir: where the ranks run, and import from.
            log_dir: for their output.
        """
        measurement, spec = self.spec.measurement, self.spec
        asked = TrialRequest(
            trial=name,
            factory=spec.workload.factory,
            args=dict(spec.workload.args) if isinstance(spec.workload.args, dict) else {},
            knobs=knobs,
            world_size=self.launcher.workers,
            seed=spec.seed,
            device=slot.device,
            devices_per_rank=slot.devices_per_rank,
            cpus_per_rank=spec.resources.cpus_per_worker,
            memory_per_rank=spec.resources.memory_per_worker,
            blocks=self._blocks(),
            deadlines=Deadlines(self._startup_deadline(knobs), measurement.step_deadline),
            workdir=str(workdir),
            import_paths=tuple(dict.fromkeys([str(workdir), spec.folder or str(workdir)])),
            env=spec.env,
            log_dir=str(log_dir),
        )
        if spec.workload.command:
            return commanded.request(asked, spec, self.launcher.workers)
        return spread(asked) if not spec.workload.is_script else self._of_script(asked)

    def _of_script(self, asked: TrialRequest) -> TrialRequest:
        """The same trial of a script: what differs from the baseline reaches it through its arguments,
        or acts from outside. The baseline is the script as it is."""
        workload = self.spec.workload
        recipe = scripts.recipe(
            workload, self.spec.flags, self.baseline, asked.knobs, self.launcher.workers
        )
        counted = scripts.samples_of_step(workload, self.baseline, asked.knobs)
        if counted is None and "micro_batch" in {*workload.turned_by, *self.spec.baseline}:
            counted = global_batch(asked.knobs, 1)
        given = fields.given(
            workload.arguments,
            recipe.flags,
            recipe.turned,
            variables=asked.env,
            workdir=Path(asked.workdir),
            folder=TrialFiles(Path(asked.log_dir)).copies(),
        )
        return dataclasses.replace(
            asked,
            import_paths=(),
            env={**asked.env, **given.variables},
            copies=given.copies,
            script=Script(
                path=recipe.target,
                args=given.arguments,
                is_module=recipe.is_module,
                changes=recipe.changes,
                samples=counted or 0,
                draws_none=workload.samples is not None,
                told=workload.samples is not None and scripts.told(recipe.flags),
                kept=tuple(sorted({*self.spec.values()} - {*recipe.flags, *recipe.changes})),
            ),
        )

    def _blocks(self) -> BlockPlan:
        """As they are asked for, if that leaves enough of them for warm-up and timing."""
        wanted = self.spec.measurement
        seconds = min(wanted.block_seconds, wanted.longest / FEWEST_BLOCKS)
        several = min(wanted.warmup, wanted.longest) / STEADY_BLOCKS
        longest = max(_OVERRUN * seconds, several)
        return BlockPlan(seconds, wanted.min_steps, longest=longest)

    def _startup_deadline(self, knobs: Mapping[str, Any]) -> float:
        """Seconds; more for a trial that compiles, but no large part of what the study has."""
        usual = self.spec.measurement.startup_deadline
        longest = _STARTUP_SHARE * (self.spec.budget.wall_time or math.inf)
        return max(usual, min(usual * _compilation(knobs), longest))

    def search_limits(
        self,
        *,
        incumbent_low: float = 0.0,
        sigma_run: float = 0.0,
        run_freedom: float = math.inf,
        settling: Settling = _NOTHING_SEEN,
    ) -> Limits:
        """How long to measure a trial of the search.

        Args:
            incumbent_low: lower bound of the best rate so far; 0 switches racing off.
            sigma_run: relative standard deviation between runs, as far as it is known.
            run_freedom: degrees of freedom with which it is known.
            settling: what the first steps of a run tell of later ones.
        """
        limits = self._limits(self.spec.measurement.search_precision, incumbent_low, sigma_run)
        return dataclasses.replace(limits, settling=settling, run_freedom=run_freedom)

    def confirm_limits(self, *, sigma_run: float) -> Limits:
        """How long to measure a run that is compared in turn with others."""
        limits = self._limits(self.spec.measurement.confirm_precision, 0.0, sigma_run)
        return dataclasses.replace(limits, fewest=BLOCKS_FOR_PROOF)

    def _limits(self, precision: float, incumbent_low: float, sigma_run: float) -> Limits:
        return Limits(
            warmup=self.spec.measurement.warmup,
            longest=self.spec.measurement.longest,
            precision=precision,
            tokens=self.spec.objective.metric == "tokens_per_second",
            incumbent_low=incumbent_low,
            sigma_run=sigma_run,
            long_step=self._blocks().longest / self.spec.measurement.min_steps,
        )


def _compilation(knobs: Mapping[str, Any]) -> float:
    """How many times longer the start of a trial may take, its first step included, as it compiles."""
    mode = str(knobs["compile"])
    if mode == "none":
        return 1.0
    return _AUTOTUNING if mode.startswith("max-autotune") else _COMPILING


def within(asked: TrialRequest, seconds: float, timed: float) -> TrialRequest:
    """The same trial, over after so many seconds; its blocks, or its profile, are as short as that asks
    for.

    Args:
        seconds: from its launch, after which it is ended.
        timed: seconds for all of its steps.
    """
    longest = min(asked.blocks.longest, timed / _HURRIED_BLOCKS)
    blocks = dataclasses.replace(asked.blocks, longest=longest)
    return dataclasses.replace(asked, seconds=seconds, profile_seconds=timed, blocks=blocks)


def few_steps(asked: TrialRequest) -> TrialRequest:
    """The same trial, over as soon as everything that training keeps in memory is there."""
    return dataclasses.replace(asked, blocks=_FEW_STEPS)


def on_longest(asked: TrialRequest) -> TrialRequest:
    """The same few steps on the longest samples of the data, none of them shortened."""
    knobs = {**asked.knobs, "curriculum_start": 1}
    return dataclasses.replace(few_steps(asked), knobs=knobs, longest=True)


def step_by_step(asked: TrialRequest) -> TrialRequest:
    """The same, with a report of each of its steps; of a command, whose reports are what it makes them,
    as few as before."""
    if asked.command:
        return few_steps(asked)
    several = BlockPlan(seconds=0.0, min_steps=1, max_blocks=_FEW_STEPS.min_steps + 2)
    return dataclasses.replace(asked, blocks=several)


def profiled(asked: TrialRequest) -> TrialRequest:
    """The same trial under the profiler instead of timed."""
    blocks = dataclasses.replace(asked.blocks, max_blocks=1)
    return dataclasses.replace(asked, profile=_PROFILED_STEPS, blocks=blocks)


def surveyed(asked: TrialRequest) -> TrialRequest:
    """The same trial of a script, looked at instead of timed."""
    assert asked.script is not None
    return dataclasses.replace(asked, script=dataclasses.replace(asked.script, survey=_LOOKED_AT))


def stepwise(asked: TrialRequest) -> TrialRequest:
    """The same trial as a loss trajectory instead of timed. Where dropout comes back after the first
    steps, what is compiled is compiled anew: any step may take as long as the first."""
    longest = max(asked.deadlines.startup, asked.deadlines.step)
    deadlines = dataclasses.replace(asked.deadlines, step=longest)
    return dataclasses.replace(asked, trajectory=numerics.STEPS, deadlines=deadlines)


def lowest_capability(environment: Mapping[str, Any]) -> tuple[int, int] | None:
    """CUDA compute capability of the oldest device of a node, by its fingerprint; None without one."""
    return min((tuple(device["capability"]) for device in environment["devices"]), default=None)


def facts_of(launcher: Launcher) -> Facts:
    slot = launcher.slots[0]
    return Facts(
        device=slot.device,
        world_size=launcher.workers,
        backend="nccl" if slot.devices_per_rank >= 1 else "gloo",
        capability=lowest_capability(slot.environment) if slot.device == "cuda" else None,
        nodes=slot.nodes,
    )


def spread(asked: TrialRequest) -> TrialRequest:
    """The same trial; under DataParallel one rank does the work of all, with what all of them have."""
    if asked.knobs["parallelism"] != "data_parallel":
        return asked
    ranks, limit = asked.world_size, asked.memory_per_rank
    return dataclasses.replace(
        asked,
        world_size=1,
        replicas=ranks,
        cpus_per_rank=ranks * asked.cpus_per_rank,
        memory_per_rank=ranks * limit if limit and asked.device == "cpu" else limit,
    )
