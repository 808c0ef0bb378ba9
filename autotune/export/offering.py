"""What a study offers as best.yaml at this moment: its recommendation, before there is one the
provisional answer."""

import datetime
from pathlib import Path
from typing import Any

from autotune.analysis.verdict import Verdict
from autotune.errors import BadInput
from autotune.export.job import script_of
from autotune.export.writing import document, of_today, write
from autotune.spec import StudySpec
from storage import Attempts, Repository, StoredStudy


def export(repository: Repository, study: StoredStudy, in_hand: Verdict, target: Path) -> bool:
    """Write it; returns whether it is provisional.

    Args:
        in_hand: what the study answers.

    Raises:
        BadInput: nothing is recommended, or the file cannot be written.
    """
    recommended = repository.recommendations.newest_of(study.id)
    if recommended is None:
        _write(target, _provisional(repository, study, in_hand))
        # The study may have come to its end meanwhile. It records what it recommends before it writes
        # its own file, so that whichever of the two was written last, this finds the record.
        recommended = repository.recommendations.newest_of(study.id)
        if recommended is None:
            return True
    _write(target, of_today(recommended))
    return False


def _provisional(repository: Repository, study: StoredStudy, verdict: Verdict) -> dict[str, Any]:
    if verdict.trial is None:
        raise BadInput(f"{study.name} recommends nothing: {verdict.sentence}")
    spec = StudySpec.model_validate(study.spec)
    attempts = Attempts(repository.attempts.of(study.id), spec.full_baseline(), spec.harmless)
    ran = attempts.of_trial(verdict.trial).measured().last
    assert ran is not None  # the answer rests on it
    return document(
        verdict=verdict,
        unit=spec.objective.unit,
        world_size=repository.attempts.blocks(ran.id)[0].workers,
        study=study.name,
        environment=repository.environments.of_attempt(ran.id) or {},
        created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        script=script_of(spec, verdict.knobs, Path(study.workdir)),
    )


def _write(target: Path, content: dict[str, Any]) -> None:
    try:
        write(target, content)
    except OSError as error:
        raise BadInput(f"{target} cannot be written: {error.strerror}") from None
