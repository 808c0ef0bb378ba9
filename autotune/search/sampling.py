"""Optuna samplers that skip configurations that cannot run, were tried, or must run out of memory."""

import functools
import random
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import optuna
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler, GPSampler, RandomSampler, TPESampler
from optuna.trial import FrozenTrial, TrialState

from autotune.search.failure_models import changes_memory, is_of_device
from autotune.search.performance_model import PerformanceModelSampler, Prediction
from autotune.search.policy import SEARCH
from autotune.search.space import Configuration, Space, key
from autotune.search.step_parts import Profile
from autotune.search.trial_attributes import cause_of, is_out_of_memory, value_of
from search_spaces import KnobValue
from search_spaces.batch import ACCUMULATION, MICRO_BATCH


class Exhausted(Exception):
    """Exhaustion of the space: no feasible configuration was found that has not been tried."""


class FeasibleSampler(BaseSampler):
    """Wrapper that asks another sampler until it proposes a configuration worth launching.

    After some tries it takes a random one. Whole configurations are decided at once
    (`sample_relative`), so nothing infeasible ever becomes a trial.
    """

    def __init__(
        self,
        inner: BaseSampler,
        space: Space,
        seed: int,
        tries: int,
        worth: "WorthLaunching | None" = None,
    ) -> None:
        self._inner = inner
        self._model = inner if isinstance(inner, PerformanceModelSampler) else None
        self._space = space
        self._worth = worth or WorthLaunching(space)
        self._random = random.Random(seed)
        self._tries = tries

    def has_more(self, trials: list[FrozenTrial]) -> bool:
        """Return whether any configuration may be left to propose.

        To be called before Optuna is asked for a trial: a trial that cannot be filled stays behind.
        Of a space too large to enumerate only that trial shows it.
        """
        if any(trial.state == TrialState.WAITING for trial in trials):
            return True
        return self._space.any_feasible(self._worth(trials))

    @property
    def has_model(self) -> bool:
        """True if the sampler can predict the gain of another trial."""
        return self._model is not None

    def see(self, knobs: Mapping[str, KnobValue], shares: Mapping[str, float]) -> None:
        """Pass the profile of a configuration's step to the inner sampler, if it can use it.

        Args:
            shares: shares of its time by part, see search_spaces.knob.PARTS.
        """
        if self._model:
            params = {name: knobs[name] for name in self._space.distributions()}
            self._model.see(Profile(params, shares))

    def doubt(self, errors: Mapping[int, float]) -> None:
        """Pass later estimates of the trials' errors to the inner sampler, if it can use them.

        Args:
            errors: relative standard errors by number of the trial.
        """
        if self._model:
            self._model.doubt(errors)

    def price(self, seconds: Callable[[dict[str, KnobValue]], float]) -> None:
        """Have the inner sampler, if it can, suggest by gain per second.

        Args:
            seconds: expected time of the next trial, given a value for every knob.
        """
        if self._model:
            self._model.price(lambda params: seconds(self._space.complete(params)))

    def restrict(
        self, provable: Callable[[Mapping[str, KnobValue]], bool], barred: Collection[int] = ()
    ) -> None:
        """Look for what can be recommended; a configuration that was enqueued is taken as it is.

        Args:
            provable: returns whether a trial could be proven, given a value for every knob.
            barred: trials that may not be recommended; the inner sampler, if it can, does without them.
        """
        self._worth.provable = provable
        if self._model:
            self._model.disregard(barred)

    def prediction(self, trials: list[FrozenTrial]) -> Prediction | None:
        """Return the inner sampler's expectation; None if it has no model, or too few trials."""
        return self._model.predict(trials, self._space.distributions()) if self._model else None

    def infer_relative_search_space(
        self, study: optuna.Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """Return all knobs that vary."""
        return self._space.distributions()

    def sample_relative(
        self,
        study: optuna.Study,
        trial: FrozenTrial,
        search_space: dict[str, BaseDistribution],
    ) -> dict[str, Any]:
        """Return a feasible configuration that has not been tried.

        Raises:
            Exhausted: no configuration is left, or none is found in a space too large to enumerate.
        """
        others = [t for t in study.get_trials(deepcopy=False) if t.number != trial.number]
        worth = self._worth(others)
        # Some values are fixed in an enqueued trial, and in one whose daemon died while it asked.
        given = {**trial.system_attrs.get("fixed_params", {}), **trial.params}
        settled = {name: given[name] for name in search_space if name in given}
        if settled:
            worth = self._worth.at_any_price(others)
        for _ in range(self._tries):
            params = self._ask_inner(study, trial, search_space) | settled
            if worth(params):
                return params
        candidates = self._space.feasible(self._random)
        fitting = (params for params in candidates if params.items() >= settled.items())
        chosen = next((params for params in fitting if worth(params)), None)
        if chosen is None:
            raise Exhausted
        return dict(chosen)

    def sample_independent(
        self,
        study: optuna.Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        """Delegate to the inner sampler; reached only for parameters outside the space."""
        return self._inner.sample_independent(study, trial, param_name, param_distribution)

    def _ask_inner(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        known = self._inner.infer_relative_search_space(study, trial)
        params = self._inner.sample_relative(study, trial, known)
        for name, distribution in search_space.items():
            if name not in params:
                params[name] = self._inner.sample_independent(study, trial, name, distribution)
        return params


def _any(_: Mapping[str, KnobValue]) -> bool:
    return True


class WorthLaunching:
    """Filter of configurations that are feasible, new, provable, and not bound to run out of memory.

    Trials that have ended do not change, so they are read once. What it is asked of fewer trials than
    it has read follows from these alone.

    Attributes:
        provable: returns whether a trial could be proven, given a value for every knob.
    """

    def __init__(self, space: Space) -> None:
        self._space = space
        self.provable: Callable[[Mapping[str, KnobValue]], bool] = _any
        self._of_fewer: WorthLaunching | None = None
        self._ended: set[int] = set()
        self._tried: set[Configuration] = set()
        self._too_large: list[Shortage] = []
        self._ran: list[dict[str, KnobValue]] = []
        self._names = list(space.distributions())

    def __call__(self, trials: list[FrozenTrial]) -> Callable[[Mapping[str, KnobValue]], bool]:
        """Return the filter of sampled parameters for these trials."""
        worth, provable = self.at_any_price(trials), self.provable
        if provable is _any:
            return worth
        # What can be proven is soon known, and may be the same for a whole kind.
        return lambda params: provable(self._space.complete(params)) and worth(params)

    def at_any_price(self, trials: list[FrozenTrial]) -> Callable[[Mapping[str, KnobValue]], bool]:
        """Return the same filter where it does not matter what can be proven."""
        new = [trial for trial in trials if trial.number not in self._ended]
        if len(trials) - len(new) < len(self._ended):
            return self._for_fewer(trials).at_any_price(trials)
        for trial in new:
            if trial.state.is_finished():
                self._take(trial)
        begun = [t for t in new if t.state != TrialState.WAITING]
        running = {self._key(t.params) for t in begun}

        def worth(params: Mapping[str, KnobValue]) -> bool:
            own = self._key(params)
            if own in self._tried or own in running or self._space.problems(params):
                return False
            full = self._space.complete(params)
            return not any(known.recurs_in(full) for known in self._too_large)

        return worth

    def _for_fewer(self, trials: Sequence[FrozenTrial]) -> "WorthLaunching":
        """Return a filter that has read none but these trials."""
        if self._of_fewer is None or not self._of_fewer._ended <= {t.number for t in trials}:
            self._of_fewer = WorthLaunching(self._space)
        return self._of_fewer

    def _key(self, params: Mapping[str, KnobValue]) -> Configuration:
        # Trials of an earlier version may have parameters that follow from others today.
        return key({name: params[name] for name in self._names if name in params})

    def _take(self, trial: FrozenTrial) -> None:
        self._ended.add(trial.number)
        self._tried.add(self._key(trial.params))
        knobs = self._space.complete(trial.params)
        if is_out_of_memory(trial):
            shortage = Shortage.of(knobs, cause_of(trial))
            self._too_large += surely_too_large([shortage], self._ran)
        elif value_of(trial) is not None:  # one that was ended early for its speed has fitted, too
            self._ran.append(knobs)
            self._too_large = surely_too_large(self._too_large, [knobs])


class Shortage(NamedTuple):
    """Configuration that ran out of memory.

    Attributes:
        knobs: a value for every knob.
        on_device: True if it was memory of a CUDA device for certain.
    """

    knobs: Mapping[str, KnobValue]
    on_device: bool

    @classmethod
    def of(cls, knobs: Mapping[str, KnobValue], cause: str) -> "Shortage":
        """Return the shortage of a trial that ended with this cause."""
        return cls(knobs, is_of_device(cause))

    def recurs_in(self, knobs: Mapping[str, KnobValue]) -> bool:
        """Return whether another configuration surely needs at least as much."""
        return needs_more_memory(knobs, self.knobs, on_device=self.on_device)


def needs_more_memory(
    knobs: Mapping[str, KnobValue], other: Mapping[str, KnobValue], *, on_device: bool = False
) -> bool:
    """Return whether a configuration surely needs at least the memory of the other.

    It has a micro-batch no smaller, and everything else that memory depends on is the same.

    Accumulation keeps the gradients of one micro-batch while the next one runs. They are as large
    as the weights, however many micro-batches they wait for. Of a large model that can be more than
    the activations of several samples, so nothing follows for a configuration without them.

    Args:
        knobs: a value for every knob.
        other: likewise.
        on_device: whether it is the memory of a CUDA device, of which knobs of the host take none.
    """
    for name, value in knobs.items():
        if value == other[name] or name == MICRO_BATCH:
            continue
        if changes_memory(name, on_device=on_device):
            return False
    if knobs["accumulation_steps"] == 1 != other["accumulation_steps"]:
        return False
    return int(knobs["micro_batch"]) >= int(other["micro_batch"])


def surely_too_large(
    failed: Iterable[Shortage], ran: Sequence[Mapping[str, KnobValue]]
) -> list[Shortage]:
    """Return what ran out of memory, except where something ran that needs at least as much.

    There it was not the memory of the device, or other programs took some of it.

    Args:
        failed: configurations that ran out of memory.
        ran: configurations that ran, a value for every knob.
    """
    return [one for one in failed if not any(map(one.recurs_in, ran))]


def sampler(
    name: str,
    space: Space,
    seed: int,
    memory_bytes: float | None = None,
    finalists: int = 3,
) -> FeasibleSampler:
    """Return the sampler of that name, in this space.

    Args:
        name: model (PerformanceModelSampler), tpe, gp, random or grid (every feasible configuration in
            random order).
        seed: seed; use another one when a study is continued, or its first draws come again.
        memory_bytes: memory of a rank, if its peak can be compared with it.
        finalists: number of configurations that are measured again; more must be expected beyond
            them.
    """
    if name == "model":
        worth = WorthLaunching(space)
        splits = space.splits
        follows = {ACCUMULATION: (MICRO_BATCH, splits.steps)} if splits else None
        ours = PerformanceModelSampler(
            seed, space.distributions(), worth, memory_bytes, follows, finalists, space
        )
        return FeasibleSampler(ours, space, seed, 1, worth)
    inner, tries = _INNER[name]
    return FeasibleSampler(inner(seed=seed), space, seed, tries)


_TPE = functools.partial(TPESampler, multivariate=True, n_startup_trials=SEARCH.startup_trials)
_GP = functools.partial(GPSampler, n_startup_trials=SEARCH.startup_trials)
# Number of proposals before a random configuration is taken.
_INNER: dict[str, tuple[Callable[..., BaseSampler], int]] = {
    "tpe": (_TPE, SEARCH.patience_of_tpe),
    "gp": (_GP, SEARCH.patience_of_gp),
    "random": (RandomSampler, SEARCH.patience_of_tpe),
    "grid": (RandomSampler, 0),
}
