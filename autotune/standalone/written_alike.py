"""Parts of the studies that `init` writes for scripts and for commands alike."""

import re

BUDGET = """budget:
  trials: 20
  # wall_time: 30m   # a limit of the whole study, its proof included
"""
"""Section of a written study: how long a trial takes is not known before."""
MAY_WRITE = "  may_write: true   # trials change files as the job does: nothing is protected"
"""Line of the section `workload`."""


def study_name(text: str) -> str:
    """Return a name for a study that is like a text."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-._") or "study"
