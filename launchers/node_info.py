"""Software and kind of a cluster's node, found before anything of ours is started there.

This module travels there by value.
"""

from typing import Any


def node_info() -> dict[str, Any]:
    """Return versions, empty where something is not installed, and the kind of the node.

    Returns:
        `python`, `torch`, `autotune`; also `cpu` and `devices`, names of all CUDA devices, unless
        the node lacks autotune or has a version that cannot tell.
    """
    import importlib.metadata
    import platform

    found: dict[str, Any] = {"python": platform.python_version(), "torch": "", "autotune": ""}
    try:
        found["torch"] = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        pass
    try:
        import autotune

        found["autotune"] = autotune.__version__
        from autotune.worker.node import environment

        found |= {"cpu": environment.processor(), "devices": environment.driver_devices()}
    except (ImportError, AttributeError):
        pass
    return found
