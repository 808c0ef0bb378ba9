"""A study under way: what every part of it is given, and what its runs are asked for."""

import dataclasses
import functools
import hashlib
import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from autotune.analysis.costs import CostRecords, Costs
from autotune.measurement.noise import RunNoise
from autotune.measurement.onset import OnsetBound
from autotune.measurement.stop_rule import Limits
from autotune.paths import StudyPaths
from autotune.runs.plan import (
    Plan,
    few_steps,
    in_short_epochs,
    on_longest,
    profiled,
    stepwise,
    within,
)
from autotune.runs.probe import Shape, as_timed
from autotune.study.own_attempts import OwnAttempts
from autotune.study.taking_over import SEARCHING
from autotune.worker.protocol import TrialRequest
from launchers import Slot
from search_spaces.residency import why_not_live
from storage import (
    TRAJECTORIES,
    AttemptResult,
    Attempts,
    AttemptState,
    Lease,
    Purpose,
    Repository,
    StoredAttempt,
    StoredNoise,
    StoredStudy,
)

BASELINE = 0
"""Number of its trial."""

_SHAPES: dict[Purpose, Shape] = {
    Purpose.REFERENCE: stepwise,
    Purpose.NUMERICS: stepwise,
    Purpose.PROFILE: profiled,
    Purpose.FIT: few_steps,
    Purpose.LONGEST: on_longest,
    Purpose.EPOCHS: in_short_epochs,
}
"""What is not timed."""


class Allowance(NamedTuple):
    """The time of one run, from its launch to its end, in seconds."""

    wanted: float
    """It ends at the block after which there would not be enough of this for another one."""
    most: float
    """It is ended, wherever it is."""


@dataclass(frozen=True)
class Job:
    """A study under way: its plan, and the records that it is read from and written to."""

    study: StoredStudy
    plan: Plan
    lease: Lease
    repository: Repository
    environment_id: int

    @property
    def paths(self) -> StudyPaths:
        """Where it prints to."""
        return StudyPaths(Path(self.study.workdir), self.study.name, self.study.key)

    def attempts(self) -> Attempts:
        """What is recorded by now."""
        return self.own_attempts.all()

    @functools.cached_property
    def own_attempts(self) -> OwnAttempts:
        """As they are written."""
        baseline, harmless = self.plan.baseline, self.plan.spec.harmless
        return OwnAttempts(self.repository, self.lease, self.study.id, baseline, harmless)

    def say(self, message: str) -> None:
        """Leave a message for whoever watches the study."""
        self.repository.messages.say(self.lease, self.study.id, message)

    def end_search(self, reason: str, messages: Sequence[str]) -> None:
        """Record why the search has ended, and say so."""
        self.repository.studies.end_search(self.lease, self.study, reason, messages)

    def request(
        self,
        attempt: StoredAttempt,
        slot: Slot,
        allowed: Allowance | None = None,
        *,
        live: bool = False,
    ) -> TrialRequest:
        """The trial, ready to launch on this slot, with so much time if there is a limit.

        Args:
            live: processes are there that it is to take over.
        """
        timed = self.plan.request(
            slot,
            attempt.knobs,
            name=f"{self.study.id}/{attempt.name}/{self.lease.epoch}",
            workdir=Path(self.study.workdir),
            log_dir=self.paths.attempt(attempt.name).folder,
        )
        shaped = _SHAPES.get(attempt.purpose, as_timed)(timed)
        if attempt.purpose in TRAJECTORIES:
            shaped = dataclasses.replace(shaped, seed=shaped.seed + attempt.round)
        shaped = dataclasses.replace(shaped, stays=self._stays(attempt))
        if allowed is None:
            return shaped
        return within(shaped, allowed.most, self._timed(allowed, live=live))

    def _timed(self, allowed: Allowance, *, live: bool) -> float:
        """Return seconds for the steps of a run, out of its time; its launch may be a slow one."""
        costs = self.costs()
        return max(0.0, allowed.wanted - (costs.switch if live else costs.slow_startup))

    def _stays(self, attempt: StoredAttempt) -> bool:
        """Whether the processes of a run wait for what comes next."""
        if attempt.purpose == Purpose.PROFILE:
            return self.look_stays and not self.attempts().of(Purpose.SEARCH)
        return self._has_workload and attempt.purpose in (*SEARCHING, Purpose.PAIRED)

    @property
    def look_stays(self) -> bool:
        """Whether the baseline's own trial takes over the processes of the look before the search. What
        the profiler leaves behind on a CUDA device has not been measured: there it has its own."""
        on_processors = self.plan.launcher.slots[0].device == "cpu"
        today = self.plan.baseline
        return self._has_workload and on_processors and not why_not_live(today, today)

    @property
    def _has_workload(self) -> bool:
        """Scripts and commands build what they train themselves."""
        workload = self.plan.spec.workload
        return not (workload.is_script or workload.command)

    def tidy_up(self, attempt: StoredAttempt, result: AttemptResult) -> None:
        """Drop what a run has printed, unless somebody may ask for it: of the baseline, and of runs that
        failed or were profiled."""
        asked_for = attempt.purpose == Purpose.PROFILE or (
            attempt.purpose == Purpose.SEARCH and attempt.trial == BASELINE
        )
        failed = result.state not in (AttemptState.COMPLETE, AttemptState.PRUNED)
        if not (failed or asked_for or self.plan.spec.logs == "all"):
            shutil.rmtree(self.paths.attempt(attempt.name).folder, ignore_errors=True)

    @property
    def workload(self) -> str:
        """Name of the workload with a digest of its arguments: what noise is known by."""
        spec = self.plan.spec.workload
        arguments = json.dumps(spec.args, sort_keys=True).encode()
        return f"{spec.label[:200]} {hashlib.sha256(arguments).hexdigest()[:12]}"

    def known_sigma(self) -> float | None:
        """Run-to-run noise that an earlier study has found here."""
        known = self.repository.noise.of_others(
            self.study.id,
            self.environment_id,
            workload=self.workload,
            world_size=self.plan.launcher.workers,
        )
        return known.sigma_run if known else None

    def record_noise(self, noise: StoredNoise) -> None:
        """Keep what this study has found of run-to-run noise."""
        self.repository.noise.record(
            self.lease,
            self.study.id,
            self.environment_id,
            noise,
            workload=self.workload,
            world_size=self.plan.launcher.workers,
        )

    def limits(
        self,
        purpose: Purpose,
        incumbent_low: float,
        noise: RunNoise,
        allowed: Allowance | None,
        *,
        live: bool = False,
    ) -> Limits:
        """How long to measure, in a run that has so much time.

        Args:
            live: processes are there that it is to take over.
        """
        if purpose in (Purpose.CONFIRM, Purpose.REPEAT, Purpose.ATTRIBUTE):
            limits = self.plan.confirm_limits(sigma_run=noise.sigma_run)
        else:
            limits = self.plan.search_limits(
                incumbent_low=incumbent_low,
                sigma_run=noise.sigma_run,
                run_df=noise.df,
                settling=self.costs().settling if incumbent_low else OnsetBound(),
            )
        if allowed is None:
            return limits
        return dataclasses.replace(limits, whole=self._timed(allowed, live=live))

    def costs(self) -> Costs:
        """What runs cost, as far as it is known by now."""
        return self._cost_records.by(self.attempts())

    @functools.cached_property
    def _cost_records(self) -> CostRecords:
        return CostRecords(self.repository.attempts.blocks, self.plan.launcher.slots[0].device)
