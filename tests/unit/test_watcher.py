"""What is said of a job that is watched, and what Prometheus is told."""

import os
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest

from autotune.export.best import BestConfig
from autotune.service.watcher import Watcher
from autotune.worker.inject.meter import BLOCK_SECONDS, Meter
from autotune.worker.inject.speed_report import SpeedReport
from search_spaces import defaults

MINUTE = 60.0


def best(**changes: object) -> BestConfig:
    content = {
        "knobs": defaults(),
        "world_size": 2,
        "throughput": {"value": 1000.0, "low": 980.0, "high": 1020.0, "unit": "samples/s"},
        "provenance": {"study": "mine", "rounds": 3},
        "script": {"target": "train.py"},
        **changes,
    }
    return BestConfig(**content)  # type: ignore[arg-type]


class Job:
    """Of two ranks, with a watcher, in a time of its own."""

    def __init__(self, **changes: object) -> None:
        self.now = 0.0
        self.said: list[str] = []
        self.watcher = Watcher(best(**changes), self.said.append, 0, MINUTE, lambda: self.now)
        self.watcher.begin()

    def minutes(self, *rates: float, ranks: int = 2, problem: str = "") -> list[str]:
        """Train at so many samples per second over all ranks; what is said meanwhile."""
        before = len(self.said)
        for rate in rates:
            for _ in range(6):
                self.now += MINUTE / 6
                for rank in range(ranks):
                    pace = SpeedReport(rank, ranks, 10, 10.0, rate * 10 / ranks, 0, problem)
                    self.watcher.hear(pace.to_text().encode())
                self.watcher.check()
        return self.said[before:]

    def metrics(self) -> dict[str, str]:
        address = next(text for text in self.said if "http" in text).split()[-1]
        with urllib.request.urlopen(address) as answer:
            lines = answer.read().decode().splitlines()
        return dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))


def test_a_drift_is_said_with_figures_as_it_begins_and_as_it_ends() -> None:
    job = Job()
    (first,) = job.minutes(1000.0, 995.0)
    assert "1,000 samples/s in the first minute; promised are 1,000, slower is below 960" in first
    assert job.minutes(900.0, 910.0) == []
    (began,) = job.minutes(905.0, 900.0, 900.0, 900.0)
    assert "slower than promised in each of the last 3 checks, now 905 samples/s" in began
    assert "`autotune start` it" in began
    assert job.metrics()["autotune_job_drifted"] == "1.0"
    assert job.minutes(999.0, 999.0) == []
    (over,) = job.minutes(999.0, 999.0)
    assert over == "as fast as promised again: 999 samples/s; it was slower for 9 min"


def test_prometheus_is_told() -> None:
    job = Job()
    assert job.metrics()["autotune_job_samples_per_second"] == "NaN"
    job.minutes(1200.0, 1100.0, 1100.0)
    told = job.metrics()
    assert told["autotune_job_samples_per_second"] == "1100.0"
    assert told['autotune_promised_samples_per_second{bound="low"}'] == "980.0"
    bound = float(told['autotune_promised_samples_per_second{bound="next_run_low"}'])
    assert bound == pytest.approx(1000 * 0.98**2)
    assert told['autotune_job_steps_total{rank="1"}'] == "180.0"
    assert told['autotune_job_step_seconds{rank="0"}'] == "1.0"
    assert told["autotune_job_drifted"] == "0.0"
    assert told['autotune_job_info{study="mine"}'] == "1.0"


def test_metrics_are_on_loopback_only() -> None:
    job = Job()
    port = int(job.said[0].rsplit(":", 1)[1].partition("/")[0])
    with socket.socket(socket.AF_INET) as other:
        # Another address of this machine's own: it would be taken if all were listened on.
        other.bind(("127.0.0.2", port))


@pytest.mark.fault(30)
def test_metrics_are_for_no_web_page() -> None:
    """One whose own name leads to this machine would read them with the user's browser."""
    job = Job()
    address = next(text for text in job.said if "http" in text).split()[-1]
    with pytest.raises(urllib.error.HTTPError, match="403"):
        urllib.request.urlopen(urllib.request.Request(address, headers={"Host": "evil.example"}))


def test_tokens_are_compared_where_tokens_were_promised() -> None:
    promised = {"value": 50.0, "low": 49.0, "high": 51.0, "unit": "tokens/s"}
    job = Job(throughput=promised, world_size=1)
    for _ in range(6):
        job.now += MINUTE / 5
        job.watcher.hear(SpeedReport(0, 1, 1, 2.0, 1, 98).to_text().encode())
        job.watcher.check()
    assert "49 tokens/s in the first minute" in job.said[-1]
    assert job.metrics()["autotune_job_tokens_per_second"] == "49.0"


@pytest.mark.parametrize(
    ("rate", "ranks", "problem", "why"),
    [
        (500.0, 4, "", "it has 4 ranks, and 2 were measured"),
        (0.0, 2, "", "no samples are seen in its steps; say workload.samples"),
        (500.0, 2, "ValueError: odd", "its batches are not understood (ValueError: odd)"),
    ],
)
def test_what_cannot_be_compared_is_said_once(
    rate: float, ranks: int, problem: str, why: str
) -> None:
    job = Job()
    said = job.minutes(*[rate] * 5, ranks=ranks, problem=problem)
    assert len(said) == 1
    assert f"the speed of this job cannot be compared: {why}" in said[0]
    assert job.metrics()["autotune_job_drifted"] == "0.0"


def test_job_that_goes_on_with_fewer_ranks_is_told_and_its_drift_is_over() -> None:
    job = Job()
    job.minutes(1000.0, 1000.0)
    (began,) = job.minutes(*[900.0] * 4)
    assert "slower than promised" in began
    (fewer,) = job.minutes(500.0, 500.0, ranks=1)
    assert fewer.endswith("it has 1 ranks, and 2 were measured")
    assert job.metrics()["autotune_job_drifted"] == "0.0"
    assert job.minutes(1000.0, 1000.0, 1000.0) == []


def test_first_speed_that_can_be_compared_is_said_after_one_that_cannot() -> None:
    job = Job()
    job.minutes(500.0, 500.0, ranks=1)
    (first,) = job.minutes(1000.0, 1000.0)
    assert "1,000 samples/s in the last minute" in first


def test_without_an_interval_nothing_is_judged() -> None:
    job = Job(throughput={"value": 1000.0, "low": None, "high": None, "unit": "samples/s"})
    assert "best.yaml has no interval" in job.said[1]
    assert "slower" not in "".join(job.minutes(*[1.0] * 9))


def test_speed_is_shown_without_a_promise_where_energy_was_the_objective() -> None:
    job = Job(throughput={}, energy={"value": 0.5, "low": 0.4, "high": 0.6, "unit": "J/sample"})
    assert "best.yaml tells no speed" in job.said[1]
    (first,) = job.minutes(1000.0, 1000.0)
    assert first.endswith("1,000 samples/s in the first minute")


def test_what_another_version_tells_is_left_out() -> None:
    job = Job()
    job.watcher.hear(b'{"rank": 1}')
    job.watcher.hear(b"\xff")
    assert job.minutes(1000.0, 1000.0)


@pytest.fixture
def ended() -> Iterator[int]:
    """Descriptor of a process that is over."""
    child = os.fork()
    if not child:
        os._exit(3)
    descriptor = os.pidfd_open(child)
    yield descriptor
    os.waitpid(child, 0)
    os.close(descriptor)


def test_the_watcher_leaves_with_the_job(ended: int) -> None:
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with here, there:
        there.send(SpeedReport(0, 2, 1, 1.0, 1, 0).to_text().encode())
        job = Job()
        job.watcher.attend(here, ended)
    assert job.metrics()['autotune_job_steps_total{rank="0"}'] == "1.0"


class Training:
    """What a meter sees of it."""

    def __init__(self) -> None:
        self.samples = self.tokens = 0
        self.saw_loader = False


def metered(step: float, steps: int, loader: bool, **told: int) -> list[tuple[float, ...]]:
    training, now, blocks = Training(), 0.0, []
    meter = Meter(training, lambda *block: blocks.append(block), clock=lambda: now, **told)
    for _ in range(steps):
        now += step
        training.samples, training.saw_loader = training.samples + 8 * loader, loader
        meter.taken()
    return blocks


def test_blocks_are_of_whole_steps_and_a_second_or_more() -> None:
    assert metered(BLOCK_SECONDS / 4, 9, loader=True) == [(4, BLOCK_SECONDS, 32, 0)] * 2
    assert metered(3 * BLOCK_SECONDS, 3, loader=True) == [(1, 3 * BLOCK_SECONDS, 8, 0)] * 2


def test_samples_are_as_the_study_tells_them_where_no_loader_shows_any() -> None:
    assert metered(1.0, 2, loader=False, step_samples=16) == [(1, 1.0, 16, 0)]
    assert metered(1.0, 2, loader=True, step_samples=16) == [(1, 1.0, 8, 0)]
    assert metered(1.0, 2, loader=True, step_samples=16, always=True) == [(1, 1.0, 16, 0)]


_STEPS_BY_GROUPS = """
import torch
from autotune.worker.inject.meter import JobProbe
steps = []
JobProbe().watch_speed(lambda: steps.append(1))
model = torch.nn.Linear(8, 2)
optimizer = torch.optim.SGD([{"params": [p]} for p in model.parameters()], lr=0.01)
groups = optimizer.param_groups
for _ in range(3):
    model(torch.ones(4, 8)).sum().backward()
    for group in groups:
        optimizer.param_groups = [group]
        optimizer.step()
print(len(steps))
"""


@pytest.mark.long
def test_steps_after_the_same_backward_pass_are_one_step_of_the_job() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", _STEPS_BY_GROUPS], capture_output=True, text=True, check=True
    )
    assert ran.stdout == "3\n"
