"""Agents on the nodes of a Slurm job that has asked for devices."""

from pathlib import Path

import pytest

from launchers import Resources, section_of
from tests.contract.launchers.sites import in_allocation


@pytest.mark.long
@pytest.mark.xdist_group("slurm")
def test_agents_start_where_the_job_asked_for_devices_of_all_nodes_together(tmp_path: Path) -> None:
    """Slurm refuses a step on one node that asks for none: it would get what all nodes have."""
    with in_allocation(tmp_path / "slurm", "--gpus=4", cpus=2, nodes=2, devices=2):
        launcher = section_of("slurm").open(Resources(1, 0.0, 1, 4), str(tmp_path / "logs"))
        try:
            assert len(launcher.slots) == 4
        finally:
            launcher.close()
