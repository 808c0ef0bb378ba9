"""Search space of one study on one machine, limited to what can run there.

A fixed global batch is split into micro-batches and accumulation.
"""

import itertools
import math
import random
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from optuna.distributions import BaseDistribution, CategoricalDistribution

from autotune.search.policy import SEARCH
from search_spaces import CATALOGUE, Facts, KnobValue, infeasible
from search_spaces.batch import ACCUMULATION, BATCH_KNOBS, MICRO_BATCH, divisors
from search_spaces.constraints import conflict_reasons, unmet_needs
from search_spaces.knob import written

Configuration = tuple[tuple[str, KnobValue], ...]


@dataclass(frozen=True)
class Splits:
    """Pairs of micro-batch and accumulation that give the global batch.

    Attributes:
        steps: accumulation by micro-batch, the largest micro-batch first.
        left_out: listed values without a partner, with the reasons.
    """

    steps: Mapping[int, int]
    left_out: tuple[str, ...] = ()

    def described(self) -> str:
        """Text such as '64 x 1, 32 x 2, 16 x 4'."""
        return ", ".join(f"{size} x {steps}" for size, steps in self.steps.items())


def splits(
    listed: Mapping[str, Sequence[KnobValue]], baseline: Mapping[str, KnobValue], facts: Facts
) -> Splits | None:
    """Return the splits that a study tries; None if there is no choice.

    Any global batch may compete then, or no split varies. The split is one choice. A study that
    lists values of either knob gets every pair whose micro-batch or whose accumulation lies within
    the listed values, the baseline's included. A knob that is listed with one value only keeps it.

    Args:
        listed: values per knob of the study; other knobs may be present.
        baseline: a value for every knob.
        facts: facts of the study, with the global batch.
    """
    wanted = {name: _whole(listed[name], baseline[name]) for name in BATCH_KNOBS if name in listed}
    if facts.global_batch_size is None or not wanted:
        return None
    share, rest = divmod(facts.global_batch_size, facts.world_size)
    if rest:
        return None  # no configuration has the global batch: the baseline will be refused for that
    several = {name: values for name, values in wanted.items() if len(values) > 1}
    pairs = [(size, share // size) for size in divisors(share)]
    own = tuple(int(baseline[name]) for name in BATCH_KNOBS)
    held = len(several) < len(wanted)
    steps = {
        size: steps
        for size, steps in pairs
        if (size, steps) == own or (not held and _tried((size, steps), several))
    }
    left_out = tuple(_without_partner(wanted, steps, share, facts))
    return Splits(steps, left_out)


def _whole(listed: Sequence[KnobValue], baseline: KnobValue) -> list[int]:
    return sorted({int(value) for value in (*listed, baseline)})


def _tried(pair: tuple[int, int], wanted: Mapping[str, list[int]]) -> bool:
    named = dict(zip(BATCH_KNOBS, pair, strict=True))
    if any(CATALOGUE[name].domain.problem(value) for name, value in named.items()):
        return False
    return any(values[0] <= named[name] <= values[-1] for name, values in wanted.items())


def _without_partner(
    wanted: Mapping[str, list[int]], steps: Mapping[int, int], share: int, facts: Facts
) -> list[str]:
    tried = {MICRO_BATCH: set(steps), ACCUMULATION: set(steps.values())}
    reasons = []
    for name, values in wanted.items():
        lonely = [str(value) for value in values if value not in tried[name]]
        if lonely:
            reasons.append(
                f"{name} {', '.join(lonely)} {'has' if len(lonely) == 1 else 'have'} no partner that "
                f"gives {share} samples per rank and step, a global batch of {facts.global_batch_size}"
            )
    return reasons


class Space:
    """Values per knob, with the constraints of the machine and the study.

    Where the global batch is fixed, accumulation follows from the micro-batch: it is no parameter
    of its own, and `complete` adds it.

    Attributes:
        left_out: reasons why requested values are not tried here.
        splits: splits of a fixed global batch; None if no split varies.
    """

    def __init__(
        self,
        values: Mapping[str, list[KnobValue]],
        baseline: Mapping[str, KnobValue],
        facts: Facts,
        refusal: Callable[[dict[str, KnobValue]], str] = lambda _: "",
    ) -> None:
        """Take in the knobs that may vary.

        Args:
            values: values to try per knob; a knob that is not named keeps the baseline's value.
            baseline: a value for every knob. It belongs to the space: its values join the others.
            facts: facts about the machine and the study.
            refusal: returns another reason why a configuration cannot run; empty: none.
        """
        self._baseline = dict(baseline)
        self._facts = facts
        self._refusal = refusal
        self._found = 0
        self.left_out: list[str] = []
        self.splits = splits(values, baseline, facts)
        if self.splits:
            self.left_out.extend(self.splits.left_out)
            others = {n: given for n, given in values.items() if n != ACCUMULATION}
            values = {**others, MICRO_BATCH: sorted(self.splits.steps)}
        self._values = {name: self._usable(name, given) for name, given in values.items()}
        self._shrink()
        for name, value in self._constants().items():
            other = next(given for given in self._values[name] if given != value)
            reason = self.problems({name: other})
            self._keep(name, [value], reason[0] if reason else "none runs with the rest")

    def _keep(self, name: str, values: list[KnobValue], why: str) -> None:
        """Leave out all other values of a knob."""
        kept = ", ".join(map(written, values))
        self.left_out.append(f"other values of {name} than {kept}: {why}")
        self._values[name] = values

    def keep(self, asked: Mapping[str, BaseDistribution]) -> None:
        """Let the same knobs vary as in earlier trials, between the same values.

        What cannot run any more is infeasible, and what can by now keeps the baseline's value: the
        trials of a study are all of one space.

        Args:
            asked: distributions of the parameters of earlier trials; empty: there are none.
        """
        for name, baseline in self.complete({}).items() if asked else ():
            domain = asked.get(name)
            if isinstance(domain, CategoricalDistribution) and name in self._values:
                self._values[name] = [choice for choice in domain.choices if choice is not None]
            elif len(self._values.get(name, ())) > 1:
                self._values[name] = [baseline]

    def _shrink(self) -> None:
        """Leave out what no configuration can have, in a space too large to look through."""
        while self.size > SEARCH.searched_for_constants:
            fixed = self._baseline.keys() - {*self.varying}
            found = {name: self._lonely(name, fixed) for name in self.distributions()}
            if not any(found.values()):
                return
            for name, reasons in found.items():
                if reasons:
                    kept = [value for value in self._values[name] if value not in reasons]
                    self._keep(name, kept, next(iter(reasons.values())))

    def _lonely(self, name: str, fixed: Collection[str]) -> dict[KnobValue, str]:
        """Return a knob's values that do not go with the only ones of fixed knobs, with reasons."""
        baseline, facts, among = self.complete({}), self._facts, {*fixed, name}
        reasons = {}
        for value in self._values[name]:
            knobs = {**baseline, name: value}
            found = conflict_reasons(knobs, facts.device, slow_pairs=facts.slow_pairs, among=among)
            if value != baseline[name] and (reason := next(found, None)):
                reasons[value] = reason
        return reasons

    def _constants(self) -> dict[str, KnobValue]:
        """Return knobs with several values that are the same in all feasible configurations."""
        constant: dict[str, KnobValue] = {}
        if self.size > SEARCH.searched_for_constants:
            return constant
        candidates = self.feasible(random.Random(0))
        constant = dict(next(candidates, {}))
        while constant and (params := next(candidates, None)):
            constant = {name: value for name, value in constant.items() if params[name] == value}
        return constant

    def _usable(self, name: str, given: list[KnobValue]) -> list[KnobValue]:
        wanted = list(given)
        if self._baseline[name] not in wanted:
            wanted.append(self._baseline[name])
        if _in_order(name, wanted):
            wanted.sort(key=float)
        usable = []
        for value in wanted:
            reasons = list(unmet_needs({name: value}, self._facts))
            self.left_out.extend(reasons)
            if not reasons:
                usable.append(value)
        return usable

    def distributions(self) -> dict[str, BaseDistribution]:
        """Return Optuna's distributions: every knob with more than one value."""
        return {
            name: CategoricalDistribution(values)
            for name, values in self._values.items()
            if len(values) > 1
        }

    def complete(self, params: Mapping[str, KnobValue]) -> dict[str, KnobValue]:
        """Return a value for every knob: sampled ones, those with one value, else the baseline's."""
        single = {name: values[0] for name, values in self._values.items() if len(values) == 1}
        knobs = {**self._baseline, **single, **params}
        if self.splits and ACCUMULATION not in params:
            size = int(knobs[MICRO_BATCH])
            knobs[ACCUMULATION] = self.splits.steps.get(size, knobs[ACCUMULATION])
        return knobs

    @property
    def varying(self) -> list[str]:
        """Names of the knobs with several values, those that follow from others included."""
        follows = [ACCUMULATION] if self.splits and len(self.splits.steps) > 1 else []
        return [*self.distributions(), *follows]

    def problems(self, params: Mapping[str, KnobValue]) -> list[str]:
        """Return reasons why a configuration cannot run or may not compete."""
        knobs = self.complete(params)
        problems, refusal = infeasible(knobs, self._facts), self._refusal(knobs)
        return [*problems, refusal] if refusal else problems

    def nearest(self, name: str, wanted: KnobValue) -> KnobValue | None:
        """Return a knob's wanted value or, among numbers, the nearest one; None if there is none."""
        values = self._values[name]
        if any(value == wanted and type(value) is type(wanted) for value in values):
            return wanted
        if isinstance(wanted, bool | str) or any(isinstance(v, bool | str) for v in values):
            return None
        return min(values, key=lambda value: abs(float(value) - float(wanted)))

    def largest(self, name: str, most: float) -> KnobValue | None:
        """Return the largest value of a knob of numbers up to this one; None if there is none."""
        return max((v for v in self._values[name] if float(v) <= most), key=float, default=None)

    @property
    def size(self) -> int:
        """Number of combinations, infeasible ones included."""
        return math.prod(len(values) for values in self._values.values())

    @property
    def enumerable(self) -> bool:
        """True if all combinations can be enumerated."""
        return self.size <= SEARCH.enumerable_space

    def any_feasible(self, worth: Callable[[Mapping[str, KnobValue]], bool]) -> bool:
        """Return whether some configuration passes; assumed of a space too large to enumerate.

        It looks first where it found one the last time: what lies before rarely passes later.
        """
        if not self.enumerable:
            return True
        names, start = list(self.distributions()), self._found
        later, earlier = self._every(names, start, None), self._every(names, 0, start)
        for number, values in itertools.chain(later, earlier):
            if worth(dict(zip(names, values, strict=True))):
                self._found = number
                return True
        return False

    def _every(
        self, names: Sequence[str], start: int, stop: int | None
    ) -> Iterator[tuple[int, tuple[KnobValue, ...]]]:
        """Yield the combinations of all values with their numbers, between two of these."""
        everything = itertools.product(*(self._values[name] for name in names))
        return itertools.islice(enumerate(everything), start, stop)

    def feasible(self, generator: random.Random) -> Iterator[dict[str, KnobValue]]:
        """Yield feasible sampled parameters in random order.

        These are all, each once, where the space can be enumerated; otherwise those among many
        independent draws.
        """
        names = list(self.distributions())
        if self.enumerable:
            everything = list(itertools.product(*(self._values[name] for name in names)))
            generator.shuffle(everything)
            candidates = iter(everything)
        else:
            candidates = (
                tuple(generator.choice(self._values[name]) for name in names)
                for _ in range(SEARCH.look_ahead)
            )
        for values in candidates:
            params = dict(zip(names, values, strict=True))
            if not self.problems(params):
                yield params

    def walks(self, generator: random.Random, count: int) -> Iterator[dict[str, KnobValue]]:
        """Yield feasible sampled parameters, however few combinations are feasible.

        Each is reached from the baseline: knob by knob, in random order, a random value is taken where
        it goes with those before it. So values that rule out many others come with what is left.
        """
        names = list(self.distributions())
        for _ in range(count):
            generator.shuffle(names)
            wanted = {name: generator.choice(self._values[name]) for name in names}
            yield self._toward(wanted, self._varying_baseline())

    def neighbours(self, params: Mapping[str, KnobValue]) -> Iterator[dict[str, KnobValue]]:
        """Yield feasible sampled parameters with another value of one knob.

        Other knobs keep their values, except those that do not go with it: they have the baseline's.
        """
        for name in self.distributions():
            for value in self._values[name]:
                if value != params[name] and (near := self._with(name, value, params)):
                    yield near

    def _with(
        self, name: str, value: KnobValue, params: Mapping[str, KnobValue]
    ) -> dict[str, KnobValue] | None:
        """Return feasible parameters with this value, close to others; None if none are found."""
        others = {other: params[other] for other in self.distributions() if other != name}
        near = {**others, name: value}
        if self.problems(near):
            near = self._toward(others, {**self._varying_baseline(), name: value})
            near = self._toward(others, near)  # a value may go only with a later one
        return None if self.problems(near) else near

    def _varying_baseline(self) -> dict[str, KnobValue]:
        return {name: self._baseline[name] for name in self.distributions()}

    def _toward(
        self, wanted: Mapping[str, KnobValue], start: Mapping[str, KnobValue]
    ) -> dict[str, KnobValue]:
        """Return the start with every wanted value, in their order, that goes with those before it."""
        params = dict(start)
        for name, value in wanted.items():
            changed = {**params, name: value}
            if changed != params and not self.problems(changed):
                params = changed
        return params


def _in_order(name: str, values: Sequence[KnobValue]) -> bool:
    """Return whether neighbouring values behave alike; numbers of a study's own knobs do."""
    if name in CATALOGUE:
        return CATALOGUE[name].ordered
    return not any(isinstance(value, bool | str) for value in values)


def key(params: Mapping[str, KnobValue]) -> Configuration:
    """Return a configuration as a hashable value."""
    return tuple(sorted(params.items()))
