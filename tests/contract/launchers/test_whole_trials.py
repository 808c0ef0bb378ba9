"""A trial from start to end: what its blocks account for, what its factory finds, many in a row."""

import itertools
import json
import math
import os
from pathlib import Path

import psutil
import pytest

import launchers
from autotune.worker.protocol import BlockPlan
from launchers import Resources
from tests.contract.launchers.sites import Site, fork_server, go_on, sites
from tests.support.processors import shares_of_processors
from tests.support.steering import TINY_WORKLOAD
from tests.support.trials import knobs
from tests.support.waiting import wait_for

pytestmark = pytest.mark.timeout(600)


@sites("local", "ray", "slurm", "pair", "cluster")
def test_blocks_account_for_every_step_sample_and_second(site: Site) -> None:
    request = site.request(
        knobs=knobs(micro_batch=3, accumulation_steps=2),
        blocks=BlockPlan(seconds=0.01, min_steps=2, max_blocks=6),
    )
    report = site.slot.run_solo(request, go_on)
    assert (report.trial, report.outcome, report.cause) == (request.trial, None, "")
    assert report.lost_agent is False
    assert [block.index for block in report.blocks] == list(range(6))
    assert report.blocks[0].steps == 1
    assert all(block.steps >= 2 for block in report.blocks[1:])
    for block in report.blocks:
        assert block.trial == request.trial
        assert block.samples == block.steps * 3 * 2 * site.world_size
        assert block.tokens == 0
        assert len(block.rank_seconds) == site.world_size
        assert block.seconds == max(block.rank_seconds) > 0
        assert 0 < block.wait_seconds <= block.seconds
        assert math.isfinite(block.loss)
        assert block.peak_bytes > 10 * 2**20
    assert report.wall_seconds >= sum(block.seconds for block in report.blocks)


@sites("pair", slow=["cluster"])
def test_what_has_fewer_ranks_than_the_slot_is_on_its_first_node(site: Site) -> None:
    """As the process of a command is, which sees to its ranks itself."""
    report = site.slot.run_solo(site.request(world_size=1), go_on)
    assert (report.outcome, report.cause, report.lost_agent) == (None, "", False)
    assert [block.index for block in report.blocks] == list(range(4))
    assert all(len(block.rank_seconds) == 1 for block in report.blocks)
    assert site.strays() == []
    site.check_next_trial()


@sites("local")
def test_the_agent_itself_never_loads_torch(site: Site) -> None:
    site.check_next_trial()
    agent = site.agents()[0]
    assert "libtorch" not in Path(f"/proc/{agent.pid}/maps").read_text()
    assert "libtorch" in Path(f"/proc/{fork_server(agent).pid}/maps").read_text()


@sites("local", "ray", "slurm")
def test_a_factory_finds_what_it_was_promised(site: Site, tmp_path: Path) -> None:
    report = site.run("odd:looking", args={"folder": str(tmp_path)}, env={"COLOUR": "green"})
    assert report.outcome is None, report.cause
    assert all(block.tokens == 7 * block.samples for block in report.blocks)
    seen = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    for rank, view in enumerate(seen):
        assert view["environment"] == {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": "2",
            "LOCAL_WORLD_SIZE": "2",
            "OMP_NUM_THREADS": "1",
            "COLOUR": "green",
        }
        assert view["group"] == [rank, 2, "gloo"]
        assert view["workdir"] == view["first_path"] == str(site.folder)
        assert view["threads"] == 1
        assert view["pools"] == [1]
        assert view["stdin"] == ""
    assert seen[0]["draws"] == seen[1]["draws"], "ranks would build different models"


@sites("local")
def test_ranks_divide_the_processors_if_asked(site: Site, tmp_path: Path) -> None:
    for knob, wanted in (
        ("share", shares_of_processors(2)),
        ("none", [sorted(os.sched_getaffinity(0))] * 2),
    ):
        chosen = knobs(cpu_affinity=knob)
        report = site.run("odd:looking", args={"folder": str(tmp_path)}, knobs=chosen)
        assert report.outcome is None, report.cause
        views = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
        assert [view["processors"] for view in views] == wanted


@sites("local")
def test_numerical_libraries_have_the_threads_of_their_rank(site: Site, tmp_path: Path) -> None:
    report = site.run("odd:looking", args={"folder": str(tmp_path)}, cpus_per_rank=2)
    assert report.outcome is None, report.cause
    for rank in range(2):
        view = json.loads((tmp_path / f"{rank}.json").read_text())
        assert view["environment"]["OMP_NUM_THREADS"] == "2"
        assert view["threads"] == 2
        assert view["pools"] == [2]


@sites("local", "pair")
@pytest.mark.parametrize("view", [False, True])
def test_ranks_train_on_different_samples_and_step_alike(site: Site, view: bool) -> None:
    chosen = knobs(micro_batch=3, accumulation_steps=2, gradient_as_bucket_view=view)
    report = site.run("odd:agreeing", knobs=chosen)
    assert (report.outcome, report.cause) == (None, "")


@sites("local")
def test_an_edited_workload_is_picked_up_by_the_next_trial(site: Site) -> None:
    module = site.folder / "edited.py"
    module.write_text("import tiny\nbuild = tiny.build\n")
    assert site.run("edited:build").outcome is None
    module.write_text("def build():\n    raise ValueError('the second version')\n")
    assert "the second version" in site.run("edited:build").cause


@sites("local", "ray", "slurm")
def test_a_users_modules_may_have_the_names_of_ours(site: Site, tmp_path: Path) -> None:
    (tmp_path / "tiny.py").write_text(TINY_WORKLOAD.read_text())
    (tmp_path / "storage.py").write_text("OWNER = 'user'\n")
    (tmp_path / "search_spaces.py").write_text("OWNER = 'user'\n")
    (tmp_path / "launchers").mkdir()
    (tmp_path / "launchers" / "__init__.py").write_text("OWNER = 'user'\n")
    (tmp_path / "mine.py").write_text(
        "import launchers, search_spaces, storage, tiny\n"
        "owners = {module.OWNER for module in (launchers, search_spaces, storage)}\n"
        "def build():\n"
        "    assert owners == {'user'}\n"
        "    return tiny.build()\n"
    )
    folder = str(tmp_path)
    report = site.run("mine:build", workdir=folder, import_paths=(folder,))
    assert (report.outcome, report.cause) == (None, "")


@sites("local")
def test_a_long_argument_arrives_whole(site: Site) -> None:
    assert site.run("odd:big", args={"text": "x" * 500_000}).outcome is None


@sites("local")
def test_peak_memory_is_of_this_trial_alone(site: Site) -> None:
    before, hungry, after = (
        max(block.peak_bytes for block in report.blocks)
        for report in (
            site.run(),
            site.run("odd:hungry", args={"megabytes": 300}),
            site.run(),
        )
    )
    assert 290 * 2**20 < hungry - before < 400 * 2**20
    assert after - before < 100 * 2**20


@sites("local")
def test_a_memory_limit_ends_with_its_trial(site: Site) -> None:
    assert site.run(memory_per_rank=2**30).outcome is None
    assert site.run("odd:hungry", args={"megabytes": 1200}).outcome is None


@pytest.mark.slow
@sites("local")
def test_a_hundred_trials_clash_and_leak_nothing(site: Site) -> None:
    def census() -> tuple[int, int, int]:
        agent = site.agents()[0]
        family = [agent, *agent.children(recursive=True)]
        return sum(process.num_fds() for process in family), len(family), agent.num_threads()

    site.check_next_trial()
    before, own_descriptors = census(), psutil.Process().num_fds()
    short = BlockPlan(seconds=0.001, min_steps=1, max_blocks=2)
    outcomes = [site.run(blocks=short) for _ in range(100)]
    assert [report.cause for report in outcomes if report.outcome or report.lost_agent] == []
    # The store closes its side of a rank's connection in its own time.
    wait_for(lambda: census() == before, f"as many descriptors, processes, threads as {before}")
    assert psutil.Process().num_fds() == own_descriptors


@pytest.mark.slow
@pytest.mark.timeout(1800)
@sites("local")
def test_hundreds_of_failures_leak_nothing(site: Site) -> None:
    site.run(args={"trouble": "raise"})
    agent = site.agents()[0]
    before = agent.num_fds(), fork_server(agent).num_fds()
    troubles = itertools.islice(itertools.cycle(["raise", "abort", "exit", "grandchild"]), 300)
    for trouble in troubles:
        assert site.run(args={"trouble": trouble}).lost_agent is False
    after = agent.num_fds(), fork_server(agent).num_fds()
    assert all(now <= then for now, then in zip(after, before, strict=True)), (before, after)


@pytest.mark.long
def test_one_rank_alone(tmp_path: Path) -> None:
    (tmp_path / "tiny.py").write_text(TINY_WORKLOAD.read_text())
    with launchers.section_of("local").open(Resources(1, None, 1, 1), str(tmp_path)) as local:
        site = Site("local", local.slots[0], local.close, 1, tmp_path, mark="")
        report = site.run()
        assert (report.outcome, report.cause) == (None, "")
        assert all(block.samples == 2 * block.steps for block in report.blocks)
        assert all(len(block.rank_seconds) == 1 for block in report.blocks)
        failed = site.run(args={"trouble": "raise", "rank": 0})
        said = "ValueError: planted error (tiny.py:17, in _raise)"
        assert failed.cause == f"rank 0: {said}"
