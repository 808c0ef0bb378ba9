"""A slot over the agents of one or more nodes, the same for every launcher."""

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from autotune.errors import LauncherError
from autotune.worker.places import devices_needed
from autotune.worker.protocol import (
    Outcome,
    TrialReport,
    TrialRequest,
)
from launchers.agents import AgentDied, Agents, Node, SlotGone, StartCancelled
from launchers.base import Slot, TrialWatch, TurnSchedule
from launchers.interleaved_session import InterleavedSession
from launchers.preloading import Preloading
from launchers.session import TrialSession, describe_leftovers
from launchers.warm_session import WarmSession


class AgentSlot(Slot):
    """Slot that runs trials through one agent per node."""

    def __init__(
        self,
        name: str,
        nodes: Sequence[Node],
        *,
        gpus_per_worker: float,
        on_wait: Callable[[], object] = lambda: None,
    ) -> None:
        """Start the agents.

        Args:
            on_wait: called repeatedly until they are ready; may raise.

        Raises:
            LauncherError: an agent does not start, or has too few CUDA devices.
        """
        self.name = name
        self._nodes = nodes
        self._agents: Agents | None = None
        self._unreachable: list[str] = []
        """Unreachable agents at the time when the last agents were closed."""
        self._preloading = Preloading(len(nodes))
        self._run: TrialSession | InterleavedSession | None = None
        self._stays: WarmSession | InterleavedSession | None = None
        """Warm worker that waits for the next trial or interleaved group."""
        self._outdated = False
        """True if agents that have imported more would save time."""
        self._ending = False
        self._lock = threading.Lock()
        self._agents = Agents(nodes, self._preloading, on_wait)  # without preloading they are fit
        self.environment = _of_all(self._agents.environments)
        self.devices_per_rank = gpus_per_worker
        self.device = "cuda" if gpus_per_worker else "cpu"
        self.nodes = len(nodes)
        taken = self._agents.cuda_devices if gpus_per_worker else ()
        self.cuda_devices = [f"CUDA device {uuid}" for uuid in taken]
        """Devices of the first node, by names that no other device of the machine has."""
        self._check_devices()

    def unreachable(self) -> list[str]:
        agents = self._agents
        return agents.unreachable() if agents else self._unreachable

    def run(self, request: TrialRequest, watch: TrialWatch) -> TrialReport:
        started = time.monotonic()
        try:
            run = self._started(request, watch)
        except (AgentDied, SlotGone) as error:
            return self._lost_before_it_began(request, error, started)
        # Agents that had to be started anew, with libraries to import, take no time of the trial.
        started = time.monotonic()
        self._follow(run, [request], started + request.limit.hard)
        self._outdated |= self._preloading.learn(run.built)
        if isinstance(run, WarmSession) and run.idle:
            self._stays = run
        elif self._outdated:
            self.close()
        return run.report(time.monotonic() - started)

    def _started(self, request: TrialRequest, watch: TrialWatch) -> TrialSession:
        """Start a trial in a warm worker, or in new processes; raise as `_ready` does."""
        with self._lock:
            self._ending = False
        before = self._stays
        if isinstance(before, WarmSession) and before.accepts(request) and before.is_alive():
            self._stays = None
            return WarmSession(request, before.agents, watch, before)
        agents = self._ready()
        if request.stays:
            return WarmSession(request, agents, watch)
        run = TrialSession(request, agents, watch)
        agents.start(request)
        return run

    @property
    def resident(self) -> dict[str, Any] | None:
        return self._stays.knobs if self._stays and self._stays.is_alive() else None

    def dismiss(self) -> None:
        stays, self._stays = self._stays, None
        if stays is not None:
            stays.end()
            stays.wait()
            if stays.lost_agent or stays.agent_leaves or self._outdated:
                self.close()
            self.unusable = stays.unfit or self.unusable

    def run_interleaved(
        self, requests: Sequence[TrialRequest], schedule: TurnSchedule
    ) -> list[TrialReport]:
        started = time.monotonic()
        with self._lock:
            self._ending = False
        try:
            residents = self._started_interleaved(requests, schedule)
        except (AgentDied, SlotGone) as error:
            return [self._lost_before_it_began(r, error, started) for r in requests]
        started = time.monotonic()
        self._follow(residents, requests, started + requests[0].limit.hard)
        if residents.idle and self._agents is residents.agents:
            self._stays = residents
        return residents.reports()

    def _started_interleaved(
        self, requests: Sequence[TrialRequest], schedule: TurnSchedule
    ) -> InterleavedSession:
        """Start several trials in warm workers, or in new processes; raise as `_ready` does."""
        before = self._stays
        if isinstance(before, InterleavedSession) and before.is_alive():
            waiting = before.claim(requests)
            sound = not (before.lost_agent or before.agent_leaves or before.unfit)
            if waiting and sound:
                self._stays = None
                return InterleavedSession(requests, before.agents, schedule, waiting, before.given)
        return InterleavedSession(requests, self._ready(), schedule)

    def _ready(self) -> "Agents":
        """Return agents for the next trial, after ending the warm worker.

        Raises:
            LauncherError: the slot is unusable, or no agents can be started.
        """
        self.dismiss()
        if self.unusable:
            raise LauncherError(f"{self.name} is out of use: {self.unusable}")
        return self._living_agents()

    def _follow(
        self,
        run: "TrialSession | InterleavedSession",
        requests: Sequence[TrialRequest],
        until: float,
    ) -> None:
        """Wait for the end of a trial or group, also if agents die.

        Its printed output is fetched at once, though its ranks may stay: the trial that reuses them
        prints elsewhere.

        Args:
            requests: requests of what runs.
            until: monotonic time at which it is ended.
        """
        agents = self._agents
        assert agents is not None
        with self._lock:
            self._run = run
            if self._ending:  # requested before all agents had received the trial
                run.end()
        try:
            run.wait(until)
        finally:
            with self._lock:
                self._run = None
        run.wait()  # for a trial that was ended in its last moment
        agents.fetch_files([Path(request.log_dir) for request in requests])
        if run.lost_agent or run.agent_leaves:
            self.close()
        self.unusable = run.unfit or self.unusable

    def end(self) -> None:
        with self._lock:
            self._ending = True
            if self._run:
                self._run.end()

    def check_cancelled(self) -> None:
        """Raise, while agents start, if the trial was cancelled.

        Raises:
            StartCancelled: the trial was cancelled.
        """
        if self._ending:
            why = "it was ended before it began"
            raise StartCancelled(why, loss=why)

    def close(self) -> None:
        """End the agents; processes that cannot be ended make the slot unusable."""
        self._stays, self._outdated = None, False
        if self._agents:
            self._unreachable = self._agents.unreachable()
            self.unusable = describe_leftovers(self._agents.close()) or self.unusable
            self._agents = None

    def _check_devices(self) -> None:
        seen = len(self.environment["devices"])
        share = self.devices_per_rank
        needed = devices_needed(self._nodes[0].ranks, share) if share else 0
        if needed > seen:
            self.close()
            raise LauncherError(
                f"{self.name}: {needed} CUDA devices are needed and PyTorch sees {seen}; check "
                "`python -c 'import torch; print(torch.cuda.device_count())'` and the driver, or "
                "set resources.gpus_per_worker: 0"
            )

    def _lost_before_it_began(
        self, request: TrialRequest, error: AgentDied | SlotGone, started: float
    ) -> TrialReport:
        if isinstance(error, SlotGone):
            self.gone = str(error)
        return TrialReport(
            request.trial,
            None if isinstance(error, StartCancelled) else Outcome.CRASH,
            str(error),
            (),
            time.monotonic() - started,
            lost_agent=True,
            not_its_own=error.loss,
        )

    def _living_agents(self) -> "Agents":
        if self._agents is not None and self._agents.lost:
            self.close()
        if self._agents is None:
            self._agents = self._new_agents()
            self.environment = _of_all(self._agents.environments)
            self._check_devices()
        return self._agents

    def _new_agents(self) -> "Agents":
        if self._preloading.wanted:
            try:
                agents = Agents(self._nodes, self._preloading, self.check_cancelled)
                if agents.fit and _of_all(agents.environments) == self.environment:
                    return agents
                agents.close()
            except (SlotGone, StartCancelled):
                raise  # unrelated to preloading
            except LauncherError:
                pass
            self._preloading.disable()
        return Agents(self._nodes, self._preloading, self.check_cancelled)


def _of_all(environments: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the environment of a slot: its first node, with the other nodes below it."""
    first, *others = environments
    return {**first, "others": others} if others else dict(first)
