"""Environment variables of a rank."""

import os

from autotune.worker import processes
from autotune.worker.effects import process
from autotune.worker.protocol import Placement, TrialRequest
from autotune.worker.rank import execution
from autotune.worker.rank.context import RankContext
from autotune.worker.sandbox import uploads


def environment(
    request: TrialRequest, placement: Placement, context: RankContext
) -> dict[str, str]:
    """Return the variables of a rank beyond those of its agent."""
    own = processes.study_variables(request.env)
    # Settings of the allocator in the agent's environment must not be lost.
    allocator = process.allocator_variables({**os.environ, **own})
    of_launcher = _of_script if request.script else _of_workload
    return {
        **of_launcher(request, placement, context),
        **process.environment(request.knobs),
        **(uploads.OFFLINE if request.script else {}),
        **own,
        **(allocator if request.knobs["expandable_segments"] else {}),
    }


def _of_workload(
    request: TrialRequest, placement: Placement, context: RankContext
) -> dict[str, str]:
    threads = process.threads(request.knobs, request.cpus_per_rank, request.replicas)
    return {
        "RANK": str(context.rank),
        "LOCAL_RANK": str(context.local_rank),
        "WORLD_SIZE": str(context.world_size),
        "LOCAL_WORLD_SIZE": str(placement.local_world_size),
        process.THREADS: str(threads),
        **execution.interfaces(placement),
    }


def _of_script(request: TrialRequest, placement: Placement, context: RankContext) -> dict[str, str]:
    assert request.script is not None
    ranks, variables = placement.local_world_size, {**os.environ, **request.env}
    by_launcher = execution.launcher_threads(request.script, ranks, variables)
    threads = request.knobs["cpu_threads"] or by_launcher
    return {
        **execution.launcher_variables(request.script, placement, context),
        **({process.THREADS: str(threads)} if threads else {}),
    }
