"""Values of the rows of a recorded table, as far as its runs tell: partial pooling.

    log y_ip = mu + effects of the knobs and of pairs of them + u_i + s_p + e_ip

for run of configuration i in pass p. All terms but mu are random, each kind with a variance of its own,
all chosen by the likelihood (Robinson 1991, That BLUP is a good thing; Gelman 2005, Analysis of
variance). So a row that was run once is drawn towards what its knobs make elsewhere, one that was run
often hardly is, and an effect that is none vanishes. Of a step, its parts and what any sampler believes
nothing is known here.
"""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import linalg, optimize

from autotune.search.space import Configuration, key
from autotune.standalone.recording import Journal, Run

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]

_STEPS = 40
"""Rounds of the search for the variances; later ones change them by less than a tenth."""
_LEAST, _MOST = 1e-8, 25.0
"""Bounds of a variance, in squared logarithms."""
_DRAWS = 2000


@dataclass(frozen=True)
class Denoised:
    """A table without its noise.

    Attributes:
        truth: logarithm of the rate of each configuration that ran, as expected.
        spread: covariance of these, in their order.
        noise: relative standard deviation of a run.
        deviations: of all runs from what their configurations are worth, in logarithms, with a mean of 0
            and a standard deviation of 1.
    """

    truth: Mapping[Configuration, float]
    spread: Matrix
    noise: float
    deviations: Sequence[float]

    def chance_of_best(self, within: float, seed: int = 0) -> float:
        """Return the probability that the supposed best configuration lies so close to the true best."""
        means = np.array(list(self.truth.values()))
        draws = np.random.default_rng(seed).multivariate_normal(means, self.spread, _DRAWS)
        short = draws.max(axis=1) - draws[:, np.argmax(means)]
        return float(np.mean(short <= -math.log(1 - within)))


def denoised(path: Path, names: Sequence[str]) -> Denoised:
    """Return the values of the table in this file, from the runs beside it.

    Args:
        names: of its knobs.
    """
    return pooled(Journal(path.with_suffix(".runs.csv"), list(names)).runs, names)


def pooled(runs: Sequence[Run], names: Sequence[str]) -> Denoised:
    """From runs; those that failed, and configurations that failed once, are left out."""
    failed = {key(run.params) for run in runs if run.throughput is None}
    timed = [run for run in runs if run.throughput and key(run.params) not in failed]
    found: dict[Configuration, dict[str, Any]] = {}
    for run in timed:
        found.setdefault(key(run.params), run.params)
    order = {configuration: place for place, configuration in enumerate(found)}
    of_run = np.array([order[key(run.params)] for run in timed])
    passes = np.array([run.number for run in timed])
    logs = np.log([run.throughput for run in timed])
    effects = [each[np.ix_(of_run, of_run)] for each in _alike(list(found.values()), names)]
    same_pass = (passes[:, None] == passes[None, :]).astype(float)
    kinds = [*effects, same_pass, np.eye(len(timed))]
    mean = float(logs.mean())
    variances = _variances(kinds, logs - mean)
    own = sum(v * kind for v, kind in zip(variances, kinds[:-2], strict=False))
    whole = own + variances[-2] * same_pass + variances[-1] * np.eye(len(timed))
    root = linalg.cho_factor(whole, lower=True)
    first = np.unique(of_run, return_index=True)[1]
    cross = own[first]
    truth = mean + cross @ linalg.cho_solve(root, logs - mean)
    spread = own[np.ix_(first, first)] - cross @ linalg.cho_solve(root, cross.T)
    speed = variances[-2] * same_pass @ linalg.cho_solve(root, logs - mean)
    left = logs - speed - truth[of_run]
    return Denoised(
        dict(zip(found, truth.tolist(), strict=True)),
        spread,
        math.sqrt(variances[-1]),
        ((left - left.mean()) / left.std()).tolist(),
    )


def _alike(configurations: Sequence[Mapping[str, Any]], names: Sequence[str]) -> Iterator[Matrix]:
    """For each knob, each pair of knobs, and all of them: 1 where two configurations agree in these."""
    same = {}
    for name in names:
        values = [(type(c[name]), c[name]) for c in configurations]
        index = {value: place for place, value in enumerate(dict.fromkeys(values))}
        places = np.array([index[value] for value in values])
        same[name] = (places[:, None] == places[None, :]).astype(float)
    yield from same.values()
    for one, other in itertools.combinations(names, 2):
        yield same[one] * same[other]
    yield np.eye(len(configurations))


def _variances(kinds: Sequence[Matrix], values: Vector) -> Vector:
    """Return the variance of each kind of effect under which the values are likeliest."""

    def against(logs: Vector) -> tuple[float, Vector]:
        whole = sum(v * kind for v, kind in zip(np.exp(logs), kinds, strict=True))
        root = linalg.cho_factor(whole, lower=True)
        inverse = linalg.cho_solve(root, np.eye(len(values)))
        weights = inverse @ values
        loss = np.log(np.diag(root[0])).sum() + values @ weights / 2
        slopes = [
            v * ((inverse * kind).sum() - weights @ kind @ weights) / 2
            for v, kind in zip(np.exp(logs), kinds, strict=True)
        ]
        return float(loss), np.array(slopes)

    start = np.full(len(kinds), math.log(values.var() / len(kinds)))
    bounds = [(math.log(_LEAST), math.log(_MOST))] * len(kinds)
    found = optimize.minimize(
        against, start, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": _STEPS}
    )
    return np.exp(found.x)
