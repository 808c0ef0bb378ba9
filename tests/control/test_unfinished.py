"""Page and report of a study that has not ended, or ended before its proof."""

import re
from typing import Any

import pytest
from sqlalchemy import update

from autotune.views.figures import StudyFigures, figures_of
from autotune.views.page import page
from autotune.views.page_charts import interval_strip, proof_charts
from autotune.views.paper import report_of
from launchers.replay import Answer, Launch
from storage import StudyState
from storage.models import StudyRow
from tests.control.replayed import PLAIN, Replayed
from tests.control.shown import answered, words


def _figures(played: Replayed) -> StudyFigures:
    return figures_of(played.repository, played.study())


def test_study_whose_daemon_is_dead_is_shown_as_one_without_a_daemon(played: Replayed) -> None:
    played.submit()
    with played.repository.database.writing() as connection:
        connection.execute(update(StudyRow).values(state=StudyState.RUNNING))
    figures = _figures(played)
    assert not figures.served
    assert '<span class="pill warn">no daemon</span>' in page(figures)
    assert "No daemon runs it: `autotune resume played` starts one." in report_of(figures)
    assert "No daemon runs it: <code>autotune resume played</code> starts one." in page(figures)


@pytest.mark.parametrize("held", [True, False])
def test_study_that_is_held_says_so_first(played: Replayed, held: bool) -> None:
    played.submit()
    played.repository.studies.arrange(played.name, held=held)
    figures = _figures(played)
    told = "The study waits: held; autotune release played."
    assert (told in report_of(figures)) == held == (told in words(page(figures)))
    assert ('<span class="pill warn">waits</span>' in page(figures)) == held
    assert ("no daemon" in page(figures)) == (not held)
    assert (figures.waiting or "") in answered(played, "status", played.name)


_ROUNDS: dict[str, Any] = {
    "search_space": {"micro_batch": [2, 8, 16]},
    "budget": {"trials": 3},
    "measurement": {"rounds": 6},
}


def _in_its_proof(played: Replayed, rounds: int) -> StudyFigures:
    """Return the figures of a study that is stopped after so many rounds of its proof."""
    found: list[StudyFigures] = []

    def look(launch: Launch) -> Answer:
        if not found and len([a for a in played.recorded("confirm") if a.trial == 0]) >= rounds:
            found.append(_figures(played))
            played.repository.studies.request_stop(played.name)
        return PLAIN(launch)

    played.on(look).run_until_it_fails(**_ROUNDS)
    return found[0]


def test_figure_of_a_trial_is_shown_without_rounds_that_it_does_not_rest_on(
    played: Replayed,
) -> None:
    figures = _in_its_proof(played, 2)
    answer = figures.answer
    assert answer.better and not answer.confirmed and len(figures.rounds) >= 2
    assert (answer.rates, answer.baseline_rates, answer.compared) == (None, None, 0)
    assert "Rates are no promise" not in words(page(figures))
    assert "round" not in interval_strip(figures)
    assert not re.search(r'class="(iv|mid)"', proof_charts(figures))
