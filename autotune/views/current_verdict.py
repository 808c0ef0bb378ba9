"""Answer of a study at this moment: its stored verdict, or what its records support by now."""

from autotune.analysis.conclusion import StudyFacts, build_verdict
from autotune.analysis.provenance import Records
from autotune.analysis.verdict import Verdict
from autotune.config import StudySpec
from storage import Attempts, Repository, StoredStudy, StudyState


def current_verdict(repository: Repository, study: StoredStudy) -> Verdict:
    """Return the verdict, or the provisional answer while there is none.

    The verdict of a study that goes on counts until there is a new one, if it recommends something.
    """
    if study.verdict is not None:
        verdict = Verdict.from_dict(study.verdict)
        if study.state == StudyState.DONE or verdict.trial is not None:
            return verdict
    spec = StudySpec.model_validate(study.spec)
    recorded = repository.attempts.of(study.id)
    attempts = Attempts(recorded, spec.full_baseline(), spec.harmless)
    facts = StudyFacts.of(study, spec)._replace(ended=False)
    return build_verdict(Records.of(repository, attempts, study.id), spec, facts)
