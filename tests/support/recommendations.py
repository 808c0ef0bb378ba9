"""Recommendations as a best.yaml holds them."""

from collections.abc import Mapping
from typing import Any

from autotune.export.best import BestConfig
from search_spaces import defaults

ON_CPU: dict[str, Any] = {"environment": {"devices": []}}
ON_GPU: dict[str, Any] = {"environment": {"devices": [{"name": "NVIDIA H100"}]}}


def of_workload(
    knobs: Mapping[str, Any], *, world_size: int = 2, provenance: Mapping[str, Any] = ON_CPU
) -> BestConfig:
    """All knobs but these at their defaults."""
    return BestConfig({**defaults(), **knobs}, world_size, {}, provenance=dict(provenance))


def of_script(
    flags: Mapping[str, str], turned: Mapping[str, Any], changes: Mapping[str, Any]
) -> BestConfig:
    """train.py, which turns some knobs by itself; others act from outside."""
    script = {
        "target": "train.py",
        "is_module": False,
        "flags": dict(flags),
        "turned": dict(turned),
        "changes": sorted(changes),
        "digest": None,
    }
    knobs = {**defaults(), **turned, **changes}
    return BestConfig(knobs, 2, {}, provenance=ON_GPU, script=script)
