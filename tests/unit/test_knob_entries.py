"""What every entry of the catalogue says."""

import dataclasses

import pytest

from search_spaces import CATALOGUE
from search_spaces.knob import DATA, GRAPH, NUMBERS, STATISTICS, Knob


def test_an_entry_cannot_leave_open_what_it_changes_of_the_training() -> None:
    field = next(field for field in dataclasses.fields(Knob) if field.name == "changes")
    assert field.default is dataclasses.MISSING
    assert field.default_factory is dataclasses.MISSING


@pytest.mark.parametrize("knob", CATALOGUE.values(), ids=CATALOGUE)
def test_an_entry_says_what_it_changes_of_the_training(knob: Knob) -> None:
    assert isinstance(knob.changes, frozenset)
    assert knob.changes <= {NUMBERS, DATA, GRAPH, STATISTICS}
    assert knob.changes or not knob.schedule
    assert knob.numerics or not knob.number_format
