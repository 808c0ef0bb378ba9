"""Verdict of a study at this moment, and every figure of it computed again from its recorded blocks."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

from autotune.analysis.conclusion import VerdictInputs, build_verdict
from autotune.analysis.gate_runs import compared
from autotune.analysis.provenance import Records, attempts_of
from autotune.analysis.verdict import Verdict
from autotune.config import secrets_withheld
from autotune.measurement import cycles
from autotune.measurement.estimate import Estimate
from autotune.measurement.measure import Measure
from autotune.measurement.noise import interval_of_blocks, total_half_width
from autotune.measurement.policy import MEASUREMENT
from autotune.runs.interleaved import ratio_to_baseline, turn_blocks
from storage import (
    Attempts,
    AttemptState,
    Purpose,
    Repository,
    StoredAttempt,
    StoredBlock,
    StoredStudy,
    StudyState,
)


def current_verdict(repository: Repository, study: StoredStudy) -> Verdict:
    """Return the verdict, or the provisional answer while there is none.

    The verdict of a study that goes on counts until there is a new one, if it recommends something.
    """
    if study.verdict is not None:
        verdict = Verdict.from_dict(study.verdict)
        if study.state == StudyState.DONE or verdict.trial is not None:
            return verdict
    spec = secrets_withheld.as_stored(study.spec)
    attempts = attempts_of(repository.attempts.of(study.id), spec)
    facts = VerdictInputs.of(study, spec)._replace(ended=False)
    return build_verdict(Records.of(repository, attempts, study.id), spec, facts)


def estimate_of(blocks: list[StoredBlock], measure: Measure) -> Estimate | None:
    """Return the rate of an attempt from its blocks; None if none of them counts."""
    kept = [block for block in blocks if block.kept]
    if not kept:
        return None
    return measure.estimate(kept)


def recomputed_attempts(repository: Repository, name: str) -> Attempts:
    """Return all attempts, each with the throughput that its blocks give."""
    study = repository.studies.named(name)
    spec = secrets_withheld.as_stored(study.spec)
    measure = Measure.of(spec)
    recomputed = []
    interleaved: dict[tuple[Purpose, int], dict[int, list[StoredBlock]]] = {}
    beside: dict[int, list[cycles.TurnBlock]] = {}
    for attempt in repository.attempts.of(study.id):
        blocks = repository.attempts.blocks(attempt.id)
        kept = [block for block in blocks if block.kept]
        if attempt.purpose in (Purpose.SEARCH, Purpose.PAIRED):
            beside[attempt.id] = _turns(kept, measure)
        if attempt.result.throughput is None:
            recomputed.append(attempt)
            continue
        if attempt.purpose not in (Purpose.SEARCH, Purpose.PAIRED) and _turns(kept, measure):
            interleaved.setdefault((attempt.purpose, attempt.round), {})[attempt.id] = kept
        again = estimate_of(blocks, measure)
        own, freedom = interval_of_blocks(again) if again else (MEASUREMENT.unknown_width, None)
        result = dataclasses.replace(
            attempt.result,
            throughput=again.rate if again else None,
            block_half_width=own,
            block_freedom=freedom,
            half_width=total_half_width(own, attempt.result.sigma_run or 0.0),
        )
        recomputed.append(dataclasses.replace(attempt, result=result))
    typical = {id_: rate for group in interleaved.values() for id_, rate in _rates(group, measure)}
    recomputed = [_at_rate(attempt, typical.get(attempt.id)) for attempt in recomputed]
    every = attempts_of(recomputed, spec)
    return every.each(lambda attempt: _at_pace(attempt, every, beside))


def _at_pace(
    attempt: StoredAttempt, every: Attempts, beside: Mapping[int, Sequence[cycles.TurnBlock]]
) -> StoredAttempt:
    """Return a paired trial with its rate referred to the baseline's own trial."""
    own, paired = every.baseline(), every.paired_baseline_of(attempt)
    known = (
        ratio_to_baseline(beside.get(attempt.id, ()), beside.get(paired.id, ())) if paired else None
    )
    if own is None or own.result.throughput is None or known is None:
        return attempt
    result = known.applied(attempt.result, own.result.throughput)
    return dataclasses.replace(attempt, result=result)


def _turns(kept: Sequence[StoredBlock], measure: Measure) -> list[cycles.TurnBlock]:
    return turn_blocks([(block, block.contended) for block in kept], measure)


def _rates(group: dict[int, list[StoredBlock]], measure: Measure) -> Iterable[tuple[int, float]]:
    """Return the rates of interleaved attempts, by their ids."""
    found = cycles.rates([_turns(blocks, measure) for blocks in group.values()])
    return zip(group, found, strict=True) if found else ()


def _at_rate(attempt: StoredAttempt, rate: float | None) -> StoredAttempt:
    if rate is None:
        return attempt
    result = dataclasses.replace(attempt.result, throughput=rate)
    return dataclasses.replace(attempt, result=result)


def recomputed_verdict(repository: Repository, name: str) -> Verdict:
    """Return the verdict that the recorded blocks give, or the provisional answer before the end."""
    study = repository.studies.named(name)
    spec = secrets_withheld.as_stored(study.spec)
    attempts = judged_again(recomputed_attempts(repository, name), repository)
    return build_verdict(
        Records.of(repository, attempts, study.id), spec, VerdictInputs.of(study, spec)
    )


def judged_again(attempts: Attempts, repository: Repository) -> Attempts:
    """Return the attempts; whether a loss trajectory is refused is decided anew."""
    return attempts.each(lambda attempt: _judged_again(attempt, attempts, repository))


def _judged_again(
    attempt: StoredAttempt, attempts: Attempts, repository: Repository
) -> StoredAttempt:
    judged = (AttemptState.COMPLETE, AttemptState.REFUSED)
    if attempt.purpose != Purpose.NUMERICS or attempt.result.state not in judged:
        return attempt
    problem = compared(attempt, attempts, repository.attempts.blocks).problem
    state = AttemptState.REFUSED if problem else AttemptState.COMPLETE
    result = dataclasses.replace(attempt.result, state=state, cause=problem)
    return dataclasses.replace(attempt, result=result)
