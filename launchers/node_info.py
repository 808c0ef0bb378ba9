"""Software and kind of a cluster's node, found before anything of ours is started there.

This module travels there by value.
"""

from typing import Any


def node_info() -> dict[str, Any]:
    """Return versions, empty where something is not installed, and the kind of the node.

    Returns:
        `python`, `torch` (as `torch.__version__`), `autotune`; also `cpu` and `devices`, names of
        all CUDA devices, unless the node lacks autotune or has a version that cannot tell.
    """
    import importlib.util
    import pathlib
    import platform
    import runpy

    found: dict[str, Any] = {"python": platform.python_version(), "torch": "", "autotune": ""}
    torch = importlib.util.find_spec("torch")
    if torch is not None and torch.origin:
        # Importing torch takes seconds, and its metadata lack the build, such as +cu130.
        told = runpy.run_path(str(pathlib.Path(torch.origin).with_name("version.py")))
        found["torch"] = told["__version__"]
    try:
        import autotune

        found["autotune"] = autotune.__version__
        from autotune.worker.node import environment

        found |= {"cpu": environment.processor(), "devices": environment.driver_devices()}
    except (ImportError, AttributeError):
        pass
    return found
