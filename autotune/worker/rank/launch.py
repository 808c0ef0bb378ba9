"""Environment that a script's launcher leaves in each rank: variables, an argument, threads."""

import os
from collections.abc import Mapping

from autotune.worker.protocol import (
    DEEPSPEED,
    PLAIN,
    TORCH_LAUNCH,
    TORCHRUN,
    Placement,
    Script,
)
from autotune.worker.rank.context import RankContext

_LOCAL_RANK_ARGUMENTS = {TORCH_LAUNCH: "--local-rank", DEEPSPEED: "--local_rank"}
_SETS_THREADS = (TORCHRUN, TORCH_LAUNCH)
_ERRORS = "TORCH_NCCL_ASYNC_ERROR_HANDLING"


def variables(script: Script, placement: Placement, context: RankContext) -> dict[str, str]:
    """Return the variables for a rank's place, without the rendezvous; none if python starts it."""
    if script.launch in PLAIN:
        return {}
    of_launcher = _of_deepspeed if script.launch == DEEPSPEED else _of_torchrun
    return {
        "RANK": str(context.rank),
        "LOCAL_RANK": str(context.local_rank),
        "WORLD_SIZE": str(context.world_size),
        **of_launcher(placement, context),
        **_interfaces(placement),
    }


def _nodes(placement: Placement, context: RankContext) -> str:
    return str(context.world_size // placement.local_world_size)


def _of_torchrun(placement: Placement, context: RankContext) -> dict[str, str]:
    return {
        "LOCAL_WORLD_SIZE": str(placement.local_world_size),
        "GROUP_RANK": str(placement.node),
        "GROUP_WORLD_SIZE": _nodes(placement, context),
        "ROLE_NAME": "default",
        "ROLE_RANK": str(context.rank),
        "ROLE_WORLD_SIZE": str(context.world_size),
        "TORCHELASTIC_RUN_ID": "none",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_ERROR_FILE": os.devnull,
        "TORCHELASTIC_SIGNALS_TO_HANDLE": "SIGTERM,SIGINT,SIGHUP,SIGQUIT",
        _ERRORS: os.environ.get(_ERRORS, "1"),
    }


def _of_deepspeed(placement: Placement, context: RankContext) -> dict[str, str]:
    return {
        "LOCAL_SIZE": str(placement.local_world_size),
        "CROSS_RANK": str(placement.node),
        "CROSS_SIZE": _nodes(placement, context),
    }


def _interfaces(placement: Placement) -> dict[str, str]:
    """Return variables for the ranks' network interface, unless the user has set them."""
    wanted = {
        "GLOO_SOCKET_IFNAME": placement.interface,
        "NCCL_SOCKET_IFNAME": f"={placement.interface}",  # "=": not every name with this prefix
    }
    return {name: value for name, value in wanted.items() if name not in os.environ}


def arguments(script: Script, local_rank: int) -> tuple[str, ...]:
    """Return the arguments that a launcher puts before those of a script."""
    option = _LOCAL_RANK_ARGUMENTS.get(script.launch)
    return (f"{option}={local_rank}",) if option else ()


def threads(script: Script, ranks: int, environment: Mapping[str, str]) -> int | None:
    """Return the OMP_NUM_THREADS that a launcher sets; None: it leaves the number unchanged.

    Args:
        script: with its launcher.
        ranks: number of the script's ranks on this node.
        environment: of the launcher.
    """
    sets = script.launch in _SETS_THREADS and ranks > 1 and "OMP_NUM_THREADS" not in environment
    return 1 if sets else None
