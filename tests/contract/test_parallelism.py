"""What ranks share under each value of `parallelism`, on real ranks."""

import dataclasses
import functools
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from autotune.config import StudySpec
from autotune.config.workload_kinds import spread
from autotune.measurement import numerics
from autotune.measurement.numerics import trajectory
from autotune.measurement.policy import GATE
from autotune.measurement.stop_rule import Limits
from autotune.runs.monitors import TimedMonitor, TrajectoryMonitor
from autotune.runs.study_setup import StudySetup, launcher_of
from autotune.worker.protocol import BlockPlan, TrialRequest
from launchers import Resources, Slot, section_of
from search_spaces import Facts, defaults, infeasible
from tests.support.trials import trial

WORKLOADS = str(Path(__file__).parent.parent / "workloads")
TOTAL = 4 * (64 * 64 + 64)


def request(folder: Path, ranks: int, knobs: dict[str, Any], trajectory: int = 0) -> TrialRequest:
    return trial(
        folder,
        "sharding:build",
        args={"folder": str(folder)},
        knobs={**defaults(), "micro_batch": 4, **knobs},
        world_size=ranks,
        seed=0,
        blocks=BlockPlan(seconds=0.05, min_steps=2),
        import_paths=(WORKLOADS,),
        trajectory=trajectory,
    )


@pytest.fixture(scope="module")
def slot(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slot]:
    """Room for two ranks; a trial may have fewer."""
    folder = str(tmp_path_factory.mktemp("agents"))
    with section_of("local").open(Resources(2, None, 1, 1), folder) as launcher:
        yield launcher.slots[0]


def seen(slot: Slot, folder: Path, ranks: int = 2, **knobs: Any) -> list[dict[str, Any]]:
    """What each rank has written down."""
    folder.mkdir(exist_ok=True)
    ran(slot, request(folder, ranks, knobs))
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(ranks)]


def ran(slot: Slot, asked: TrialRequest) -> TimedMonitor:
    """A trial on the slot, complete."""
    judge = TimedMonitor(Limits(warmup=0.1, longest=5.0, precision=0.5))
    result = judge.result(slot.run_solo(asked, judge))
    assert result.state == "COMPLETE", (result.cause, result.log_tail)
    return judge


@pytest.fixture(scope="module")
def plain(slot: Slot, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return seen(slot, tmp_path_factory.mktemp("ddp") / "run")


def held(found: list[dict[str, Any]], what: str) -> list[int]:
    return [rank[what] for rank in found]


def test_ddp_holds_everything_everywhere(plain: list[dict[str, Any]]) -> None:
    assert held(plain, "parameters") == held(plain, "state") == [TOTAL, TOTAL]
    assert held(plain, "wrapper") == ["DistributedDataParallel"] * 2


@pytest.mark.long
def test_zero1_shares_out_the_state_of_the_optimizer(
    slot: Slot, tmp_path: Path, plain: list[dict[str, Any]]
) -> None:
    found = seen(slot, tmp_path / "run", parallelism="zero1")
    assert held(found, "parameters") == [TOTAL, TOTAL]
    assert sum(held(found, "state")) == TOTAL
    assert all(0.4 * TOTAL < state < 0.6 * TOTAL for state in held(found, "state"))
    for losses, same in zip(held(found, "losses"), held(plain, "losses"), strict=True):
        assert losses == pytest.approx(same, rel=1e-5)


@pytest.mark.long
@pytest.mark.parametrize(("value", "gathered"), [("fsdp", False), ("fsdp_no_reshard", True)])
def test_fsdp_shares_out_everything(
    slot: Slot, tmp_path: Path, plain: list[dict[str, Any]], value: str, gathered: bool
) -> None:
    found = seen(slot, tmp_path / "run", parallelism=value)
    assert held(found, "parameters") == held(found, "state") == [TOTAL // 2, TOTAL // 2]
    assert held(found, "gathered_after_forward") == [gathered, gathered]
    for losses, same in zip(held(found, "losses"), held(plain, "losses"), strict=True):
        assert losses == pytest.approx(same, rel=1e-5)


@pytest.mark.parametrize("kernels", ["default", "fused"])
def test_overflow_in_the_part_of_one_rank_is_skipped_by_all(
    slot: Slot, tmp_path: Path, kernels: str
) -> None:
    knobs = {"parallelism": "fsdp", "precision": "fp16", "optimizer_kernels": kernels}
    assert infeasible({**defaults(), **knobs}, Facts("cpu", 2)) == []
    asked = request(tmp_path, 2, knobs)
    ran(slot, dataclasses.replace(asked, factory="sharding:overflowing"))
    steps = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    moved = [[True, True], [True, False], [True, True]]
    assert steps == [[[True, True], [False, False], [True, True]], moved]


def test_a_single_rank_needs_no_wrapper(slot: Slot, tmp_path: Path) -> None:
    (found,) = seen(slot, tmp_path / "run", ranks=1, parallelism="none", accumulation_steps=2)
    assert found["wrapper"] == "Sequential"
    assert found["parameters"] == TOTAL
    (reason,) = infeasible({**defaults(), "parallelism": "none"}, Facts("cpu", 2))
    assert reason == "parallelism=none is for one rank; this study has 2"
    assert infeasible({**defaults(), "parallelism": "none"}, Facts("cpu", 1)) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("placement", "precision", "given"),
    [
        ("outside", "fp32", "Sequential"),
        ("outside", "bf16", "_Replica"),
        pytest.param("inside", "bf16", "Sequential", marks=pytest.mark.slow),
    ],
)
def test_data_parallel_is_one_process_that_does_the_work_of_all(
    slot: Slot,
    tmp_path: Path,
    plain: list[dict[str, Any]],
    placement: str,
    precision: str,
    given: str,
) -> None:
    knobs = {
        "parallelism": "data_parallel",
        "loss_placement": placement,
        "precision": precision,
        "cpu_threads": 1,
    }
    asked = spread(request(tmp_path, 2, knobs))
    judge = ran(slot, asked)
    (written,) = tmp_path.glob("?.json")
    found = json.loads(written.read_text())
    assert found["batch"] == 2 * plain[0]["batch"]
    assert found["threads"] == 2 * plain[0]["threads"]
    assert found["wrapper"] == given  # what the loss is called with
    if precision == "fp32":
        assert found["losses"] == pytest.approx(plain[0]["losses"], rel=1e-5)
    else:
        assert found["losses"][0] == pytest.approx(plain[0]["losses"][0], rel=0.02)
        assert found["losses"][0] != plain[0]["losses"][0]
    for seen in judge.seen:
        assert len(seen.block.rank_seconds) == 1
        assert seen.block.observed["replicas"] == 2
        assert seen.block.samples == 2 * 4 * seen.block.steps


@pytest.mark.slow
def test_a_study_asks_for_one_process_under_data_parallel(tmp_path: Path) -> None:
    resources = {"workers": 2, "cpus_per_worker": 1, "memory_per_worker": "1GiB"}
    spec = StudySpec.model_validate(
        {"name": "a", "workload": {"name": "gpt"}, "resources": resources}
    )
    with launcher_of(spec, tmp_path) as launcher:
        setup = StudySetup(spec, launcher)
        assert setup.facts.nodes == 1
        several, one = (
            setup.request(
                launcher.slots[0],
                {**defaults(), "parallelism": value},
                name="t",
                workdir=Path(),
                log_dir=tmp_path,
            )
            for value in ("ddp", "data_parallel")
        )
    assert (several.world_size, several.replicas, several.cpus_per_rank) == (2, 1, 1)
    assert (one.world_size, one.replicas, one.cpus_per_rank) == (1, 2, 2)
    assert several.memory_per_rank and one.memory_per_rank == 2 * several.memory_per_rank


def test_data_parallel_is_for_several_devices_of_one_node() -> None:
    wanted = {**defaults(), "parallelism": "data_parallel"}
    assert infeasible(wanted, Facts("cpu", 2)) == []
    for facts in (Facts("cpu", 1), Facts("cpu", 4, nodes=2)):
        (reason,) = infeasible(wanted, facts)
        assert "drives several devices of one node" in reason
    shared = Facts("cuda", 2, capability=(9, 0), backend="gloo")
    (reason,) = infeasible(wanted, shared)
    assert "here ranks share a device" in reason
    (reason,) = infeasible({**wanted, "loss_placement": "inside"}, Facts("cpu", 2))
    assert "loss_placement=inside needs a CUDA device" in reason
    alone = {**defaults(), "loss_placement": "inside"}
    (reason,) = infeasible(alone, Facts("cuda", 2, capability=(9, 0), backend="nccl"))
    assert "it acts beside parallelism=data_parallel only" in reason
    own = Facts("cuda", 2, capability=(9, 0), backend="nccl")
    for name, value in (("compile", "default"), ("layer_keep", 0.5)):
        (reason,) = infeasible({**wanted, name: value}, own)
        assert "tied to one copy of the model" in reason
        assert infeasible({**wanted, name: value}, Facts("cpu", 2)) == []


@pytest.mark.slow
def test_fsdp_accumulates_and_computes_in_bf16(slot: Slot, tmp_path: Path) -> None:
    found = seen(slot, tmp_path / "run", parallelism="fsdp", accumulation_steps=2, precision="bf16")
    assert held(found, "parameters") == [TOTAL // 2, TOTAL // 2]


FOUR_RANKS = """
import os
import torch
import torch.distributed as dist
from torch import nn
from autotune.worker.effects import parallel
from search_spaces import defaults

dist.init_process_group("gloo")
os.environ["LOCAL_WORLD_SIZE"] = "2"  # as if they were on two nodes
model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(4)))
knobs = {**defaults(), "parallelism": "hsdp"}
model = parallel.wrapped(knobs, model, torch.device("cpu"))
model(torch.ones(2, 64)).sum().backward()
held = sum(p.to_local().numel() for p in model.parameters())
mesh = model[0].weight.device_mesh
line = f"held {held} mesh {tuple(mesh.shape)} {mesh.mesh_dim_names}"
os.write(1, line.encode() + b"\\n")  # at once: four ranks write to one pipe
dist.barrier()
"""


@pytest.mark.slow
def test_hsdp_shards_within_a_node_and_replicates_over_nodes(tmp_path: Path) -> None:
    (tmp_path / "four.py").write_text(FOUR_RANKS)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    found = subprocess.run(
        [*torchrun, "--nproc-per-node", "4", "four.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=400,
        env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
    )
    line = f"held {TOTAL // 2} mesh (2, 2) ('replicate', 'shard')"
    assert found.stdout.count(line) == 4, found.stdout + found.stderr


GPT = {"layers": 2, "d_model": 32, "heads": 2, "length": 32}


@pytest.mark.slow
@pytest.mark.parametrize(
    "value", [pytest.param("zero1", marks=pytest.mark.slow), "fsdp", "data_parallel"]
)
def test_the_numerics_gate_compares_what_is_shared_out(
    slot: Slot, tmp_path: Path, value: str
) -> None:
    found = []
    for parallelism in ("ddp", value):
        folder = tmp_path / parallelism
        folder.mkdir()
        asked = dataclasses.replace(
            request(folder, 2, {"parallelism": parallelism}, GATE.most_steps),
            factory="autotune.workloads.gpt:build",
            args=GPT,
        )
        judge = TrajectoryMonitor(None, formats=(), earlier=(), rounding=())
        result = judge.result(slot.run_solo(spread(asked), judge))
        assert result.state == "COMPLETE", (result.cause, result.log_tail)
        found.append(trajectory([block.block for block in judge.seen]))
    compared = numerics.agreement(found[1], found[0])
    assert not compared.problem
    assert compared.loss_distance < 1e-4


@pytest.mark.long
@pytest.mark.parametrize(
    "changes",
    [
        {"gradient_compression": "one_bit"},
        pytest.param({"layer_keep": 0.3}, marks=pytest.mark.slow),
        pytest.param({"layer_keep": 0.3, "parallelism": "fsdp"}, marks=pytest.mark.slow),
        pytest.param({"curriculum_start": 0.25}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_replicas_stay_alike(slot: Slot, tmp_path: Path, changes: dict[str, Any]) -> None:
    asked = dataclasses.replace(
        request(tmp_path, 2, changes, GATE.most_steps),
        factory="autotune.workloads.gpt:build",
        args=GPT,
    )
    judge = TrajectoryMonitor(None, formats=(), earlier=(), rounding=())
    result = judge.result(slot.run_solo(asked, judge))
    assert result.state == "COMPLETE", (result.cause, result.log_tail)
    blocks = [block.block for block in judge.seen]
    assert max(block.observed["replica_spread"] for block in blocks) < 1e-6
    assert blocks[-1].loss < blocks[0].loss


@pytest.mark.parametrize(
    ("ranks", "nodes", "works"),
    [(2, 1, False), (8, 1, False), (2, 2, False), (4, 2, True), (24, 3, True)],
)
def test_hsdp_needs_several_nodes_of_several_ranks(ranks: int, nodes: int, works: bool) -> None:
    wanted = {**defaults(), "parallelism": "hsdp"}
    reasons = infeasible(wanted, Facts("cpu", ranks, nodes=nodes))
    assert len(reasons) == (not works)
    assert all(f"{ranks} rank(s) on {nodes} node(s)" in reason for reason in reasons)


@pytest.mark.parametrize(
    ("name", "value"),
    [("bucket_cap_mb", 1), ("static_graph", True), ("gradient_compression", "fp16")],
)
def test_what_acts_on_ddp_does_not_go_with_fsdp(name: str, value: Any) -> None:
    check = functools.partial(infeasible, facts=Facts("cpu", 2))
    (reason,) = check({**defaults(), "parallelism": "fsdp", name: value})
    assert "acts on DDP only" in reason
    assert check({**defaults(), "parallelism": "zero1", name: value}) == []
