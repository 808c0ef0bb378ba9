"""Many trials at once on one machine meet in rendezvous of their own."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from autotune.worker.protocol import BlockPlan, Outcome
from launchers.agents import Node
from launchers.local import LocalLink
from launchers.slot import AgentSlot
from tests.contract.launchers.sites import go_on
from tests.support.fault_table import Tally
from tests.support.steering import TINY_WORKLOAD
from tests.support.trials import trial

SHORT = BlockPlan(seconds=0.001, min_steps=1, max_blocks=2)


@pytest.mark.long
@pytest.mark.sample
@pytest.mark.fault(15)
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("at_once", "trials"), [(2, 4), pytest.param(8, 504, marks=pytest.mark.slow)]
)
def test_trials_at_once_clash_over_no_port(
    tmp_path: Path, tally: Tally, at_once: int, trials: int
) -> None:
    (tmp_path / "tiny.py").write_text(TINY_WORKLOAD.read_text())
    node = Node(connect=lambda: LocalLink(str(tmp_path), {}), ranks=2)
    slots = [AgentSlot(f"slot-{n}", [node], gpus_per_worker=0) for n in range(at_once)]

    def run_in(slot: AgentSlot) -> list[tuple[Outcome | None, str]]:
        requests = [trial(tmp_path, blocks=SHORT) for _ in range(trials // at_once)]
        reports = [slot.run_solo(request, go_on) for request in requests]
        return [(report.outcome, report.cause) for report in reports]

    try:
        with ThreadPoolExecutor(at_once) as pool:
            ends = [end for ended in pool.map(run_in, slots) for end in ended]
    finally:
        for slot in slots:
            slot.close()
    tally.tried, tally.survived = len(ends), ends.count((None, ""))
    assert [end for end in ends if end != (None, "")] == []
