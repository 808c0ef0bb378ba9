"""Where a study stands is stored by its daemon, and read instead of all of its attempts."""

from dataclasses import replace
from typing import Any

import pytest

from autotune.analysis.standing import Present
from autotune.config import StudySpec
from autotune.views.outlook import present_of
from launchers.replay import Answer, Launch
from launchers.replay.behaviours import noisy
from storage import Purpose, StoredStudy
from tests.control.replayed import PLAIN, Replayed

STUDY: dict[str, Any] = {
    "budget": {"trials": 6, "min_improvement": 0},
    "measurement": {"baseline_runs": 3, "search_ci_half_width": 0.05, "ablation_rounds": 2},
}


def computed(played: Replayed, study: StoredStudy) -> Present:
    """Return where it stands by all of its attempts."""
    spec = StudySpec.model_validate(study.spec)
    return present_of(played.repository, replace(study, standing=None), spec)


def known(played: Replayed, study: StoredStudy) -> Present:
    """Return where it stands as a command finds it."""
    return present_of(played.repository, study, StudySpec.model_validate(study.spec))


@pytest.mark.long
@pytest.mark.usefixtures("shown_at_once")
def test_stored_standing_is_that_of_all_attempts_at_every_launch(
    played: Replayed, monkeypatch: pytest.MonkeyPatch
) -> None:
    behaviour = noisy(PLAIN, run=0.02, block=0.01)
    read: list[Present] = []
    computes = 0

    def find(study: StoredStudy) -> Present:
        """Return where it stands, and count how it was found."""
        nonlocal computes
        own, every = played.repository.attempts.of, []
        with monkeypatch.context() as patch:
            patch.setattr(played.repository.attempts, "of", lambda i: every.append(i) or own(i))
            found = known(played, study)
        assert found == computed(played, study)
        computes += bool(every)
        if not every:
            read.append(found)
        return found

    def watched(launch: Launch) -> Answer:
        find(played.study())
        return behaviour(launch)

    played.on(watched).run(**STUDY)
    ended = find(played.study())
    assert (ended.running, ended.standing.trials) == ([], 6)
    assert ended.standing.leading is not None
    assert ended is read[-1]
    purposes = {one.running[-1].purpose for one in read[:-1]}
    assert {Purpose.SEARCH, Purpose.CONFIRM, Purpose.ABLATION} <= purposes
    assert computes < len(read) / 2


@pytest.mark.usefixtures("shown_at_once")
def test_standing_is_computed_where_the_stored_one_is_behind_or_rests_on_something_else(
    played: Replayed,
) -> None:
    earlier: list[dict[str, Any]] = []

    def watched(launch: Launch) -> Answer:
        earlier.extend(filter(None, [played.study().standing]))
        return PLAIN(launch)

    played.on(watched).run(**STUDY)
    study = played.study()
    assert study.standing is not None
    behind = replace(study, standing=earlier[0])
    other = replace(study, standing={**earlier[0], "basis": "", "last": study.standing["last"]})
    damaged = replace(study, standing={"last": 1})
    for stored in (behind, other, damaged):
        assert known(played, stored) == computed(played, study)
