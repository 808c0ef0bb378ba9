"""A slot over the agents of one or more nodes, the same for every launcher."""

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from autotune.errors import LauncherError
from autotune.worker.protocol import (
    Outcome,
    TrialReport,
    TrialRequest,
)
from autotune.worker.rank_devices import devices_needed
from launchers.agents import AgentDied, Agents, Node, Preloading, SlotGone, StartCancelled
from launchers.base import Slot, TurnSchedule
from launchers.member import describe_leftovers
from launchers.node_compat import of_other_kinds
from launchers.session import Session


class AgentSlot(Slot):
    """Slot that runs trials through one agent per node."""

    def __init__(
        self,
        name: str,
        nodes: Sequence[Node],
        *,
        gpus_per_worker: float,
        reads_energy: bool = False,
        on_wait: Callable[[], object] = lambda: None,
    ) -> None:
        """Start the agents.

        Args:
            gpus_per_worker: CUDA devices per rank.
            reads_energy: whether the energy of a trial has to be readable.
            on_wait: called repeatedly until they are ready; may raise.

        Raises:
            LauncherError: an agent does not start, or has too few CUDA devices.
        """
        self.name = name
        self.accepts: Callable[[dict[str, Any]], bool] = lambda _: True
        """Called with the environment of agents that replace others, which may be elsewhere; False: they
        are ended, and others are started."""
        self._nodes = nodes
        self._agents: Agents | None = None
        self._unreachable: list[str] = []
        """Unreachable agents at the time when the last agents were closed."""
        self.devices_per_rank = gpus_per_worker
        self.device = "cuda" if gpus_per_worker else "cpu"
        self._preloading = Preloading(len(nodes), self.device if reads_energy else "")
        self._session: Session | None = None
        """Session that runs."""
        self._waiting: Session | None = None
        """Session whose warm workers wait for the next one."""
        self._outdated = False
        """True if agents that have imported more would save time."""
        self._ending = False
        self._ran = time.monotonic()
        """Monotonic time at which the last run ended."""
        self._lock = threading.Lock()
        self._agents = Agents(nodes, self._preloading, on_wait)  # without preloading they are fit
        self.environment = _of_all(self._agents.environments)
        self.energy_unreadable = next(filter(None, self._agents.energy_unreadable), "")
        self.nodes = len(nodes)
        taken = self._agents.cuda_devices if gpus_per_worker else ()
        self.cuda_devices = [f"CUDA device {uuid}" for uuid in taken]
        """Devices of the first node, by names that no other device of the machine has."""
        self._check_devices()

    def unreachable(self) -> list[str]:
        agents = self._agents
        return agents.unreachable() if agents else self._unreachable

    @property
    def idle_seconds(self) -> float:
        """Seconds for which nothing has run."""
        return 0.0 if self._session else time.monotonic() - self._ran

    def run(self, requests: Sequence[TrialRequest], schedule: TurnSchedule) -> list[TrialReport]:
        started = time.monotonic()
        with self._lock:
            self._ending = False
        try:
            session = self._begun(requests, schedule)
        except (AgentDied, SlotGone) as error:
            return [self._lost_before_it_began(r, error, started) for r in requests]
        # Agents that had to be started anew, with libraries to import, take no time of the trial.
        self._follow(session, requests, time.monotonic() + requests[0].limit.hard)
        self._outdated |= self._preloading.learn(session.built)
        if session.idle and self._agents is session.agents:
            self._waiting = session
        elif self._outdated:
            self.close()
        return session.reports()

    def _begun(self, requests: Sequence[TrialRequest], schedule: TurnSchedule) -> Session:
        """Return a session in the warm workers that can take it over, or on ready agents.

        Raises as `_ready` does.
        """
        before = self._waiting
        if before and before.is_alive():
            claimed = before.claim(requests)
            if claimed and before.sound:
                self._waiting = None
                return Session(requests, before.agents, schedule, claimed, before.given)
        return Session(requests, self._ready(), schedule)

    @property
    def warm_knobs(self) -> dict[str, Any] | None:
        waiting = self._waiting
        return waiting.knobs if waiting and waiting.is_alive() else None

    def dismiss(self) -> None:
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            waiting.end()
            waiting.wait()
            if waiting.lost_agent or waiting.agent_leaves or self._outdated:
                self.close()
            self.unusable = waiting.unfit or self.unusable

    def _ready(self) -> "Agents":
        """Return agents for the next trial, after ending the warm worker.

        Raises:
            LauncherError: the slot is unusable, or no agents can be started.
        """
        self.dismiss()
        if self.unusable:
            raise LauncherError(f"{self.name} is out of use: {self.unusable}")
        return self._living_agents()

    def _follow(self, session: Session, requests: Sequence[TrialRequest], until: float) -> None:
        """Wait for the end of a session, also if agents die.

        Its printed output is fetched at once, though its ranks may stay: the trial that reuses them
        prints elsewhere.

        Args:
            until: monotonic time at which it is ended.
        """
        agents = self._agents
        assert agents is not None
        with self._lock:
            self._session = session
            if self._ending:  # requested before all agents had received the trial
                session.end()
        try:
            session.wait(until)
        finally:
            with self._lock:
                self._session, self._ran = None, time.monotonic()
        session.wait()  # for a trial that was ended in its last moment
        agents.fetch_files([Path(request.log_dir) for request in requests])
        if session.lost_agent or session.agent_leaves:
            self.close()
        self.unusable = session.unfit or self.unusable

    def end(self) -> None:
        with self._lock:
            self._ending = True
            if self._session:
                self._session.end()

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
        self._waiting, self._outdated = None, False
        if self._agents:
            self._unreachable = self._agents.unreachable()
            self.unusable = describe_leftovers(self._agents.close()) or self.unusable
            self._agents = None

    def _check_devices(self) -> None:
        seen = len(self.environment["devices"])
        share = self.devices_per_rank
        if seen and not share:
            self.close()
            raise LauncherError(
                f"{self.name}: trials would be taken for ones on the CPU, and PyTorch sees {seen} CUDA "
                "devices here, of which this machine's /dev names none; hide them with "
                "CUDA_VISIBLE_DEVICES=-1, or run where /dev/nvidia0 and so on are to be seen"
            )
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
            self._agents = self._accepted_agents()
            self.environment = _of_all(self._agents.environments)
            self._check_devices()
        return self._agents

    def _accepted_agents(self) -> "Agents":
        agents = self._new_agents()
        while not self.accepts(_of_all(agents.environments)):
            self.unusable = describe_leftovers(agents.close()) or self.unusable
            agents = self._new_agents()
        return agents

    def _new_agents(self) -> "Agents":
        if self._preloading.wanted:
            try:
                agents = Agents(self._nodes, self._preloading, self.check_cancelled)
                found = _of_all(agents.environments)
                # That of a node which is not accepted differs, and tells nothing of preloading.
                if agents.fit and (found == self.environment or not self.accepts(found)):
                    return agents
                agents.close()
            except (SlotGone, StartCancelled):
                raise  # unrelated to preloading
            except LauncherError:
                pass
            self._preloading.disable()
        return Agents(self._nodes, self._preloading, self.check_cancelled)


def take_out_other_kinds(slots: list[AgentSlot], device: str | None) -> list[tuple[AgentSlot, str]]:
    """Close slots of one machine with other devices than the rest, such as that of the display.

    Args:
        slots: of the machine, those that stay afterwards.
        device: kind of device that is wanted; None: that of most slots.

    Returns:
        The slots that were taken out, each with what it has instead.
    """
    environments = [slot.environment for slot in slots]
    others = of_other_kinds(environments, device, on_gpu=slots[0].device == "cuda")
    found = [(slots.pop(number), others[number]) for number in sorted(others, reverse=True)]
    for slot, _ in found:
        slot.close()
    return found


def _of_all(environments: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the environment of a slot: its first node, with the other nodes below it."""
    first, *others = environments
    return {**first, "others": others} if others else dict(first)
