"""Courses of samplers: when one is over, and what is summed up of whole studies."""

import dataclasses

import pytest

from autotune.standalone.simulation import Simulation
from benchmarks.courses import MOST, OURS, Course, summary_of_studies


@pytest.mark.parametrize(("sampler", "ends"), [(OURS, 40), ("tpe", 30)])
def test_course_of_ours_goes_on_until_the_search_would_stop(sampler: str, ends: int) -> None:
    course = Course("gpt", sampler, "random", 0, trials={"5": 3, "2": 8})
    for number in range(1, MOST + 1):
        course.regret.append(0.0)
        if sampler == OURS and number == 40:
            course.stopped = number
        if course.done:
            break
    assert len(course.regret) == ends
    assert course.stopped == (40 if sampler == OURS else None)


def test_whole_studies_are_summed_up_by_what_they_leave() -> None:
    one = Simulation(10, 30, 60.0, 0, "better", "", "a change", 99.0, 100.0, "samples/s")
    found = [dataclasses.replace(one, throughput=rate) for rate in (99.0, 99.0, 95.0, None)]
    summed = summary_of_studies(found)
    assert summed["mean_shortfall"] == pytest.approx((0.01 + 0.01 + 0.05 + 1) / 4, abs=1e-4)
    assert summed["share_with_more_than_2_percent_left"] == 0.5
    assert summed["worst_shortfall"] == 1.0
