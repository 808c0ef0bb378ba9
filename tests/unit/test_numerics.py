"""Whether a trajectory follows its reference."""

import dataclasses
import math

import numpy as np
import pytest

from autotune.measurement.gradients import FirstSteps, Tensor
from autotune.measurement.numerics import (
    Trajectory,
    agreement,
    long_enough,
    not_to_compare,
)
from autotune.measurement.policy import GATE


def falling(start=5.0, fall=0.3, noise=0.0, seed=0, steps=GATE.fewest_steps):
    """A loss that has fallen by a share of its start when the last quarter begins."""
    generator = np.random.default_rng(seed)
    part = np.minimum(1, np.arange(steps) / (0.75 * steps))
    losses = start * (1 - fall * part) * (1 + noise * generator.standard_normal(steps))
    norms = 3 * (1 + noise * generator.standard_normal(steps))
    return Trajectory(tuple(losses), tuple(norms), 0.0)


REFERENCE = falling()


def decided(run, reference, **same):
    """The answer, with as many seeds as it takes."""
    earlier = []
    while True:
        found = agreement(run(len(earlier)), reference(len(earlier)), earlier=earlier, **same)
        if not found.open:
            return found
        earlier.append((run(len(earlier)), reference(len(earlier))))
        assert len(earlier) < GATE.most_seeds


def test_the_rounding_of_low_precision_passes():
    refused = [
        seed
        for seed in range(1000)
        if agreement(falling(noise=0.002, seed=seed), REFERENCE).problem
    ]
    assert refused == []


def test_other_dropout_passes_with_more_seeds():
    """Both have noise of a percent of the loss, each its own."""
    refused = [
        number
        for number in range(500)
        if decided(
            lambda seed, n=number: falling(noise=0.01, seed=10 * n + seed),
            lambda seed, n=number: falling(noise=0.01, seed=9_000_000 + 10 * n + seed),
        ).problem
    ]
    assert len(refused) <= 10


@pytest.mark.parametrize("missing", [0.15, 0.33, 1.0])
def test_a_run_that_makes_less_progress_is_refused(missing):
    """Though its loss is never far away, as a share of its level."""
    passed = [
        number
        for number in range(200)
        if not decided(
            lambda seed, n=number: falling(
                fall=0.1 * (1 - missing), noise=0.004, seed=10 * n + seed
            ),
            lambda seed, n=number: falling(fall=0.12, noise=0.004, seed=9_000_000 + 10 * n + seed),
        ).problem
    ]
    assert passed == []


def test_a_loss_that_leaves_is_refused_with_its_distance():
    losses = [loss * (1 if step < 8 else 1.2) for step, loss in enumerate(REFERENCE.losses)]
    found = agreement(dataclasses.replace(REFERENCE, losses=tuple(losses)), REFERENCE)
    assert "leaves the reference" in found.problem
    assert "of the reference's progress above (limit 5%)" in found.problem
    assert found.loss_distance > 0.1


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_loss_that_is_no_number_is_refused(bad):
    losses = (*REFERENCE.losses[:-1], bad)
    assert agreement(dataclasses.replace(REFERENCE, losses=losses), REFERENCE).problem


def test_norm_of_the_gradients_is_told():
    norms = tuple(2.0 * norm for norm in REFERENCE.norms)
    found = agreement(dataclasses.replace(REFERENCE, norms=norms), REFERENCE)
    assert found.norm_ratio == pytest.approx(2.0)


def test_replicas_that_drift_apart_are_refused():
    found = agreement(dataclasses.replace(REFERENCE, spread=1e-6), REFERENCE)
    assert "not exchanged" in found.problem


def test_steps_that_the_loss_scaler_skipped_have_no_norm_and_do_not_matter():
    norms = (math.nan, math.nan, *REFERENCE.norms[2:])
    assert agreement(dataclasses.replace(REFERENCE, norms=norms), REFERENCE).problem == ""


def test_a_reference_goes_on_until_its_loss_has_fallen():
    assert long_enough(falling(fall=0.2).losses)
    assert not long_enough(falling(fall=0.05).losses)
    assert not long_enough(falling(fall=0.2, steps=16).losses)


def test_a_loss_that_does_not_fall_compares_nothing():
    assert "fell by 1.9% in 32 steps, less than 10%" in not_to_compare(falling(fall=0.02))
    assert not_to_compare(falling(fall=0.2)) == ""
    told = dataclasses.replace(falling(fall=0.02), not_compared="no sample was seen")
    assert not_to_compare(told).endswith("its gradients cannot be compared: no sample was seen")


def test_the_distance_that_is_told_is_the_judged_one():
    """That of the last quarter: a loss that jumps early and comes back is as close as any."""
    jump = [1.3 * loss if 4 <= step < 8 else loss for step, loss in enumerate(REFERENCE.losses)]
    end = [1.002 * loss if step >= 24 else loss for step, loss in enumerate(jump)]
    found = agreement(dataclasses.replace(REFERENCE, losses=tuple(end)), REFERENCE)
    assert found.problem == ""
    assert found.loss_distance == pytest.approx(0.002)
    progress = REFERENCE.progress / REFERENCE.losses[-1]
    assert found.share_of_progress == pytest.approx(0.002 / progress)


def test_the_distance_that_is_told_is_the_mean_of_all_pairs():
    def ending(factor):
        losses = [factor * x if step >= 24 else x for step, x in enumerate(REFERENCE.losses)]
        return dataclasses.replace(REFERENCE, losses=tuple(losses)), REFERENCE

    both = agreement(*ending(1.003), earlier=[ending(0.999)])
    assert both.loss_distance == pytest.approx(0.001)


def test_a_run_that_ends_early_has_no_distance():
    losses = (*REFERENCE.losses[:-1], math.nan)
    found = agreement(dataclasses.replace(REFERENCE, losses=losses), REFERENCE)
    assert found.loss_distance is None


def test_seeds_that_change_nothing_tell_nothing_new():
    """A script that sets its own: the same two runs again are no more evidence."""
    run, reference = falling(noise=0.03, seed=1), falling(noise=0.03, seed=2)
    once = agreement(run, reference)
    again = agreement(run, reference, earlier=[(run, reference)])
    assert once.open
    assert again.share_of_progress == once.share_of_progress
    assert again.open


def _first(start):
    """A gradient of one tensor, and the update by it."""
    tensor = Tensor("weight", 4, 1.0, (1.0, 0.0))
    return FirstSteps(((tensor,),), start)


@pytest.mark.parametrize(
    ("fall", "start", "proven"),
    [(0.0, "a", True), (0.0, "b", False), (0.3, "b", True)],
    ids=["equal start", "another start", "another start, and a loss that falls"],
)
def test_a_loss_that_hardly_falls_needs_gradients_from_an_equal_start(fall, start, proven):
    reference, run = (
        dataclasses.replace(falling(fall=fall), first=_first(of)) for of in ("a", start)
    )
    assert not_to_compare(reference) == ""
    found = agreement(run, reference)
    assert found.problem == ""
    assert bool(found.unproven) != proven


def _curve(losses, start="a"):
    """A run with these losses and the same gradients as any other."""
    return Trajectory(tuple(map(float, losses)), (1.0,) * len(losses), 0.0, _first(start))


def _level(start, offset=0.0, seed=0):
    """A run whose loss stays where it begins."""
    noise = np.random.default_rng(seed).normal(0, 0.02, GATE.most_steps)
    return _curve(0.7 + offset + noise, start)


def test_losses_at_a_level_say_nothing_where_the_runs_begin_differently():
    found = agreement(_level("b", 0.02), _level("a"))
    assert found.problem == ""
    assert found.unproven


def test_a_loss_at_a_level_that_leaves_from_an_equal_start_is_refused_with_its_distance():
    found = agreement(_level("a", 0.07, seed=1), _level("a"))
    assert "leaves the reference" in found.problem
    assert "of its level above (limit 0.5%)" in found.problem
    assert "progress" not in found.problem


@pytest.mark.parametrize("from_", [0.0, 0.7], ids=["from zero", "from a level"])
def test_a_loss_that_rises_is_told_apart_by_no_less_than_its_own_spread(from_):
    rise = np.linspace(0, 1, GATE.most_steps)
    reference = _curve(from_ + 5 * rise)
    assert agreement(_curve(from_ + 5.05 * rise), reference).problem == ""
    assert "leaves the reference" in agreement(_curve(from_ + 7 * rise), reference).problem


@pytest.mark.parametrize("later", [0.0, 1e-3, -1e-3])
def test_a_loss_that_begins_at_zero_is_compared(later):
    rest = GATE.most_steps - GATE.start_steps
    reference, run = (
        _curve([0.0] * GATE.start_steps + [factor * later] * rest) for factor in (1, 1.001)
    )
    assert agreement(run, reference).problem == ""
    without = dataclasses.replace(reference, first=None)
    assert "did not fall by 10% in 96 steps" in not_to_compare(without)


def test_a_loss_beside_one_that_is_always_zero_cannot_be_compared():
    reference = _curve([0.0] * GATE.most_steps)
    assert agreement(_curve([1e-3] * GATE.most_steps), reference).problem == ""
