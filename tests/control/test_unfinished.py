"""Page and report of a study that has not ended, or ended before its proof."""

import pytest
from sqlalchemy import update

from autotune.views.figures import StudyFigures, figures_of
from autotune.views.page import page
from autotune.views.paper import report_of
from storage import StudyState
from storage.models import StudyRow
from tests.control.replayed import Replayed
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
