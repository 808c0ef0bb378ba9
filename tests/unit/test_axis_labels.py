"""Labels of an axis, which lie side by side on the narrowest phone."""

import itertools
import math

import pytest

from autotune.views.svg import Scale, roomy, ticks, whole_ticks

PIXELS, CHARACTER = 256.0, 7.0
"""Width of a chart on a phone of 320 pixels, and of a character."""


def apart(labels: list[tuple[float, str]]) -> list[float]:
    """Return the pixels between each label and the next."""
    return [
        (right - left) / 100 * PIXELS - CHARACTER * (len(one) + len(other)) / 2
        for (left, one), (right, other) in itertools.pairwise(labels)
    ]


@pytest.mark.parametrize("most", [10, 6])
@pytest.mark.parametrize("count", [3, 40, 1234, 5012, 123_456])
def test_labels_of_an_axis_do_not_touch_whatever_their_number(count: int, most: int) -> None:
    x = Scale(-0.6, count + 1.2)
    found = list(roomy(lambda n: [(x(i), str(i)) for i in whole_ticks(count, n)], most))
    assert found and all(gap > 0 for gap in apart(found))


@pytest.mark.parametrize("high", [1.4, 3.0, 12.0])
def test_labels_of_a_logarithmic_axis_do_not_touch_at_its_narrow_end(high: float) -> None:
    x = Scale(0.9, high, of=math.log)
    found = list(roomy(lambda n: [(x(v), f"{v:.3g}x") for v in ticks(0.9, high, n)], 5))
    assert len(found) > 1 and all(gap > 0 for gap in apart(found))


def test_memory_of_a_large_device_has_fewer_labels_than_that_of_a_small_one() -> None:
    def labels(low: float, high: float) -> int:
        x = Scale(low, high)
        return len(roomy(lambda n: [(x(v), f"{v:,.0f}") for v in ticks(low, high, n)], 6))

    assert labels(100_000, 160_000) < labels(100, 160)
