"""Tables recorded on a machine that is not always as fast."""

import random

import pytest

from autotune.standalone.recording import Run, at_one_speed, pass_speeds

SPEEDS = {0: 1.0, 1: 1.2, 2: 0.7, 3: 0.9}


def recorded(noise: float = 0.0) -> list[Run]:
    """Forty configurations; the faster half of them is in every pass, but each pass lacks some."""
    draw = random.Random(0)
    runs = []
    for number, speed in SPEEDS.items():
        for which in range(40):
            if number == 0 or (which >= 20 and draw.random() < 0.7):
                rate = (100 + which) * speed * draw.gauss(1, noise)
                runs.append(Run(number, {"micro_batch": which + 1}, rate, 1.0, "COMPLETE"))
    return runs


def test_the_speed_of_every_pass_is_found():
    assert pass_speeds(recorded()) == pytest.approx(SPEEDS, rel=1e-3)
    assert pass_speeds(recorded(noise=0.05)) == pytest.approx(SPEEDS, rel=0.05)


def test_runs_of_slow_passes_are_no_slower_afterwards():
    for run in at_one_speed(recorded()):
        assert run.throughput == pytest.approx(99 + run.params["micro_batch"], rel=1e-3)


def test_a_single_pass_stays_as_it_is():
    runs = [run for run in recorded(noise=0.1) if run.number == 0]
    assert at_one_speed(runs) == runs


def test_what_failed_has_no_speed():
    failed = Run(1, {"micro_batch": 99}, None, 1.0, "OOM")
    assert at_one_speed([*recorded(), failed])[-1] == failed
    assert pass_speeds([failed]) == {1: 1.0}
    assert pass_speeds([]) == {}


def test_chosen_for_their_luck_they_do_not_slow_the_machine_down():
    """Ten passes of the leading ones, and the same 24 anchors, on a machine that never changes."""
    draw = random.Random(0)

    def run(number: int, which: int) -> Run:
        rate = (100 + which / 10) * draw.gauss(1, 0.1)
        return Run(number, {"micro_batch": which + 1}, rate, 1.0, "COMPLETE")

    order = draw.sample(range(200), 200)
    runs = [run(0, which) for which in order]
    lucky = sorted(runs, key=lambda one: one.throughput or 0.0)[-20:]
    for number in range(1, 10):
        leading = {one.params["micro_batch"] - 1 for one in lucky}
        runs += [run(number, which) for which in {*leading, *order[:24]}]
    later = [speed for number, speed in pass_speeds(runs).items() if number]
    assert sum(later) / len(later) == pytest.approx(1, abs=0.04)
