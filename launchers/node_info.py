"""A look at a node of a cluster, before anything of ours is started there. Travels there by value."""

from typing import Any


def node_info() -> dict[str, Any]:
    """Versions, empty where something is not installed, and the kind of the node.

    Returns:
        `python`, `torch`, `autotune`; `cpu`, and `devices`, names of all its CUDA devices, unless
        autotune is not installed there, or in a version that cannot tell.
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
        from autotune.worker.node import kind

        found |= {"cpu": kind.processor(), "devices": kind.devices()}
    except (ImportError, AttributeError):
        pass
    return found
