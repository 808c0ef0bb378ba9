"""Content of best.yaml at this moment: the recommendation, or the provisional answer before it."""

import dataclasses
import datetime
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autotune.analysis.provenance import attempts_of
from autotune.analysis.verdict import Verdict
from autotune.config import StudySpec, secrets_withheld
from autotune.errors import BadInput
from autotune.export.tuned_job import script_of
from autotune.export.writing import document, of_this_version, write
from storage import Repository, StoredStudy


def content_of(
    verdict: Verdict,
    study: StoredStudy,
    spec: StudySpec,
    *,
    text: str,
    world_size: int,
    environment: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the content of best.yaml for a verdict of this study that recommends something.

    Args:
        text: the verdict in words.
        world_size: ranks that it was measured with.
    """
    own = {*spec.values(), *spec.baseline, *spec.workload.present(spec.env)}
    knobs = verdict.knobs or {}
    script = script_of(spec, verdict.knobs, Path(study.workdir), world_size)
    if script is not None:  # which sets all others by itself
        knobs = {name: value for name, value in knobs.items() if name in own}
    content = document(
        verdict=dataclasses.replace(verdict, knobs=knobs),
        text=text,
        unit=spec.unit,
        world_size=world_size,
        environment=environment,
        created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        script=script,
    )
    return {**content, "own": sorted(own)}


def current_content(
    repository: Repository, study: StoredStudy, answer: Verdict, text: str
) -> dict[str, Any]:
    """Return the content of best.yaml.

    Args:
        text: the verdict in words.

    Raises:
        BadInput: nothing is recommended.
    """
    recommended = repository.recommendations.newest_of(study.id)
    if recommended is None:
        return _provisional(repository, study, answer, text)
    return of_this_version(recommended)


def export(
    repository: Repository, study: StoredStudy, answer: Verdict, text: str, target: Path
) -> bool:
    """Write best.yaml; return whether it is provisional.

    Args:
        text: the verdict in words.

    Raises:
        BadInput: nothing is recommended, or the file cannot be written.
    """
    content = current_content(repository, study, answer, text)
    _write(target, content)
    if not content.get("provisional"):
        return False
    # The study may have come to its end meanwhile. It records what it recommends before it writes
    # its own file, so that whichever of the two was written last, this finds the record.
    recommended = repository.recommendations.newest_of(study.id)
    if recommended is None:
        return True
    _write(target, of_this_version(recommended))
    return False


def _provisional(
    repository: Repository, study: StoredStudy, verdict: Verdict, text: str
) -> dict[str, Any]:
    if verdict.trial is None:
        raise BadInput(f"{study.name} recommends nothing: {text}")
    spec = secrets_withheld.as_stored(study.spec)
    attempts = attempts_of(repository.attempts.of(study.id), spec)
    ran = attempts.of_trial(verdict.trial).measured().last
    assert ran is not None  # the answer rests on it
    return content_of(
        verdict,
        study,
        spec,
        text=text,
        world_size=repository.attempts.blocks(ran.id)[0].world_size,
        environment=repository.environments.of_attempt(ran.id) or {},
    )


def _write(target: Path, content: dict[str, Any]) -> None:
    try:
        write(target, content)
    except OSError as error:
        raise BadInput(f"{target} cannot be written: {error.strerror}") from None
