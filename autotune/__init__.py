"""Search for the training configuration with the highest measured throughput.

Importing this package costs nothing: it is also imported beside the user's training code.
"""

from importlib import import_module
from typing import Any

__version__ = "0.2.0.dev0"

_PUBLIC = {
    "BestConfig": "autotune.export.best",
    "load": "autotune.export.best",
    "Update": "autotune.worker.workload",
    "Workload": "autotune.worker.workload",
    "report": "autotune.worker.reporting",
}

__all__ = ["BestConfig", "Update", "Workload", "__version__", "load", "report"]


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        return getattr(import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module 'autotune' has no attribute {name!r}")
