"""Content of best.yaml at this moment: the recommendation, or the provisional answer before it."""

import datetime
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autotune.analysis.verdict import Verdict
from autotune.config import StudySpec
from autotune.errors import BadInput
from autotune.export.tuned_job import script_of
from autotune.export.writing import document, of_today, write
from storage import Attempts, Repository, StoredStudy


def content_of(
    verdict: Verdict,
    study: StoredStudy,
    spec: StudySpec,
    *,
    world_size: int,
    environment: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the content of best.yaml for a verdict of this study that recommends something.

    Args:
        verdict: to write.
        study: of the verdict.
        spec: of the study.
        world_size: ranks that it was measured with.
        environment: that it was measured in.
    """
    content = document(
        verdict=verdict,
        unit=spec.unit,
        world_size=world_size,
        study=study.name,
        environment=environment,
        created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        script=script_of(spec, verdict.knobs, Path(study.workdir), world_size),
    )
    return {**content, "own": sorted({*spec.values(), *spec.baseline})}


def current_content(repository: Repository, study: StoredStudy, in_hand: Verdict) -> dict[str, Any]:
    """Return the content of best.yaml.

    Args:
        repository: with the study.
        study: to export.
        in_hand: its present verdict.

    Raises:
        BadInput: nothing is recommended.
    """
    recommended = repository.recommendations.newest_of(study.id)
    if recommended is None:
        return _provisional(repository, study, in_hand)
    return of_today(recommended)


def export(repository: Repository, study: StoredStudy, in_hand: Verdict, target: Path) -> bool:
    """Write best.yaml; return whether it is provisional.

    Args:
        repository: with the study.
        study: to export.
        in_hand: its present verdict.
        target: file to write.

    Raises:
        BadInput: nothing is recommended, or the file cannot be written.
    """
    content = current_content(repository, study, in_hand)
    _write(target, content)
    if not content.get("provisional"):
        return False
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
    return content_of(
        verdict,
        study,
        spec,
        world_size=repository.attempts.blocks(ran.id)[0].workers,
        environment=repository.environments.of_attempt(ran.id) or {},
    )


def _write(target: Path, content: dict[str, Any]) -> None:
    try:
        write(target, content)
    except OSError as error:
        raise BadInput(f"{target} cannot be written: {error.strerror}") from None
