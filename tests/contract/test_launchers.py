"""The contract of every launcher, held against real agents, real ranks and real trouble.

A site is an opened launcher of one kind. `local` and `ray` go through the whole contract; `pair` is
one slot over two agents on loopback (one rank on the first, two on the second), `cluster` a slot
over two Ray nodes: both show what several nodes change.
"""

import contextlib
import dataclasses
import ipaddress
import itertools
import json
import math
import os
import re
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

import launchers
import search_spaces
from autotune.errors import LauncherError
from autotune.trial.processes import MARKER
from autotune.trial.protocol import (
    BlockPlan,
    BlockReport,
    Deadlines,
    Outcome,
    StartTrial,
    TrialReport,
    TrialRequest,
    from_line,
)
from launchers import Resources
from launchers.local import LocalLink
from launchers.slot import AgentSlot, Node

pytestmark = pytest.mark.timeout(60)

TINY = Path(__file__).parents[1] / "workloads" / "tiny.py"
RUN_MARK = "AUTOTUNE_TEST_RUN"
"""Environment variable by which a test knows the processes of its own site among all others."""
ENDLESS = 1_000_000
PATIENT = Deadlines(startup=60, step=60)
HASTY = Deadlines(startup=60, step=1.0)
HASTE_SLACK = 5.0
"""Seconds beyond a deadline that a busy machine may need to judge, dump stacks and clear away."""

# What tiny.py does not offer: trouble at other places, and a look around from inside a rank.
ODD = '''
"""Workloads that look around, or misbehave in ways of their own."""

import dataclasses
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import autotune
import threadpoolctl
import tiny
import torch
import torch.distributed as dist
import torch.multiprocessing


class Unprintable(Exception):
    def __str__(self):
        raise RuntimeError("this error has no text")


class StuckOutput:
    def flush(self):
        time.sleep(600)

    def write(self, text):
        pass


def _agent():
    return int(Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()[1])


def _stop_agent_and_raise():
    os.kill(_agent(), signal.SIGSTOP)
    raise ValueError("planted error")


def _raise_unprintable():
    raise Unprintable


def _start_nameless_grandchild():
    code = "import time; time.sleep(600)"
    subprocess.Popen(
        [sys.executable, "-c", code, os.environ["AUTOTUNE_TEST_RUN"]],
        env={},
        start_new_session=True,
    )


def _stick_at_the_end():
    sys.stdout = StuckOutput()


def _stop_agent_and_hang():
    os.kill(_agent(), signal.SIGSTOP)
    time.sleep(600)


DEEDS = {
    "stop agent, hang": _stop_agent_and_hang,
    "unprintable": _raise_unprintable,
    "realtime signal": lambda: os.kill(os.getpid(), 40),
    "kill fork server": lambda: os.kill(os.getppid(), signal.SIGKILL),
    "stop agent, raise": _stop_agent_and_raise,
    "nameless grandchild": _start_nameless_grandchild,
    "stick at the end": _stick_at_the_end,
    "sys.exit": lambda: sys.exit(0),
    "interrupt": lambda: os.kill(os.getpid(), signal.SIGINT),
    "killed": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "exit": lambda: os._exit(3),
    "hang": lambda: time.sleep(600),
    "error": lambda: 1 / 0,
}


def build(*, deed="", at=5, rank=1):
    """tiny, but this rank does the deed with that forward pass."""
    plain = tiny.build()
    passes = 0

    def loss(model, batch):
        nonlocal passes
        passes += 1
        if deed and passes == at and dist.get_rank() == rank:
            DEEDS[deed]()
        return plain.loss(model, batch)

    return dataclasses.replace(plain, loss=loss)


def talking(*, deed=""):
    """Prints a line as it starts, and does the deed on every rank, with the third forward pass."""
    print("hello from rank", dist.get_rank())
    print("a complaint", file=sys.stderr)
    plain = tiny.build()
    passes = 0

    def loss(model, batch):
        nonlocal passes
        passes += 1
        if deed and passes == 3:
            time.sleep(0.2)
            DEEDS[deed]()
        return plain.loss(model, batch)

    return dataclasses.replace(plain, loss=loss)


def looking(*, folder):
    """Writes down what a factory finds, and takes 7 tokens per sample."""
    names = ["RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "OMP_NUM_THREADS", "COLOUR"]
    seen = {
        "environment": {name: os.environ.get(name) for name in names},
        "group": [dist.get_rank(), dist.get_world_size(), dist.get_backend()],
        "workdir": os.getcwd(),
        "first_path": sys.path[0],
        "threads": torch.get_num_threads(),
        "pools": sorted({pool["num_threads"] for pool in threadpoolctl.threadpool_info()}),
        "draws": [random.random(), torch.rand(()).item()],
        "stdin": sys.stdin.read(),
    }
    Path(folder, f"{dist.get_rank()}.json").write_text(json.dumps(seen))
    return dataclasses.replace(tiny.build(), tokens_per_sample=7)


def hungry(*, megabytes):
    """Takes so much memory on rank 1, and keeps it."""
    if dist.get_rank() == 1:
        hungry.kept = torch.ones(megabytes * 2**20, dtype=torch.uint8)
    return tiny.build()


def big(*, text):
    """Needs a long argument to arrive whole."""
    assert text == "x" * len(text) and len(text) == 500_000
    return tiny.build()


def agreeing():
    """Sees to it that ranks train on different samples and step with the same gradients."""
    model = torch.nn.Linear(1, 1)

    def gathered(tensor):
        everywhere = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
        dist.all_gather(everywhere, tensor)
        return everywhere

    def loss(wrapped, batch):
        samples = torch.cat(gathered(batch))
        assert len(set(samples.flatten().tolist())) == samples.numel(), "a sample on two ranks"
        return (wrapped(batch) ** 2).mean()

    def optimizer(parameters):
        chosen = torch.optim.SGD(parameters, lr=1e-9)

        def compare(*_):
            for parameter in model.parameters():
                assert all(torch.equal(parameter.grad, other) for other in gathered(parameter.grad))
                assert all(torch.equal(parameter, other) for other in gathered(parameter.data))

        chosen.register_step_pre_hook(compare)
        return chosen

    data = [torch.tensor([float(number)]) for number in range(1000)]
    return autotune.Workload(model=model, dataset=data, loss=loss, optimizer=optimizer)


def one_sided():
    """Fails on rank 1 only, while the others go on to wait for it."""
    if dist.get_rank() == 1:
        raise ValueError("planted error")
    return tiny.build()


def stuck():
    """Never comes back."""
    time.sleep(600)


def wrong_type():
    """Forgets to wrap the model."""
    return torch.nn.Linear(1, 1)


def tiny_set():
    """Has fewer samples than a step needs."""
    return dataclasses.replace(tiny.build(), dataset=[(torch.ones(16), torch.ones(1))])
'''


def knobs(**changes: Any) -> dict[str, Any]:
    return {**search_spaces.defaults(), "micro_batch": 2, "log_interval": 1, **changes}


# A tuner of its own, to be killed.
LONE_TUNER = """
import sys

import launchers
import search_spaces
from autotune.trial.protocol import BlockPlan, TrialRequest

folder = sys.argv[1]
resources = launchers.Resources(2, None, 1, None)
local = launchers.open_launcher("local", resources, folder, None, busy=lambda rival: True)
print("ray imported:", any(name.partition(".")[0] == "ray" for name in sys.modules), flush=True)
request = TrialRequest(
    trial="1",
    factory="tiny:build",
    args={"trouble": "grandchild", "at": 2},
    knobs=search_spaces.defaults(),
    world_size=2,
    seed=0,
    device="cpu",
    blocks=BlockPlan(0.01, 2, 1_000_000),
    workdir=folder,
    import_paths=(folder,),
    log_dir=folder + "/logs",
)
local.slots[0].run(request, lambda block: block.index == 2 and print("training", flush=True))
"""


WRONG_ADDRESS = """
import sys

import launchers
from autotune.errors import LauncherError

try:
    launchers.open_launcher("ray", launchers.Resources(1, 0, 1, 1), sys.argv[1], sys.argv[2])
except LauncherError as error:
    print(error)
"""


@dataclasses.dataclass
class Site:
    """An opened slot, with a user's folder and a view on the processes that belong to it."""

    kind: str
    slot: Any
    close: Callable[[], None]
    world_size: int
    folder: Path
    mark: str
    address: str | None = None
    numbers: Iterator[int] = dataclasses.field(default_factory=itertools.count)

    def request(self, factory: str = "tiny:build", **changes: Any) -> TrialRequest:
        """A trial of a few milliseconds; keyword arguments replace fields."""
        name = f"{next(self.numbers)}-{uuid.uuid4().hex}"
        request = TrialRequest(
            trial=name,
            factory=factory,
            args={},
            knobs=knobs(),
            world_size=self.world_size,
            seed=7,
            device="cpu",
            blocks=BlockPlan(seconds=0.01, min_steps=2, max_blocks=4),
            deadlines=PATIENT,
            workdir=str(self.folder),
            import_paths=(str(self.folder),),
            log_dir=str(self.folder / "logs" / name),
        )
        return dataclasses.replace(request, **changes)

    def run(self, factory: str = "tiny:build", **changes: Any) -> TrialReport:
        """Run to the end of its blocks."""
        return self.slot.run(self.request(factory, **changes), go_on)

    def check_next_trial(self) -> None:
        """The slot is as good as new."""
        report = self.run()
        assert (report.outcome, report.lost_agent, report.cause) == (None, False, "")
        assert len(report.blocks) == 4

    def renew_agents(self) -> None:
        """Undo whatever a test has done to the agents, at the price of a trial."""
        for agent in self.agents():
            agent.kill()
        self.run()

    def agents(self) -> list[psutil.Process]:
        """The site's agents that live."""
        return [p for p in marked(self.mark) if "autotune.trial.node.agent" in command(p)]

    def strays(self) -> list[str]:
        """What lives, descends from an agent, and is no agent nor one of its two helpers."""
        alive = {p.pid: p for p in marked(self.mark) if MARKER in environment(p)}
        for agent in self.agents():
            alive.pop(agent.pid, None)
            for helper in helpers(agent):
                alive.pop(helper.pid, None)
        return [f"{pid} {command(process)}" for pid, process in alive.items()]


def go_on(_: BlockReport) -> bool:
    return False


def end_at(index: int) -> Callable[[BlockReport], bool]:
    return lambda block: block.index >= index


def environment(process: psutil.Process) -> dict[str, str]:
    with contextlib.suppress(psutil.Error, OSError):
        return process.environ()
    return {}


def command(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):
        return " ".join(process.cmdline())
    return ""


def marked(mark: str) -> list[psutil.Process]:
    """Living processes that were started under this mark, whatever their parents are by now."""
    found = [p for p in psutil.process_iter() if environment(p).get(RUN_MARK) == mark]
    return [p for p in found if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]


def kill_all(mark: str) -> None:
    """What a failed test has left behind."""
    for process in marked(mark):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def helpers(agent: psutil.Process) -> list[psutil.Process]:
    """The agent's resource tracker and its newest fork server."""
    children = agent.children()
    names = ("resource_tracker", "multiprocessing.forkserver")
    kinds = ([child for child in children if name in command(child)] for name in names)
    return [kind[-1] for kind in kinds if kind]


def fork_server(agent: psutil.Process) -> psutil.Process:
    return helpers(agent)[-1]


def wait_until(true: Callable[[], object], seconds: float) -> bool:
    give_up = time.monotonic() + seconds
    while not true():
        if time.monotonic() > give_up:
            return False
        time.sleep(0.05)
    return True


class SlowLink(LocalLink):
    """A line that takes its time with the command that starts a trial, as a far network does."""

    delay = 0.0

    def send(self, line: bytes) -> bool:
        if isinstance(from_line(line), StartTrial):
            time.sleep(self.delay)
        return super().send(line)


@contextlib.contextmanager
def opened(kind: str, folder: Path, mark: str) -> Iterator[Site]:
    project = folder / "project"
    project.mkdir()
    (project / "tiny.py").write_text(TINY.read_text())
    (project / "odd.py").write_text(ODD)
    logs = str(folder / "agents")
    two = Resources(2, None, 1, None)
    with contextlib.ExitStack() as stack:
        if kind == "pair":
            nodes = [Node(connect=lambda: SlowLink(logs, {}), ranks=ranks) for ranks in (1, 2)]
            slot = AgentSlot("pair", nodes, gpus_per_worker=0)
            stack.callback(slot.close)
            yield Site(kind, slot, slot.close, 3, project, mark)
            return
        address = stack.enter_context(two_ray_nodes()) if kind == "cluster" else None
        launcher = launchers.open_launcher(
            "local" if kind == "local" else "ray", two, logs, address
        )
        stack.callback(launcher.close)
        assert len(launcher.slots) == 1
        yield Site(kind, launcher.slots[0], launcher.close, 2, project, mark, address)


@contextlib.contextmanager
def two_ray_nodes() -> Iterator[str]:
    """A Ray cluster of two nodes with one CPU each."""
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 1, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, connect=False, head_node_args=head)
    try:
        cluster.add_node(num_cpus=1)
        yield cluster.address
    finally:
        cluster.shutdown()


@pytest.fixture(scope="module")
def site(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    kind, mark = request.param, uuid.uuid4().hex
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(RUN_MARK, mark)
        patch.delenv("PYTHONUNBUFFERED", raising=False)  # or every print would be in the log
        try:
            with opened(kind, tmp_path_factory.mktemp(kind), mark) as site:
                yield site
        finally:
            kill_all(mark)


def sites(*kinds: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("site", kinds, indirect=True, scope="module")


# A normal trial


@sites("local", "ray", "pair", "cluster")
def test_blocks_account_for_every_step_sample_and_second(site: Site) -> None:
    request = site.request(
        knobs=knobs(micro_batch=3, accumulation_steps=2),
        blocks=BlockPlan(seconds=0.01, min_steps=2, max_blocks=6),
    )
    report = site.slot.run(request, go_on)
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


@sites("local", "ray")
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


@sites("local", "ray")
def test_a_users_modules_may_have_the_names_of_ours(site: Site, tmp_path: Path) -> None:
    (tmp_path / "tiny.py").write_text(TINY.read_text())
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


# Ending a trial


@sites("local", "ray", "cluster")
def test_watch_ends_the_trial_and_nothing_of_it_is_left(site: Site) -> None:
    request = site.request(blocks=BlockPlan(0.01, 2, ENDLESS))
    seen: list[int] = []

    def watch(block: BlockReport) -> bool:
        seen.append(block.index)
        assert site.strays(), "this test would not see a rank that lives on"
        return block.index == 3

    report = site.slot.run(request, watch)
    assert site.strays() == []
    assert report.outcome is None
    assert [block.index for block in report.blocks] == seen == [0, 1, 2, 3]
    assert len(site.agents()) == (2 if site.kind == "cluster" else 1)


@sites("local", "ray", "pair")
def test_end_from_another_thread(site: Site) -> None:
    ended_at: list[float] = []

    def end() -> None:
        ended_at.append(time.monotonic())
        site.slot.end()

    ending = threading.Thread(target=end)

    def watch(block: BlockReport) -> bool:
        if block.index == 1:
            ending.start()
        return False

    report = site.slot.run(site.request(blocks=BlockPlan(0.01, 2, ENDLESS)), watch)
    assert time.monotonic() - ended_at[0] < 3
    ending.join()
    assert report.outcome is None
    assert report.blocks
    assert site.strays() == []
    site.check_next_trial()


@sites("local")
def test_end_while_a_factory_hangs(site: Site) -> None:
    timer = threading.Timer(0.3, site.slot.end)
    timer.start()
    started = time.monotonic()
    report = site.slot.run(site.request("odd:stuck"), go_on)
    timer.join()
    assert time.monotonic() - started < 4
    assert (report.outcome, report.blocks) == (None, ())
    assert site.strays() == []


@sites("local")
def test_end_with_nothing_running_does_not_end_the_next_trial(site: Site) -> None:
    site.slot.end()
    site.check_next_trial()


@sites("pair")
def test_end_is_not_lost_while_the_trial_is_being_started(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SlowLink, "delay", 0.5)
    timer = threading.Timer(0.2, site.slot.end)
    timer.start()
    # A trial that has missed its end goes on for 300 blocks.
    report = site.slot.run(site.request(blocks=BlockPlan(0.01, 2, 300)), go_on)
    timer.join()
    assert report.outcome is None
    assert len(report.blocks) < 100


@sites("local")
def test_end_is_not_lost_while_a_dead_agent_is_replaced(site: Site) -> None:
    def kill_agent(_: BlockReport) -> bool:
        for agent in site.agents():
            agent.kill()
        return False

    assert site.slot.run(site.request(blocks=BlockPlan(0.01, 2, ENDLESS)), kill_agent).lost_agent
    timer = threading.Timer(0.3, site.slot.end)
    timer.start()
    report = site.slot.run(site.request(blocks=BlockPlan(0.01, 2, 300)), go_on)
    timer.join()
    assert report.outcome is None
    assert len(report.blocks) < 100


@sites("local", "pair")
def test_a_watch_that_raises_leaves_nothing_running(site: Site) -> None:
    class StorageDown(Exception):
        pass

    def watch(_: BlockReport) -> bool:
        raise StorageDown

    with pytest.raises(StorageDown):
        site.slot.run(site.request(blocks=BlockPlan(0.01, 2, ENDLESS)), watch)
    strays = site.strays()
    site.check_next_trial()
    assert strays == []


# Trouble, and its typed outcome

GIB = 2**30
NAMED_TROUBLE = {
    "raise": (Outcome.ERROR, r"rank 1: ValueError: planted error", {}),
    "abort": (Outcome.CRASH, r"rank 1: .*SIGABRT", {}),
    "exit": (Outcome.CRASH, r"rank 1: .*status 3\b", {}),
    "oom": (Outcome.OOM, r"rank 1: .*allocate memory", {"memory_per_rank": GIB}),
    "hang": (Outcome.HANG, r"rank 1: a step took more than 1 s", {"deadlines": HASTY}),
    "stop": (Outcome.HANG, r"rank 1: .*stopped", {"deadlines": HASTY}),
    "nan": (Outcome.ERROR, r"rank \d: NonFiniteLoss: the loss is nan", {}),
}


@sites("local", "ray", "cluster")
@pytest.mark.parametrize("trouble", NAMED_TROUBLE)
def test_trouble_in_training_gets_its_typed_outcome(site: Site, trouble: str) -> None:
    if site.kind == "cluster" and trouble not in {"raise", "abort", "hang"}:
        pytest.skip("nothing about it depends on the number of nodes")
    outcome, cause, changes = NAMED_TROUBLE[trouble]
    started = time.monotonic()
    report = site.run(args={"trouble": trouble}, **{"blocks": BlockPlan(0.01, 2, 50), **changes})
    assert report.outcome is outcome, report.cause
    assert re.search(cause, report.cause), report.cause
    assert report.lost_agent is False
    assert len(report.blocks) < 50
    assert site.strays() == []
    if outcome is Outcome.HANG:
        assert time.monotonic() - started < HASTY.step + HASTE_SLACK
    site.check_next_trial()


@sites("local", "ray")
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
        ("odd:one_sided", {}, r"rank 1: ValueError: planted error"),
        ("odd:tiny_set", {}, r"ValueError: the dataset has 1 samples"),
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
    started = time.monotonic()
    report = site.run("odd:stuck", deadlines=Deadlines(startup=1.5, step=60))
    assert report.outcome is Outcome.HANG
    assert "start-up took more than 1.5 s" in report.cause
    assert "in stuck" in report.log_tail
    assert time.monotonic() - started < 1.5 + HASTE_SLACK
    assert site.strays() == []


@sites("local")
def test_a_rank_that_hangs_after_the_last_step_is_the_one_named(site: Site) -> None:
    report = site.run("odd:build", args={"deed": "stick at the end"}, deadlines=HASTY)
    assert report.lost_agent is False
    assert report.outcome is Outcome.HANG
    assert report.cause.startswith("rank 1: ")


@contextlib.contextmanager
def waking_agents(site: Site, after: float) -> Iterator[None]:
    """An agent that is stopped goes on so many seconds later."""
    over = threading.Event()

    def wake() -> None:
        while not over.wait(0.05):
            stopped = [a for a in site.agents() if a.status() == psutil.STATUS_STOPPED]
            time.sleep(after if stopped else 0)
            for agent in stopped:
                agent.resume()

    waker = threading.Thread(target=wake)
    waker.start()
    try:
        yield
    finally:
        over.set()
        waker.join()


@sites("cluster")
def test_a_hang_is_blamed_on_the_rank_behind_though_another_node_sees_it_first(site: Site) -> None:
    with waking_agents(site, after=2.5):
        report = site.run("odd:build", args={"deed": "stop agent, hang"}, deadlines=HASTY)
    assert report.outcome is Outcome.HANG
    assert report.cause == "rank 1: a step took more than 1 s; the others wait for it"


@sites("local")
def test_the_first_failure_is_the_cause_even_if_the_agent_is_slow(site: Site) -> None:
    # A busy node: when the agent gets to look, both the error and its echo on rank 0 are there.
    with waking_agents(site, after=0.7):
        report = site.run("odd:build", args={"deed": "stop agent, raise"})
    assert report.outcome is Outcome.ERROR
    assert report.cause == "rank 1: ValueError: planted error"


@sites("pair")
def test_the_first_failure_is_the_cause_on_whatever_node_it_was(site: Site) -> None:
    causes = [
        (rank, site.run(args={"trouble": "raise", "rank": rank}).cause) for rank in [0, 1, 2] * 4
    ]
    assert causes == [(rank, f"rank {rank}: ValueError: planted error") for rank in [0, 1, 2] * 4]


@sites("local", "ray")
def test_a_rank_killed_from_outside_is_a_crash(site: Site) -> None:
    def kill_a_rank(block: BlockReport) -> bool:
        if block.index == 1:
            fork_server(site.agents()[0]).children()[0].kill()
        return False

    report = site.slot.run(site.request(blocks=BlockPlan(0.01, 2, ENDLESS)), kill_a_rank)
    assert report.outcome is Outcome.CRASH
    assert "SIGKILL" in report.cause
    assert report.lost_agent is False
    assert site.strays() == []
    site.check_next_trial()


@sites("local", "ray")
def test_a_grandchild_in_its_own_session_dies_with_its_trial(site: Site) -> None:
    request = site.request(
        args={"trouble": "grandchild", "at": 2}, blocks=BlockPlan(0.01, 2, ENDLESS)
    )
    saw_grandchild = False

    def watch(block: BlockReport) -> bool:
        nonlocal saw_grandchild
        saw_grandchild = any("escaping-grandchild" in stray for stray in site.strays())
        return saw_grandchild or block.index > 500

    report = site.slot.run(request, watch)
    assert saw_grandchild
    assert report.outcome is None
    assert site.strays() == []


# The agent itself dies


def run_with_grandchild_until(
    site: Site, strike: Callable[[], None], factory: str = "tiny:build", **args: Any
) -> TrialReport:
    """A trial with an escaping grandchild under which something is struck."""
    request = site.request(
        factory,
        args=args or {"trouble": "grandchild", "at": 2},
        blocks=BlockPlan(0.01, 2, ENDLESS),
    )

    def watch(block: BlockReport) -> bool:
        if block.index == 5:
            strike()
        return block.index > 2000

    return site.slot.run(request, watch)


@sites("local", "ray", "pair")
def test_a_trial_that_loses_its_agent(site: Site) -> None:
    before = {agent.pid for agent in site.agents()}
    report = run_with_grandchild_until(site, lambda: site.agents()[-1].kill())
    assert report.lost_agent is True
    assert report.outcome is Outcome.CRASH
    assert re.search(r"agent of node \d died", report.cause)
    assert site.strays() == []
    site.check_next_trial()
    after = {agent.pid for agent in site.agents()}
    assert len(after) == len(before)
    assert not after & before


@sites("local", "ray")
def test_an_agent_that_dies_between_trials_costs_no_trial(site: Site) -> None:
    site.check_next_trial()
    for agent in site.agents():
        agent.kill()
    assert wait_until(lambda: not site.agents(), 5)
    time.sleep(0.5)
    site.check_next_trial()


@sites("ray")
def test_a_trial_that_loses_the_actor_of_its_agent(site: Site) -> None:
    report = run_with_grandchild_until(site, lambda: site.agents()[0].parent().kill())
    assert report.lost_agent is True
    assert site.strays() == []
    site.check_next_trial()


@sites("local")
def test_trials_after_one_that_killed_the_fork_server(site: Site) -> None:
    request = site.request(
        "odd:build", args={"deed": "kill fork server"}, blocks=BlockPlan(0.01, 2, 50)
    )
    try:
        assert site.slot.run(request, go_on).outcome is Outcome.CRASH
        for _ in range(3):
            site.check_next_trial()
    finally:
        site.renew_agents()


# What a rank prints


@sites("local", "ray")
@pytest.mark.parametrize("deed", ["", "exit", "hang"])
def test_the_log_of_a_rank_holds_what_it_printed(site: Site, deed: str) -> None:
    if deed == "hang" and site.kind == "ray":
        pytest.skip("the same agent writes it")
    request = site.request(
        "odd:talking",
        args={"deed": deed},
        blocks=BlockPlan(0.01, 2, ENDLESS),
        deadlines=HASTY,
    )
    site.slot.run(request, end_at(20))
    for rank in range(site.world_size):
        content = Path(request.log_dir, f"rank-{rank}.log").read_text()
        assert "a complaint" in content
        assert f"hello from rank {rank}" in content


@sites("local")
def test_the_tail_of_a_failed_rank_is_in_the_report(site: Site) -> None:
    report = site.run(args={"trouble": "raise"})
    assert "ValueError: planted error" in report.log_tail
    assert "tiny.py" in report.log_tail


@sites("local")
def test_the_log_of_a_hang_holds_the_stack_of_the_rank_that_hangs(site: Site) -> None:
    report = site.run(args={"trouble": "hang", "rank": 0, "at": 3}, deadlines=HASTY)
    assert report.outcome is Outcome.HANG
    assert report.cause.startswith("rank 0: ")
    assert re.search(r'tiny\.py", line \d+ in loss', report.log_tail), report.log_tail


# Many trials


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
    assert wait_until(lambda: census() == before, 3), (census(), before)
    assert psutil.Process().num_fds() == own_descriptors


@pytest.mark.slow
@pytest.mark.timeout(900)
@sites("local")
def test_hundreds_of_failures_leak_nothing(site: Site) -> None:
    site.run(args={"trouble": "raise"})
    agent = site.agents()[0]
    before = agent.num_fds(), fork_server(agent).num_fds()
    troubles = itertools.islice(itertools.cycle(["raise", "abort", "exit", "grandchild"]), 300)
    for trouble in troubles:
        assert site.run(args={"trouble": trouble}).lost_agent is False
    assert (agent.num_fds(), fork_server(agent).num_fds()) == before


# Opening and closing


@sites("local", "ray")
def test_what_a_slot_says_of_itself(site: Site) -> None:
    assert site.slot.device == "cpu"
    assert site.slot.devices_per_rank == 0
    assert site.slot.environment["devices"] == []
    assert site.slot.environment["cores"] == len(os.sched_getaffinity(0))
    assert site.slot.environment["torch"]
    json.dumps(site.slot.environment)


@sites("local")  # Ray itself listens on all interfaces, see docs/operations.md
def test_only_loopback_is_listened_on(site: Site) -> None:
    open_ports: list[str] = []

    def look(block: BlockReport) -> bool:
        if block.index == 2:
            family = [psutil.Process(), *psutil.Process().children(recursive=True)]
            open_ports.extend(line for process in family for line in listening(process))
        return block.index >= 2

    site.slot.run(site.request(blocks=BlockPlan(0.01, 2, ENDLESS)), look)
    assert any("autotune.trial.node.agent" in line for line in open_ports)
    reachable = [line for line in open_ports if not loopback(line.split()[0])]
    assert reachable == []


def listening(process: psutil.Process) -> Iterator[str]:
    with contextlib.suppress(psutil.Error):
        for connection in process.net_connections("inet"):
            if connection.status == psutil.CONN_LISTEN:
                yield f"{connection.laddr.ip} {connection.laddr.port} {command(process)[:120]}"


def loopback(address: str) -> bool:
    parsed = ipaddress.ip_address(address)
    mapped = getattr(parsed, "ipv4_mapped", None)
    return (mapped or parsed).is_loopback


def test_one_rank_alone(tmp_path: Path) -> None:
    (tmp_path / "tiny.py").write_text(TINY.read_text())
    with launchers.open_launcher("local", Resources(1, None, 1, 1), str(tmp_path), None) as local:
        site = Site("local", local.slots[0], local.close, 1, tmp_path, mark="")
        report = site.run()
        assert (report.outcome, report.cause) == (None, "")
        assert all(block.samples == 2 * block.steps for block in report.blocks)
        assert all(len(block.rank_seconds) == 1 for block in report.blocks)
        failed = site.run(args={"trouble": "raise", "rank": 0})
        assert failed.cause == "rank 0: ValueError: planted error"


@pytest.mark.parametrize(
    "resources",
    [Resources(4096, None, 1, None), Resources(1, None, 4096, None), Resources(1, None, 1, 4096)],
)
def test_the_local_launcher_refuses_more_than_the_machine_has(
    resources: Resources, tmp_path: Path
) -> None:
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    with pytest.raises(LauncherError, match="lower resources"):
        launchers.open_launcher("local", resources, str(tmp_path), None)
    assert {child.pid for child in psutil.Process().children(recursive=True)} <= before


@sites("cluster")
def test_the_ray_launcher_closes_everything_and_refuses_too_much(site: Site) -> None:
    import ray
    from ray.util.placement_group import placement_group_table

    site.close()
    assert wait_until(lambda: not site.agents(), 5)
    assert site.strays() == []
    with pytest.raises(LauncherError, match="lower resources"):
        launchers.open_launcher("ray", Resources(4096, None, 1, None), "/tmp", site.address)
    assert not ray.is_initialized()
    ray.init(address=site.address, log_to_driver=False)
    try:
        states = {group["state"] for group in placement_group_table().values()}
        assert states == {"REMOVED"}
        assert wait_until(lambda: ray.available_resources().get("CPU") == 2, 10)
    finally:
        ray.shutdown()


def test_a_ray_cluster_that_is_not_there_is_reported_soon(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    done = subprocess.run(
        [sys.executable, "-P", "-c", WRONG_ADDRESS, str(tmp_path), address],
        capture_output=True,
        text=True,
        timeout=40,
        check=False,
    )
    assert f"no Ray cluster at {address}" in done.stdout, done.stderr


def test_a_killed_tuner_takes_everything_with_it_and_never_needed_ray(tmp_path: Path) -> None:
    (tmp_path / "tiny.py").write_text(TINY.read_text())
    mark = uuid.uuid4().hex
    tuner = subprocess.Popen(
        [sys.executable, "-P", "-c", LONE_TUNER, str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, RUN_MARK: mark},
    )
    assert tuner.stdout is not None
    try:
        assert tuner.stdout.readline() == "ray imported: False\n"
        assert tuner.stdout.readline() == "training\n"
        assert wait_until(lambda: "escaping-grandchild" in commands(mark), 10), commands(mark)
    finally:
        tuner.kill()
        tuner.wait()
    gone = wait_until(lambda: not marked(mark), 10)
    left = commands(mark)
    kill_all(mark)
    assert gone, left


def commands(mark: str) -> str:
    return "\n".join(command(process) for process in marked(mark))


# The last word on each site: it is closed for good.


@sites("local", "ray", "pair")
def test_closing_leaves_no_process(site: Site) -> None:
    site.check_next_trial()
    assert marked(site.mark)
    site.close()
    assert wait_until(lambda: not marked(site.mark), 10), commands(site.mark)
    site.close()
