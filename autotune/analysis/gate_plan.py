"""Plan of the numerics gate: which runs finalists need beside their fp32 reference. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from autotune.analysis.finalists import Candidate
from autotune.analysis.gate_runs import (
    checkable,
    compared,
    first_references,
    pair_of,
    rounding_of_reference,
    unproven_as_others,
    unproven_checks,
)
from autotune.measurement.gradients import RoundingErrors
from autotune.measurement.numerics import Pair, Trajectory, trajectory
from autotune.measurement.policy import GATE
from search_spaces.knob import Knobs
from search_spaces.numerics import reference_knobs, touched
from storage import TRAJECTORIES, Attempts, AttemptState, Blocks, Purpose, StoredAttempt


@dataclass(frozen=True)
class Check:
    """Run that the gate needs.

    Attributes:
        seed: number of its seed; the first is the study's own.
        reference: trajectory to compare it with; None: the run is the reference.
        formats: configurations of both.
        earlier: pairs of runs with other seeds.
        rounding: errors of gradients under plain autocast; empty if not known.
    """

    purpose: Purpose
    trial: int
    knobs: dict[str, Any]
    seed: int = 0
    reference: Trajectory | None = None
    formats: tuple[dict[str, Any], ...] = ()
    earlier: tuple[Pair, ...] = ()
    rounding: tuple[RoundingErrors, ...] = ()

    @property
    def run(self) -> "MissingRun":
        """The run by itself."""
        safe = self.formats[-1] if self.formats else self.knobs
        return MissingRun(self.purpose, self.knobs, safe)


class MissingRun(NamedTuple):
    """Run of the gate that has yet to be made.

    Attributes:
        safe: configuration of its reference; that of a reference is its own.
    """

    purpose: Purpose
    knobs: dict[str, Any]
    safe: dict[str, Any]

    def beside(self, purpose: Purpose) -> "MissingRun":
        """Return the run of its reference with this purpose."""
        return MissingRun(purpose, self.safe, self.safe)


def next_check(
    candidates: Sequence[Candidate], baseline: Knobs, attempts: Attempts, blocks: Blocks
) -> Check | None:
    """Return the run that is missing before these candidates may be confirmed; None if none is."""
    done, others = attempts.of(Purpose.NUMERICS).conclusive(), unproven_checks(attempts, blocks)
    for candidate in candidates:
        if not touched(candidate.knobs, baseline, attempts.harmless):
            continue
        checked, reference = checkable(candidate.knobs, baseline, first_references(attempts))
        if reference is None:
            return Check(Purpose.REFERENCE, candidate.trial, reference_knobs(checked, baseline))
        if reference.result.state != AttemptState.COMPLETE:
            continue
        own = done.of_trial(candidate.trial).with_knobs(checked)
        if not own and unproven_as_others(checked, others, attempts.harmless):
            continue
        check = next_seed(candidate.trial, checked, reference.knobs, attempts, blocks)
        if check is not None and _lacks_rounding(check, reference, attempts, blocks):
            return Check(Purpose.AUTOCAST, candidate.trial, reference.knobs, check.seed)
        if check is not None:
            return check
    return None


def _lacks_rounding(
    check: Check, reference: StoredAttempt, attempts: Attempts, blocks: Blocks
) -> bool:
    """Return whether a run must tell how far plain autocast deviates the gradient with a check's seed.

    Convolutional networks with normalisation amplify rounding, by as much as weights and batch
    decide. Without gradients the run cannot tell.
    """
    done = attempts.of(Purpose.AUTOCAST).with_seed(check.seed).conclusive()
    if check.purpose is not Purpose.NUMERICS or done.with_knobs(reference.knobs):
        return False
    seen = [block.observed for block in blocks(reference.id)]
    return any("gradient" in one for one in seen) and any(one.get("convolutions") for one in seen)


def next_seed(
    trial: int, checked: dict[str, Any], safe: dict[str, Any], attempts: Attempts, blocks: Blocks
) -> Check | None:
    """Return the run that is missing while the answer is open; None if none is."""
    checks = attempts.of(Purpose.NUMERICS).conclusive()
    done = list(checks.of_trial(trial).with_knobs(checked))
    if done and not _is_open(done[-1], attempts, blocks):
        return None
    for seed in range(1 + max((a.seed or 0 for a in done), default=-1), GATE.most_seeds):
        references = attempts.of(Purpose.REFERENCE).with_seed(seed).conclusive().with_knobs(safe)
        if not references:
            return Check(Purpose.REFERENCE, trial, safe, seed)
        if (reference := references.complete().first) is not None:
            return Check(
                Purpose.NUMERICS,
                trial,
                checked,
                seed,
                trajectory(blocks(reference.id)),
                (checked, safe),
                tuple(pair_of(a, attempts, blocks)[0] for a in done),
                rounding_of_reference(safe, seed, attempts, blocks),
            )
    return None


def _is_open(attempt: StoredAttempt, attempts: Attempts, blocks: Blocks) -> bool:
    if attempt.result.state != AttemptState.COMPLETE:
        return False
    return compared(attempt, attempts, blocks).open


def missing_runs(
    finalists: Iterable[Knobs], baseline: Knobs, attempts: Attempts, *, convolutional: bool = False
) -> list[MissingRun]:
    """Return the runs that must be made before these may be confirmed, if each passes at once.

    Args:
        finalists: configurations.
        baseline: a value for every knob.
        convolutional: True if the model has convolutions, so that plain autocast is run as well.
    """
    missing: list[MissingRun] = []
    for knobs in finalists:
        if touched(knobs, baseline, attempts.harmless):
            found = _missing_runs_of(knobs, baseline, attempts, convolutional=convolutional)
            shared = [run for run in missing if run.purpose is not Purpose.NUMERICS]
            missing += [run for run in found if run not in shared]
    return missing


def _missing_runs_of(
    knobs: Knobs, baseline: Knobs, attempts: Attempts, *, convolutional: bool
) -> list[MissingRun]:
    checked, reference = checkable(knobs, baseline, first_references(attempts))
    safe = reference_knobs(checked, baseline)
    own = {searched.trial for searched in attempts.searched().with_knobs(knobs)}
    missing = [] if reference else [MissingRun(Purpose.REFERENCE, safe, safe)]
    done = attempts.of(Purpose.NUMERICS).conclusive().with_knobs(checked)
    if not any(check.trial in own for check in done):
        if convolutional and not attempts.of(Purpose.AUTOCAST).conclusive().with_knobs(safe):
            missing.append(MissingRun(Purpose.AUTOCAST, safe, safe))
        missing.append(MissingRun(Purpose.NUMERICS, checked, safe))
    # That other seeds are needed, only their runs tell.
    for cut in attempts.of(*TRAJECTORIES).to_repeat():
        run = MissingRun(cut.purpose, cut.knobs, safe)
        if cut.trial in own and run not in missing:
            missing.append(run)
    return missing
