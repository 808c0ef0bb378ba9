"""The first trials of a study: a profile of the baseline, then what an expert would try, and why."""

from autotune.runs.monitors import ProfileMonitor
from autotune.search.space import Space
from autotune.study.context import BASELINE
from autotune.study.expert_suggestions import BaselineProfile, ExpertSuggestions, ProfileState
from autotune.study.run_planner import PlannedAttempt
from autotune.study.runner import Runner
from autotune.study.suggestions import (
    Suggestion,
    TransferKey,
    kinds_of_device,
    remembered,
    without_empty,
)
from storage import Purpose, TrialLedger


class InitialTrials:
    """Opening of a study, which goes on from wherever the records stand."""

    def __init__(self, runner: Runner, space: Space) -> None:
        self._runner = runner
        self._context = runner.context
        self._setup = runner.context.setup
        self._space = space
        self._experts = ExpertSuggestions(runner.context, space)

    def run(self, ledger: TrialLedger) -> list[Suggestion]:
        """Enqueue what is to be tried before the sampler is asked; return what is new of it."""
        if self._context.attempts().of(Purpose.SEARCH):
            return []
        suggestions = self._experts.opening(self._profile_baseline())
        if known := self._remembered():
            suggestions.insert(0, known)
        trials = self._setup.spec.budget.trials
        kept = suggestions if trials is None else suggestions[: trials - 1]
        for suggestion in kept:
            ledger.enqueue(suggestion.params, suggestion.reason)
        return kept

    def _profile_baseline(self) -> BaselineProfile:
        """Return the profile of the baseline; it is not taken of a command, or without time for it."""
        time = self._runner.time
        if not (self._setup.spec.workload.observable and time.pays_to_look()):
            return BaselineProfile()
        limit = time.for_opening()
        while self._experts.profile.state is ProfileState.NOT_TAKEN:
            baseline = PlannedAttempt(BASELINE, self._setup.baseline, Purpose.PROFILE)
            self._runner.run_monitored(baseline, ProfileMonitor(), limit)
        return self._experts.profile

    def parts(self) -> dict[str, float]:
        """Return the shares of the baseline's step by part; empty if it was not profiled."""
        return self._experts.profile.shares

    def _remembered(self) -> Suggestion | None:
        site = self._setup.launcher.site
        workload = without_empty(self._setup.spec.workload.model_dump(mode="json"))
        key = TransferKey(workload, site.ranks, kinds_of_device(site.environment))
        earlier = self._context.repository.recommendations.of_others(self._context.study.id)
        return remembered(self._space, self._setup.baseline, earlier, key)
