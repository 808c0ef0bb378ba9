"""Slots that replay trials instead of running them.

A behaviour (launchers.replay.answers) gives the outcome of a launch: how fast it runs, or how it
fails. The slot turns that into the blocks that rank 0 would have reported, and asks the watch about
each. So everything above a launcher works as it does over ranks, with a trial per millisecond.

Each slot has its own virtual time, which advances by what its trials would have taken. The
launcher's clock is that of the slot that is furthest. Waiting for a trial takes no time, so a slot
with long trials delays no other: with several slots the clock tells how long the busiest of them
took.

Random numbers of a launch are drawn from the seed, the knobs and the name of the launch; neither
threads nor the order of launches matter. Only the wandering speed of a machine goes with the time
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

from autotune.worker.protocol import BlockReport, Knobs, TrialReport, TrialRequest
from launchers.base import Launcher, Slot, TrialWatch, TurnSchedule
from launchers.replay import blocks
from launchers.replay.answers import Answer, Behaviour, Launch
from launchers.replay.interleaved import InterleavedReplay
from launchers.replay.speed import MachineSpeed, SpeedVariation
from search_spaces import defaults
from search_spaces.residency import why_not_live

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
            environment: fingerprint of the replayed node; one CUDA device per rank if it has any.
            seed: seed of all random numbers.
            refusal: returns why a configuration cannot be replayed; empty: it can.
            variation: variation of the speed of each slot's machine.
        """
        self.workers = workers
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
        self, request: TrialRequest, at: float, live: bool = False
    ) -> tuple[Answer, random.Random]:
        knobs = tuple(sorted(request.knobs.items()))
        with self._lock:
            self._launches[knobs] += 1
            number = self._launches[knobs]
        draw = random.Random(f"{self._seed}/{_unusual(request.knobs)}/{request.trial}")
        answer = self._behaviour(Launch(request, number, at, draw, live))
        return (dataclasses.replace(answer, startup=answer.switch) if live else answer), draw


class ReplaySlot(Slot):
    """Slot that replays one trial after another."""

    def __init__(
        self,
        name: str,
        environment: Mapping[str, Any],
        answer: Callable[[TrialRequest, float, bool], tuple[Answer, random.Random]],
        speed: MachineSpeed,
    ) -> None:
        self.name = name
        self.environment = dict(environment)
        on_device = bool(environment["devices"])
        self.device = "cuda" if on_device else "cpu"
        self.devices_per_rank = float(on_device)
        self.nodes = 1
        self.time = 0.0
        """Virtual seconds that its trials took."""
        self._answer = answer
        self._speed = speed
        self._ending = False
        self._stays: dict[int, _WarmProcesses] = {}
        """Warm workers, by their place in the interleaved group."""
        self.launches = 0
        """Number of launches of processes."""

    @property
    def resident(self) -> Knobs | None:
        return self._stays[min(self._stays)].request.knobs if self._stays else None

    def dismiss(self) -> None:
        self._stays = {}

    def run(self, request: TrialRequest, watch: TrialWatch) -> TrialReport:
        self._ending = False
        launched = self._launched(0, request)
        self._stays = {}
        self.launches += not launched
        answer, draw = self._answer(request, self.time, bool(launched))
        enough = _Enough(watch)
        report = self._played(request, enough, answer, draw)
        report = dataclasses.replace(report, not_its_own=answer.not_its_own, resident_of=launched)
        self.time += report.wall_seconds
        all_done = len(report.blocks) == request.blocks.max_blocks
        over = (enough.seen or all_done) and report.outcome is None
        if request.stays and over and answer.stays:
            self._stays = {0: _WarmProcesses(request, launched or request.trial)}
        return report

    def _launched(self, place: int, request: TrialRequest) -> str:
        """Return the trial that launched the warm worker which a request takes over; empty if none."""
        waits = self._stays.get(place)
        return waits.launched if waits and waits.accepts(request) else ""

    def run_interleaved(
        self, requests: Sequence[TrialRequest], schedule: TurnSchedule
    ) -> list[TrialReport]:
        self._ending = False
        launched = [self._launched(place, request) for place, request in enumerate(requests)]
        self._stays = {place: self._stays[place] for place, name in enumerate(launched) if name}
        until = self.time + requests[0].limit.hard
        residents: dict[int, InterleavedReplay] = {}
        trains, died, enough = None, False, False
        for number in itertools.count(1):
            member = schedule.next()
            if member is None or self._ending:
                enough = member is None
                break
            returns = member in residents
            if not returns:
                request, live = requests[member], bool(launched[member])
                self.launches += not live
                residents[member] = InterleavedReplay(
                    request, *self._answer(request, self.time, live)
                )
            resident = residents[member]
            block = resident.turn(number, self._speed, rested=returns and member != trains)
            trains = member
            if self.time + resident.latest > until:
                resident.cut(until - self.time, block)
                self.time = until
                break
            self.time += resident.latest
            if block:
                schedule.trained(member, block)
            elif resident.lost_agent:
                died = True
                break
            else:
                schedule.lost(member)
        unseen = [TrialReport(request.trial, None, "", (), 0.0) for request in requests]
        reports = [
            residents[number].report() if number in residents else report
            for number, report in enumerate(unseen)
        ]
        if not enough or died:
            self._stays = {}
        for place, resident in residents.items():
            self._stays.pop(place, None)
            if enough and resident.stays:
                request = requests[place]
                self._stays[place] = _WarmProcesses(request, launched[place] or request.trial)
        return [
            dataclasses.replace(report, lost_agent=died, resident_of=by)
            for report, by in zip(reports, launched, strict=True)
        ]

    def end(self) -> None:
        self._ending = True

    def _played(
        self, request: TrialRequest, watch: TrialWatch, answer: Answer, draw: random.Random
    ) -> TrialReport:
        seen: list[BlockReport] = []
        longest = request.limit.hard
        left = longest - answer.startup
        self._speed.go_on(answer.startup)
        for block in map(self._speed.of, blocks.reported(request, answer, draw)):
            if _too_long(block, request):
                block = blocks.first_step(block)
            if self._ending:
                return blocks.ended(request, answer, seen)
            if answer.outcome and len(seen) == answer.after:
                report = blocks.failed(request, answer, seen)
                return (
                    report if report.wall_seconds <= longest else blocks.cut(request, seen, longest)
                )
            left -= block.seconds
            if left < 0:
                return blocks.cut(request, seen, longest)
            seen.append(block)
            if watch(block):
                return blocks.ended(request, answer, seen)
        failed = answer.outcome and len(seen) <= answer.after
        return (
            blocks.failed(request, answer, seen) if failed else blocks.ended(request, answer, seen)
        )


@dataclass(frozen=True)
class _WarmProcesses:
    """Processes of a warm worker, after this trial."""

    request: TrialRequest
    launched: str
    """Name of the trial that launched the processes."""

    def accepts(self, request: TrialRequest) -> bool:
        alike = request.takes_turns == self.request.takes_turns
        return request.stays and alike and not why_not_live(self.request.knobs, request.knobs)


class _Enough:
    """Watch that remembers whether it has ended the trial."""

    def __init__(self, watch: TrialWatch) -> None:
        self._watch = watch
        self.seen = False

    def __call__(self, block: BlockReport) -> bool:
        self.seen = self._watch(block)
        return self.seen


def _too_long(block: BlockReport, request: TrialRequest) -> bool:
    """Return whether ranks see after a step that there is no time for a profile."""
    return bool(request.profile) and block.seconds > request.limit.soft


def _unusual(knobs: Knobs) -> dict[str, Any]:
    """Return the knobs that differ from their defaults, so that a larger catalogue changes no draw."""
    usual = defaults()
    return {name: value for name, value in sorted(knobs.items()) if usual.get(name) != value}
