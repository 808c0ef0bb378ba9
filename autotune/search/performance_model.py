"""Optuna sampler that knows the parts of a data-parallel training step's time.

It suggests the configuration with the largest expected improvement under the model of
autotune.search.step_model, times the probability that it fits in memory
and does not fail for another reason (autotune.search.failure_models).
The noise of every measurement is taken into account. Parameters with unknown names are searched as
well.
"""

import heapq
import itertools
import math
import operator
import random
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler, RandomSampler
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from autotune.search.failure_models import FaultModel, MemoryModel, is_of_device
from autotune.search.grid import Follows, Grid, Params, Rows, Vector
from autotune.search.observations import Observations
from autotune.search.policy import SEARCH
from autotune.search.space import Space
from autotune.search.step_model import StepModel
from autotune.search.step_parts import Profile
from autotune.search.threads import ThreadpoolController
from autotune.search.trial_attributes import (
    cause_of,
    is_out_of_memory,
    peak_bytes_of,
    value_of,
    was_cut_short,
)
from search_spaces import CATALOGUE
from search_spaces.batch import MICRO_BATCH

Allowed = Callable[[list[FrozenTrial]], Callable[[Params], bool]]
"""Function of the trials so far that returns whether a configuration may be suggested."""

Seconds = Callable[[Params], float]
"""Function that returns the expected time of a configuration's trial, above 0."""


@dataclass(frozen=True)
class Prediction:
    """Expectation of the model.

    Attributes:
        params: parameters of the expected best configuration, among those that ran or probably can.
        value: expected objective of that configuration.
        finalists: configurations to be measured again if the search ended now.
        gain: expected relative improvement by one more trial of usual noise.
        draws: draws of how much faster another configuration is than the finalists, as a share of
            the rate.
        surprise: mean square of the standardised residuals, each measurement predicted from all
            others; 1 where the model holds.
        measured: number of these measurements.
    """

    params: dict[str, Any]
    value: float
    finalists: tuple[dict[str, Any], ...]
    gain: float
    draws: Vector
    surprise: float
    measured: int

    @property
    def left(self) -> float:
        """Expected advantage of another configuration over the finalists."""
        return float(self.draws.mean())

    def chance_of_more(self, share: float) -> float:
        """Return the probability that something beats the finalists by more than this share."""
        return float((self.draws > share).mean())


class PerformanceModelSampler(BaseSampler):
    """Sampler for a study that maximises a rate, such as samples/s.

    Trials may carry the user attributes of `autotune.search.trial_attributes`. A pruned trial counts
    with its last intermediate value; without one, it has failed if it was cut short.
    """

    def __init__(
        self,
        seed: int,
        search_space: Mapping[str, BaseDistribution],
        allowed: Allowed | None = None,
        memory_bytes: float | None = None,
        follows: Follows | None = None,
        finalists: int = 3,
        space: Space | None = None,
    ) -> None:
        """Prepare for one study.

        Args:
            seed: seed of the first suggestions and of draws from very large spaces.
            search_space: parameters of all trials.
            allowed: filter of suggestions; by default every combination of values is allowed.
            memory_bytes: memory of a rank, if `peak_bytes` can be compared with it.
            follows: numbers that are no parameters but follow from one, such as accumulation under
                a fixed global batch.
            finalists: number of configurations that are measured again before one is chosen.
            space: what tells which combinations can run; few may in a large space.
        """
        self._search_space = dict(search_space)
        self._random = np.random.default_rng(seed)
        self._draw = random.Random(seed)
        self._space = space
        self._walked: Rows | None = None
        self._walked_after = 0
        """Number of trials there were when the walks were drawn."""
        self._independent = RandomSampler(seed=seed)
        self._allowed = allowed
        self._speeds: dict[int, float] = {}
        self._memory_bytes = memory_bytes
        self._follows = follows
        self._finalists = finalists
        self._seconds: Seconds | None = None
        self._profile: Profile | None = None
        self._errors: Mapping[int, float] = {}
        self._barred: frozenset[int] = frozenset()
        self._libraries = ThreadpoolController()

    def see(self, profile: Profile | None) -> None:
        """Use the profile of a configuration's step from now on."""
        self._profile = profile

    def doubt(self, errors: Mapping[int, float]) -> None:
        """Use these relative standard errors of ended trials from now on, by number.

        They replace the attributes of the trials, which Optuna does not allow to change.
        """
        self._errors = errors

    def disregard(self, barred: Collection[int]) -> None:
        """Do without the speeds of these trials from now on, which may not be recommended.

        What others have to beat is the fastest trial that may be.

        Args:
            barred: numbers of trials; what they tell of memory and failures counts as before.
        """
        self._barred = frozenset(barred)

    def price(self, seconds: Seconds | None) -> None:
        """Suggest by gain per second from now on (Snoek, Larochelle & Adams 2012, section 3.2).

        A slightly smaller gain may come in a fraction of the time, where a warm worker can be
        reused.

        Args:
            seconds: expected time of the next trial; None: all take the same time.
        """
        self._seconds = seconds

    def infer_relative_search_space(
        self, study: Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """Return the parameters of all trials."""
        return self._search_space

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Return the configuration with the largest expected improvement among those not tried."""
        if not search_space:
            return {}
        # The matrices are small: threads would only disturb each other, and trials.
        with self._libraries.limit(limits=1):
            return self._suggested(study, trial, search_space)

    def _suggested(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        trials = [t for t in study.get_trials(deepcopy=False) if t.number != trial.number]
        grid = Grid(search_space, self._follows)
        telling = self._telling(trials)
        timed = [trial for trial in telling if trial.number not in self._barred]
        candidates = self._candidates(grid, _best_params(timed, grid), len(trials))
        seen = Observations.of(timed, grid, errors=self._errors)
        fits, works = self._chances(grid, telling, candidates)
        if len(seen.times) < SEARCH.few_measured:
            risky = (fits < 1 - SEARCH.risk_before_model) | (works < 1 - SEARCH.doubt_before_model)
            promise = -_apart_from_experts(grid, candidates) - 10.0 * risky
        else:
            model = StepModel(grid, seen, self._profile)
            promise = model.acquisition(candidates) * fits**SEARCH.memory_caution * works
        new = self._new(promise, candidates, grid, trials)
        if self._seconds and len(seen.times) >= SEARCH.few_measured:
            chosen = _best_per_second(new, promise, candidates, grid, self._seconds)
        else:
            chosen = next(new, None)
        if chosen is None:  # all were tried: measure the most promising again
            chosen = int(np.argmax(promise))
        return grid.decode(candidates[chosen])

    def sample_independent(
        self,
        study: Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        """Return a random value, for a parameter that is not in every trial."""
        return self._independent.sample_independent(study, trial, param_name, param_distribution)

    def predict(
        self,
        trials: list[FrozenTrial],
        search_space: Mapping[str, BaseDistribution],
    ) -> Prediction | None:
        """Return the expectation from a study's trials; None before there are enough.

        Configurations that were tried, or are running, are no candidates.

        Args:
            search_space: parameters of all trials.
        """
        if not search_space:
            return None
        with self._libraries.limit(limits=1):
            return self._predicted(trials, search_space)

    def _predicted(
        self, trials: list[FrozenTrial], search_space: Mapping[str, BaseDistribution]
    ) -> Prediction | None:
        grid = Grid(search_space, self._follows)
        telling = self._telling(trials)
        timed = [trial for trial in telling if trial.number not in self._barred]
        seen = Observations.of(timed, grid, errors=self._errors)
        if len(seen.times) < SEARCH.few_measured:
            return None
        candidates = self._candidates(grid, _best_params(timed, grid), len(trials))
        model = StepModel(grid, seen, self._profile)
        fits, works = self._chances(grid, telling, candidates)
        promise = model.gain(candidates) * fits * works
        next_one = self._first_new(promise, candidates, grid, trials)
        # The best is one that ran, or one that is allowed and likely to run.
        likely = candidates[fits * works >= SEARCH.likely_to_run]
        new = self._first_new(-model.expected(likely), likely, grid, trials)
        known = seen.rows if new is None else np.concatenate([seen.rows, likely[[new]]])
        expected = model.expected(known)
        best = int(np.argmin(expected))
        time = float(expected[best]) * seen.unit
        finalists = model.finalists(self._finalists)
        rivals = itertools.islice(
            self._new(model.promise(likely), likely, grid, trials), SEARCH.rival_candidates
        )
        return Prediction(
            params=grid.decode(known[best]),
            value=1 / time,
            finalists=tuple(grid.decode(seen.rows[number]) for number in finalists),
            gain=0.0 if next_one is None else float(promise[next_one]),
            draws=model.left(likely[list(rivals)], finalists),
            surprise=model.surprise(),
            measured=len(seen.times),
        )

    def _candidates(self, grid: Grid, best: Params | None, tried: int) -> Rows:
        """Return the rows that are ranked; of a large space those that can run above all.

        Args:
            best: the best configuration so far, near which some rows are; None: there is none.
            tried: number of trials so far.
        """
        if grid.is_small:
            return grid.candidates(self._random, grid.rows_of([]))
        if self._space is None:
            near = grid.rows_of([]) if best is None else grid.neighbours(best)
            return grid.candidates(self._random, near)
        walked = self._rows_of_walks(grid, self._space, tried)
        near = grid.rows_of([] if best is None else [*self._space.neighbours(best)])
        return grid.candidates(self._random, np.concatenate([walked, near]))

    def _rows_of_walks(self, grid: Grid, space: Space, tried: int) -> Rows:
        """Return rows of walks; other ones once there were trials enough to have half of them tried."""
        if self._walked is None or 2 * (tried - self._walked_after) >= len(self._walked):
            every = grid.rows_of([*space.walks(self._draw, SEARCH.walked_candidates)])
            self._walked, self._walked_after = np.unique(every, axis=0), tried
        return self._walked

    def _telling(self, trials: list[FrozenTrial]) -> list[FrozenTrial]:
        """Return the trials that the models use, in order.

        These are all, or of very many the fastest, the latest, the running ones, and the latest of
        those without a speed.
        """
        if len(trials) <= SEARCH.most_trials:
            return trials
        half = SEARCH.most_trials // 2
        older, latest = trials[:-half], trials[-half:]
        speeds = [(self._speed(trial), trial) for trial in older]
        timed = ((value, t.number) for value, t in speeds if value is not None)
        silent = [t for value, t in speeds if value is None]
        kept = {number for _, number in heapq.nlargest(half, timed)}
        kept |= {t.number for t in silent if not t.state.is_finished()}
        kept |= {t.number for t in silent[-SEARCH.unmeasured_trials :]}
        return [t for t in older if t.number in kept] + latest

    def _speed(self, trial: FrozenTrial) -> float | None:
        """Return `value_of` a trial; one that has ended is read once."""
        if (known := self._speeds.get(trial.number)) is not None:
            return known
        value = value_of(trial)
        if value is not None and trial.state.is_finished():
            self._speeds[trial.number] = value
        return value

    def _chances(
        self, grid: Grid, trials: Sequence[FrozenTrial], candidates: Rows
    ) -> tuple[Vector, Vector]:
        """Return each candidate's probability to fit in memory, and to have no other failure."""
        known = [t for t in trials if grid.covers(t.params)]
        ran = [t for t in known if value_of(t) is not None]
        too_large = [t for t in known if is_out_of_memory(t)]
        failed = [t for t in known if t.state == TrialState.FAIL or was_cut_short(t)]
        if not grid.has_sizes(MICRO_BATCH):
            failed += too_large  # without sizes memory depends on values, like any other cause

        def rows(several: Sequence[FrozenTrial]) -> Rows:
            return grid.rows_of([trial.params for trial in several])

        worked, memory = rows(ran), self._memory_bytes or math.nan
        shares = np.array([peak_bytes_of(t) / memory for t in ran])
        # Only a rank on a device has a known limit. Where the host's ran out, its knobs tell as well.
        causes = [cause_of(t) for t in too_large]
        on_device = self._memory_bytes is not None and all(map(is_of_device, causes))
        model = MemoryModel(grid, worked, rows(too_large), shares, on_device=on_device)
        fits = 1 - model.risk(candidates)
        messages = [cause_of(t) for t in failed]
        works = 1 - FaultModel(grid, worked, rows(failed), messages).risk(candidates)
        return fits, works

    def _first_new(
        self, promise: Vector, candidates: Rows, grid: Grid, trials: list[FrozenTrial]
    ) -> int | None:
        """Return the most promising candidate that is new and allowed; None if there is none."""
        return next(self._new(promise, candidates, grid, trials), None)

    def _new(
        self, promise: Vector, candidates: Rows, grid: Grid, trials: list[FrozenTrial]
    ) -> Iterator[int]:
        """Yield candidates that are new and allowed, the most promising first."""
        allowed = self._allowed(trials) if self._allowed else _not_tried(trials, grid)
        for number in np.argsort(-promise, kind="stable"):
            if allowed(grid.decode(candidates[number])):
                yield int(number)


def _not_tried(trials: Sequence[FrozenTrial], grid: Grid) -> Callable[[Params], bool]:
    values = operator.itemgetter(*grid.names)
    tried = {values(t.params) for t in trials if grid.covers(t.params)}
    return lambda params: values(params) not in tried


def _best_per_second(
    new: Iterator[int], promise: Vector, candidates: Rows, grid: Grid, seconds: Seconds
) -> int | None:
    """Return the candidate with the most gain per second.

    Of equals the first is chosen, so equal costs change nothing.
    """

    def rate(number: int) -> float:
        return float(promise[number]) / seconds(grid.decode(candidates[number]))

    return max(itertools.islice(new, SEARCH.priced_candidates), key=rate, default=None)


def _apart_from_experts(grid: Grid, candidates: Rows) -> Vector:
    """Return the distance of each candidate from promising values (search_spaces.Knob.promising)."""
    known = {n: CATALOGUE[n].promising for n in grid.names if n in CATALOGUE}
    wanted = {n: value for n, value in known.items() if value is not None}
    return grid.distance(candidates, grid.nearest(wanted)[None, :], wanted)[:, 0]


def _best_params(trials: Sequence[FrozenTrial], grid: Grid) -> Params | None:
    known = [t for t in trials if value_of(t) is not None and grid.covers(t.params)]
    best = max(known, key=lambda t: value_of(t) or 0.0, default=None)
    return best.params if best else None
