"""The small GPT, as if it were one of billions of parameters: it takes long to build."""

import time
from typing import Any

from autotune.worker.workload import Workload
from autotune.workloads import gpt


def build(seconds: float = 10.0, **args: Any) -> Workload:
    """After so many seconds; other arguments are those of gpt."""
    time.sleep(seconds)
    return gpt.build(**args)
