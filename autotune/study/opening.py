"""The opening of a study: a look at what the baseline's step is made of, then what is tried first."""

from collections.abc import Callable

from autotune.analysis.findings import Finding, findings
from autotune.runs import requests as plan
from autotune.runs.judging import ProfileRun
from autotune.search.space import Space
from autotune.study.bench import BASELINE, Bench, Job
from autotune.study.suggestions import Place, Suggestion, devices, experts, remembered
from launchers import Launcher
from storage import Purpose, StoredAttempt, TrialLedger


class Opening:
    """Happens once, before anything is searched; goes on from wherever the records stand."""

    def __init__(
        self, job: Job, space: Space, launcher: Launcher, check: Callable[[], None]
    ) -> None:
        """Take in where it happens; `check` raises when the study is to stop."""
        self._job = job
        self._space = space
        self._launcher = launcher
        self._check = check
        self._baseline = job.spec.full_baseline()

    def run(self, bench: Bench, ledger: TrialLedger) -> list[Suggestion]:
        """Enqueue what is to be tried before the sampler is asked; returns what is new of it."""
        if any(a.purpose == Purpose.SEARCH for a in self._attempts()):
            return []
        found = self._look(bench)
        # Nothing is built upon a baseline that does not run.
        suggestions = [] if found is None else experts(self._space, self._baseline, found)
        if known := self._remembered():
            suggestions.insert(0, known)
        trials = self._job.spec.budget.trials
        kept = suggestions if trials is None else suggestions[: trials - 1]
        for suggestion in kept:
            ledger.enqueue(suggestion.params, suggestion.reason)
        return kept

    def _look(self, bench: Bench) -> list[Finding] | None:
        """What holds the baseline back; None if it does not run."""
        while (profile := self._profile()) is None:
            bench.start(BASELINE, self._baseline, Purpose.PROFILE, judge=ProfileRun())
            bench.wait(self._check)
        blocks = self._job.repository.blocks(profile.id)
        facts = plan.facts(self._job.spec, self._launcher)
        return findings(blocks[0].observed, self._baseline, facts) if blocks else None

    def _profile(self) -> StoredAttempt | None:
        found = (a for a in self._attempts() if a.purpose == Purpose.PROFILE and a.recorded)
        return next(found, None)

    def _remembered(self) -> Suggestion | None:
        environment = self._launcher.slots[0].environment
        workload = self._job.spec.workload.model_dump(mode="json")
        place = Place(workload, self._job.world_size, devices(environment))
        earlier = self._job.repository.recommended_by_others(self._job.study.id)
        return remembered(self._space, self._baseline, earlier, place)

    def _attempts(self) -> list[StoredAttempt]:
        return self._job.repository.attempts(self._job.study.id)
