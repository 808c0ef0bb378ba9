"""Whether first steps agree, from sketches that ranks made of them."""

import dataclasses
import math

import pytest
import torch

from autotune.measurement.gradients import (
    FirstSteps,
    RoundingErrors,
    comparable,
    deviations,
    first_problem,
    limits,
    rounding_of,
)
from autotune.measurement.policy import GATE
from autotune.worker.rank.sketch import Sketcher

SHAPES = {"embedding": (200, 32), "matrix": (64, 32), "bias": (32,)}


def sketched(tensors):
    sketcher = Sketcher((name, math.prod(shape)) for name, shape in SHAPES.items())
    for place, name in enumerate(SHAPES):
        if name in tensors:
            sketcher.add(place, tensors[name])
    return sketcher.done()


def first_steps(gradient, second=None):
    several = (gradient, second or gradient)
    return FirstSteps.seen([{"gradient": [one.as_row() for one in sketched(g)]} for g in several])


def drawn(seed):
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}


def off(tensors, relative, seed=1):
    noise = drawn(seed)
    return {
        name: t + relative * t.norm() / noise[name].norm() * noise[name]
        for name, t in tensors.items()
    }


FP32, BF16 = {"precision": "fp32"}, {"precision": "bf16"}


def amplified(error):
    return [RoundingErrors(error, 2 * error)] * 2


def problem(run, reference, formats=(BF16, FP32)):
    return first_problem(deviations(run, reference, limits(formats)))


GRADIENT = drawn(0)
REFERENCE = first_steps(GRADIENT)


@pytest.mark.parametrize("relative", [1e-6, 1e-3, 0.1, 1.0])
def test_a_distance_is_told_without_sending_tensors(relative):
    whole, *_ = deviations(first_steps(off(GRADIENT, relative)), REFERENCE, limits([]))
    assert whole.size == pytest.approx(relative, rel=0.4)


@pytest.mark.parametrize(("relative", "refused"), [(0.05, False), (0.4, True)])
def test_the_limit_is_that_of_the_number_format(relative, refused):
    found = problem(first_steps(off(GRADIENT, relative)), REFERENCE)
    assert bool(found) is refused
    assert not refused or "in the first step" in found


def test_formats_have_tolerances_in_their_order():
    names = "fp32", "tf32", "fp16", "bf16", "pure_bf16"
    of = [limits([{"precision": name}])[0].whole for name in names]
    assert of == sorted(of)
    assert of[0] < 5e-3
    assert limits([{"float8": "rowwise", "precision": "bf16"}])[0].whole <= 0.5


def test_limits_of_every_format_widen_as_the_model_amplifies_rounding():
    kernels, narrow = (limits([one, FP32], amplified(0.3))[0] for one in (FP32, BF16))
    assert narrow.whole == pytest.approx(0.3 * GATE.rounding_limit, rel=0.01)
    assert limits([FP32, FP32])[0].whole < kernels.whole < 0.02
    assert limits([BF16, FP32], amplified(0.01)) == limits([BF16, FP32])
    assert limits([BF16, FP32], amplified(math.nan)) == limits([BF16, FP32])


def test_direction_tells_nothing_where_plain_autocast_turns_the_gradient_around():
    assert limits([BF16, FP32], amplified(0.6))[0].blind
    assert not limits([FP32, FP32], amplified(0.6))[0].blind


@pytest.mark.parametrize("wrong", [-1.0, 0.0])
def test_tensor_that_is_wrong_under_plain_autocast_as_well_is_refused(wrong):
    # It points against the gradient, or is unrelated to it: the user's own code does so in bf16.
    other = drawn(2)["bias"]
    lost = wrong * GRADIENT["bias"] + (1 + wrong) * other * GRADIENT["bias"].norm() / other.norm()
    run = first_steps({**off(GRADIENT, 0.1), "bias": lost})
    known = rounding_of(run, REFERENCE)
    assert GATE.null_bf16 < known[0].whole < GATE.largest_limit
    found = first_problem(deviations(run, REFERENCE, limits([BF16, FP32], known)))
    assert found.startswith("its gradient of bias in the first step")


def seen_by_direction(run):
    """Return the problem where plain autocast turns the gradient beyond telling."""
    known = limits([BF16, FP32], amplified(0.7))
    assert known[0].blind
    return first_problem(deviations(run, REFERENCE, known))


def test_flipped_tensor_is_refused_where_the_distance_tells_nothing():
    turned = off(GRADIENT, 0.7)
    rounded = {name: t * GRADIENT[name].norm() / t.norm() for name, t in turned.items()}
    assert seen_by_direction(first_steps(rounded)) == ""
    flipped = first_steps({**rounded, "matrix": -rounded["matrix"]})
    assert "direction of its gradient of matrix in the first step" in seen_by_direction(flipped)


def test_direction_of_a_small_tensor_is_not_compared():
    flipped = first_steps({**GRADIENT, "bias": -GRADIENT["bias"]})
    assert seen_by_direction(flipped) == ""


@pytest.mark.parametrize("seed", range(20))
def test_gradients_with_nothing_in_common_are_not_called_flipped(seed):
    other = {name: t * GRADIENT[name].norm() / t.norm() for name, t in drawn(100 + seed).items()}
    assert seen_by_direction(first_steps(other, GRADIENT)) == ""


def test_one_tensor_that_is_wrong_is_named():
    wrong = {**GRADIENT, "bias": 3 * GRADIENT["bias"]}
    assert "gradient of bias in the first step" in problem(first_steps(wrong), REFERENCE)


def test_a_gradient_that_is_missing_or_no_number_is_refused():
    without = {name: g for name, g in GRADIENT.items() if name != "matrix"}
    assert "matrix" in problem(first_steps(without), REFERENCE)
    broken = {**GRADIENT, "matrix": math.nan * GRADIENT["matrix"]}
    assert problem(first_steps(broken), REFERENCE)


def test_stale_gradients_show_in_the_second_step():
    twice = first_steps(GRADIENT, {name: 2 * g for name, g in GRADIENT.items()})
    assert "in the second step" in problem(twice, REFERENCE)


def test_models_of_other_tensors_are_not_compared():
    fewer = dataclasses.replace(REFERENCE, gradients=tuple(g[1:] for g in REFERENCE.gradients))
    assert comparable(REFERENCE, REFERENCE)
    assert not comparable(fewer, REFERENCE)
    assert not comparable(None, REFERENCE)


def test_neighbours_of_a_large_model_share_what_is_sent():
    sketcher = Sketcher((f"layer.{n}", 4) for n in range(1000))
    for place in range(1000):
        sketcher.add(place, torch.full((4,), 1.0))
    rows = sketcher.done()
    assert len(rows) == 64
    assert rows[0].name == "layer.0 to layer.15"
    assert math.hypot(*(row.norm for row in rows)) == pytest.approx(math.sqrt(4000))
