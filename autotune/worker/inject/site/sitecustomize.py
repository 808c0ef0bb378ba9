"""Start-up hook of python in a job of `autotune run`, or in a trial, before the user's own."""

import json
import os
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


def _say_that_nothing_acts(reason: ImportError) -> None:
    """Say once that a job's script runs as it is; launchers and other processes say nothing."""
    order = json.loads(os.environ.get("AUTOTUNE_RUN") or "{}")
    standing_in = any(copy["stands_in"] for copy in order.get("copies", ()))
    changed = order.get("changes") or order.get("constructed") or standing_in
    lost = ["changed from outside"] * bool(changed)
    lost += ["watched"] * ("AUTOTUNE_WATCHER" in os.environ)
    is_rank = order and _runs(order["target"], order["is_module"])
    if lost and is_rank and os.environ.get("RANK", "0") == "0":
        print(
            f"{sys.executable} cannot import autotune ({reason}): nothing is {' or '.join(lost)}",
            file=sys.stderr,
        )


def _runs(target: str, is_module: bool) -> bool:
    words = getattr(sys, "orig_argv", sys.argv)  # which python before 3.10 lacks
    run = words[-len(sys.argv)]
    return run in (target, f"-m{target}") if is_module else Path(run).name == target


_users_own()
if _HERE in sys.path:
    sys.path.remove(_HERE)

try:
    from autotune.worker.inject.job_order import begin
    from autotune.worker.sandbox.redirect import inherited
except ImportError as error:
    _say_that_nothing_acts(error)  # another python of the job
else:
    inherited()
    begin(sys.orig_argv)
