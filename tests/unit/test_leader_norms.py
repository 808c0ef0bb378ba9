"""First gradients of a script: with what they can be compared."""

from types import SimpleNamespace
from typing import Any, cast

import torch

from autotune.measurement.numerics import trajectory
from autotune.worker.inject.rows import Rows
from autotune.worker.inject.script_probe import ScriptProbe
from autotune.worker.rank.norms import LeaderNorms


class Padded:
    """Batch that no collation of torch makes."""

    def __init__(self) -> None:
        self.signal = torch.ones(2, 3)


def why_not_compared(batches: list[Any]) -> str:
    """Return the reason that a run without readable samples reports."""
    rows = Rows(4)
    for batch in batches:
        rows.saw(SimpleNamespace(), batch, None)
    norms = LeaderNorms(
        cast(ScriptProbe, SimpleNamespace(rows=rows)),
        lambda: "" if rows.first(2) is None else "rows",
    )
    norms.first_taken()
    with norms.observing(0) as seen:
        return trajectory([SimpleNamespace(loss=1.0, observed=dict(seen))]).not_compared


def test_gradient_without_known_samples_says_what_they_could_not_be_read_from() -> None:
    assert "cannot be read from a Padded (have the DataLoader yield" in why_not_compared([Padded()])
    assert why_not_compared([]) == "no sample of its first step was seen to come from a DataLoader"


def first_seen(left_out: int) -> dict[str, Any]:
    """Return what a run reports of its first step.

    Args:
        left_out: steps that its GradScaler skipped before.
    """
    parameter = torch.nn.Parameter(torch.ones(2))
    leader = torch.optim.SGD([parameter], lr=0.1)
    built = SimpleNamespace(inner=None)
    probe = SimpleNamespace(leader=leader, built=built, steps_left_out=left_out)
    norms = LeaderNorms(cast(ScriptProbe, probe), lambda: "rows of the first step")
    parameter.grad = torch.ones(2)
    norms.observe()
    norms.first_taken()
    with norms.observing(0) as seen:
        return dict(seen)


def test_gradient_after_a_step_that_was_left_out_is_compared_with_none_of_the_first_rows() -> None:
    assert first_seen(0)["start"] == first_seen(0)["start"]
    assert first_seen(0)["start"] != first_seen(1)["start"]
