"""Ranks that stay after their trial, and take the configuration of the next."""

import dataclasses
import json
import time
from typing import Any

import pytest

from autotune.worker.protocol import BlockPlan, Outcome, TimeLimit, TrialReport
from search_spaces import CATALOGUE
from search_spaces.knob import STEP
from tests.contract.launchers.sites import (
    HASTY,
    Site,
    end_at,
    go_on,
    ranks,
    sites,
    spent,
)
from tests.contract.launchers.test_ends import ending
from tests.support.trials import ENDLESS, knobs
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.timeout(600), pytest.mark.usefixtures("nothing_stays")]

SHORT = BlockPlan(0.01, 2, ENDLESS)
SILENCE = 0.05
"""Of a processor: a rank that turned round and round as it waits would take all of one."""


def stay(site: Site, factory: str = "tiny:build", *, at: int = 3, **changes: Any) -> TrialReport:
    request = site.request(factory, **{"stays": True, "blocks": SHORT, **changes})
    return site.slot.run_solo(request, end_at(at))


def pids(site: Site) -> list[int]:
    return sorted(rank.pid for agent in site.agents() for rank in ranks(agent))


@sites("local", "pair", slow=["ray", "slurm", "cluster"])
def test_the_same_processes_measure_what_differs_at_a_step(site: Site) -> None:
    first = stay(site)
    assert (first.outcome, first.cause, first.resident_of) == (None, "", "")
    assert site.slot.warm_knobs == knobs()
    launched = pids(site)
    second = stay(site, knobs=knobs(micro_batch=4, accumulation_steps=2))
    assert (second.outcome, second.cause, second.resident_of) == (None, "", first.trial)
    assert {block.trial for block in second.blocks} == {second.trial} != {first.trial}
    assert [block.index for block in second.blocks] == [0, 1, 2, 3]
    assert second.blocks[-1].samples == 8 * site.world_size * second.blocks[-1].steps
    assert pids(site) == launched
    third = stay(site, knobs=knobs(bucket_cap_mb=1))
    assert (third.outcome, third.resident_of) == (None, "")
    assert not {*pids(site)} & {*launched}


LOOK = BlockPlan(0.01, 2, 1)
"""Which is over with its one block."""


@sites("local", "pair", slow=["ray", "slurm", "cluster"])
def test_who_was_looked_at_is_timed_in_the_same_processes(site: Site) -> None:
    look = stay(site, profile=2, blocks=LOOK)
    assert (look.outcome, look.cause, len(look.blocks)) == (None, "", 1)
    launched = pids(site)
    timed = stay(site)
    assert (timed.outcome, timed.cause, timed.resident_of) == (None, "", look.trial)
    assert [block.index for block in timed.blocks] == [0, 1, 2, 3]
    assert not {"parts", "peaks"} & {*timed.blocks[-1].observed}
    assert pids(site) == launched


@pytest.mark.long
@sites("local")
def test_a_look_for_which_there_is_no_time_leaves_nobody(site: Site) -> None:
    look = stay(site, args={"sleep": 1.0}, profile=2, blocks=LOOK, limit=TimeLimit(hard=5.0))
    assert (look.outcome, look.blocks, site.slot.warm_knobs) == (None, (), None)
    assert stay(site, args={"sleep": 1.0}).resident_of == ""


EFFECTS: dict[str, list[dict[str, Any]]] = {
    "micro_batch": [{"micro_batch": 4}],
    "accumulation_steps": [{"accumulation_steps": 3}],
    "precision": [{"precision": name} for name in ("bf16", "fp16", "tf32")],
    "optimizer_kernels": [{"optimizer_kernels": name} for name in ("foreach", "fused")],
    "set_to_none": [{"set_to_none": False}],
    "num_workers": [{"num_workers": 2}],
    "persistent_workers": [{"num_workers": 1, "persistent_workers": True}],
    "prefetch_factor": [{"num_workers": 1, "prefetch_factor": 5}],
    "pin_memory": [{"pin_memory": True}],
    "attention": [{"attention": "unfused"}, {"attention": "flash"}],
    "log_interval": [{"log_interval": 3}],
}
"""Step-level knob -> values that show without a CUDA device."""
QUICK = ("micro_batch", "precision", "num_workers")
"""One value of each of these in `make test-all`; all others, which take as long, in `make faults`."""
LIVE = [
    pytest.param(
        changes,
        id=str(changes),
        marks=[] if name in QUICK and not place else pytest.mark.slow,
    )
    for name, some in EFFECTS.items()
    for place, changes in enumerate(some)
]


def test_every_step_level_knob_is_looked_at() -> None:
    on_cuda_only = {"stream_prefetch"}
    acting = {name for name, knob in CATALOGUE.items() if knob.acts_on == STEP}
    assert {*EFFECTS} | on_cuda_only == acting


@pytest.mark.slow
@sites("local")
def test_warm_worker_compiles_for_each_graph_and_no_longer_once_undone(site: Site) -> None:
    first = stay(site)
    for changes, compiles in [
        ({"compile": "default"}, True),
        ({"compile": "default", "log_interval": 2}, False),
        ({"compile": "default", "micro_batch": 4}, True),
        ({}, False),
    ]:
        report = stay(site, knobs=knobs(**changes))
        assert (report.outcome, report.cause, report.resident_of) == (None, "", first.trial)
        compilations = sum(block.observed["compilations"] for block in report.blocks)
        assert (compilations > 0) == compiles, changes


@sites("local")
def test_warm_worker_checkpoints_activations_and_no_longer_once_undone(site: Site) -> None:
    first = stay(site, "seeing:build_blocks")
    for changes, passes in [({"activation_checkpointing": 1}, 2), ({}, 1)]:
        report = stay(site, "seeing:build_blocks", knobs=knobs(**changes))
        assert (report.outcome, report.cause, report.resident_of) == (None, "", first.trial)
        assert json.loads((site.folder / "passes.json").read_text()) == passes


def seen(site: Site) -> dict[str, Any]:
    found = json.loads((site.folder / "seen.json").read_text())
    assert found.pop("steps") > 6, "too few to have seen all"
    return {**found, "pid": found["pid"] in pids(site)}


@pytest.mark.long
@sites("local")
@pytest.mark.parametrize("changes", LIVE)
def test_live_and_fresh_agree_in_what_is_applied(site: Site, changes: dict[str, Any]) -> None:
    def look(*, live: bool, **values: Any) -> dict[str, Any]:
        report = stay(site, "seeing:build", at=6, knobs=knobs(**values))
        assert (report.outcome, report.cause, bool(report.resident_of)) == (None, "", live)
        return seen(site)

    plain = look(live=False)
    changed = look(live=True, **changes)
    assert look(live=True) == plain, "something is left of the configuration before"
    site.slot.dismiss()
    assert changed == look(live=False, **changes) != plain


@pytest.mark.long
@sites("local", slow=["pair"])
def test_who_waits_is_silent_and_no_deadline_holds(site: Site) -> None:
    loading = knobs(num_workers=1, persistent_workers=True)
    first = stay(site, knobs=loading, timeouts=HASTY)
    before = wait_for(lambda: settled(site), "all to be done with the trial")
    assert len(before) == 2 * site.world_size, "ranks and their workers"
    time.sleep(waited := HASTY.step + 1.0)
    assert max(spent(site)[pid] - used for pid, used in before.items()) < SILENCE * waited
    second = stay(site, knobs={**loading, "micro_batch": 4}, timeouts=HASTY)
    assert (second.outcome, second.not_its_own, second.resident_of) == (None, "", first.trial)
    assert len(spent(site)) == 2 * site.world_size, "the workers of the first are gone"


def settled(site: Site) -> dict[int, float] | None:
    """What all have spent, once they spend no more."""
    before = spent(site)
    time.sleep(0.3)
    return before if before == spent(site) else None


@sites("local", "pair", slow=["ray", "slurm"])
def test_whatever_else_runs_has_the_slot_alone(site: Site) -> None:
    stay(site)
    launched = pids(site)
    alone: list[bool] = []
    site.slot.run_solo(site.request(), lambda _: alone.append(bool({*pids(site)} & {*launched})))
    assert alone and not any(alone)
    assert site.slot.warm_knobs is None


@sites("local", "pair")
def test_a_rank_that_is_killed_as_it_waits_leads_to_a_launch(site: Site) -> None:
    stay(site)
    agent = site.agents()[-1]
    ranks(agent)[-1].kill()
    wait_for(lambda: site.slot.warm_knobs is None, "the slot to hear of it")
    assert not ranks(agent), "the agent has cleared the others away"
    report = stay(site, knobs=knobs(micro_batch=4))
    assert (report.outcome, report.cause, report.resident_of) == (None, "", "")


@sites("local", slow=["pair", "ray", "slurm"])
def test_one_that_dies_as_it_takes_over_says_so(site: Site) -> None:
    """Nobody has heard of its death yet."""
    first = stay(site)
    ranks(site.agents()[-1])[-1].kill()
    report = stay(site, knobs=knobs(micro_batch=4))
    assert (report.outcome, report.resident_of) in [(Outcome.CRASH, first.trial), (None, "")]
    assert stay(site, knobs=knobs(micro_batch=4)).outcome is None


@sites("local", slow=["pair", "ray", "slurm"])
@pytest.mark.parametrize(
    ("trouble", "outcome"),
    [
        ("raise", Outcome.ERROR),
        pytest.param("abort", Outcome.CRASH, marks=pytest.mark.slow),
        pytest.param("hang", Outcome.HANG, marks=pytest.mark.slow),
    ],
)
def test_what_fails_live_ends_the_processes_and_nothing_else(
    site: Site, trouble: str, outcome: Outcome
) -> None:
    unlucky = {"args": {"trouble": trouble, "above": 2, "at": 1}, "timeouts": HASTY}
    first = stay(site, **unlucky)
    assert first.outcome is None
    failed = stay(site, **unlucky, knobs=knobs(micro_batch=4))
    assert (failed.outcome, failed.resident_of) == (outcome, first.trial)
    assert site.slot.warm_knobs is None
    assert site.strays() == []
    assert stay(site, **unlucky).resident_of == ""


@pytest.mark.long
@sites("local", slow=["ray", "slurm"])
def test_agents_that_die_as_ranks_wait_are_replaced(site: Site) -> None:
    stay(site)
    for agent in site.agents():
        agent.kill()
    wait_for(lambda: site.strays() == [], "the ranks of a dead agent to die")
    stay(site, knobs=knobs(micro_batch=4))  # which may be the first to notice
    report = stay(site, knobs=knobs(bucket_cap_mb=1))
    assert (report.outcome, report.lost_agent, report.resident_of) == (None, False, "")


@sites("local", slow=["pair", "ray", "slurm"])
def test_end_from_another_thread_ends_the_processes(site: Site) -> None:
    stay(site)
    request = site.request(stays=True, blocks=SHORT, knobs=knobs(micro_batch=4))
    blocks: list[int] = []
    with ending(site, lambda: len(blocks) > 1):
        report = site.slot.run_solo(request, lambda block: blocks.append(block.index))
    assert (report.outcome, bool(report.resident_of)) == (None, True)
    assert site.slot.warm_knobs is None
    assert site.strays() == []


@sites("local", slow=["pair"])
def test_a_watch_that_raises_ends_the_processes(site: Site) -> None:
    class StorageDown(Exception):
        pass

    def fail(_: object) -> bool:
        raise StorageDown

    stay(site)
    with pytest.raises(StorageDown):
        site.slot.run_solo(site.request(stays=True, blocks=SHORT), fail)
    assert site.slot.warm_knobs is None
    assert site.strays() == []


@sites("local", slow=["pair"])
def test_all_blocks_done_is_enough(site: Site) -> None:
    plan = BlockPlan(0.01, 2, 3)
    first = site.slot.run_solo(site.request(stays=True, blocks=plan), go_on)
    second = site.slot.run_solo(site.request(stays=True, blocks=plan), go_on)
    assert [len(first.blocks), len(second.blocks)] == [3, 3]
    assert second.resident_of == first.trial


@sites("local")
def test_what_it_prints_goes_to_its_own_log(site: Site) -> None:
    stay(site, "odd:talking")
    request = site.request("odd:talking", stays=True, blocks=SHORT, knobs=knobs(micro_batch=4))
    request = dataclasses.replace(request, args={})
    assert site.slot.run_solo(request, end_at(1)).resident_of
    logs = sorted(path.name for path in (site.folder / "logs" / request.trial).iterdir())
    assert logs == [f"rank-{rank}.log" for rank in range(site.world_size)]
