"""Start-up hook of python in a job of `autotune run`, or in a trial, before the user's own."""

import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from pathlib import Path

_HERE = str(Path(__file__).parent)


def _users_own() -> None:
    """Run the user's sitecustomize, which this module hides."""
    found = PathFinder.find_spec("sitecustomize", [p for p in sys.path if p != _HERE])
    if found and found.loader:
        module = module_from_spec(found)
        sys.modules["sitecustomize"] = module
        found.loader.exec_module(module)


_users_own()
if _HERE in sys.path:
    sys.path.remove(_HERE)

try:
    from autotune.worker.inject.job_order import begin
    from autotune.worker.sandbox.redirect import inherited
except ImportError:
    pass  # another python of the job, for which autotune is not installed
else:
    inherited()
    begin(sys.orig_argv)
