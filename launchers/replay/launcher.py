"""Slots that replay trials instead of running them.

A behaviour (launchers.replay.answers) gives the outcome of a launch: how fast it runs, or how it
fails. The slot turns that into the blocks that rank 0 would have reported, and asks the schedule
after each. So everything above a launcher works as it does over ranks, with a trial per millisecond.

Each slot has its own virtual time, which advances by what its trials would have taken. The
launcher's clock is that of the slot that is furthest. Waiting for a trial takes no time, so a slot
with long trials delays no other: with several slots the clock tells how long the busiest of them
took.

Random numbers of a launch are drawn from the seed, the knobs and the name of the launch, those of
processes from the seed and the launch that began them; neither threads nor the order of launches
matter. Only the wandering speed of a machine goes with the time
of its slot, so that launches at about the same time are slow together.
"""

import dataclasses
import itertools
import random
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autotune.worker.protocol import Knobs, TrialReport, TrialRequest
from launchers.base import Launcher, Slot, TurnSchedule
from launchers.replay.answers import Answer, Behaviour, Launch, MachineSpeed, SpeedVariation
from launchers.replay.member import ReplayMember
from search_spaces import defaults
from search_spaces.constraints import why_not_taken_over

ENVIRONMENT: Mapping[str, Any] = {
    "host": "replay",
    "cpu": "replayed processor",
    "cores": 2,
    "memory_bytes": 2**34,
    "kernel": "none",
    "python": "none",
    "torch": "none",
    "cuda": None,
    "nccl": None,
    "driver": None,
    "devices": [],
    "autotune": "none",
}
"""Fingerprint of a node that does not exist; see autotune.worker.node.environment."""

_NONE = SpeedVariation()


def never(_: Knobs) -> str:
    """Refuse no configuration."""
    return ""


class ReplayLauncher(Launcher):
    """Slots over one behaviour."""

    slots: list["ReplaySlot"]

    def __init__(
        self,
        behaviour: Behaviour,
        *,
        workers: int = 2,
        slots: int = 1,
        environment: Mapping[str, Any] = ENVIRONMENT,
        seed: int = 0,
        refusal: Callable[[Knobs], str] = never,
        variation: SpeedVariation = _NONE,
    ) -> None:
        """Open the slots.

        Args:
            behaviour: outcomes of launches.
            workers: number of ranks of a trial.
            slots: number of concurrent trials.
            environment: fingerprint of the replayed node; one CUDA device per rank if it has any. A
                value of `energy_unreadable` is the reason why no energy can be read there.
            seed: seed of all random numbers.
            refusal: returns why a configuration cannot be replayed; empty: it can.
            variation: variation of the speed of each slot's machine.
        """
        self.ranks = workers
        self._behaviour = behaviour
        self._seed = seed
        self._refusal = refusal
        self._launches: Counter[Any] = Counter()
        self._lock = threading.Lock()
        self._variation = variation
        self.slots = [self.slot(f"replay-{number}", environment) for number in range(slots)]

    def slot(self, name: str, environment: Mapping[str, Any]) -> "ReplaySlot":
        """Return another slot, which is not among the launcher's slots yet."""
        speed = MachineSpeed(self._variation, f"{self._seed}/{name}")
        return ReplaySlot(name, environment, self._answer, speed)

    def refusal(self, knobs: Knobs) -> str:
        return self._refusal(knobs)

    def clock(self) -> float:
        return max(slot.time for slot in self.slots)

    def close(self) -> None:
        """Do nothing, as no resources are held."""

    def _answer(
        self, request: TrialRequest, at: float, taken: "_WarmProcesses | None"
    ) -> tuple[Answer, random.Random]:
        knobs = tuple(sorted(request.knobs.items()))
        with self._lock:
            self._launches[knobs] += 1
            number = self._launches[knobs]
        draw = random.Random(f"{self._seed}/{_unusual(request.knobs)}/{request.trial}")
        processes = random.Random(f"{self._seed}/{taken.launched if taken else request.trial}")
        before = taken.request.knobs if taken else None
        launch = Launch(request, number, at, draw, processes, before)
        answer = self._behaviour(launch)
        if launch.taken_over:
            answer = dataclasses.replace(answer, startup=answer.switch)
        return answer, draw


class ReplaySlot(Slot):
    """Slot that replays one trial after another."""

    def __init__(
        self,
        name: str,
        environment: Mapping[str, Any],
        answer: Callable[
            [TrialRequest, float, "_WarmProcesses | None"], tuple[Answer, random.Random]
        ],
        speed: MachineSpeed,
    ) -> None:
        self.name = name
        self.environment = dict(environment)
        self.energy_unreadable = self.environment.pop("energy_unreadable", "")
        on_device = bool(environment["devices"])
        self.device = "cuda" if on_device else "cpu"
        self.devices_per_rank = float(on_device)
        self.nodes = 1
        self.time = 0.0
        """Virtual seconds that its trials took."""
        self._answer = answer
        self._speed = speed
        self._ending = False
        self._waiting: dict[int, _WarmProcesses] = {}
        """Warm workers, by the place of their trial in its session."""
        self._claimed: dict[int, _WarmProcesses] = {}
        """Warm workers that the running session has claimed."""
        self.launches = 0
        """Number of launches of processes."""

    @property
    def warm_knobs(self) -> Knobs | None:
        return self._waiting[min(self._waiting)].request.knobs if self._waiting else None

    def dismiss(self) -> None:
        self._waiting = {}

    def run(self, requests: Sequence[TrialRequest], schedule: TurnSchedule) -> list[TrialReport]:
        self._ending = False
        launched = self._claim(requests)
        began, until = self.time, self.time + requests[0].limit.hard
        members: dict[int, ReplayMember] = {}
        trains, died, enough = None, False, False
        for number in itertools.count(1):
            member = schedule.next()
            if member is None or self._ending:
                enough = member is None
                break
            returns = member in members
            if not returns:
                built = self.time - began if schedule.at_once else 0.0
                taken = self._claimed.get(member)
                members[member] = self._begun(requests[member], taken, built)
            running = members[member]
            block = running.turn(number, self._speed, rested=returns and member != trains)
            trains = member
            if self.time + running.latest > until:
                running.cut(until - self.time, block)
                self.time = until
                break
            self.time += running.latest
            if block:
                running.went_on(block)
                schedule.trained(member, block)
            elif running.lost_agent:
                died = True
                break
            else:
                schedule.drop(member)
        if enough:
            self._keep(requests, members, launched)
        unseen = [TrialReport(request.trial, None, "", (), 0.0) for request in requests]
        reports = [members[p].report() if p in members else unseen[p] for p in range(len(unseen))]
        return [
            dataclasses.replace(report, lost_agent=died, resident_of=by)
            for report, by in zip(reports, launched, strict=True)
        ]

    def _claim(self, requests: Sequence[TrialRequest]) -> list[str]:
        """Return the trials that launched the warm workers which requests take over; empty: none.

        All others are ended.
        """
        waiting = {
            place: self._waiting[place]
            for place, request in enumerate(requests)
            if place in self._waiting and self._waiting[place].accepts(request)
        }
        self._claimed, self._waiting = waiting, {}
        return [waiting[p].launched if p in waiting else "" for p in range(len(requests))]

    def _begun(
        self, request: TrialRequest, taken: "_WarmProcesses | None", built: float
    ) -> ReplayMember:
        """Return a trial at its first turn.

        Args:
            taken: warm worker that it takes over; None: it launches processes.
            built: seconds for which its processes have been starting.
        """
        self.launches += taken is None
        answer, draw = self._answer(request, self.time, taken)
        startup = max(0.0, answer.startup - built)
        return ReplayMember(request, dataclasses.replace(answer, startup=startup), draw)

    def _keep(
        self,
        requests: Sequence[TrialRequest],
        members: Mapping[int, ReplayMember],
        launched: Sequence[str],
    ) -> None:
        """Keep the warm workers of a session whose schedule is done, of unused ones as well."""
        unused = {p: waits for p, waits in self._claimed.items() if p not in members}
        stayed = {
            place: _WarmProcesses(requests[place], launched[place] or requests[place].trial)
            for place, member in members.items()
            if member.stays
        }
        self._waiting = unused | stayed

    def end(self) -> None:
        self._ending = True


@dataclass(frozen=True)
class _WarmProcesses:
    """Processes of a warm worker, after this trial."""

    request: TrialRequest
    launched: str
    """Name of the trial that launched the processes."""

    def accepts(self, request: TrialRequest) -> bool:
        alike = request.interleaved == self.request.interleaved
        return request.stays and alike and not why_not_taken_over(self.request.knobs, request.knobs)


def _unusual(knobs: Knobs) -> dict[str, Any]:
    """Return the knobs that differ from their defaults, so that a larger catalogue changes no draw."""
    usual = defaults()
    return {name: value for name, value in sorted(knobs.items()) if usual.get(name) != value}
