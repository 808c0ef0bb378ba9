"""The contract of every launcher, as far as it makes sense without ranks, and what replaying adds."""

import math
import random
import threading
from pathlib import Path
from typing import Any

import pytest

from autotune.errors import BadInput
from autotune.worker.protocol import BlockPlan, BlockReport, Outcome, Timeouts, TrialRequest
from launchers.replay import ENVIRONMENT, Answer, Launch, ReplayLauncher
from launchers.replay.behaviours import noisy, recorded, running_at
from launchers.replay.tables import (
    SECONDS,
    STATE,
    THROUGHPUT,
    Table,
    read_origin,
    read_table,
    write_table,
)
from search_spaces import defaults
from tests.support.behaviours import drifting, where, within_memory
from tests.support.trials import trial

ENDLESS = 10**9
PLAIN = running_at(lambda knobs: 100.0)


def request(name: str = "1/0-search-1/1", **changes: Any) -> TrialRequest:
    """A trial of five blocks; `knobs` changes single ones."""
    knobs = {**defaults(), "micro_batch": 3, "accumulation_steps": 2, **changes.pop("knobs", {})}
    blocks = BlockPlan(1.0, 2, 5)
    return trial(Path("/w"), **{"trial": name, "knobs": knobs, "blocks": blocks, **changes})


def go_on(_: BlockReport) -> bool:
    return False


# The contract


def test_blocks_account_for_every_step_sample_and_second() -> None:
    launcher = ReplayLauncher(noisy(PLAIN, block=0.1))
    report = launcher.slots[0].run_solo(request(), go_on)
    assert (report.trial, report.outcome, report.cause) == ("1/0-search-1/1", None, "")
    assert [block.index for block in report.blocks] == list(range(5))
    assert [block.steps for block in report.blocks] == [1, 8, 8, 8, 8]
    for block in report.blocks:
        assert block.samples == block.steps * 3 * 2 * 2
        assert block.tokens == 0
        assert block.rank_seconds == (block.seconds,) * 2
        assert block.seconds == pytest.approx(block.samples / 100, rel=0.5)
        assert 0 < block.wait_seconds <= block.seconds
        assert math.isfinite(block.loss)
    assert report.wall_seconds == math.fsum(block.seconds for block in report.blocks)


def test_a_watch_ends_its_trial() -> None:
    seen = []

    def watch(block: BlockReport) -> bool:
        seen.append(block.index)
        return block.index == 3

    slot = ReplayLauncher(PLAIN).slots[0]
    report = slot.run_solo(request(blocks=BlockPlan(1.0, 2, ENDLESS)), watch)
    assert report.outcome is None
    assert seen == [block.index for block in report.blocks] == [0, 1, 2, 3]


def test_end_from_another_thread() -> None:
    slot = ReplayLauncher(PLAIN).slots[0]
    under_way = threading.Event()

    def watch(block: BlockReport) -> bool:
        under_way.set()
        return False

    def end() -> None:
        under_way.wait()
        slot.end()

    ending = threading.Thread(target=end)
    ending.start()
    report = slot.run_solo(request(blocks=BlockPlan(1.0, 2, ENDLESS)), watch)
    ending.join()
    assert report.outcome is None
    assert len(report.blocks) < ENDLESS


def test_end_with_nothing_running_does_not_end_the_next_trial() -> None:
    slot = ReplayLauncher(PLAIN).slots[0]
    slot.end()
    assert len(slot.run_solo(request(), go_on).blocks) == 5


def test_a_watch_that_raises_leaves_the_slot_ready() -> None:
    def watch(_: BlockReport) -> bool:
        raise RuntimeError("planted")

    slot = ReplayLauncher(PLAIN).slots[0]
    with pytest.raises(RuntimeError, match="planted"):
        slot.run_solo(request(), watch)
    assert len(slot.run_solo(request(), go_on).blocks) == 5


@pytest.mark.parametrize("outcome", [Outcome.OOM, Outcome.CRASH, Outcome.ERROR])
@pytest.mark.parametrize("after", [0, 2, 5])
def test_a_failure_has_its_cause_and_the_blocks_before_it(outcome: Outcome, after: int) -> None:
    failing = where(PLAIN, lambda _: True, outcome=outcome, cause="rank 0: planted", after=after)
    report = ReplayLauncher(failing).slots[0].run_solo(request(), go_on)
    assert (report.outcome, report.cause, len(report.blocks)) == (outcome, "rank 0: planted", after)


@pytest.mark.parametrize(("after", "waited"), [(0, 30.0), (2, 7.0)])
def test_a_hang_takes_its_deadline(after: int, waited: float) -> None:
    hanging = where(PLAIN, lambda _: True, outcome=Outcome.HANG, after=after, startup=2.0)
    slot = ReplayLauncher(hanging).slots[0]
    report = slot.run_solo(request(timeouts=Timeouts(startup=30.0, step=7.0)), go_on)
    assert report.outcome is Outcome.HANG
    blocks = sum(block.seconds for block in report.blocks)
    assert report.wall_seconds == pytest.approx(2.0 + blocks + waited)


def test_a_lost_agent_is_told_apart_and_the_next_launch_runs() -> None:
    lossy = where(PLAIN, lambda launch: launch.number == 1, lost_agent=True, outcome=Outcome.CRASH)
    slot = ReplayLauncher(lossy).slots[0]
    assert slot.run_solo(request(), go_on).lost_agent
    again = slot.run_solo(request("1/0-search-2/1"), go_on)
    assert (again.lost_agent, again.outcome) == (False, None)


def test_a_trajectory_is_single_steps_with_loss_and_norm() -> None:
    slot = ReplayLauncher(where(PLAIN, lambda _: True, loss=2.0, gradient_norm=0.5)).slots[0]
    report = slot.run_solo(request(trajectory=16), go_on)
    assert [block.steps for block in report.blocks] == [1] * 16
    losses = [block.loss for block in report.blocks]
    assert losses[0] == 2.0
    assert losses == sorted(losses, reverse=True)
    assert {block.observed["gradient_norm"] for block in report.blocks} == {0.5}


def test_a_profile_is_one_block_of_parts() -> None:
    report = ReplayLauncher(PLAIN).slots[0].run_solo(request(profile=8), go_on)
    (block,) = report.blocks
    shares = block.observed["parts"].values()
    assert all(len(share) == 2 for share in shares)
    assert sum(share[0] for share in shares) == pytest.approx(1.0)
    assert len(block.observed["peaks"]) == 2


def test_memory_is_reported_and_limited() -> None:
    limited = within_memory(PLAIN, lambda knobs: 10.0 * knobs["micro_batch"], limit=100.0)
    slot = ReplayLauncher(limited).slots[0]
    fits = slot.run_solo(request(knobs={"micro_batch": 10}), go_on)
    assert {block.peak_bytes for block in fits.blocks} == {100}
    beyond = slot.run_solo(request(knobs={"micro_batch": 11}), go_on)
    assert beyond.outcome is Outcome.OOM
    assert beyond.cause == "out of memory: 110 of 100 bytes"


def test_what_a_slot_says_of_itself() -> None:
    device = {"name": "X", "memory_bytes": 2**30, "capability": [9, 0]}
    on_cpu = ReplayLauncher(PLAIN, slots=2)
    on_cuda = ReplayLauncher(PLAIN, environment={**ENVIRONMENT, "devices": [device]})
    assert [slot.name for slot in on_cpu.slots] == ["replay-0", "replay-1"]
    assert (on_cpu.slots[0].device, on_cpu.slots[0].devices_per_rank) == ("cpu", 0.0)
    assert (on_cuda.slots[0].device, on_cuda.slots[0].devices_per_rank) == ("cuda", 1.0)


# Virtual time and chance


def test_the_clock_is_that_of_the_busiest_slot() -> None:
    launcher = ReplayLauncher(where(PLAIN, lambda _: True, startup=1000.0), slots=2)
    assert launcher.clock() == 0.0
    first, second = launcher.slots
    one = first.run_solo(request(), go_on).wall_seconds
    assert launcher.clock() == pytest.approx(one)
    assert one > 1000.0
    other = second.run_solo(request(), go_on).wall_seconds
    assert launcher.clock() == pytest.approx(max(one, other))
    first.run_solo(request(), go_on)
    assert launcher.clock() == pytest.approx(2 * one)


def rate_of(launcher: ReplayLauncher, name: str, **changes: Any) -> float:
    report = launcher.slots[0].run_solo(request(name, **changes), go_on)
    return sum(b.samples for b in report.blocks) / sum(b.seconds for b in report.blocks)


def test_noise_depends_on_seed_knobs_and_launch_and_on_nothing_else() -> None:
    shaky = noisy(PLAIN, run=0.05, block=0.01)
    names = [f"1/{number}-search-1/1" for number in range(20)]
    forwards, backwards = ReplayLauncher(shaky, seed=1), ReplayLauncher(shaky, seed=1)
    found = {name: rate_of(forwards, name) for name in names}
    assert {name: rate_of(backwards, name) for name in reversed(names)} == found
    assert len(set(found.values())) == 20
    assert rate_of(ReplayLauncher(shaky, seed=2), names[0]) != found[names[0]]
    assert rate_of(forwards, names[0], knobs={"log_interval": 1}) != found[names[0]]
    spread = [math.log(rate / 100) for rate in found.values()]
    assert 0.03 < math.sqrt(math.fsum(x * x for x in spread) / len(spread)) < 0.08


def test_drift_goes_by_virtual_time() -> None:
    slowing = drifting(where(PLAIN, lambda _: True, startup=3600.0), per_hour=-0.1)
    launcher = ReplayLauncher(slowing)
    first, second = (rate_of(launcher, f"1/{number}-search-1/1") for number in range(2))
    assert second / first == pytest.approx(math.exp(-0.1), rel=1e-3)


# Tables

ROWS = [
    {"micro_batch": 1, "pin_memory": True, THROUGHPUT: 50.0, SECONDS: 3.0, STATE: "COMPLETE"},
    {"micro_batch": 2, "pin_memory": True, THROUGHPUT: 75.5, SECONDS: 1.0, STATE: "COMPLETE"},
    {"micro_batch": 4, "pin_memory": True, THROUGHPUT: None, SECONDS: 2.5, STATE: "OOM"},
]
TABLE = Table(["micro_batch", "pin_memory"], ROWS)


def test_a_table_is_read_as_it_was_written(tmp_path: Path) -> None:
    write_table(tmp_path / "t.csv", TABLE.names, ROWS)
    found = read_table(tmp_path / "t.csv")
    assert (found.names, found.rows) == (TABLE.names, ROWS)
    assert found.values == {"micro_batch": [1, 2, 4], "pin_memory": [True]}
    assert found.best == 75.5


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "no column state, throughput, trial_seconds"),
        ("micro_batch,throughput,trial_seconds,state\n", "no row has a throughput"),
        ("micro_batch,throughput,trial_seconds,state\n1,x,1,COMPLETE\n", "is no replay table"),
        ("micro_batch,throughput,trial_seconds,state\n1\n", "is no replay table"),
        ("micro_batch,throughput,trial_seconds,state\n1,,1,COMPLETE\n", "'' of a COMPLETE row"),
        ("micro_batch,throughput,trial_seconds,state\n1,nan,1,COMPLETE\n", "'nan' of a COMPLETE"),
        ("micro_batch,throughput,trial_seconds,state\n1,0,1,COMPLETE\n", "'0' of a COMPLETE row"),
        ("micro_batch,throughput,trial_seconds,state\n1,5,1,\n", "state '' is none of COMPLETE"),
        ("micro_batch,throughput,trial_seconds,state\n[,5,1,COMPLETE\n", "is no replay table"),
    ],
)
def test_a_file_that_is_no_table(tmp_path: Path, text: str, problem: str) -> None:
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(BadInput, match=problem):
        read_table(tmp_path / "t.csv")


def test_a_table_without_its_origin(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"t\.csv cannot be read"):
        read_table(tmp_path / "t.csv")
    with pytest.raises(BadInput, match=r"t\.json cannot be read"):
        read_origin(tmp_path / "t.csv")
    (tmp_path / "t.json").write_text("[]")
    with pytest.raises(BadInput, match="does not tell where"):
        read_origin(tmp_path / "t.csv")


def test_rows_are_answers() -> None:
    def answer(**changes: Any) -> Answer:
        asked = request(knobs={"pin_memory": True, **changes.pop("knobs")}, **changes)
        return recorded(TABLE, timed=1.5)(Launch(asked, 1, 0.0, random.Random(0), random.Random(0)))

    assert answer(knobs={"micro_batch": 1}).startup == 1.5
    assert answer(knobs={"micro_batch": 2}).rate == 75.5
    assert answer(knobs={"micro_batch": 2}).startup == 0.0
    full = answer(knobs={"micro_batch": 4})
    assert (full.outcome, full.startup) == (Outcome.OOM, 2.5)
    unknown = answer(knobs={"micro_batch": 3})
    assert unknown.outcome is Outcome.ERROR
    assert unknown.cause == "the table has no row for micro_batch=3, pin_memory=true"
    reference = answer(knobs={"micro_batch": 3}, trajectory=16)
    assert (reference.outcome, reference.rate, reference.startup) == (None, 50.0, 0.75)


def test_a_warm_worker_compiles_for_as_long_as_its_row_says() -> None:
    """The compiled row takes 30 s to start, its neighbour 4 s, another compiled one has none."""
    seconds = {("default", 3): 35.0, ("none", 3): 9.0, ("default", 6): 35.0}
    rows = [
        {"compile": mode, "micro_batch": size, THROUGHPUT: 100.0, SECONDS: took, STATE: "COMPLETE"}
        for (mode, size), took in seconds.items()
    ]
    behaviour = recorded(Table(["compile", "micro_batch"], rows), timed=5.0)

    def launched(before: dict[str, Any], **knobs: Any) -> float:
        """Seconds of a trial in the processes of another, less those of its blocks."""
        (slot,) = ReplayLauncher(behaviour, slots=1).slots
        for number, asked in enumerate((before, knobs)):
            name = f"1/{number}-search-1/1"
            report = slot.run_solo(request(name, knobs=asked, stays=True), go_on)
        assert slot.launches == 1
        return report.wall_seconds - math.fsum(block.seconds for block in report.blocks)

    compiled = {"compile": "default"}
    assert launched({}, **compiled) == pytest.approx(26.0)
    assert launched({}, **compiled, micro_batch=6) == pytest.approx(30.0)
    assert launched(compiled, **compiled, micro_batch=6) == pytest.approx(30.0)
    assert launched(compiled, **compiled, pin_memory=True) == pytest.approx(0.0)
    assert launched(compiled) == pytest.approx(0.0)
