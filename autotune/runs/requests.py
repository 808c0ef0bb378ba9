"""From the settings of a study to what launchers, ranks and watches take."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autotune.errors import BadInput
from autotune.measurement.watch import Limits
from autotune.search.space import Space
from autotune.spec import StudySpec
from autotune.trial.protocol import COMPRESSION_WARM_UP, BlockPlan, Deadlines, TrialRequest
from launchers import Busy, Launcher, Resources, Slot, open_launcher, refuse
from search_spaces import Facts

_FEW_STEPS = BlockPlan(seconds=0.0, min_steps=COMPRESSION_WARM_UP + 2, max_blocks=2)
"""The first block is a single step. The optimizer's state is there from the second step on, what
gradient compression keeps after its warm-up."""


def resources(spec: StudySpec) -> Resources:
    """What one trial takes."""
    wanted = spec.resources
    return Resources(
        workers=wanted.known_workers,
        gpus_per_worker=wanted.gpus_per_worker,
        cpus_per_worker=wanted.cpus_per_worker,
        slots=wanted.slots,
    )


def launcher(spec: StudySpec, folder: Path, busy: Busy = refuse) -> Launcher:
    """The launcher of a study, open; agents print into the folder."""
    return open_launcher(spec.launcher, resources(spec), str(folder), spec.ray_address, busy)


def space(spec: StudySpec, launcher: Launcher) -> Space:
    """What may be tried on the launcher's devices.

    Raises:
        BadInput: a value is still to be found.
    """
    if spec.asks_for_largest:
        raise BadInput(
            "search_space.micro_batch: only `autotune start` finds max; give numbers here"
        )
    return Space(spec.values(), spec.full_baseline(), facts(spec, launcher))


def facts(spec: StudySpec, launcher: Launcher) -> Facts:
    """What constraints may ask about a study on this launcher."""
    return dataclasses.replace(facts_of(launcher), global_batch=spec.objective.global_batch)


def facts_of(launcher: Launcher) -> Facts:
    """What constraints may ask about a machine, by the devices of the first slot."""
    slot = launcher.slots[0]
    return Facts(
        device=slot.device,
        world_size=launcher.workers,
        backend="nccl" if slot.devices_per_rank >= 1 else "gloo",
        capability=lowest_capability(slot.environment) if slot.device == "cuda" else None,
        nodes=slot.nodes,
    )


def lowest_capability(environment: Mapping[str, Any]) -> tuple[int, int] | None:
    """CUDA compute capability of the oldest device of a node, by its fingerprint; None without one."""
    return min((tuple(device["capability"]) for device in environment["devices"]), default=None)


def memory_of_rank(spec: StudySpec, slot: Slot) -> float | None:
    """Bytes that a rank has for itself; None on the CPU, where the limit counts what a rank has asked
    for, and its peak what it has touched."""
    if slot.device != "cuda":
        return None
    device: int = min(device["memory_bytes"] for device in slot.environment["devices"])
    own = device * min(1.0, slot.devices_per_rank)
    return min(own, spec.resources.memory_per_worker or own)


def request(
    spec: StudySpec,
    slot: Slot,
    world_size: int,
    *,
    name: str,
    knobs: dict[str, Any],
    workdir: str,
    log_dir: Path,
) -> TrialRequest:
    """A timed trial of this configuration, ready to launch on this slot.

    Args:
        name: unique among all trials of the launcher.
        workdir: where the ranks run, and import from.
        log_dir: for their output.
    """
    plan = spec.measurement
    asked = TrialRequest(
        trial=name,
        factory=spec.workload.factory,
        args=spec.workload.args,
        knobs=knobs,
        world_size=world_size,
        seed=spec.seed,
        device=slot.device,
        devices_per_rank=slot.devices_per_rank,
        cpus_per_rank=spec.resources.cpus_per_worker,
        memory_per_rank=spec.resources.memory_per_worker,
        blocks=BlockPlan(plan.block_seconds, plan.min_steps),
        deadlines=Deadlines(plan.startup_deadline, plan.step_deadline),
        workdir=workdir,
        import_paths=(workdir,),
        env=spec.env,
        log_dir=str(log_dir),
    )
    return spread(asked)


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


def few_steps(asked: TrialRequest) -> TrialRequest:
    """The same trial, over as soon as everything that training keeps in memory is there."""
    return dataclasses.replace(asked, blocks=_FEW_STEPS)


def limits(
    spec: StudySpec, precision: float, *, incumbent_low: float = 0.0, sigma_run: float = 0.0
) -> Limits:
    """How long to measure, to this relative half-width."""
    return Limits(
        warmup=spec.measurement.warmup,
        longest=spec.measurement.longest,
        precision=precision,
        tokens=spec.objective.metric == "tokens_per_second",
        incumbent_low=incumbent_low,
        sigma_run=sigma_run,
    )
