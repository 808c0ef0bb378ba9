"""Trouble, and its typed outcome."""

import re
from typing import Any

import pytest

from autotune.worker.protocol import BlockPlan, BlockReport, Outcome, Timeouts
from tests.contract.launchers.sites import HASTE_SLACK, HASTY, Site, ranks, sites
from tests.support.trials import ENDLESS, knobs
from tests.support.waiting import stopwatch

pytestmark = pytest.mark.timeout(600)


GIB = 2**30
NAMED_TROUBLE = {
    "raise": (Outcome.ERROR, r"rank 1: ValueError: planted error", {}),
    "abort": (Outcome.CRASH, r"rank 1: .*SIGABRT", {}),
    "exit": (Outcome.CRASH, r"rank 1: .*status 3\b", {}),
    "oom": (Outcome.OOM, r"rank 1: .*allocate memory", {"memory_per_rank": GIB}),
    "hang": (
        Outcome.HANG,
        rf"rank 1: a step took more than {HASTY.step:g} s",
        {"timeouts": HASTY},
    ),
    "stop": (Outcome.HANG, r"rank 1: .*stopped", {"timeouts": HASTY}),
    "nan": (Outcome.ERROR, r"rank \d: NonFiniteLoss: the loss is nan", {}),
}


@pytest.mark.long
@pytest.mark.fault(8)
@sites("local", "ray", "slurm", "cluster")
@pytest.mark.parametrize("trouble", NAMED_TROUBLE)
def test_trouble_in_training_gets_its_typed_outcome(site: Site, trouble: str) -> None:
    if site.kind == "cluster" and trouble not in {"raise", "abort", "hang"}:
        pytest.skip("nothing about it depends on the number of nodes")
    outcome, cause, changes = NAMED_TROUBLE[trouble]
    took = stopwatch()
    report = site.run(args={"trouble": trouble}, **{"blocks": BlockPlan(0.01, 2, 50), **changes})
    assert report.outcome is outcome, report.cause
    assert re.search(cause, report.cause), report.cause
    assert report.lost_agent is False
    assert len(report.blocks) < 50
    assert site.strays() == []
    if outcome is Outcome.HANG:
        assert took() < HASTY.step + HASTE_SLACK
    site.check_next_trial()


@sites("local", slow=["ray", "slurm"])
@pytest.mark.parametrize(
    ("factory", "changes", "cause"),
    [
        ("no_such_module:build", {}, r"ModuleNotFoundError: .*no_such_module"),
        ("tiny:no_such_function", {}, r"AttributeError: .*no_such_function"),
        (
            "odd:wrong_type",
            {},
            r"TypeError: .*returned Linear; it must return an autotune.Workload",
        ),
        ("tiny:build", {"args": {"colour": "red"}}, r"TypeError: .*colour"),
        ("odd:one_sided", {}, r"rank 1: ValueError: planted error \(.*odd.py:\d+, in one_sided\)$"),
        (
            "odd:relaxed",
            {"strict_fp32": True},
            r"ValueError: precision: .*baseline: {precision: tf32}",
        ),
        ("odd:tiny_set", {}, r"ValueError: the dataset has 1 samples.*enlarge the dataset$"),
        ("tiny:build", {"knobs": knobs(qkv_streams=True)}, r"ValueError: qkv_streams is on"),
        ("tiny:build", {"workdir": "/no/such/folder"}, r"FileNotFoundError: .*/no/such/folder"),
    ],
)
def test_trouble_in_the_factory_is_an_error(
    site: Site, factory: str, changes: dict[str, Any], cause: str
) -> None:
    report = site.run(factory, **changes)
    assert report.outcome is Outcome.ERROR
    assert re.search(cause, report.cause), report.cause
    assert "Traceback" in report.log_tail
    assert report.blocks == ()
    site.check_next_trial()


@sites("local")
def test_a_log_folder_that_cannot_be_written_is_an_error(site: Site) -> None:
    in_the_way = site.folder / "in the way"
    in_the_way.write_text("")
    report = site.run(log_dir=str(in_the_way / "logs"))
    assert (report.outcome, report.lost_agent) == (Outcome.ERROR, False)
    assert str(in_the_way) in report.cause
    site.check_next_trial()


@sites("local")
@pytest.mark.parametrize(
    ("deed", "outcome", "cause"),
    [
        ("sys.exit", Outcome.ERROR, "rank 1: SystemExit: 0"),
        ("interrupt", Outcome.ERROR, "rank 1: KeyboardInterrupt"),
        ("killed", Outcome.CRASH, "rank 1: .*SIGKILL"),
        ("unprintable", Outcome.ERROR, "rank 1: Unprintable"),
        ("realtime signal", Outcome.CRASH, "rank 1: .*40"),
    ],
)
def test_rare_trouble(site: Site, deed: str, outcome: Outcome, cause: str) -> None:
    report = site.run("odd:build", args={"deed": deed}, blocks=BlockPlan(0.01, 2, 50))
    assert report.lost_agent is False
    assert report.outcome is outcome
    assert re.search(cause, report.cause), report.cause


@sites("local")
def test_a_factory_that_hangs_meets_the_startup_deadline(site: Site) -> None:
    for limit in (1.5, 12.0, 96.0):  # a busy machine is later at the factory
        took = stopwatch()
        report = site.run("odd:stuck", timeouts=Timeouts(startup=limit, step=60))
        assert report.outcome is Outcome.HANG
        assert f"start-up took more than {limit:g} s" in report.cause
        assert took() < limit + HASTE_SLACK
        assert site.strays() == []
        if "in stuck" in report.log_tail:
            return
    raise AssertionError(report.log_tail)


@sites("local")
def test_a_rank_that_hangs_after_the_last_step_is_the_one_named(site: Site) -> None:
    report = site.run("odd:build", args={"deed": "stick at the end"}, timeouts=HASTY)
    assert report.lost_agent is False
    assert report.outcome is Outcome.HANG
    assert report.cause.startswith("rank 1: ")


@pytest.mark.fault(5)
@sites("local", "ray", "slurm")
def test_a_rank_killed_from_outside_is_a_crash(site: Site) -> None:
    def kill_a_rank(block: BlockReport) -> bool:
        if block.index == 1:
            ranks(site.agents()[0])[0].kill()
        return False

    report = site.slot.run_solo(site.request(blocks=BlockPlan(0.01, 2, ENDLESS)), kill_a_rank)
    assert report.outcome is Outcome.CRASH
    assert "SIGKILL" in report.cause
    assert report.lost_agent is False
    assert site.strays() == []
    site.check_next_trial()


@pytest.mark.fault(9)
@sites("local", "ray", "slurm")
def test_a_grandchild_in_its_own_session_dies_with_its_trial(site: Site) -> None:
    request = site.request(
        args={"trouble": "grandchild", "at": 2}, blocks=BlockPlan(0.01, 2, ENDLESS)
    )
    saw_grandchild = False

    def watch(block: BlockReport) -> bool:
        nonlocal saw_grandchild
        saw_grandchild = any("escaping-grandchild" in stray for stray in site.strays())
        return saw_grandchild or block.index > 500

    report = site.slot.run_solo(request, watch)
    assert saw_grandchild
    assert report.outcome is None
    assert site.strays() == []
