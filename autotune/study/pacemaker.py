"""Whether a trial of the search is measured beside the baseline, at whose pace all trials compare."""

import itertools
from collections.abc import Mapping
from typing import Any

from autotune.analysis.processes import UNSTEADY
from autotune.analysis.unrest import unrest
from autotune.analysis.wording import duration
from autotune.study.bench import Bench
from autotune.study.job import Allowance, Job
from autotune.study.taking_turns import LONGEST_STEP, shortage, shortest
from storage import (
    DAEMON_DIED,
    NOT_ITS_OWN,
    Attempts,
    AttemptState,
    Purpose,
    StoredAttempt,
)

_WORTH_TRIALS = 8.0
"""Trials in processes that are there, in the time that the first pair takes to be launched. A trial
beside the baseline tells about what three or four by themselves do, and a search has some eight."""
_VAIN = 2
"""Trials in a row that fail beside the baseline, until no more are tried there."""


class Pacemaker:
    """Of one study; decides from the records, so that it goes on as it began."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._baseline = job.plan.baseline
        self._said: bool | None = None
        """Whether it was said last that trials are paced; None: nothing was."""

    def level(
        self, trial: int, knobs: Mapping[str, Any], bench: Bench, allowed: Allowance | None
    ) -> float | None:
        """The rate of the baseline that a trial is to compare with, units per second. None: it runs by
        itself, on a machine that is quiet enough, or as it cannot run beside another.

        Args:
            allowed: time that the trial may take.
        """
        attempts = self._job.attempts()
        own = attempts.baseline()
        if own is None or own.result.throughput is None or knobs == self._baseline:
            return None
        if self._job.plan.spec.measurement.baseline_runs < 2:
            return None  # it is not to run again
        if self._waits(own):
            return None  # its processes lie further apart than trials that follow each other
        why = unrest(bench.noise, attempts)
        if not why or not self.at_home(bench) or _in_vain(attempts):
            return None
        if _failed_before(trial, attempts) or not self._fits(knobs, own, attempts, allowed):
            return None
        if not attempts.of(Purpose.PAIRED) and (dear := self._dear()):
            self._say(f"Trials run by themselves, though {why}: {dear}", paced=False)
            return None
        self._say(
            f"Each trial takes turns with the baseline from now on, block by block, and its rate is "
            f"told by their ratio: {why}, so trials that follow each other would not compare.",
            paced=True,
        )
        return own.result.throughput

    def _waits(self, own: StoredAttempt) -> bool:
        """Return whether the baseline waits for the host of its CUDA device."""
        on_device = self._job.plan.launcher.slots[0].device == "cuda"
        return on_device and (own.result.sigma_run or 0.0) > UNSTEADY

    def at_home(self, bench: Bench) -> bool:
        """Whether all trials run where the baseline's own did: nodes that differ are levelled by what
        the baseline runs at on each."""
        own = self._job.attempts().baseline()
        return own is not None and {*bench.environments} == {own.environment}

    def _fits(
        self,
        knobs: Mapping[str, Any],
        own: StoredAttempt,
        attempts: Attempts,
        allowed: Allowance | None,
    ) -> bool:
        if self._job.plan.spec.workload.is_script:
            return False  # a script would be launched anew for each trial, and the baseline with it
        on_processors = self._job.plan.launcher.slots[0].device == "cpu"
        if on_processors and knobs["cpu_affinity"] != self._baseline["cpu_affinity"]:
            return False  # who takes turns has processors of its own
        costs = self._job.costs()
        if costs.step(self._baseline) > LONGEST_STEP:
            return False
        if allowed and 2 * shortest(costs, self._baseline) > allowed.wanted:
            return False
        peaks = [
            one.result.peak_bytes
            for one in attempts.searched()
            if one.knobs["micro_batch"] <= knobs["micro_batch"]
        ]
        both = own.result.peak_bytes + max(peaks, default=own.result.peak_bytes)
        return not shortage(self._job.plan, both, slots=len(self._job.plan.launcher.slots))

    def _dear(self) -> str:
        """Why two are not launched to begin with, in words; empty if that is worth it."""
        costs = self._job.costs()
        launches, trials = 2 * costs.startup, _WORTH_TRIALS * costs.trained
        if launches <= trials:
            return ""
        return (
            f"to launch one and the baseline beside it would take {duration(launches)}, in which "
            f"processes that are there train {launches / costs.trained:.0f} trials."
        )

    def _say(self, message: str, *, paced: bool) -> None:
        """Whenever that is another way than before."""
        if self._said is not paced:
            self._said = paced
            self._job.say(message)


def _in_vain(attempts: Attempts) -> bool:
    """Whether the latest trials beside the baseline have all been lost: maybe two cannot be there."""
    newest_first = reversed(list(attempts.of(Purpose.SEARCH)))
    paced = (one.result.state for one in newest_first if attempts.paired_baseline_of(one))
    latest = list(itertools.islice(paced, _VAIN))
    return latest == [AttemptState.LOST] * _VAIN


def _failed_before(trial: int, attempts: Attempts) -> bool:
    """Whether it has come to nothing, maybe because of the other one."""
    launches = [one.result for one in attempts.of(Purpose.SEARCH).of_trial(trial)]
    lost = (r for r in launches if r.state == AttemptState.LOST)
    own_fault = any(not result.cause.startswith(NOT_ITS_OWN) for result in lost)
    return own_fault or any(result.cause == DAEMON_DIED for result in launches)
