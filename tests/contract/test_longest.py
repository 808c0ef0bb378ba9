"""A real trial on the longest samples of its data."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from autotune.runs.judging import FitRun
from autotune.runs.plan import on_longest
from launchers import Launcher, Resources, open_launcher
from tests.trials import knobs, trial

# One sample in a hundred is long: it holds 32 MB and all others eight bytes.
WORKLOAD = """
import torch
import autotune

LONG = 8_000_000


class Unequal(torch.utils.data.Dataset):
    def __len__(self):
        return 400

    def __getitem__(self, place):
        return torch.ones(LONG if place % 100 == 7 else 2)


def padded(samples):
    return torch.nn.utils.rnn.pad_sequence(samples, batch_first=True)


def build(told=True):
    return autotune.Workload(
        model=torch.nn.Linear(1, 1),
        dataset=Unequal(),
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
    with open_launcher("local", resources, folder, None) as opened:
        yield opened


def test_every_batch_is_as_long_as_the_longest(launcher: Launcher, tmp_path: Path) -> None:
    (tmp_path / "unequal.py").write_text(WORKLOAD)
    asked = on_longest(trial(tmp_path, "unequal:build", knobs=knobs(micro_batch=4)))
    judge = FitRun()
    report = launcher.slots[0].run(asked, judge)
    result = judge.result(report)
    assert result.state == "COMPLETE", result.cause
    assert report.blocks[0].observed["tells_longest"] == 1
    batch = 4 * 8_000_000 * 4
    assert result.peak_bytes > 2 * batch  # the batch, and what the model makes of it


def test_a_workload_that_does_not_know_them_is_not_run_on_others(
    launcher: Launcher, tmp_path: Path
) -> None:
    (tmp_path / "unequal.py").write_text(WORKLOAD)
    asked = on_longest(trial(tmp_path, "unequal:build", args={"told": False}))
    report = launcher.slots[0].run(asked, FitRun())
    assert "does not say which samples are the longest" in report.cause
