"""Options of srun that a job has set for its own steps, as variables."""

import json
from pathlib import Path

import pytest

from launchers import Resources, section_of
from tests.contract.launchers.sites import WORKLOADS, go_on, in_allocation
from tests.support.trials import trial


@pytest.mark.long
@pytest.mark.xdist_group("slurm")
def test_steps_of_agents_do_not_take_them_and_trials_have_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SRUN_EXPORT_ENV", "NONE")
    monkeypatch.setenv("COLOUR", "green")
    for name in ("tiny.py", "odd.py"):
        (tmp_path / name).write_text((WORKLOADS / name).read_text())
    with in_allocation(tmp_path / "slurm"):
        launcher = section_of("slurm").open(Resources(1, 0.0, 1, 1), str(tmp_path / "logs"))
        try:
            looking = trial(tmp_path, "odd:looking", args={"folder": str(tmp_path)}, world_size=1)
            report = launcher.slots[0].run_solo(looking, go_on)
        finally:
            launcher.close()
    assert report.outcome is None, report.cause
    seen = json.loads((tmp_path / "0.json").read_text())
    assert seen["environment"]["COLOUR"] == "green", "which Slurm passes on where no option forbids"
    assert seen["of_srun"] == {"SRUN_EXPORT_ENV": "NONE"}
