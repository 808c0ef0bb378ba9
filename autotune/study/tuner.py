"""The course of a study: opening, search, finals, verdict."""

import threading
from dataclasses import dataclass, field

from autotune.analysis.conclusion import VerdictInputs, build_verdict
from autotune.analysis.finalists import Selection
from autotune.analysis.provenance import Records
from autotune.analysis.verdict import Verdict
from autotune.analysis.wording import duration
from autotune.errors import BadInput, LauncherError, StaleLease
from autotune.study.context import StudyContext
from autotune.study.executor import TrialExecutor
from autotune.study.finals import Finals
from autotune.study.initial_trials import InitialTrials
from autotune.study.run_planner import RunPlanner
from autotune.study.runner import Runner
from autotune.study.search_loop import SearchLoop
from autotune.study.slot_pool import SlotPool
from autotune.study.stopping import SearchEnd
from autotune.study.time_budget import TimeBudget
from search_spaces.batch import refused_global_batch
from storage import SearchEndCause

_PROOF_FIRST = SearchEnd(
    SearchEndCause.PROOF_BEGUN, "the proof that had begun is brought to its end first"
)


class Stopped(Exception):
    """Request that the study stop."""


@dataclass
class Signals:
    """Signals to a running study from outside its thread."""

    stop: threading.Event = field(default_factory=threading.Event)
    lease_stale: threading.Event = field(default_factory=threading.Event)
    waiting: threading.Event = field(default_factory=threading.Event)
    """The time does not count, and looking often disturbs nothing: the launcher is not open yet, as
    where another study has the machine, or it is being closed."""

    def check(self) -> None:
        """Raise the signal that was given, if one was.

        Raises:
            StaleLease: the lease is gone, or could not be renewed.
            Stopped: it is to stop.
        """
        if self.lease_stale.is_set():
            raise StaleLease("this daemon's lease on the study is gone; it writes no more")
        if self.stop.is_set():
            raise Stopped


class Tuner:
    """Course of a study, from wherever its records stand to its verdict."""

    def __init__(self, context: StudyContext, signals: Signals) -> None:
        self._context = context
        self._spec = context.setup.spec
        self._signals = signals
        self._time = TimeBudget(context)
        self._pool = SlotPool(context)
        self._planner = RunPlanner(context, self._pool)
        self._search = SearchLoop(context, self._planner, self._pool, self._time, signals.check)
        self.dashboard = self._search.dashboard

    def run(self) -> Verdict:
        """Search, confirm, conclude.

        Raises:
            BadInput: the baseline cannot run here, with the reason.
            BaselineFails: it fails again and again, for a reason of its own.
            Stopped, StaleLease: see Signals.
        """
        self._check_baseline()
        self._search.begin()
        try:
            with TrialExecutor(
                self._context, self._pool, self._signals.check, self.dashboard.update
            ) as executor:
                selection = self._measured(executor)
        except (Stopped, LauncherError):
            self.dashboard.catch_up()
            raise
        self._search.close_what_is_open()
        context = self._context
        records = Records.of(context.repository, context.attempts(), context.study.id)
        return build_verdict(records, self._spec, self._facts(selection))

    def _measured(self, executor: TrialExecutor) -> Selection | None:
        """Run opening, search and finals; return how the finalists were chosen."""
        search = self._search
        runner = Runner(self._context, self._planner, executor, self._time)
        opening = InitialTrials(runner, search.space)
        for suggestion in opening.run(search.ledger):
            self._context.say(f"To be tried first: {suggestion.reason}.")
        if parts := opening.parts():
            search.see(parts)
        finals = Finals(runner, lambda: search.try_without_refused(executor))
        searched = self._context.study.search_ended is not None
        proven_first = finals.begun() and self._is_proven_first(finals)
        search.end(_PROOF_FIRST if proven_first else search.run(executor))
        finals.run()
        if proven_first and not searched:
            self._tell_what_is_not_searched()
        return finals.selection

    def _is_proven_first(self, finals: Finals) -> bool:
        """Go on with a proof that had begun; return whether it shows a gain."""
        self._context.say(f"{_PROOF_FIRST.text.capitalize()}.")
        confirmation = finals.prove()
        return confirmation is not None and confirmation.proven

    def _tell_what_is_not_searched(self) -> None:
        """Say how to search on where a proof with more time has decided, and left some of it."""
        if self._search.why_over() is None:
            self._context.say(
                f"The gain is proven, and {duration(self._time.left)} of the wall time are not used. To "
                "search on, raise budget.wall_time once more: what is better then is proven anew."
            )

    def _facts(self, selection: Selection | None) -> VerdictInputs:
        wall_time = self._time.wall_time
        return VerdictInputs(
            self._context.study.name,
            ended=True,
            left=wall_time.left if wall_time else None,
            selection=selection,
            plan=self._time.finals_price(self._context.attempts()).plan,
        )

    def _check_baseline(self) -> None:
        setup = self._context.setup
        fixed = setup.facts.global_batch_size
        if fixed and (refused := refused_global_batch(fixed, setup.launcher.ranks)):
            raise BadInput(f"objective.global_batch_size: {refused}")
        setup.check_baseline()
