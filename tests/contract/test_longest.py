"""A real trial on the longest samples of its data."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from autotune.runs.monitors import FitMonitor
from autotune.runs.request_shapes import on_longest
from launchers import Launcher, Resources, section_of
from tests.support.trials import knobs, trial

# One sample in a hundred is long: it holds 8 MB and all others eight bytes.
WORKLOAD = """
import torch
import autotune


class Unequal(torch.utils.data.Dataset):
    def __init__(self, longest):
        self.longest = longest

    def __len__(self):
        return 400

    def __getitem__(self, place):
        return torch.ones(self.longest if place % 100 == 7 else 2)


def padded(samples):
    return torch.nn.utils.rnn.pad_sequence(samples, batch_first=True)


def build(told=True, longest=2_000_000):
    return autotune.Workload(
        model=torch.nn.Linear(1, 1),
        dataset=Unequal(longest),
        collate=padded,
        loss=lambda model, batch: model(batch[:, :, None]).square().mean(),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.0),
        longest=(lambda count: range(7, 400, 100)[:count]) if told else None,
    )
"""


@pytest.fixture(scope="module")
def launcher(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launcher]:
    resources = Resources(workers=2, gpus_per_worker=None, cpus_per_worker=1, slots=1)
    folder = str(tmp_path_factory.mktemp("longest"))
    with section_of("local").open(resources, folder) as opened:
        yield opened


def test_every_batch_is_as_long_as_the_longest(launcher: Launcher, tmp_path: Path) -> None:
    (tmp_path / "unequal.py").write_text(WORKLOAD)
    peaks = []
    for longest in (2, 2_000_000):
        asked = trial(
            tmp_path, "unequal:build", args={"longest": longest}, knobs=knobs(micro_batch=4)
        )
        judge = FitMonitor()
        report = launcher.slots[0].run_solo(on_longest(asked), judge)
        result = judge.result(report)
        assert result.state == "COMPLETE", result.cause
        assert report.blocks[0].observed["tells_longest"] == 1
        peaks.append(result.peak_bytes)
    batch = 4 * 2_000_000 * 4
    assert peaks[1] - peaks[0] > 2 * batch  # the batch, and what the model makes of it


def test_a_workload_that_does_not_know_them_is_not_run_on_others(
    launcher: Launcher, tmp_path: Path
) -> None:
    (tmp_path / "unequal.py").write_text(WORKLOAD)
    asked = on_longest(trial(tmp_path, "unequal:build", args={"told": False}))
    report = launcher.slots[0].run_solo(asked, FitMonitor())
    assert "does not say which samples are the longest" in report.cause
