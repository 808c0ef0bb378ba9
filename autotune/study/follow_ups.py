"""Suggestions that follow from what the first trials have shown.

All that is favoured is tried without an answer to the bottleneck that has shown to be slower. What has
to be compiled is tried on top of the best configuration, as far as there is time for it. A bundle of
changes that failed is split, until the change that fails is known; a part that is bound to run out of
memory is split without a trial. Of a bundle that a check refuses, the rest is tried.
"""

from collections.abc import Iterator, Sequence

from optuna.trial import FrozenTrial, TrialState

from autotune.analysis.barred import Barred
from autotune.analysis.finalists import fastest_first, may_be_faster
from autotune.analysis.finals_price import FinalsPrice
from autotune.analysis.node_speeds import at_home_speed
from autotune.analysis.sameness import ChangeKind
from autotune.analysis.shortfall import rounded_up
from autotune.analysis.wording import difference
from autotune.search.sampling import Shortage
from autotune.search.space import Space
from autotune.study.context import StudyContext
from autotune.study.expert_suggestions import ExpertSuggestions
from autotune.study.suggestions import (
    COMPILED_KNOBS,
    FAVOURED,
    Suggestion,
    compiled_values,
    fitting,
    parts_of,
    rest,
    with_compilation,
)
from autotune.study.time_budget import TimeBudget
from search_spaces.knob import changed_knobs, written
from storage import Attempts, AttemptState, Purpose, StoredAttempt, TrialLedger
from storage.trials import SUGGESTED_BY

_FAILED = (
    *(AttemptState.OOM, AttemptState.ERROR, AttemptState.CRASH),
    *(AttemptState.HANG, AttemptState.POWER),
)


class FollowUps:
    """Suggestions of one study after its opening, by its records."""

    def __init__(
        self, context: StudyContext, space: Space, time: TimeBudget, ledger: TrialLedger
    ) -> None:
        self._context = context
        self._space = space
        self._experts = ExpertSuggestions(context, space)
        self._time = time
        self._ledger = ledger
        self._goes_on = len(context.attempts().searched()) > 1
        self._told = self._goes_on
        self._told_kinds: set[ChangeKind] | None = None

    @property
    def skips_compilation(self) -> bool:
        """True if there is no time for some values that have to be compiled."""
        return any(self._unaffordable(self._time.finals_price(self._context.attempts())))

    def enqueue(self, trials: Sequence[FrozenTrial], attempts: Attempts) -> bool:
        """Enqueue what is to be tried next, unless something waits or was suggested; and say it.

        Returns:
            True if something was enqueued.
        """
        open_ = [trial for trial in trials if not trial.state.is_finished()]
        # The result of one that was suggested, and runs, decides what follows.
        if any(t.state == TrialState.WAITING or SUGGESTED_BY in t.user_attrs for t in open_):
            return False
        if not attempts.searched().of_baseline():
            return False
        ended = attempts.searched().ended_in(AttemptState.OOM)
        oom = [Shortage.of(a.knobs, a.result.cause) for a in ended]
        ran = [a.knobs for a in attempts.searched().measured()]
        suggestions = fitting(
            self._space, self._context.setup.baseline, self._next(trials, attempts), oom, ran
        )
        tried = [trial.params for trial in trials]
        new = next((one for one in suggestions if one.params not in tried), None)
        if new:
            self._ledger.enqueue(new.params, new.reason)
            self._context.say(f"To be tried next: {new.reason}.")
        return new is not None

    def _next(self, trials: Sequence[FrozenTrial], attempts: Attempts) -> Iterator[Suggestion]:
        own = attempts.baseline()
        if own is None or own.result.throughput is None:  # it has failed
            yield from self._bundle(trials, attempts)
            return
        price, barred = self._time.finals_price(attempts), self._context.barred()
        self._tell_what_is_left_out(price)
        self._tell_what_is_refused(barred)
        yield from self._parts(trials, attempts)
        yield from self._bundle(trials, attempts)
        yield from self._rest(trials, barred)
        tried = [attempt.knobs for attempt in attempts.of(Purpose.SEARCH)]
        baseline = filter(None, [attempts.baseline()])
        best = fastest_first([*baseline, *price.eligible()])[0]
        found = with_compilation(self._space, best.knobs, tried)
        if found and self._time.lacks(self._space.complete(found.params), price) <= 0:
            yield found

    def _bundle(self, trials: Sequence[FrozenTrial], attempts: Attempts) -> Iterator[Suggestion]:
        """Yield what experience favours, unless it was tried.

        It has waited for the answer to what holds the baseline back, or, on a device whose study began
        without a profile, for the memory that the baseline takes.
        """
        if any(t.user_attrs.get(SUGGESTED_BY, "").startswith(FAVOURED) for t in trials):
            return
        if favoured := self._experts.bundle(attempts):
            yield favoured

    def _parts(self, trials: Sequence[FrozenTrial], attempts: Attempts) -> Iterator[Suggestion]:
        suggested = {t.number: t.params for t in trials if SUGGESTED_BY in t.user_attrs}
        ran = [attempt.knobs for attempt in attempts.searched().measured()]
        searched = (a for a in attempts.searched() if a.trial in suggested)
        failed = (a for a in searched if a.in_vain or a.result.state in _FAILED)
        bundles = [(suggested[attempt.trial], attempt.result.state) for attempt in failed]
        yield from parts_of(self._space, self._context.setup.baseline, bundles, ran)

    def _rest(self, trials: Sequence[FrozenTrial], barred: Barred) -> Iterator[Suggestion]:
        """Yield what was suggested and is refused, without the changes that are refused."""
        baseline = self._context.setup.baseline
        for trial in trials:
            if SUGGESTED_BY not in trial.user_attrs or trial.number not in barred.trials:
                continue
            params = rest(self._space, baseline, trial.params, barred)
            if changed_knobs(params, baseline):
                yield Suggestion(params, f"trial {trial.number} without what a check refuses")

    def without_refused(self, attempts: Attempts) -> Suggestion | None:
        """Return the fastest trial without what the numerics gate refuses of it.

        None: it is not refused, is surely slower than the baseline, or was tried without that.
        """
        price, barred = self._time.finals_price(attempts), self._context.barred()
        measured = at_home_speed(attempts).searched().measured()
        refused = [one for one in measured if one.trial in barred.numerics]
        own = at_home_speed(attempts).baseline()
        first = next(iter(fastest_first([*price.eligible(), *refused])), None)
        if first not in refused or own is None or not may_be_faster(first, own):
            return None
        return self._without(first, barred, attempts)

    def _without(
        self, trial: StoredAttempt, barred: Barred, attempts: Attempts
    ) -> Suggestion | None:
        """Return a trial without what the numerics gate refuses of it; None if it was tried."""
        baseline, names = self._context.setup.baseline, barred.numerics[trial.trial]
        kept = {name: trial.knobs[name] for name in self._space.distributions()}
        kept |= {name: baseline[name] for name in names if name in kept}
        params = rest(self._space, baseline, kept, barred)
        knobs = self._space.complete(params)
        if knobs == baseline or attempts.of(Purpose.SEARCH).with_knobs(knobs):
            return None
        undone = difference(trial.knobs, {**trial.knobs, **{n: baseline[n] for n in names}})
        return Suggestion(params, f"trial {trial.trial} without {undone}, which a check refuses")

    def _tell_what_is_refused(self, barred: Barred) -> None:
        """Say once, of each kind of configurations that is refused, why no other of it is tried."""
        if self._told_kinds is None:
            self._told_kinds = set(barred.kinds) if self._goes_on else set()
        for kind, trial in barred.kinds.items():
            if kind not in self._told_kinds:
                self._told_kinds.add(kind)
                reason = barred.trials[trial]
                self._context.say(
                    f"Trial {trial} is refused, and no other of its kind is tried: {reason}."
                )

    def _tell_what_is_left_out(self, price: FinalsPrice) -> None:
        """Say once what there is no time to compile, and from which wall time on there would be."""
        if self._told:
            return
        self._told = True
        for name, seconds, lacking in self._unaffordable(price):
            whole = self._context.setup.spec.budget.wall_time or 0.0
            enough = rounded_up(whole + lacking)
            self._context.say(
                f"{name} is left out: a trial of about {seconds:.0f} s and its proof do not fit into "
                f"{whole:.0f} s. It is included from about {enough:.0f} s on (budget.wall_time)."
            )

    def _unaffordable(self, price: FinalsPrice) -> Iterator[tuple[str, float, float]]:
        baseline = self._context.setup.baseline
        compiling = (
            {"compile": COMPILED_KNOBS["compile"]}
            if "compile" in self._space.distributions()
            else {}
        )
        for name in COMPILED_KNOBS:
            for value in compiled_values(self._space, name):
                knobs = {**baseline, **compiling, name: value}
                if value != baseline[name] and (lacking := self._time.lacks(knobs, price)) > 0:
                    yield f"{name}={written(value)}", price.costs.shortest(knobs), lacking
