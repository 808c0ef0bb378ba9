"""Trials on a CUDA device: NCCL, device memory, and trouble on the device."""

import contextlib
import dataclasses
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

import launchers
from autotune.config.workload_kinds import spread
from autotune.worker.effects import process
from autotune.worker.protocol import (
    PYTHON,
    BlockPlan,
    BlockReport,
    Outcome,
    Script,
    Timeouts,
    TrialReport,
    TrialRequest,
)
from launchers import Resources
from launchers.base import Launcher, Slot
from tests.gpu.on_device import MARKS, knobs
from tests.support.trials import trial
from tests.support.waiting import stopwatch

pytestmark = MARKS

ENDLESS = 1_000_000
NCCL_BUFFERS = 512 * 2**20
"""At most, of a single rank: they come after the limit is set, on top of it."""


WORKLOADS = """
import dataclasses
import os
import time
from pathlib import Path

import autotune
import dataclasses

import torch
import torch.distributed as dist
from torch import nn


def build(*, deed="", at=5, megabytes=0, milliseconds=0):
    passes = 0
    kept = []

    def loss(model, batch):
        nonlocal passes
        passes += 1
        assert batch.is_cuda
        if milliseconds:
            torch.cuda._sleep(int(milliseconds * 1.5e6))  # at 1.5 GHz
        if passes == at:
            if deed == "exhaust":
                while True:
                    kept.append(torch.ones(1 << 28, device=batch.device))
            if deed == "device assert":
                table = torch.zeros(4, device=batch.device)
                return table[torch.full_like(batch, 10**6, dtype=torch.int64)].mean()
            if deed == "spin":
                for _ in range(1000):
                    torch.cuda._sleep(1 << 40)
        if megabytes and not kept:
            kept.append(torch.ones(megabytes * 2**18, device=batch.device))
        return ((model(batch) - batch) ** 2).mean()

    return autotune.Workload(
        model=nn.Linear(64, 64),
        dataset=torch.randn(1024, 64),
        loss=loss,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.01),
    )


class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 1024

    def __getitem__(self, index):
        time.sleep(0.005)
        return torch.randn(64)


def slowly_loaded(*, milliseconds):
    return dataclasses.replace(build(milliseconds=milliseconds), dataset=Slow())


class Telling(nn.Linear):
    def forward(self, batch):
        print(f"forward of {len(batch)} on {batch.device}", flush=True)
        return super().forward(batch)


def telling():
    plain = build()

    def loss(model, batch):
        found = model(batch)
        print(f"loss of {len(found)} on {found.device}", flush=True)
        return ((found - batch) ** 2).mean()

    return dataclasses.replace(plain, model=Telling(64, 64), loss=loss)


def surrounded(*, variables, near=""):
    # NCCL starts here, with these variables.
    dist.all_reduce(torch.ones(1, device="cuda"))
    assert {name: os.environ.get(name) for name in variables} == variables
    if near:
        listed = Path(near).read_text().strip().split(",")
        ends = [[int(end) for end in part.split("-")] for part in listed]
        allowed = {number for part in ends for number in range(part[0], part[-1] + 1)}
        assert os.sched_getaffinity(0) <= allowed
    return build()


def over(*, backend):
    on_device = dist.distributed_c10d._get_default_group()._get_backend(torch.device("cuda"))
    assert backend in on_device.name().lower(), on_device.name()
    return build()
"""


@dataclasses.dataclass
class Bench:
    """A local launcher on the first device, and a user's folder."""

    launcher: Launcher
    folder: Path

    @property
    def slot(self) -> Slot:
        return self.launcher.slots[0]

    def request(self, factory: str = "device:build", **changes: Any) -> TrialRequest:
        of_the_slot: dict[str, Any] = {
            "knobs": knobs(micro_batch=8),
            "world_size": self.launcher.ranks,
            "device": self.slot.device,
            "devices_per_rank": self.slot.devices_per_rank,
            "blocks": BlockPlan(seconds=0.01, min_steps=2, max_blocks=5),
            "timeouts": Timeouts(startup=120, step=60),
        }
        return trial(self.folder, factory, **{**of_the_slot, **changes})

    def run(
        self,
        factory: str = "device:build",
        watch: Callable[[BlockReport], bool] = lambda _: False,
        **changes: Any,
    ) -> TrialReport:
        return self.slot.run_solo(self.request(factory, **changes), watch)

    def check_next_trial(self) -> None:
        report = self.run()
        assert (report.outcome, report.cause, report.lost_agent) == (None, "", False)


@contextlib.contextmanager
def bench(resources: Resources, folder: Path) -> Iterator[Bench]:
    (folder / "device.py").write_text(WORKLOADS)
    with launchers.section_of("local").open(resources, str(folder / "agents")) as launcher:
        yield Bench(launcher, folder)


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """One rank with a device of its own."""
    with bench(Resources(1, 1.0, 1, 1), tmp_path_factory.mktemp("one")) as opened:
        yield opened


def free_bytes() -> int:
    torch.cuda.synchronize()
    return torch.cuda.mem_get_info(0)[0]


def test_a_slot_says_what_it_runs_on(one: Bench) -> None:
    assert one.slot.device == "cuda"
    assert one.slot.devices_per_rank == 1
    device = one.slot.environment["devices"][0]
    assert device["name"] == torch.cuda.get_device_name(0)
    assert tuple(device["capability"]) == torch.cuda.get_device_capability(0)
    assert one.slot.environment["nccl"]
    assert one.slot.environment["driver"]


def test_by_default_there_is_a_rank_per_device(tmp_path: Path) -> None:
    count = torch.cuda.device_count()
    with bench(Resources(None, None, 1, None), tmp_path) as opened:
        assert opened.launcher.ranks == count
        assert opened.slot.devices_per_rank == 1
        report = opened.run("device:over", args={"backend": "nccl"})
        assert (report.outcome, report.cause) == (None, "")
        assert all(len(block.rank_seconds) == count for block in report.blocks)


def test_a_rank_with_its_own_device_uses_nccl(one: Bench) -> None:
    report = one.run("device:over", args={"backend": "nccl"})
    assert (report.outcome, report.cause) == (None, "")


def test_cuda_and_nccl_start_as_they_are_told(one: Bench) -> None:
    variables = {
        "NCCL_MIN_CTAS": "4",
        "NCCL_MAX_CTAS": "4",
        "TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK": "1",
        "CUDA_DEVICE_MAX_CONNECTIONS": "1",
    }
    chosen = knobs(micro_batch=8, nccl_ctas=4, nccl_registration=True, cuda_connections=1)
    report = one.run("device:surrounded", args={"variables": variables}, knobs=chosen)
    assert (report.outcome, report.cause) == (None, "")


def test_a_rank_runs_near_its_device(one: Bench) -> None:
    near = Path("/sys/bus/pci/devices") / process.pci_address(0) / "local_cpulist"
    if not near.exists():
        pytest.skip("Linux does not say here which processors are near the device")
    chosen = knobs(micro_batch=8, numa_binding=True)
    args = {"variables": {}, "near": str(near)}
    report = one.run("device:surrounded", args=args, knobs=chosen)
    assert (report.outcome, report.cause) == (None, "")


_CATCHES = """
import sys, torch
from torch.utils.data import DataLoader
model = torch.nn.Linear(64, 64, device="cuda")
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
def batches():
    while True:
        yield from DataLoader(torch.randn(1024, 64), 8)
for number, batch in zip(range(5000), batches()):
    try:
        if number == 40:
            torch.empty(1 << 45, device="cuda")
    except torch.OutOfMemoryError:
        if sys.argv[1] == "ends":
            break
    model(batch.cuda()).square().mean().backward()
    optimizer.step()
    if number == 40 and sys.argv[1] == "ends well":
        break
"""


@pytest.mark.parametrize(
    ("then", "outcome"),
    [("ends", Outcome.OOM), ("ends well", Outcome.ERROR), ("goes on", Outcome.ERROR)],
)
def test_script_that_ends_after_it_was_out_of_memory_is_so(
    one: Bench, then: str, outcome: Outcome
) -> None:
    (one.folder / "catches.py").write_text(_CATCHES)
    script = Script("catches.py", (then,), launch=PYTHON, samples=8)
    plan = BlockPlan(seconds=0.01, min_steps=2, max_blocks=ENDLESS)
    report = one.run("", import_paths=(), script=script, blocks=plan)
    assert report.outcome is outcome, report.cause
    assert (report.ended_after is not None) == (outcome is Outcome.ERROR)


def test_ranks_that_share_a_device_use_gloo(tmp_path: Path) -> None:
    with bench(Resources(2, 0.5, 1, 1), tmp_path) as opened:
        report = opened.run("device:over", args={"backend": "gloo"})
        assert (report.outcome, report.cause) == (None, "")
        assert all(block.samples == 16 * block.steps for block in report.blocks)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two NVIDIA devices")
@pytest.mark.parametrize("placement", ["outside", "inside"])
def test_data_parallel_is_one_process_on_all_devices(tmp_path: Path, placement: str) -> None:
    chosen = knobs(micro_batch=8, parallelism="data_parallel", loss_placement=placement)
    with bench(Resources(2, 1.0, 1, 1), tmp_path) as two:
        asked = spread(two.request("device:telling", knobs=chosen))
        report = two.slot.run_solo(asked, lambda _: False)
        (log,) = Path(asked.log_dir).glob("rank-*.log")
    assert (report.outcome, report.cause) == (None, ""), report.log_tail
    assert all(block.samples == 16 * block.steps for block in report.blocks)
    told = log.read_text()
    assert "forward of 8 on cuda:0" in told and "forward of 8 on cuda:1" in told
    assert ("loss of 16 on cuda:0" in told) == (placement == "outside")
    assert ("loss of 8 on cuda:1" in told) == (placement == "inside")


def test_trials_that_share_a_device_run_side_by_side(tmp_path: Path) -> None:
    fitting = 2 * torch.cuda.device_count()
    with bench(Resources(1, 0.5, 1, None), tmp_path) as opened:
        assert len(opened.launcher.slots) == fitting
        for slot in opened.launcher.slots:
            report = slot.run_solo(opened.request(), lambda _: False)
            assert (report.outcome, report.cause) == (None, "")


def test_a_block_holds_the_time_of_the_device(one: Bench) -> None:
    report = one.run(
        args={"milliseconds": 20},
        knobs=knobs(micro_batch=8, log_interval=1000),
        blocks=BlockPlan(seconds=0.1, min_steps=5, max_blocks=4),
    )
    assert report.outcome is None, report.cause
    # The clock may run at more than 1.5 GHz.
    assert all(block.seconds > 0.010 * block.steps for block in report.blocks)


def test_peak_memory_is_that_of_the_device_and_of_this_trial(one: Bench) -> None:
    before, hungry, after = (
        max(block.peak_bytes for block in one.run(args=args).blocks)
        for args in ({}, {"megabytes": 512}, {})
    )
    assert 512 * 2**20 <= hungry - before < 640 * 2**20
    assert after - before < 64 * 2**20


def test_peak_memory_holds_the_context_of_cuda(one: Bench) -> None:
    peak = max(block.peak_bytes for block in one.run().blocks)
    assert 150 * 2**20 < peak < 2 * 2**30, "of a model of a few KiB"


@pytest.mark.parametrize("limit", [None, 2 * 2**30])
def test_out_of_device_memory(one: Bench, limit: int | None) -> None:
    report = one.run(args={"deed": "exhaust"}, memory_per_rank=limit)
    assert report.outcome is Outcome.OOM
    if limit:
        assert all(block.peak_bytes <= limit + NCCL_BUFFERS for block in report.blocks)
    one.check_next_trial()


def test_a_failed_assertion_on_the_device_stays_in_its_trial(one: Bench) -> None:
    report = one.run(args={"deed": "device assert"})
    assert report.outcome in {Outcome.ERROR, Outcome.CRASH}
    assert report.lost_agent is False
    one.check_next_trial()


def test_a_kernel_that_never_ends_is_a_hang(one: Bench) -> None:
    took = stopwatch()
    report = one.run(args={"deed": "spin"}, timeouts=Timeouts(startup=120, step=3))
    assert report.outcome is Outcome.HANG
    assert took() < 300
    one.check_next_trial()


def test_device_memory_is_free_again_when_a_trial_returns(one: Bench) -> None:
    one.check_next_trial()
    before = free_bytes()
    one.run(
        args={"megabytes": 2048},
        watch=lambda block: block.index == 3,
        blocks=BlockPlan(0.01, 2, ENDLESS),
    )
    assert free_bytes() > before - 128 * 2**20


def test_no_helper_ever_touches_the_device(one: Bench) -> None:
    """A process that has initialised CUDA cannot be forked into ranks."""

    def touching() -> list[str]:
        found = []
        for child in psutil.Process().children(recursive=True):
            with contextlib.suppress(OSError):
                links = [str(fd.readlink()) for fd in Path(f"/proc/{child.pid}/fd").iterdir()]
                if any(link.startswith("/dev/nvidia") for link in links):
                    found.append(" ".join(child.cmdline()))
        return found

    during: list[str] = []

    def watch(block: BlockReport) -> bool:
        if block.index == 2:
            during.extend(touching())
        return block.index >= 2

    one.run(watch=watch, blocks=BlockPlan(0.01, 2, ENDLESS))
    assert len(during) == 1, "the rank alone"
    assert touching() == []


def test_the_device_is_observed(one: Bench) -> None:
    """Clock, power, energy and throttling; needs nvidia-ml-py, which `make gpu-check` installs."""
    pytest.importorskip("pynvml")
    report = one.run(args={"milliseconds": 20}, blocks=BlockPlan(0.2, min_steps=5, max_blocks=4))
    assert report.outcome is None, report.cause
    seen = report.blocks[-1].observed
    assert 100 < seen["clock_mhz"] < 5000
    assert 5 < seen["power_watts"] < 2000
    assert 0 < seen["energy_joules"] < 2000 * report.blocks[-1].seconds * 2
    assert seen["throttled"] in (0.0, 1.0)
    assert seen["step_p50"] > 0.010


def test_ranks_that_share_a_device_tell_its_energy_once_and_are_no_strangers(
    tmp_path: Path,
) -> None:
    nvml = pytest.importorskip("pynvml")
    with bench(Resources(2, 0.5, 1, 1), tmp_path) as opened:
        report = opened.run(
            args={"milliseconds": 20}, blocks=BlockPlan(0.5, min_steps=5, max_blocks=4)
        )
    assert report.outcome is None, report.cause
    last = report.blocks[-1]
    # Where processes are seen by their own numbers, that of these tests is one, with no agent above it.
    nvml.nvmlInit()
    seen = nvml.nvmlDeviceGetComputeRunningProcesses(nvml.nvmlDeviceGetHandleByIndex(0))
    strangers = sum(process.pid == os.getpid() for process in seen)
    assert last.observed.get("foreign_processes", strangers) == strangers
    # The meter of a device is renewed every 20 to 100 ms.
    assert last.observed["energy_joules"] < 1.5 * last.observed["power_watts"] * last.seconds


def test_batches_are_what_is_copied_to_the_device(one: Bench) -> None:
    report = one.run(profile=4)
    assert report.outcome is None, report.cause
    parts = report.blocks[0].observed["parts"]
    assert parts["copies"][0] > 0


COUNTING = """
import torch
from autotune.worker import imports

assert torch.cuda.is_available()
print(imports.has_begun_cuda())
torch.ones(1, device="cuda")
print(imports.has_begun_cuda())
"""


def test_a_process_that_only_counts_devices_can_still_be_forked() -> None:
    found = subprocess.run(
        [sys.executable, "-c", COUNTING],
        env={**os.environ, "PYTORCH_NVML_BASED_CUDA_CHECK": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout.split() == ["False", "True"]


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_a_compiled_trial(one: Bench, mode: str) -> None:
    chosen = knobs(micro_batch=8, compile=mode)
    report = one.run(knobs=chosen, timeouts=Timeouts(startup=280, step=120))
    assert (report.outcome, report.cause) == (None, "")


def test_batches_that_a_process_loads_while_the_device_is_busy_cost_no_time(one: Bench) -> None:
    plan = BlockPlan(0.1, min_steps=1, max_blocks=12)

    def step_of(factory: str) -> float:
        report = one.run(factory, args={"milliseconds": 120}, blocks=plan)
        return min(block.seconds / block.steps for block in report.blocks[6:])

    assert step_of("device:slowly_loaded") < 1.1 * step_of("device:build")
