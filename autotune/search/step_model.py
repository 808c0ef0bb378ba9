"""Bayesian model of the time of a step: the coefficients of autotune.search.step_parts.

The logarithm of a time is that of the sum of parts, plus a small residual over all knobs for what
the sum cannot express (overlap, for one), plus noise. Bases and effects have Gaussian priors. The
evidence gives the size of a knob's effects, knob by knob (automatic relevance determination: MacKay
1992, Bayesian Interpolation; Tipping 2001), from a prior that takes most for small and lets few be
large. The residual, and the noise beyond its stated value, are learnt in the same way. So a knob
without effect is soon left alone, and one with a large effect is found in a few trials. The
posterior of the coefficients is approximated by a Gaussian around its mode (Laplace). Predictions
come from draws, as the time is no linear function of the coefficients.

Three of the numbers here were set with the recorded tables in sight (benchmarks/search.py,
BUILT_ON): the size of an effect aside (step_parts._ASIDE), SEARCH.sure_share and SEARCH.sure_growth.
docs/results/README.md has how the sampler does on other tables.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import linalg, special

from autotune.search.grid import Grid, Matrix, Rows, Vector
from autotune.search.observations import Observations
from autotune.search.policy import SEARCH
from autotune.search.step_parts import Parts, Profile

_JITTER = 1e-10
_ROOT_2PI = math.sqrt(2 * math.pi)


@dataclass
class _Sizes:
    """Sizes that the evidence gives, as variances.

    Attributes:
        effects: variance of each knob's effects.
        residual: variance of what the sum cannot express.
        noise: factor of the stated noise.
    """

    effects: Vector
    residual: float
    noise: float


class StepModel:
    """Model of the time per sample, in units of the fastest measured one."""

    def __init__(self, grid: Grid, seen: Observations, profile: Profile | None = None) -> None:
        self._grid = grid
        self._parts = Parts(grid)
        if profile and (time := _time_of(profile, grid, seen)):
            self._parts.measure(profile, time)
        self._sizes = _Sizes(
            np.where(self._parts.unknown, SEARCH.unknown_effect, SEARCH.known_effect) ** 2,
            SEARCH.residual_size**2,
            1.0,
        )
        self._coefficients = self._parts.mean.copy()
        self._measured = len(seen.times)
        self._see(seen.rows, np.log(seen.times), seen.noise / seen.times)
        self._fit()
        self._draw()
        if len(seen.running):
            # Running trials are assumed to turn out as expected, so that nothing is suggested
            # twice.
            guess = np.log(self.expected(seen.running))
            self._see(
                np.concatenate([seen.rows, seen.running]),
                np.concatenate([self._logs, guess]),
                np.append(self._noise, np.full(len(guess), SEARCH.unknown_noise)),
            )
            self._draw()
        known = self._known[: self._measured].mean(axis=1)
        self._best = int(np.argmin(known))
        self._incumbent = float(known[self._best])

    # Predictions

    def expected(self, rows: Rows) -> Vector:
        """Return the time per sample as the geometric mean."""
        times: Vector = np.exp(self._drawn(rows).mean(axis=1))
        return times

    def likeliest(self, rows: Rows) -> Vector:
        """Return the time per sample at the likeliest coefficients.

        Draws of unknown effects do not blur the measured rows there.
        """
        mode = self._coefficients[:, None]
        fitted = self._parts.value(self._features, mode)[:, 0]
        rest = linalg.cho_solve((self._error_root, True), self._logs - fitted)
        value = self._parts.value(self._parts.features(rows), mode)[:, 0]
        times: Vector = np.exp(value + self._residual(rows) @ rest)
        return times

    def covariance(self, rows: Rows) -> Matrix:
        """Return the covariance of the logarithms of the rows' times."""
        drawn: Matrix = np.atleast_2d(np.cov(self._drawn(rows)))
        return drawn + self._unexplained(rows)

    def acquisition(self, rows: Rows) -> Vector:
        """Return the relative expected improvement over the incumbent.

        At first the model counts as more certain than it is, because most of what it does not know
        makes no difference to which row is fastest.
        """
        mean, own, shared, best = self._moments(rows)
        sure = min(1.0, SEARCH.sure_share + self._measured / SEARCH.sure_growth)
        return _gain(
            mean - self._incumbent, sure * np.sqrt(np.maximum(own + best - 2 * shared, 0.0))
        )

    def gain(self, rows: Rows) -> Vector:
        """Return the expected relative gain by one more trial of usual noise, for each row.

        It is the improvement of the row that would then be taken for the best of the measured ones
        (knowledge gradient between it and the incumbent: Frazier, Powell & Dayanik 2009).
        """
        mean, own, shared, _ = self._moments(rows)
        noise = self._sizes.noise * float(np.median(self._noise)) ** 2
        return _gain(mean - self._incumbent, np.abs(own - shared) / np.sqrt(own + noise))

    def promise(self, rows: Rows) -> Vector:
        """Return the rank value of each row, larger for faster ones: mean and deviation together."""
        drawn = self._drawn(rows)
        promise: Vector = drawn.std(axis=1) - drawn.mean(axis=1)
        return promise

    def finalists(self, count: int) -> NDArray[np.int64]:
        """Return the fastest measured rows, which would be measured again if the search ended now."""
        times = self.likeliest(self._rows[: self._measured])
        return np.argsort(times, kind="stable")[:count]

    def left(self, rows: Rows, finalists: NDArray[np.int64]) -> Vector:
        """Draw how much faster the fastest of these rows is than the fastest of the finalists.

        It is a share of the rate, 0 where a finalist is the fastest.
        """
        everything = np.concatenate([rows, self._rows[finalists]])
        covariance = self._unexplained(everything)
        root = linalg.cholesky(covariance + 1e-8 * np.eye(len(covariance)), lower=True)
        logs = np.concatenate([self._drawn(rows), self._known[finalists]])
        logs = logs + root @ np.random.default_rng(1).normal(size=logs.shape)
        behind = logs[-len(finalists) :].min(axis=0) - logs.min(axis=0)
        shares: Vector = -np.expm1(-behind)
        return shares

    def surprise(self) -> float:
        """Return the mean square of the standardised residuals, each observation left out in turn.

        It is 1 where the model holds.
        """
        alpha, inverse = self._solved()
        return float(np.mean(alpha**2 / np.diag(inverse)))

    # Learning

    def _see(self, rows: Rows, logs: Vector, noise: Vector) -> None:
        self._rows, self._logs, self._noise = rows, logs, noise
        self._features = self._parts.features(rows)

    def _fit(self) -> None:
        """Fit coefficients (Gauss-Newton) and sizes (MacKay's rule, with a prior) in turn."""
        alike = self._alike(self._rows, self._rows)
        for number in range(SEARCH.fit_rounds):
            prior, slopes, target = self._linear()
            alike = (
                self._alike(self._rows, self._rows) if number == SEARCH.fit_rounds // 2 else alike
            )
            self._error = self._sizes.residual * alike + self._own_noise()
            weighted = slopes * prior
            root = linalg.cho_factor(weighted @ slopes.T + self._error, lower=True)
            alpha = linalg.cho_solve(root, target)
            change = self._parts.mean + weighted.T @ alpha - self._coefficients
            longest = float(np.abs(slopes @ change).max())
            self._coefficients = self._coefficients + change * min(
                1.0, SEARCH.longest_step / max(longest, _JITTER)
            )
            if SEARCH.first_sized <= number < SEARCH.fit_rounds - 1:
                inverse = linalg.cho_solve(root, np.eye(len(alpha)))
                self._size(prior, weighted, alpha, inverse, alike)

    def _linear(self) -> tuple[Vector, Matrix, Vector]:
        """Return prior variances, slopes and targets of the model around the coefficients."""
        parts = self._parts
        sizes = np.append(self._sizes.effects, 1.0)[parts.knob]
        value, slopes = parts.slopes(self._features, self._coefficients)
        target = self._logs - value + slopes @ (self._coefficients - parts.mean)
        return parts.scale**2 * sizes, slopes, target

    def _own_noise(self) -> Matrix:
        noise: Matrix = np.diag(self._sizes.noise * self._noise**2 + _JITTER)
        return noise

    def _size(
        self, prior: Vector, weighted: Matrix, alpha: Vector, inverse: Matrix, alike: Matrix
    ) -> None:
        """Update each variance: its estimate, over the effective number of observations."""
        parts, sizes = self._parts, self._sizes
        told = ((inverse @ weighted) * weighted).sum(axis=0) / prior
        found = ((self._coefficients - parts.mean) / parts.scale) ** 2
        effect = parts.knob >= 0
        owners, count = parts.knob[effect], len(parts.knobs)
        before = (
            SEARCH.effect_weight
            * np.where(parts.unknown, SEARCH.unknown_effect, SEARCH.known_effect) ** 2
        )
        sizes.effects = (before + np.bincount(owners, found[effect], count)) / (
            SEARCH.effect_weight + np.bincount(owners, told[effect], count)
        )
        residual = sizes.residual
        sizes.residual = (
            SEARCH.residual_weight * SEARCH.residual_size**2
            + residual**2 * float(alpha @ alike @ alpha)
        ) / (SEARCH.residual_weight + residual * float((inverse * alike).sum()))
        noise, own = sizes.noise, self._noise**2
        sizes.noise = (SEARCH.noise_weight + noise**2 * float(own @ alpha**2)) / (
            SEARCH.noise_weight + noise * float(own @ np.diag(inverse))
        )

    def _draw(self) -> None:
        """Draw coefficients from their posterior (Matheron's rule), in pairs around its mode."""
        random = np.random.default_rng(0)
        parts = self._parts
        alike = self._alike(self._rows, self._rows)
        self._error = self._sizes.residual * alike + self._own_noise()
        prior, slopes, target = self._linear()
        weighted = slopes * prior
        root = linalg.cho_factor(weighted @ slopes.T + self._error, lower=True)
        self._error_root = linalg.cholesky(self._error, lower=True)
        start = np.sqrt(prior)[:, None] * _pairs(random, len(parts.mean))
        error = self._error_root @ _pairs(random, len(target))
        correction = linalg.cho_solve(root, target[:, None] - slopes @ start - error)
        self._draws = parts.mean[:, None] + start + weighted.T @ correction
        fitted = parts.value(self._features, self._draws)
        self._rest = linalg.cho_solve((self._error_root, True), self._logs[:, None] - fitted)
        self._known = self._drawn(self._rows)

    def _solved(self) -> tuple[Vector, Matrix]:
        """Return the weights of the observations, and the inverse of their covariance."""
        prior, slopes, target = self._linear()
        root = linalg.cho_factor((slopes * prior) @ slopes.T + self._error, lower=True)
        return linalg.cho_solve(root, target), linalg.cho_solve(root, np.eye(len(target)))

    # Draws and moments

    def _drawn(self, rows: Rows) -> Matrix:
        """Return (rows, draws) of the logarithm of the time, with the expected residual."""
        return self._value(rows, self._residual(rows))

    def _value(self, rows: Rows, residual: Matrix) -> Matrix:
        value = self._parts.value(self._parts.features(rows), self._draws)
        drawn: Matrix = value + residual @ self._rest
        return drawn

    def _residual(self, rows: Rows) -> Matrix:
        """Return (rows, observations): covariance of the residual."""
        return self._sizes.residual * self._alike(rows, self._rows)

    def _moments(self, rows: Rows) -> tuple[Vector, Vector, Vector, float]:
        """Return mean, variance, covariance with the incumbent, and its variance, of the log time."""
        covariance, residual = self._residual(rows), self._sizes.residual
        drawn = self._value(rows, covariance)
        mean = drawn.mean(axis=1)
        known = self._known[self._best] - self._known[self._best].mean()
        across = linalg.solve_triangular(self._error_root, covariance.T, lower=True)
        own = linalg.solve_triangular(
            self._error_root, self._residual(self._rows[[self._best]])[0], lower=True
        )
        variance = drawn.var(axis=1) + np.maximum(residual - (across**2).sum(axis=0), 0.0)
        shared = (drawn - mean[:, None]) @ known / drawn.shape[1]
        shared = shared + covariance[:, self._best] - own @ across
        return mean, variance, shared, float(known @ known / len(known) + residual - own @ own)

    def _unexplained(self, rows: Rows) -> Matrix:
        """Return the covariance of the rows' residual, given all observations."""
        across = linalg.solve_triangular(self._error_root, self._residual(rows).T, lower=True)
        covariance: Matrix = self._sizes.residual * self._alike(rows, rows) - across.T @ across
        return covariance

    def _alike(self, rows: Rows, others: Rows) -> Matrix:
        """Return the correlation of the residual.

        Rows that differ in relevant knobs have little of it in common.
        """
        knobs = self._parts.knobs
        sizes = [name for name in self._grid.names if name not in knobs]
        apart = self._grid.distance(rows, others, sizes)
        for name, variance in zip(knobs, self._sizes.effects, strict=True):
            weight = min(1.0, math.sqrt(variance) / SEARCH.relevant_effect)
            apart = apart + weight * self._grid.distance(rows, others, [name])
        alike: Matrix = np.exp(-apart)
        return alike


def _time_of(profile: Profile, grid: Grid, seen: Observations) -> float | None:
    """Return the time per sample of the profiled configuration; None if it was not measured."""
    if not grid.covers(profile.params):
        return None
    own = seen.times[(seen.rows == grid.encode(profile.params)).all(axis=1)]
    return float(np.exp(np.log(own).mean())) if len(own) else None


def _pairs(random: np.random.Generator, count: int) -> NDArray[np.float64]:
    """Return (count, draws) standard normal numbers, each with its opposite."""
    half = random.normal(size=(count, SEARCH.gain_draws // 2))
    return np.concatenate([half, -half], axis=1)


def _gain(behind: Vector, spread: Vector) -> Vector:
    """Return the expectation of what lies below 0, for normal distributions with these moments."""
    spread = np.maximum(spread, 1e-9)
    score = behind / spread
    gain: Vector = spread * np.exp(-(score**2) / 2) / _ROOT_2PI - behind * special.ndtr(-score)
    return np.maximum(gain, 0.0)
