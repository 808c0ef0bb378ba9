"""Start-up hook of python in a job of `autotune run`, or in a trial, before the user's own."""

import json
import os
import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from pathlib import Path

_HERE = str(Path(__file__).parent)
_OF_ALL_RANKS = frozenset(
    {
        *("bucket_cap_mb", "gradient_as_bucket_view", "static_graph", "find_unused_parameters"),
        *("broadcast_buffers", "first_bucket_mb", "gradient_compression", "powersgd_rank"),
        *("parallelism", "fsdp_prefetch", "fsdp_reduce_dtype"),
    }
)
"""Knobs of what ranks exchange: they wait for ever, or sum wrongly, where only some are changed."""


def _users_own() -> None:
    """Run the user's sitecustomize, which this module hides."""
    found = PathFinder.find_spec("sitecustomize", [p for p in sys.path if p != _HERE])
    if found and found.loader:
        module = module_from_spec(found)
        sys.modules["sitecustomize"] = module
        found.loader.exec_module(module)


def _give_up(reason: str, left: str = "nothing", *, in_rank: bool = False) -> None:
    """Say on each node that a job's script runs as it is; end it where other ranks may be changed.

    Launchers and other processes say nothing.

    Args:
        reason: why it does.
        left: what of the changes acts all the same, as a word.
        in_rank: whether this process is known to run the script.
    """
    order = json.loads(os.environ.get("AUTOTUNE_RUN") or "{}")
    script = order.get("script", {})
    if not order or not (in_rank or _runs(script["target"], script["is_module"])):
        return
    standing_in = any(copy["stands_in"] for copy in order.get("copies", ()))
    constructed = bool(script.get("constructed") or standing_in)
    lost = ["changed from outside"] * bool(script.get("changes") or constructed)
    lost += ["watched"] * ("AUTOTUNE_WATCHER" in os.environ)
    ends = constructed or not _OF_ALL_RANKS.isdisjoint(script.get("changes", ()))
    ends = ends and os.environ.get("WORLD_SIZE", "1") != "1"
    if lost and os.environ.get("LOCAL_RANK", os.environ.get("RANK", "0")) == "0":
        end = "; the job ends, as other ranks may be changed" * ends
        print(f"{reason}: {left} is {' or '.join(lost)}{end}", file=sys.stderr)
    if ends:
        sys.stderr.flush()
        os._exit(1)  # an exception would be a traceback of python's start


def _runs(target: str, is_module: bool) -> bool:
    words = getattr(sys, "orig_argv", sys.argv)  # which python before 3.10 lacks
    run = words[-len(sys.argv)]
    return run in (target, f"-m{target}") if is_module else Path(run).name == Path(target).name


_users_own()
if _HERE in sys.path:
    sys.path.remove(_HERE)

try:
    from autotune.worker.inject.job_order import begin
    from autotune.worker.sandbox.redirect import inherited
except ImportError as error:
    # Another python of the job.
    _give_up(f"{sys.executable} cannot import autotune ({error})")
else:
    inherited()
    try:
        begin(sys.orig_argv)
    except Exception as error:
        _give_up(f"autotune: {error}", "not all", in_rank=True)
