"""Trials that are resident at once and train in turn, block by block."""

import statistics
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from autotune.runs.policy import RUNS
from autotune.worker import proc
from autotune.worker.protocol import (
    BlockPlan,
    BlockReport,
    Outcome,
    Script,
    TimeLimit,
    TrialReport,
)
from tests.contract.launchers.sites import HASTY, Site, sites, spent
from tests.contract.launchers.test_ends import ending
from tests.contract.scripts.bench import OWN_BATCHES
from tests.support.trials import ENDLESS, knobs
from tests.support.waiting import wait_for

pytestmark = pytest.mark.timeout(600)

SCRIPTS = Path(__file__).parents[2] / "scripts"
SHORT = BlockPlan(0.01, 2, ENDLESS)


class Forth:
    """Each in turn, in order, for so many rounds."""

    at_once = False

    def __init__(self, members: int, rounds: int) -> None:
        self.order = list(range(members)) * rounds
        self.trained_in: list[int] = []
        self.away: list[int] = []

    def next(self) -> int | None:
        while self.order and self.order[0] in self.away:
            self.order.pop(0)
        return self.order.pop(0) if self.order else None

    def trained(self, member: int, block: BlockReport) -> None:
        self.trained_in.append(member)

    def drop(self, member: int) -> None:
        self.away.append(member)


class Watched(Forth):
    """The same; something is looked at after each block."""

    def __init__(self, members: int, rounds: int, look: Callable[[BlockReport], None]) -> None:
        super().__init__(members, rounds)
        self._look = look

    def trained(self, member: int, block: BlockReport) -> None:
        super().trained(member, block)
        self._look(block)


def killing_agents(site: Site, *, after: int) -> Callable[[BlockReport], None]:
    """Kills them as a block of this number is over."""

    def look(block: BlockReport) -> None:
        if block.index == after:
            for agent in site.agents():
                agent.kill()

    return look


def run(site: Site, turns: Forth, *members: dict[str, object]) -> list[TrialReport]:
    usual = {"interleaved": True, "blocks": SHORT}
    requests = [site.request(**{**usual, **changes}) for changes in members]
    return site.slot.run(requests, turns)


@sites("local", "pair", slow=["ray", "slurm", "cluster"])
def test_members_train_block_by_block_as_they_are_told(site: Site) -> None:
    turns = Forth(3, 4)
    reports = run(site, turns, {}, {}, {})
    assert turns.trained_in == [0, 1, 2] * 4
    assert turns.away == []
    for member, report in enumerate(reports):
        assert (report.outcome, report.cause, report.lost_agent) == (None, "", False)
        assert [block.observed["turn"] for block in report.blocks] == [
            member + 1 + 3 * index for index in range(4)
        ]
        assert report.blocks[0].observed["left_out_seconds"] < 0.01
        assert all(block.samples == 2 * block.steps * site.world_size for block in report.blocks)
        assert report.wall_seconds > sum(block.seconds for block in report.blocks)
    assert site.strays() == []
    site.check_next_trial()


@sites("local", slow=["pair", "ray", "slurm"])
@pytest.mark.parametrize("at_once", [False, True])
def test_member_is_launched_before_its_first_turn_only_if_all_are_at_once(
    site: Site, at_once: bool
) -> None:
    folder = site.folder / "logs" / f"second-{at_once}"
    launched: list[bool] = []
    turns = Watched(2, 3, lambda _: launched.append(folder.exists()))
    turns.at_once = at_once
    reports = run(site, turns, {}, {"log_dir": str(folder)})
    assert (launched[0], launched[1]) == (at_once, True)
    assert turns.trained_in == [0, 1] * 3
    assert [(report.outcome, len(report.blocks)) for report in reports] == [(None, 3)] * 2
    assert site.strays() == []


@sites("local", slow=["pair", "ray", "slurm"])
def test_member_that_fails_as_it_builds_at_once_leaves_the_other(site: Site) -> None:
    turns = Forth(2, 6)
    turns.at_once = True
    first, second = run(site, turns, {}, {"factory": "tiny:none"})
    assert (second.outcome, second.blocks, turns.away) == (Outcome.ERROR, (), [1])
    assert (first.outcome, first.cause, len(first.blocks)) == (None, "", 6)
    assert site.strays() == []


@sites("local", slow=["pair", "ray", "slurm"])
@pytest.mark.parametrize(
    ("trouble", "outcome"),
    [("raise", Outcome.ERROR), ("abort", Outcome.CRASH), ("hang", Outcome.HANG)],
)
def test_one_that_fails_leaves_the_others_as_they_are(
    site: Site, trouble: str, outcome: Outcome
) -> None:
    turns = Forth(3, 6)
    failing = {"args": {"trouble": trouble, "at": 5}, "timeouts": HASTY}
    before, failed, after = run(site, turns, {}, failing, {})
    assert (failed.outcome, turns.away) == (outcome, [1])
    assert 0 < len(failed.blocks) < 6
    for report in (before, after):
        assert (report.outcome, report.cause, len(report.blocks)) == (None, "", 6)
    assert site.strays() == []
    site.check_next_trial()


@sites("local", slow=["pair"])
def test_whatever_a_failed_one_has_started_ends_with_it_and_nothing_else(site: Site) -> None:
    """What has left its session ends; the loader's workers of another go on."""
    escaped: list[bool] = []

    def look(_: BlockReport) -> None:
        escaped.append(any("escaping" in stray for stray in site.strays()))

    turns = Watched(2, 6, look)
    loading = {"knobs": knobs(num_workers=1, persistent_workers=True)}
    # The first step starts it, the next block is the last.
    started = {"args": {"trouble": "grandchild", "at": 1}, "blocks": BlockPlan(0.01, 2, 2)}
    first, second = run(site, turns, loading, started)
    assert (second.outcome, len(second.blocks)) == (None, 2)
    assert (first.outcome, first.cause, len(first.blocks)) == (None, "", 6)
    assert any(escaped), "this test would not see one that lives on"
    assert not escaped[-1]
    assert site.strays() == []


@sites("local", slow=["pair"])
@pytest.mark.long
def test_no_deadline_holds_for_one_that_waits(site: Site) -> None:
    """It waits for far longer than a step may take."""
    turns = Forth(2, 1)
    turns.order = [0, 1, 1, 1, 0]
    slow = {"args": {"sleep": 0.5}, "blocks": BlockPlan(2.0, 2, ENDLESS, longest=4.0)}
    waiting, _ = run(site, turns, {"timeouts": HASTY}, slow)
    assert (waiting.outcome, len(waiting.blocks)) == (None, 2)


@sites("local", slow=["pair"])
def test_who_waits_is_silent_and_so_are_its_loaders(site: Site) -> None:
    """While one has turn after turn, no other process of the slot takes processor time to speak of."""
    first: dict[int, float] = {}
    told: list[dict[int, float]] = []

    def used(*, waiting: bool) -> list[float]:
        before, after = told[0], told[-1]
        return [after[pid] - before[pid] for pid in before if (pid in first) == waiting]

    def look(_: BlockReport) -> None:
        if not first:
            first.update(spent(site))
            return
        told.append(spent(site))
        if len(told) > 1 and max(used(waiting=False)) >= 10 * _TICK:
            turns.order.clear()

    turns = Watched(2, 1, look)
    turns.order = [0, *[1] * ENDLESS]
    loading = {"knobs": knobs(num_workers=1, persistent_workers=True)}
    longer = {"blocks": BlockPlan(1.0, 2, ENDLESS)}
    assert [r.outcome for r in run(site, turns, loading, longer)] == [None, None]
    assert len(first) == 2 * site.world_size, "ranks and workers of the first one"
    # Whole ticks are charged to whatever runs as one ends, on a busy machine more than one.
    assert max(used(waiting=True)) <= 0.1 * max(used(waiting=False)) + _TICK


_TICK = 0.01
"""Seconds: what the kernel counts in."""


@sites("local", slow=["pair"])
def test_a_script_that_nobody_changed_is_paused_at_a_step(site: Site) -> None:
    (site.folder / "plain.py").write_text((SCRIPTS / "plain_ddp.py").read_text())
    script = {"factory": "", "import_paths": (), "script": Script("plain.py", samples=8)}
    turns = Forth(3, 4)
    reports = run(site, turns, script, {}, script)
    assert [(r.outcome, r.cause) for r in reports] == [(None, "")] * 3
    assert turns.trained_in == [0, 1, 2] * 4
    for report in (reports[0], reports[2]):
        assert all(block.samples == 8 * block.steps * site.world_size for block in report.blocks)
    assert site.strays() == []


@sites("local")
@pytest.mark.parametrize(
    "start", ["threading.Thread(target=prepare, daemon=True).start()", "NATIVE"]
)
def test_threads_that_work_while_their_run_waits_are_seen(site: Site, start: str) -> None:
    (site.folder / "plain.py").write_text((SCRIPTS / "plain_ddp.py").read_text())
    head = BUSY_THREAD.replace("START", start.replace("NATIVE", UNKNOWN_TO_THREADING))
    (site.folder / "threads.py").write_text(f"{head}\n{OWN_BATCHES}")
    scripts = [Script("plain.py", samples=8), Script("threads.py", samples=4, draws_none=True)]
    usual = {"factory": "", "import_paths": (), "blocks": BlockPlan(0.1, 2, ENDLESS)}
    asked = [{**usual, "script": script} for script in scripts]
    shares: list[list[float]] = [[], []]

    def look(block: BlockReport) -> None:
        if "waiting_cpu" in block.observed:  # there was no wait before the first one
            shares[turns.trained_in[-1]].append(block.observed["waiting_cpu"] / block.seconds)
        if min(map(len, shares)) > 4 and typical(1) > RUNS.work_while_waiting:
            turns.order.clear()

    def typical(member: int) -> float:
        return statistics.median_low(shares[member])

    turns = Watched(2, 60, look)  # other processes may leave the thread little of a processor
    run(site, turns, *asked)
    assert typical(0) < RUNS.work_while_waiting < typical(1)


BUSY_THREAD = """
import threading

def prepare():
    while True:
        sum(range(10_000))

START
"""
UNKNOWN_TO_THREADING = "import _thread; _thread.start_new_thread(prepare, ())"
"""Like a thread of native code, it is not in `threading.enumerate`."""


@sites("local")
def test_processes_that_a_script_has_started_stop_while_it_waits(site: Site) -> None:
    (site.folder / "plain.py").write_text((SCRIPTS / "plain_ddp.py").read_text())
    (site.folder / "own.py").write_text(f"{LOADING_PROCESS}\n{OWN_BATCHES}")
    states: dict[int, list[str]] = {0: [], 1: []}

    def look(_: BlockReport) -> None:
        loading = [pid for pid in proc.every() if "loads = 1" in " ".join(proc.words_of(pid))]
        states[turns.trained_in[-1]] += map(proc.state, loading)

    turns = Watched(2, 6, look)
    scripts = [Script("own.py", samples=4, draws_none=True), Script("plain.py", samples=8)]
    asked = [{"factory": "", "import_paths": (), "script": script} for script in scripts]
    assert [report.outcome for report in run(site, turns, *asked)] == [None, None]
    assert len(states[1]) == 6 * 2 * site.world_size, "a process and its child for each rank"
    assert {*states[1]} == {"T"}
    assert site.strays() == []


LOADING_PROCESS = """
import subprocess
import sys

WORK = "loads = 1\\nwhile True: loads += 1"
FORKING = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {WORK!r}])"
subprocess.Popen([sys.executable, "-c", FORKING])
"""


@sites("local", slow=["pair"])
@pytest.mark.parametrize("draws", ["none", "shared"])
def test_samples_that_the_study_tells_are_those_of_the_steps_of_a_turn(
    site: Site, draws: str
) -> None:
    """The step that is left out at a change belongs to no block."""
    if draws == "none":
        script = Script("own.py", samples=4, draws_none=True)
        (site.folder / "own.py").write_text(OWN_BATCHES)
    else:
        script = Script(
            "shared_batch.py", ("--tensor-parallel", "2"), samples=8, fixed_samples=True
        )
        (site.folder / "shared_batch.py").write_text((SCRIPTS / "shared_batch.py").read_text())
    asked = {"factory": "", "import_paths": (), "script": script}
    for report in run(site, Forth(2, 4), asked, asked):
        assert (report.outcome, report.cause, len(report.blocks)) == (None, "", 4)
        told = [block.samples / block.steps for block in report.blocks]
        assert told == [script.samples * site.world_size] * 4


@sites("local", slow=["ray", "slurm"])
@pytest.mark.long
def test_nobody_is_launched_on_an_agent_that_has_died(site: Site) -> None:
    turns = Watched(3, 100, killing_agents(site, after=0))
    first, *others = run(site, turns, {}, {}, {})
    assert turns.trained_in == [0]
    assert "died" in first.cause
    assert [(report.lost_agent, report.blocks) for report in others] == [(True, ())] * 2
    site.check_next_trial()


@pytest.mark.long
@sites("local", slow=["ray", "slurm"])
def test_an_agent_that_dies_takes_all_with_it(site: Site) -> None:
    # Those that wait have workers that are stopped: these die as well.
    loading = {"knobs": knobs(num_workers=1, persistent_workers=True)}
    reports = run(site, Watched(3, 100, killing_agents(site, after=1)), loading, loading, {})
    assert all(report.lost_agent for report in reports)
    wait_for(lambda: site.strays() == [], "the ranks of a dead agent to die")
    site.check_next_trial()


@sites("local", slow=["pair", "ray", "slurm"])
def test_end_from_another_thread_ends_all(site: Site) -> None:
    training = threading.Event()
    turns = Watched(2, 10**6, lambda block: training.set() if block.index else None)
    with ending(site, training.is_set):
        reports = run(site, turns, {}, {})
    assert [report.outcome for report in reports] == [None, None]
    assert site.strays() == []
    site.check_next_trial()


@sites("local", slow=["pair", "ray", "slurm"])
def test_they_have_their_time_together(site: Site) -> None:
    began = time.monotonic()
    reports = run(
        site, Forth(2, 10**6), {"limit": TimeLimit(hard=2.0)}, {"limit": TimeLimit(hard=2.0)}
    )
    took = time.monotonic() - began
    assert [report.outcome for report in reports] == [None, None]
    assert 2.0 <= took < 60.0
    # Between two turns nobody has the slot.
    assert 0 < sum(report.wall_seconds for report in reports) <= took
    assert site.strays() == []
    site.check_next_trial()


@sites("local", slow=["pair"])
def test_who_says_whose_turn_it_is_may_raise(site: Site) -> None:
    class StorageDown(Exception):
        pass

    def fail(block: BlockReport) -> None:
        if block.index:
            raise StorageDown

    with pytest.raises(StorageDown):
        run(site, Watched(2, 100, fail), {}, {})
    strays = site.strays()
    site.check_next_trial()
    assert strays == []
