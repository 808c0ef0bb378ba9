"""Whether tests can run on a CUDA device here; ends with a message where they would all be skipped."""

import sys
from pathlib import Path

import torch


def why_not() -> str:
    """The reason; empty if a device is there."""
    if torch.cuda.is_available():
        return ""
    if torch.version.cuda is None:
        return f"torch {torch.__version__} is a build without CUDA"
    if not list(Path("/dev").glob("nvidia[0-9]*")):
        return "there is no /dev/nvidia0 or any other"
    return f"torch {torch.__version__} cannot use the one that is there: see nvidia-smi"


if reason := why_not():
    sys.exit(f"no CUDA device: {reason}. Nothing was tested (Python: {sys.executable})")
