"""Rates and noise of trials as they are known by now, on the node of the baseline's own trial. Pure.

Early trials were recorded with an assumed noise, and trials on other nodes ran at other speeds. The
run-to-run noise is learnt from runs of the baseline: when it runs again, and what its runs show.
"""

import dataclasses
import itertools
import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, Self

from autotune.analysis.compilation import graph
from autotune.measurement.measure import SAMPLES_PER_SECOND, Measure
from autotune.measurement.noise import (
    PRIOR_SIGMA,
    RepeatedRun,
    RunNoise,
    run_noise,
    standard_error,
)
from autotune.measurement.policy import MEASUREMENT, PROOF
from storage import (
    SEARCH_RUNS,
    TRIAL_RUNS,
    AttemptResult,
    Attempts,
    AttemptState,
    Blocks,
    Purpose,
    StoredAttempt,
)

_BY_OWN_STEPS = (MEASUREMENT.computing_processes, MEASUREMENT.waiting_processes)
"""Noise between runs as a trial's own steps tell it, which were timed one by one."""


def with_known_noise(attempts: Attempts) -> Attempts:
    """Return the attempts with the noise that the study has found since.

    It is that of early trials, and of runs that met a wave of slow steps.
    """
    found = {one.id: one for one in (*_early(attempts), *_in_waves(attempts))}
    return attempts.each(lambda one: found.get(one.id, one)) if found else attempts


def errors_of_early(attempts: Attempts) -> dict[int, float]:
    """Return the relative standard errors of early trials as they are known by now, by trial."""
    known = ((one.trial, error_of(one.result)) for one in _early(attempts))
    return {trial: error for trial, error in known if error is not None}


def _early(attempts: Attempts) -> Iterator[StoredAttempt]:
    """Yield the trials before the first repeated or paired baseline, with the noise known by now."""
    first = attempts.of(Purpose.CALIBRATE, Purpose.PAIRED).complete().first
    own = attempts.baseline()  # the reference of all trials, which stays as it is recorded
    if first is None or own is None:
        return
    newest, apart = _newest_sigma(attempts), _apart(own, attempts)
    for one in itertools.takewhile(lambda one: one.id < first.id, attempts.of(Purpose.SEARCH)):
        sigma = one.result.sigma_run
        assumed = sigma is not None and sigma == own.result.sigma_run
        known = sigma if sigma in _BY_OWN_STEPS else newest if assumed else None
        if one is not own and known is not None:
            noise = math.hypot(known, apart)
            yield dataclasses.replace(one, result=dataclasses.replace(one.result, sigma_run=noise))


def _in_waves(attempts: Attempts) -> Iterator[StoredAttempt]:
    """Yield the trials whose device seemed to wait, though most runs of their graph compute.

    A short run that meets a wave of slow steps scatters like one that waits for its host.
    """
    own, runs = attempts.baseline(), list(attempts.of(*TRIAL_RUNS))
    waiting = [one for one in runs if one.result.sigma_run == MEASUREMENT.waiting_processes]
    told = defaultdict(list)
    for one in runs if waiting else ():
        if one.result.sigma_run is not None:
            told[graph(one.knobs)].append(one.result.sigma_run)
    for one in waiting:
        sigma = statistics.median_high(told[graph(one.knobs)])
        if one is not own and sigma != one.result.sigma_run:
            yield dataclasses.replace(one, result=dataclasses.replace(one.result, sigma_run=sigma))


def _apart(own: StoredAttempt, attempts: Attempts) -> float:
    """Return the relative difference between the paired and the unpaired speed of the baseline.

    An unpaired trial may differ as much from the paired ones. It is 0 while nothing is paired.
    """
    beside = attempts.of(Purpose.PAIRED).complete().measured()
    rates = [one.result.throughput or 0.0 for one in beside]
    if not rates or not own.result.throughput:
        return 0.0
    return abs(math.log(statistics.median(rates) / own.result.throughput))


def _newest_sigma(attempts: Attempts) -> float | None:
    """Return the latest noise between runs, of an unpaired trial or of the baseline of a pair.

    The noise of a paired trial is that of its ratio, which is smaller. What a trial's own steps tell
    is of that trial alone.
    """
    newest_first = reversed(list(attempts.of(*SEARCH_RUNS)))
    found = (
        one.result.sigma_run
        for one in newest_first
        if one.result.throughput is not None and not attempts.paired_baseline_of(one)
    )
    return next((sigma for sigma in found if sigma not in _BY_OWN_STEPS), None)


class Level(NamedTuple):
    """Factor of the rates of a node, and its relative standard error."""

    factor: float = 1.0
    error: float = MEASUREMENT.nodes_apart

    def applied(self, result: AttemptResult) -> AttemptResult:
        """Return the result of a run on the node at the speed of the home node."""
        if result.throughput is None or self.factor == 1.0:
            return result
        return dataclasses.replace(result, throughput=self.factor * result.throughput)

    def doubted(self, error: float | None) -> float | None:
        """Return a run's relative standard error with that of the level; None if its own is unknown."""
        return None if error is None else math.hypot(error, self.error)

    def least(self, rate: float) -> float:
        """Return the least rate on the node that a rate of the home node amounts to."""
        return rate / (self.factor * math.exp(MEASUREMENT.doubt_of_level * self.error))


AT_HOME = Level(1.0, 0.0)
"""Level of the node on which the baseline's own trial ran."""


class Levels:
    """Speeds of nodes, by the rates of the baseline on each.

    The environments of attempts tell nodes apart. Few runs count for little: a level is drawn towards 1.
    """

    def __init__(
        self, *, differ: bool, home: int | None = None, known: Mapping[int | None, Level] = {}
    ) -> None:
        """Take in the levels.

        Args:
            differ: True if there are several environments; else all rates stay as they are.
            home: environment of the baseline's own trial, whose rates stay as well; None: unknown.
            known: levels of other environments.
        """
        self._differ = differ
        self._home = home
        self._known = known

    @classmethod
    def of(cls, attempts: Attempts) -> Self:
        """Return the levels that all runs of the baseline for the search show."""
        # Most studies have one node, and this is called for every trial.
        if len({attempt.environment for attempt in attempts} - {None}) < 2:
            return cls(differ=False)
        if (own := attempts.baseline()) is None:
            return cls(differ=True)
        runs: dict[int | None, list[StoredAttempt]] = {}
        for run in attempts.baseline_runs().measured():
            runs.setdefault(run.environment, []).append(run)
        here = runs.pop(own.environment)
        known = {there: _level(here, runs[there]) for there in runs}
        return cls(differ=True, home=own.environment, known=known)

    def at(self, environment: int | None) -> Level:
        """Return the level of an environment."""
        if not self._differ or environment in (None, self._home):
            return AT_HOME
        return self._known.get(environment, Level())

    def applied(self, attempts: Attempts) -> Attempts:
        """Return the attempts with the rates of the home node.

        Their noise is what is known by now, with the error of the levels in it.
        """
        known = with_known_noise(attempts)
        return known.each(self._applied) if self._differ else known

    def _applied(self, attempt: StoredAttempt) -> StoredAttempt:
        level = self.at(attempt.environment)
        if not level.error:
            return attempt
        doubt = level.doubted(attempt.result.sigma_run or 0.0)
        result = dataclasses.replace(level.applied(attempt.result), sigma_run=doubt)
        return dataclasses.replace(attempt, result=result)


def levelled(attempts: Attempts) -> Attempts:
    """Return the attempts with the rates of the home node, by the levels that they show."""
    return attempts.derived(_levelled)


def _levelled(attempts: Attempts) -> Attempts:
    return Levels.of(attempts).applied(attempts)


def pooled_baseline(attempts: Attempts) -> StoredAttempt | None:
    """Return the baseline's own trial at the mean rate of all of its runs in the search.

    Its error is that of the mean. Where trials were paired, the trial is returned as it is: its rate is
    what theirs are told by.
    """
    level = levelled(attempts)
    own = level.baseline()
    runs = list(level.baseline_runs().measured())
    if own is None or len(runs) < 2 or attempts.of(Purpose.PAIRED):
        return own
    rate, error = math.exp(_mean_log(runs)), _error_of_mean(runs)
    mean = dataclasses.replace(
        own.result, throughput=rate, block_half_width=0.0, block_freedom=None, sigma_run=error
    )
    return dataclasses.replace(own, result=mean)


def _level(here: Sequence[StoredAttempt], there: Sequence[StoredAttempt]) -> Level:
    """Return the level by the mean log rates of both nodes, drawn towards 1."""
    error = math.hypot(_error_of_mean(here), _error_of_mean(there))
    faster = _mean_log(here) - _mean_log(there)
    if abs(faster) > MEASUREMENT.odd_node * math.hypot(MEASUREMENT.nodes_apart, error):
        return Level(math.exp(faster), error)
    known = MEASUREMENT.nodes_apart**2 / (MEASUREMENT.nodes_apart**2 + error**2)
    return Level(math.exp(known * faster), error * math.sqrt(known))


def _mean_log(runs: Sequence[StoredAttempt]) -> float:
    return statistics.fmean(math.log(run.result.throughput or math.ulp(0.0)) for run in runs)


def _error_of_mean(runs: Sequence[StoredAttempt]) -> float:
    errors = [error_of(run.result) for run in runs]
    most = (PROOF.most_error if e is None else min(e, PROOF.most_error) for e in errors)
    return math.hypot(*most) / len(runs)


def error_of(result: AttemptResult) -> float | None:
    """Return the relative standard error of a run's rate, by its blocks and by runs; None if unknown."""
    if result.block_half_width is None:
        return None
    df = math.inf if result.block_freedom is None else result.block_freedom
    return math.hypot(standard_error(result.block_half_width, df), result.sigma_run or 0.0)


class Calibration:
    """Plan of the baseline's repeated runs, made from the records alone, so that a study can go on."""

    def __init__(
        self,
        first_runs: int,
        prior_sigma: float | None,
        blocks: Blocks,
        measure: Measure = SAMPLES_PER_SECOND,
    ) -> None:
        """Plan for a study.

        Args:
            first_runs: runs of the baseline early in the search, its own trial included; 1: it is never
                run again.
            prior_sigma: noise that an earlier study found in this environment; None: none did.
            blocks: returns the blocks of an attempt by its id.
            measure: what the study compares configurations by.
        """
        self._blocks = blocks
        self._measure = measure
        self._first_runs = first_runs
        self._prior = PRIOR_SIGMA if prior_sigma is None else prior_sigma

    def due(
        self, attempts: Attempts, slots: Sequence[int | None], under_way: Sequence[int | None]
    ) -> list[int | None]:
        """Return the environments in which it is time to run the baseline.

        It runs once in each, for their rates to be comparable, and again in the one in which it has run
        most. A run that is lost is repeated once.

        Args:
            slots: environments of all slots.
            under_way: environments of those on which the baseline runs.
        """
        own = attempts.of(Purpose.SEARCH).of_baseline().last
        if own is None or self._first_runs < 2 or not (own.running or _measured(own)):
            return []
        again = [own, *attempts.of(Purpose.CALIBRATE)]
        runs = Counter([*(one.environment for one in again if one.recorded), *under_way])
        runs.update(_repeated([one for one in again if one.result.state == AttemptState.LOST]))
        found = [environment for environment in dict.fromkeys(slots) if not runs[environment]]
        most = max(slots, key=lambda environment: runs[environment], default=None)
        first = min((one.id for one in again if one.environment == most), default=0)
        since = sum(trial.id > first for trial in attempts.searched())
        wanted = (
            self._first_runs + since // MEASUREMENT.baseline_again_after
            if since >= MEASUREMENT.baseline_first_after
            else 1
        )
        return [*found, most] if _measured(own) and 0 < runs[most] < wanted else found

    def noise(self, attempts: Attempts) -> RunNoise:
        """Return the noise that the baseline shows in the environment where it last ran again.

        Differences between machines are no noise between runs.
        """
        own = attempts.baseline()
        runs = [a for a in [own, *attempts.of(Purpose.CALIBRATE)] if a and _measured(a)]
        count = Counter(a.environment for a in runs)
        newest_first = [a.environment for a in reversed(runs)]
        again = [environment for environment in newest_first if count[environment] > 1]
        here = (again or newest_first)[:1]
        return run_noise([self._run(a) for a in runs if a.environment in here], self._prior)

    def _run(self, attempt: StoredAttempt) -> RepeatedRun:
        result = attempt.result
        kept = [block for block in self._blocks(attempt.id) if block.kept]
        freedom = result.block_freedom
        if freedom is None:
            freedom = self._measure.estimate(kept).df if kept else math.inf
        half_width = result.block_half_width or 0.0
        return RepeatedRun(result.throughput or 0.0, half_width, attempt.started, freedom)


def _repeated(lost: Iterable[StoredAttempt]) -> Counter[int | None]:
    """Return how often more than once a run was lost in each environment; a second loss is final."""
    count = Counter(one.environment for one in lost)
    return Counter({environment: times - 1 for environment, times in count.items()})


def _measured(attempt: StoredAttempt) -> bool:
    result = attempt.result
    return result.state == AttemptState.COMPLETE and result.throughput is not None


def unrest(noise: RunNoise, attempts: Attempts) -> str:
    """Return why trials that follow each other do not compare; empty if they do.

    One run of the baseline may show it: the sooner trials are paired, the fewer are unpaired.
    """
    runs = [attempt.result for attempt in attempts.baseline_runs().measured()]
    if not runs:
        return ""
    error = math.hypot(noise.sigma_run, statistics.median(map(_error_of_blocks, runs)))
    if error > MEASUREMENT.restless:
        return f"by the runs of the baseline one of them is off by {error:.1%} (standard error)"
    if abs(noise.drift_per_hour or 0.0) > MEASUREMENT.drifting:
        return f"the machine's speed drifts by {noise.drift_per_hour:+.1%} an hour"
    disturbed = sum(run.contended for run in runs)
    if 2 * disturbed > len(runs):
        return f"others disturbed {disturbed} of {len(runs)} runs of the baseline"
    return ""


def _error_of_blocks(run: AttemptResult) -> float:
    """Return the relative standard error of a run by its blocks; 0 if they tell nothing."""
    if run.block_half_width is None or run.block_freedom is None:
        return 0.0
    return standard_error(run.block_half_width, run.block_freedom)
