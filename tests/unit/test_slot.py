"""How a trial ends that runs on several nodes: on purpose, or because something went wrong.

The agents are scripts: what each node reports, and when, is the test's to say.
"""

import dataclasses
import errno
import json
import queue
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from autotune.errors import LauncherError
from autotune.worker.protocol import (
    PROTOCOL,
    BlockReport,
    EndTrial,
    Heartbeat,
    Hello,
    Message,
    NodeReport,
    Outcome,
    Preload,
    RankEnd,
    StartTrial,
    TrialReport,
    TrialRequest,
    Turn,
    WorkloadBuilt,
    from_line,
)
from launchers import agents
from launchers.agents import Node, SlotGone
from launchers.base import Link
from launchers.slot import AgentSlot
from tests.support.trials import of_one_rank
from tests.support.waiting import wait_for

REQUEST = of_one_rank({}, world_size=2)
ON_DEVICE = dataclasses.replace(REQUEST, device="cuda", devices_per_rank=1.0)
BUSY = "CUDA error: CUDA-capable device(s) is/are busy or unavailable"
BLOCK = BlockReport("t", 0, 1, 4, 0, 0.5, (0.5, 0.4), 0.1, 2.0, 1000)
CLOSED = RankEnd(1, Outcome.ERROR, "RuntimeError: Connection closed by peer", at=1.0)
DIED = RankEnd(1, Outcome.CRASH, "died by SIGABRT", at=1.0)
MEMORY = RankEnd(1, Outcome.OOM, "MemoryError", at=2.0)
HUNG = RankEnd(1, Outcome.HANG, "a step took more than 60 s", at=2.0)

Says = dict[type[Message], list[Message]]
"""What an agent reports when it hears such a command."""


def hello(protocol: int = PROTOCOL) -> Hello:
    return Hello(1, 1, "lo", {"devices": []}, protocol=protocol)


class Scripted(Link):
    """An agent that says what it is told to say."""

    host = "127.0.0.1"

    def __init__(self, says: Says) -> None:
        self._says: Says = {Preload: [hello()], **says}
        self._lines: queue.Queue[bytes] = queue.Queue()
        self.heard: list[Message] = []

    def send(self, line: bytes) -> bool:
        command = from_line(line)
        self.heard.append(command)
        for message in self._says.get(type(command), []):
            self._lines.put(message.to_line())
        return True

    def say(self, line: bytes) -> None:
        self._lines.put(line)

    def read(self) -> bytes:
        return self._lines.get(timeout=60)

    def close(self) -> None:
        self._lines.put(b"")


class Cluster:
    """A slot over a scripted agent per node."""

    def __init__(self, *nodes: Says | Scripted) -> None:
        self.links = [node if isinstance(node, Scripted) else Scripted(node) for node in nodes]
        connects: list[Callable[[], Link]] = [lambda link=link: link for link in self.links]
        self.slot = AgentSlot("s", [Node(connect, 1) for connect in connects], gpus_per_worker=0)

    def run(
        self, watch: Callable[[BlockReport], bool], request: TrialRequest = REQUEST
    ) -> TrialReport:
        try:
            return self.slot.run_solo(request, watch)
        finally:
            self.slot.close()


def cleared(node: int, *ends: RankEnd) -> NodeReport:
    return NodeReport("t", node, ends)


def ended(node: int, *ends: RankEnd) -> Says:
    """A node that reports when it is told to end."""
    return {EndTrial: [cleared(node, *ends)]}


def training(*ends: RankEnd) -> Says:
    """The first node, which also reports a block."""
    return {StartTrial: [BLOCK], **ended(0, *ends)}


def enough(_: BlockReport) -> bool:
    return True


def go_on(_: BlockReport) -> bool:
    return False


class Keeping(Scripted):
    """An agent of another node, which has logs."""

    where = "node-b"

    def __init__(self, says: Says, asked: threading.Barrier) -> None:
        super().__init__(says)
        self._asked = asked
        self.places: list[int] = []

    def fetch_files(self, folder: Path) -> None:
        self.places = [*self.places, self._asked.wait(60)]


def test_all_nodes_are_asked_for_their_logs_at_once() -> None:
    asked = threading.Barrier(3)
    others = [Keeping(ended(node), asked) for node in (1, 2, 3)]
    Cluster(training(), *others).run(enough)
    assert sorted(place for other in others for place in other.places) == [0, 1, 2]


@pytest.mark.sample
@pytest.mark.fault(24)
def test_what_was_timed_while_a_node_was_silent_is_no_measurement(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(agents, "STALL_SECONDS", 0.5)
    cluster = Cluster(ended(0), ended(1))

    def train() -> None:
        while cluster.slot.unreachable() != ["node 1 fell silent"]:
            cluster.links[0].say(Heartbeat("t").to_line())
            time.sleep(0.05)
        cluster.links[0].say(BLOCK.to_line())

    threading.Thread(target=train, daemon=True).start()
    report = cluster.run(enough)
    assert report.not_its_own.startswith("node 1 stood still, or was cut off, for")


class Frozen(Scripted):
    """An agent on a node that stands still as it is to hear of a block."""

    def send(self, line: bytes) -> bool:
        if isinstance(from_line(line), Turn):
            time.sleep(0.6)
        return super().send(line)


@pytest.mark.fault(24)
def test_nor_while_it_kept_the_command_to_train_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agents, "STALL_SECONDS", 0.5)
    cluster = Cluster({Turn: [BLOCK], **ended(0)}, Frozen(ended(1)))
    report = cluster.run(enough, dataclasses.replace(REQUEST, stays=True))
    assert report.not_its_own.startswith("node 1 stood still, or was cut off, for")


@pytest.mark.fault(24)
def test_a_node_that_keeps_a_command_waiting_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agents, "STALL_SECONDS", 0.0)
    away: list[list[str]] = []

    class Asked(Scripted):
        def send(self, line: bytes) -> bool:
            if isinstance(from_line(line), Turn):
                away.append(cluster.slot.unreachable())
            return super().send(line)

    cluster = Cluster({Turn: [BLOCK], **ended(0)}, Asked(ended(1)))
    assert cluster.slot.unreachable() == []
    cluster.run(enough, dataclasses.replace(REQUEST, stays=True))
    assert away == [["node 1 fell silent"]]


def test_a_trial_can_be_ended_while_a_node_keeps_a_command_waiting() -> None:
    turns: list[bytes] = []

    class Asked(Scripted):
        def send(self, line: bytes) -> bool:
            if isinstance(from_line(line), Turn):
                turns.append(line)
                if turns[1:]:
                    ending = threading.Thread(target=cluster.slot.end)
                    ending.start()
                    ending.join()
            return super().send(line)

    cluster = Cluster({Turn: [BLOCK], **ended(0)}, Asked(ended(1)))
    report = cluster.run(go_on, dataclasses.replace(REQUEST, stays=True))
    assert (report.outcome, report.lost_agent) == (None, False)
    assert len(turns) == 2


@pytest.mark.fault(24)
def test_nor_while_it_did_not_run_by_its_own_clock_even_if_that_is_heard_later() -> None:
    late = {EndTrial: [Heartbeat("t", still=35.0), cleared(1)]}
    report = Cluster(training(), late).run(enough)
    assert report.not_its_own == "node 1 stood still, or was cut off, for 35 s"


@pytest.mark.long
def test_one_that_clears_away_for_long_has_not_stood_still(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agents, "STALL_SECONDS", 2.0)
    cluster = Cluster(training(), {})
    threading.Timer(5.0, lambda: cluster.links[1].say(cleared(1).to_line())).start()
    assert cluster.run(enough).not_its_own == ""


@pytest.mark.parametrize("raised", [CLOSED, DIED])
def test_what_ranks_raise_once_enough_has_been_seen_is_no_result(raised: RankEnd) -> None:
    report = Cluster(training(), ended(1, raised)).run(enough)
    assert (report.outcome, report.cause, report.blocks) == (None, "", (BLOCK,))
    assert not report.lost_agent


def test_nor_is_it_when_the_end_is_asked_for_from_outside() -> None:
    cluster = Cluster(training(), ended(1, CLOSED))

    def end_it(_: BlockReport) -> bool:
        cluster.slot.end()
        return False

    report = cluster.run(end_it)
    assert (report.outcome, report.blocks) == (None, (BLOCK,))


def test_nor_when_the_end_is_asked_for_while_the_agents_still_hear_of_the_trial() -> None:
    cluster = Cluster(training(), ended(1, CLOSED))
    send = cluster.links[1].send

    def end_first(line: bytes) -> bool:
        if isinstance(from_line(line), StartTrial):
            ending = threading.Thread(target=cluster.slot.end)
            ending.start()
            ending.join()
        return send(line)

    cluster.links[1].send = end_first  # type: ignore[method-assign]
    report = cluster.run(go_on)
    assert (report.outcome, report.blocks) == (None, ())


@pytest.mark.parametrize("noted", [MEMORY, HUNG])
def test_what_no_end_brings_about_counts_all_the_same(noted: RankEnd) -> None:
    report = Cluster(training(), ended(1, noted)).run(enough)
    assert report.outcome is noted.outcome
    assert noted.cause in report.cause


def test_what_goes_wrong_by_itself_counts_with_what_the_other_nodes_have_seen_of_it() -> None:
    """The connection breaks on one node because a rank dies on the other, whose report comes later."""
    cluster = Cluster(ended(0, DIED), {StartTrial: [cleared(1, CLOSED)]})
    report = cluster.run(go_on)
    assert (report.outcome, report.cause) == (Outcome.CRASH, f"rank 1: {DIED.cause}")


def test_an_end_that_is_asked_for_after_a_failure_does_not_undo_it() -> None:
    cluster = Cluster(ended(0, DIED), {StartTrial: [cleared(1, CLOSED)]})
    send = cluster.links[0].send

    def end_too(line: bytes) -> bool:
        if isinstance(from_line(line), EndTrial):
            cluster.slot.end()
        return send(line)

    cluster.links[0].send = end_too  # type: ignore[method-assign]
    assert cluster.run(go_on).outcome is Outcome.CRASH


def test_a_node_alone_tells_by_itself_what_came_before_the_end() -> None:
    report = Cluster(training(CLOSED)).run(enough)
    assert report.outcome is Outcome.ERROR


def test_every_node_is_told_of_the_end_once() -> None:
    cluster = Cluster(training(), ended(1))
    cluster.run(enough)
    for link in cluster.links:
        assert [type(command) for command in link.heard] == [Preload, StartTrial, EndTrial]


def test_a_watch_that_raises_ends_the_trial_first() -> None:
    cluster = Cluster(training(), ended(1, CLOSED))

    def broken(_: BlockReport) -> bool:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        cluster.run(broken)
    assert EndTrial("t", on_purpose=True) in cluster.links[1].heard


@pytest.mark.fault(29)
def test_what_an_agent_says_that_nobody_understands_counts_as_its_loss() -> None:
    """As an agent of another version may: whoever waits for it must not wait for ever."""
    cluster = Cluster({StartTrial: []}, {StartTrial: [cleared(1)], EndTrial: [cleared(1)]})
    cluster.links[0].say(b'{"kind": "OfTheFuture"}\n')
    report = cluster.run(go_on)
    assert report.lost_agent
    assert report.cause.startswith(
        "the agent of node 0 sent a message that this version does not understand"
    )
    assert "restart the daemon" in report.cause


@pytest.mark.fault(29)
def test_an_agent_of_another_protocol_is_refused_as_it_says_hello() -> None:
    """Its package was upgraded, or ours was: before any trial is lost by it."""
    with pytest.raises(LauncherError, match=r"node 0 speaks protocol .* restart the daemon"):
        Cluster({Preload: [hello(PROTOCOL + 1)]})


@pytest.mark.parametrize("reads_energy", [False, True])
def test_slot_asks_agents_for_energy_only_where_a_trial_has_to_tell_it(reads_energy: bool) -> None:
    told = dataclasses.replace(hello(), energy_unreadable="no counter" if reads_energy else "")
    agent = Scripted({Preload: [told]})
    node = Node(lambda: agent, 1)
    slot = AgentSlot("s", [node], gpus_per_worker=0, reads_energy=reads_energy)
    slot.close()
    [asked] = [command for command in agent.heard if isinstance(command, Preload)]
    assert asked.energy_of == ("cpu" if reads_energy else "")
    assert slot.energy_unreadable == ("no counter" if reads_energy else "")


@pytest.mark.fault(29)
def test_so_is_one_that_says_none_yet() -> None:
    def without(line: bytes) -> bytes:
        said = json.loads(line)
        del said["protocol"]
        return json.dumps(said).encode() + b"\n"

    link = Scripted({Preload: []})
    link.say(without(hello().to_line()))
    with pytest.raises(LauncherError, match=r"node 0 speaks protocol 0 .* upgrade autotune there"):
        AgentSlot("s", [Node(lambda: link, 1)], gpus_per_worker=0)


def test_nodes_are_told_whether_the_end_is_on_purpose() -> None:
    cluster = Cluster(training(), ended(1))
    cluster.run(enough)
    assert EndTrial("t", on_purpose=True) in cluster.links[1].heard
    failing = Cluster({StartTrial: [cleared(0, CLOSED)]}, ended(1))
    failing.run(go_on)
    assert EndTrial("t", on_purpose=False) in failing.links[1].heard


@pytest.mark.fault(28)
def test_an_agent_that_says_nothing_any_more_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("launchers.agents.SILENT_SECONDS", 0.5)
    monkeypatch.setattr("launchers.agents._LISTEN_SECONDS", 0.1)
    report = Cluster(training(), {}).run(go_on)
    assert report.lost_agent
    assert report.cause.startswith("the agent of node ")
    assert "has not said anything for 0.5 s" in report.cause


@pytest.mark.fault(28)
def test_one_that_says_that_it_is_there_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Silence is counted in looks; twenty fit into what is too long, however busy the machine is."""
    monkeypatch.setattr("launchers.agents.SILENT_SECONDS", 2.0)
    monkeypatch.setattr("launchers.agents._LISTEN_SECONDS", 0.05)
    cluster = Cluster({}, {})
    began = time.monotonic()

    def talk() -> None:
        while time.monotonic() < began + 3.0:
            for link in cluster.links:
                link.say(Heartbeat("t").to_line())
            time.sleep(0.05)
        for node, link in enumerate(cluster.links):
            link.say(cleared(node).to_line())

    talking = threading.Thread(target=talk)
    talking.start()
    report = cluster.run(go_on)
    talking.join()
    assert report.outcome is None
    assert not report.lost_agent


@pytest.mark.fault(28)
def test_a_slot_that_cannot_be_cleared_runs_nothing_any_more() -> None:
    stuck = NodeReport("t", 0, (DIED,), agent_leaves=True, stuck="process 17 (train.py, state D)")
    cluster = Cluster({StartTrial: [BLOCK, stuck]})
    report = cluster.run(go_on)
    assert report.outcome is Outcome.CRASH
    assert cluster.slot.unusable.startswith("process 17 (train.py, state D) cannot be ended")
    with pytest.raises(LauncherError, match=r"out of use: process 17"):
        cluster.run(go_on)


@pytest.mark.fault(28)
def test_nor_one_whose_agent_cannot_be_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    def close(link: Scripted) -> str:
        link.say(b"")
        return "process 3 (python, state D)"

    monkeypatch.setattr(Scripted, "close", close)
    cluster = Cluster(training(), ended(1, CLOSED))
    cluster.run(enough)
    left = ", ".join(["process 3 (python, state D)"] * 2)
    assert cluster.slot.unusable.startswith(f"{left} cannot be ended")


@pytest.mark.fault(24)
@pytest.mark.parametrize(
    ("outcome", "cause", "tail"),
    [
        (Outcome.ERROR, "AcceleratorError: CUDA error: uncorrectable ECC error encountered", ""),
        (
            Outcome.CRASH,
            "died by SIGABRT",
            "what(): CUDA error: uncorrectable ECC error encountered",
        ),
        (Outcome.ERROR, "RuntimeError: no CUDA-capable device is detected", ""),
        (Outcome.ERROR, f"RuntimeError: {BUSY}", ""),
    ],
)
def test_a_device_that_fails_is_no_result_and_leaves_the_slot_out_of_use(
    outcome: Outcome, cause: str, tail: str
) -> None:
    broken = RankEnd(1, outcome, cause, log_tail=tail)
    cluster = Cluster({StartTrial: [BLOCK, NodeReport("t", 0, (broken,))]})
    report = cluster.run(go_on, ON_DEVICE)
    assert report.not_its_own.startswith("a device has failed: rank 1: ")
    assert report.not_its_own in cluster.slot.unusable
    with pytest.raises(LauncherError, match="out of use: a device has failed"):
        cluster.run(go_on)


@pytest.mark.parametrize(
    ("request_", "cause", "tail"),
    [
        (dataclasses.replace(ON_DEVICE, interleaved=True), BUSY, ""),
        (dataclasses.replace(ON_DEVICE, devices_per_rank=0.5), BUSY, ""),
        (REQUEST, "died by SIGSEGV", "RuntimeError: the queue system not yet initialized"),
    ],
)
def test_device_that_others_use_or_that_there_is_none_of_has_not_failed(
    request_: TrialRequest, cause: str, tail: str
) -> None:
    end = RankEnd(1, Outcome.CRASH, cause, log_tail=tail)
    cluster = Cluster({StartTrial: [NodeReport("t", 0, (end,))]})
    report = cluster.run(go_on, request_)
    assert (report.outcome, report.not_its_own) == (Outcome.CRASH, "")
    assert cluster.slot.usable


@pytest.mark.parametrize("outcome", [Outcome.OOM, Outcome.HANG, Outcome.ERROR])
def test_what_a_configuration_does_to_itself_leaves_the_slot_in_use(outcome: Outcome) -> None:
    said = "CUDA error: an illegal memory access was encountered"
    noted = "printed before: uncorrectable ECC error"  # of another run, in the log
    cluster = Cluster({StartTrial: [NodeReport("t", 0, (RankEnd(1, outcome, said, noted),))]})
    report = cluster.run(go_on, ON_DEVICE)
    assert report.outcome is outcome
    assert not report.not_its_own
    assert cluster.slot.usable


class TestWhatIsAway:
    @pytest.mark.fault(24)
    def test_a_node_that_falls_silent(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(agents, "STALL_SECONDS", 0.3)
        cluster = Cluster(ended(0), ended(1))

        def is_away(*silent: str, speaking: int) -> bool:
            for link in cluster.links[:speaking]:
                link.say(Heartbeat("t").to_line())
            return cluster.slot.unreachable() == [*silent]

        def train() -> None:
            wait_for(lambda: is_away("node 1 fell silent", speaking=1), "it is missed")
            wait_for(lambda: is_away(speaking=2), "it is heard again")
            cluster.links[0].say(BLOCK.to_line())

        assert cluster.slot.unreachable() == []
        thread = threading.Thread(target=train)
        thread.start()
        cluster.run(enough)
        thread.join()
        assert cluster.slot.unreachable() == [], "what is closed on purpose is not lost"

    @pytest.mark.fault(23)
    def test_a_node_whose_agent_is_lost(self) -> None:
        cluster = Cluster(training(), {StartTrial: [Heartbeat("t")]})

        def lose(_: BlockReport) -> bool:
            cluster.links[1].say(b"")
            return False

        cluster.run(lose)
        assert cluster.slot.unreachable() == ["node 1 lost"], "until there is another"


def test_an_agent_that_cannot_be_started_at_present_is_no_internal_error() -> None:
    def connect() -> Link:
        raise OSError(errno.EMFILE, "Too many open files")

    with pytest.raises(LauncherError, match=r"node 1 cannot be started: .*Too many open files"):
        AgentSlot("s", [Node(lambda: Scripted({}), 1), Node(connect, 1)], gpus_per_worker=0)


@pytest.mark.fault(25)
def test_a_slot_without_a_place_says_so_whatever_its_agents_import() -> None:
    """It is not asked again without what they import, as if that had kept them from coming up."""
    asked = 0

    def connect() -> Link:
        nonlocal asked
        asked += 1
        if asked > 1:
            raise SlotGone("node-b was lost, and there is no room elsewhere")
        return Scripted(
            {StartTrial: [WorkloadBuilt("t", 0, 9.0, Preload(("json",))), BLOCK], **ended(0)}
        )

    slot = AgentSlot("s", [Node(connect, 2)], gpus_per_worker=0)
    assert slot.run_solo(REQUEST, enough).outcome is None
    report = slot.run_solo(REQUEST, enough)
    assert (report.lost_agent, asked) == (True, 2)
    assert "no room elsewhere" in report.cause
    assert "no room elsewhere" in slot.gone


@pytest.mark.fault(25)
def test_a_slot_that_is_ended_while_its_agents_start_waits_no_longer() -> None:
    cluster = Cluster({}, {})
    cluster.slot.close()
    # The next agents have the same links: the end is not for them.
    wait_for(lambda: all(link._lines.empty() for link in cluster.links), "the agents have ended")
    for link in cluster.links:
        link._says[Preload] = []  # never ready again
        link.heard.clear()
    found: list[TrialReport] = []
    running = threading.Thread(target=lambda: found.append(cluster.run(enough)))
    running.start()
    wait_for(lambda: cluster.links[1].heard, "the agents start")
    while running.is_alive():
        cluster.slot.end()
        running.join(0.05)
    assert found[0].not_its_own == "it was ended before it began"
