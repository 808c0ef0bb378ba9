"""Launchers: the places where ranks run.

`launchers.open_launcher` picks one. Ray is imported by its driver's process only.
"""

from collections.abc import Mapping

from launchers.base import Launcher, Resources, Slot, SoloSchedule, TrialWatch, TurnSchedule
from launchers.reservation import NO_RIVAL, Busy, Rival, refuse
from launchers.session import untimed_steps
from launchers.site import Site

__all__ = [
    "NO_RIVAL",
    "Busy",
    "Launcher",
    "Resources",
    "Rival",
    "Site",
    "Slot",
    "SoloSchedule",
    "TrialWatch",
    "TurnSchedule",
    "open_launcher",
    "refuse",
    "untimed_steps",
]


def open_launcher(
    kind: str,
    resources: Resources,
    log_dir: str,
    address: str | None,
    busy: Busy = refuse,
    env: Mapping[str, str] | None = None,
) -> Launcher:
    """Return an opened launcher; closing it gives everything back.

    Args:
        kind: 'local' or 'ray'.
        resources: resources of one trial.
        log_dir: folder on each node for the agents' own messages.
        address: address of a running Ray cluster; None starts a Ray on this machine. Ray only.
        busy: called repeatedly while another study measures on this machine; may raise.
        env: variables for the agents. TORCHINDUCTOR_* and PYTORCH_CUDA_ALLOC_CONF are read when
            torch is imported there. No knob needs an agent of its own for that, because the
            allocator takes its settings at run time as well.

    Raises:
        NotHere: this machine lacks the resources, or Ray is not installed.
        LauncherError: the resources are not available at present.
    """
    if kind == "ray":
        from launchers.ray_cluster import RayLauncher

        return RayLauncher(resources, log_dir, address, busy, env or {})
    from launchers.local import LocalLauncher

    return LocalLauncher(resources, log_dir, busy, env or {})
