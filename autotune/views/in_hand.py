"""What a study answers at this moment: its verdict, or what its records support by now."""

import dataclasses

from autotune.analysis import gate
from autotune.analysis.provisional import provisional
from autotune.analysis.sameness import Rules
from autotune.analysis.verdict import Verdict
from autotune.config import StudySpec
from autotune.views.machine import measured_on
from storage import Attempts, Repository, StoredStudy, StudyState


def in_hand(repository: Repository, study: StoredStudy) -> Verdict:
    """The verdict, also the earlier one of a study that goes on; before there is one that recommends
    something, the provisional answer."""
    if study.verdict is not None:
        verdict = Verdict.from_dict(study.verdict)
        if study.state == StudyState.DONE or verdict.trial is not None:
            return verdict
    spec = StudySpec.model_validate(study.spec)
    recorded = repository.attempts.of(study.id)
    return supported(repository, study, Attempts(recorded, spec.full_baseline(), spec.harmless))


def supported(repository: Repository, study: StoredStudy, attempts: Attempts) -> Verdict:
    """The provisional answer that these attempts of a study support."""
    spec = StudySpec.model_validate(study.spec)
    baseline = spec.full_baseline()
    blocks = repository.attempts.blocks
    measured = attempts.measured().first
    found = provisional(
        attempts,
        baseline,
        gate.record(attempts, blocks, baseline, Rules.of(spec)),
        spec.measurement,
        study=study.name,
        unit=spec.unit,
        world_size=blocks(measured.id)[0].workers if measured else 1,
    )
    return dataclasses.replace(found, measured_on=measured_on(repository, attempts))
