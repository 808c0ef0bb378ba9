"""Page and report of a study that has not ended, or ended before its proof."""

import re
from typing import Any

import pytest
from sqlalchemy import update

from autotune.views.dashboard import _WithPage
from autotune.views.figures import figures_of
from autotune.views.markdown_report import report_of
from autotune.views.page import page
from autotune.views.page_charts import interval_strip, proof_charts
from autotune.views.study_figures import StudyFigures
from launchers.replay import Answer, Launch
from launchers.replay.behaviours import noisy
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
    """Return the figures of a study during its proof, after so many rounds of it; it then fails."""
    found: list[StudyFigures] = []
    behaviour = noisy(PLAIN, run=0.05, block=0.02)

    def look(launch: Launch) -> Answer:
        if len([a for a in played.recorded("confirm") if a.trial == 0]) >= rounds:
            found.append(_figures(played))
            raise RuntimeError("the launcher is gone")
        return behaviour(launch)

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


@pytest.mark.parametrize(
    ("state", "how"), [(StudyState.FAILED, "failed"), (StudyState.STOPPED, "was stopped")]
)
def test_study_that_ended_in_its_proof_is_not_said_to_go_on(
    played: Replayed, state: StudyState, how: str
) -> None:
    assert "The study goes on" in report_of(_in_its_proof(played, 3))
    with played.repository.database.writing() as connection:
        connection.execute(update(StudyRow).values(state=state))
    figures = _figures(played)
    assert figures.provisional
    for shown in (words(page(figures)), report_of(figures)):
        assert f"The study {how} before its proof ended;" in shown
        assert "The study goes on" not in shown
    assert "provisional: its proof has not ended" in page(figures)
    assert "So far" not in page(figures)


@pytest.mark.parametrize(("workers", "ranks", "batch"), [(8, "8 ranks", 16), ("auto", "", None)])
def test_queued_study_is_shown_with_the_ranks_of_its_file(
    played: Replayed, workers: int | str, ranks: str, batch: int | None
) -> None:
    played.submit(resources={"workers": workers})
    job = _figures(played).job
    assert (job.ranks, job.batch_before) == (ranks, batch)
    text = words(page(_figures(played)))
    assert ("8 ranks" in text) == bool(ranks)
    assert "1 rank" not in text


def _answered(app: _WithPage, query: str) -> str:
    """Return the page at an address with this query."""
    found = app({"PATH_INFO": "/report", "QUERY_STRING": query}, lambda *_: None)
    return b"".join(found).decode()


def test_page_that_is_held_still_does_not_load_itself_again(played: Replayed) -> None:
    played.submit()
    app = _WithPage(lambda *_: [], played.repository, played.name, "/dashboard/", lambda _: "")
    following, still = (_answered(app, query) for query in ("", "still=1"))
    assert 'http-equiv="refresh"' in following and 'http-equiv="refresh"' not in still
    assert '<a href="?still=1">hold still to read</a>' in following
    assert '<a href="?">follow again</a>' in still
    written = page(_figures(played), still=True)
    assert "follow again" not in written, "a file follows nothing"
