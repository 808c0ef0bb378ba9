"""Every figure of a study computed again from its recorded blocks."""

import dataclasses
import math

from autotune.analysis import gate
from autotune.analysis.confirmation import replay
from autotune.analysis.verdict import Verdict, conclude, end_of_baseline, no_result
from autotune.measurement.estimate import Estimate, estimate
from autotune.measurement.noise import total_half_width
from autotune.runs.judging import REFUSED
from autotune.spec import StudySpec
from storage import Purpose, Repository, StoredAttempt, StoredBlock


def estimate_of(blocks: list[StoredBlock], *, tokens: bool) -> Estimate | None:
    """The rate of an attempt from its blocks; None if none of them counts."""
    kept = [block for block in blocks if block.kept]
    if not kept:
        return None
    units = [block.tokens if tokens else block.samples for block in kept]
    return estimate(units, [block.seconds for block in kept])


def recomputed_attempts(repository: Repository, name: str) -> list[StoredAttempt]:
    """All attempts, each with the throughput that its blocks give."""
    study = repository.study(name)
    spec = StudySpec.model_validate(study.spec)
    found = []
    for attempt in repository.attempts(study.id):
        if attempt.result.throughput is None:
            found.append(attempt)
            continue
        blocks = repository.blocks(attempt.id)
        again = estimate_of(blocks, tokens=spec.objective.metric == "tokens_per_second")
        own = again.half_width if again and math.isfinite(again.half_width) else 1.0
        result = dataclasses.replace(
            attempt.result,
            throughput=again.rate if again else None,
            block_half_width=own,
            half_width=total_half_width(own, attempt.result.sigma_run or 0.0),
        )
        found.append(dataclasses.replace(attempt, result=result))
    return found


def recomputed_verdict(repository: Repository, name: str) -> Verdict:
    """The verdict that the recorded blocks give."""
    study = repository.study(name)
    spec = StudySpec.model_validate(study.spec)
    baseline = spec.full_baseline()
    attempts = judged_again(recomputed_attempts(repository, name), repository)
    confirmation = replay(
        attempts,
        baseline,
        finalists=spec.measurement.finalists,
        most_rounds=spec.measurement.rounds,
    )
    if confirmation is None or not confirmation.members() or not confirmation.rounds:
        return no_result(attempts)
    measured = next(a for a in attempts if a.result.throughput is not None)
    world_size = repository.blocks(measured.id)[0].workers
    checks = gate.record(attempts, baseline, repository.blocks)
    end = end_of_baseline(attempts, baseline)
    return conclude(confirmation, spec.objective.unit, world_size, checks, end)


def judged_again(attempts: list[StoredAttempt], repository: Repository) -> list[StoredAttempt]:
    """The same attempts; whether a loss trajectory is refused is decided anew."""
    return [_judged_again(attempt, attempts, repository) for attempt in attempts]


def _judged_again(
    attempt: StoredAttempt, attempts: list[StoredAttempt], repository: Repository
) -> StoredAttempt:
    if attempt.purpose != Purpose.NUMERICS or attempt.result.state not in ("COMPLETE", REFUSED):
        return attempt
    problem = gate.compared(attempt, attempts, repository.blocks).problem
    state = REFUSED if problem else "COMPLETE"
    result = dataclasses.replace(attempt.result, state=state, cause=problem)
    return dataclasses.replace(attempt, result=result)
