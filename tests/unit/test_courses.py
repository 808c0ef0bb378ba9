"""Courses of samplers: when one is over, and what is summed up of whole studies."""

import pytest

from benchmarks.courses import MOST, OURS, Course


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
