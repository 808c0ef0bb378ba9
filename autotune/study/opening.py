"""The opening of a study: a look at what the baseline's step is made of, then what is tried first."""

from typing import Any

from autotune.analysis.findings import findings
from autotune.measurement.bottleneck import breakdown
from autotune.runs.monitors import ProfileMonitor
from autotune.search.space import Space
from autotune.study.context import BASELINE, StudyContext
from autotune.study.executor import TrialExecutor
from autotune.study.suggestions import Place, Room, Suggestion, devices, experts, remembered, said
from autotune.worker.protocol import NO_LIMIT, TimeLimit
from storage import AttemptState, Purpose, StoredAttempt, TrialLedger

_CORES_FOR_LOADING = 2
"""Of a rank, from which on there is one beside that on which it trains."""


class Opening:
    """Happens once, before anything is searched; goes on from wherever the records stand."""

    def __init__(
        self,
        context: StudyContext,
        space: Space,
        limit: TimeLimit = NO_LIMIT,
        *,
        looks: bool = True,
    ) -> None:
        """Prepare the opening of a study.

        Args:
            limit: time of the look.
            looks: whether there is time for a look at all.
        """
        self._limit = limit
        self._looks = looks
        self._context = context
        self._plan = context.plan
        self._space = space

    def run(self, executor: TrialExecutor, ledger: TrialLedger) -> list[Suggestion]:
        """Enqueue what is to be tried before the sampler is asked; returns what is new of it."""
        if self._context.attempts().of(Purpose.SEARCH):
            return []
        suggestions = self._experts(self._look(executor))
        if known := self._remembered():
            suggestions.insert(0, known)
        trials = self._plan.spec.budget.trials
        kept = suggestions if trials is None else suggestions[: trials - 1]
        for suggestion in kept:
            ledger.enqueue(suggestion.params, suggestion.reason)
        return kept

    def _experts(self, seen: dict[str, Any] | None) -> list[Suggestion]:
        """Nothing is built upon a baseline that does not run."""
        if seen is None:
            return []
        room = self._room(seen)
        if room and not room.peak_bytes:
            return []  # once the baseline has shown what memory it takes
        baseline = self._plan.baseline
        found = findings(seen, baseline, self._plan.facts) if seen.get("parts") else []
        unusable = {*seen.get("unusable", ())}
        if self._cores_per_rank() < _CORES_FOR_LOADING:
            unusable.add("loader_workers")  # unless it is loading that holds the step back
        return experts(self._space, baseline, found, unusable, room)

    def _room(self, seen: dict[str, Any]) -> Room | None:
        """Return the memory that is left on a device; None on processors, where a launch is cheap."""
        memory = self._plan.memory_of_rank()
        return None if memory is None else Room(memory, max(seen.get("peaks", ()), default=0))

    def _cores_per_rank(self) -> float:
        launcher = self._plan.launcher
        slot = launcher.slots[0]
        return float(slot.environment["cores"] * slot.nodes / launcher.workers)

    def _look(self, executor: TrialExecutor) -> dict[str, Any] | None:
        """Return what is observed of the baseline's profile; None if it does not run. Nothing is, of a
        command or without time for it."""
        if self._plan.spec.workload.command or not self._looks:
            return {}
        while (profile := self._profile()) is None:
            executor.run(
                BASELINE,
                self._plan.baseline,
                Purpose.PROFILE,
                judge=ProfileMonitor(),
                limit=self._limit,
            )
        if profile.result.state == AttemptState.PRUNED:
            return {}  # its steps are too long for a look
        return self._observed(profile)

    def parts(self) -> dict[str, float]:
        """Shares of the baseline's step, as far as it was looked at."""
        profile = self._profile()
        if profile is None or profile.result.state != AttemptState.COMPLETE:
            return {}
        told = (self._observed(profile) or {}).get("parts")
        return breakdown(told) if told else {}

    def _observed(self, profile: StoredAttempt) -> dict[str, Any] | None:
        blocks = self._context.repository.attempts.blocks(profile.id)
        return blocks[0].observed if blocks else None

    def _profile(self) -> StoredAttempt | None:
        return self._context.attempts().of(Purpose.PROFILE).recorded().first

    def _remembered(self) -> Suggestion | None:
        launcher = self._plan.launcher
        workload = said(self._plan.spec.workload.model_dump(mode="json"))
        place = Place(workload, launcher.workers, devices(launcher.slots[0].environment))
        earlier = self._context.repository.recommendations.of_others(self._context.study.id)
        return remembered(self._space, self._plan.baseline, earlier, place)
