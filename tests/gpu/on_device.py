"""What tests on a CUDA device share."""

from typing import Any

import pytest
import torch

import search_spaces

MARKS = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA device"),
    pytest.mark.timeout(300),
]
BATCH = 64


def knobs(**changes: Any) -> dict[str, Any]:
    return {**search_spaces.defaults(), "micro_batch": BATCH, "log_interval": 1, **changes}
