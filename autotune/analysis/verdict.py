"""What a study concludes, in one sentence. Pure functions over a confirmation."""

import collections
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from autotune.analysis.confirmation import ALIKE, Confirmation
from autotune.analysis.gate import GateRecord, touched
from autotune.measurement.estimate import Ratio, paired_ratio
from autotune.measurement.numerics import STEPS
from search_spaces import CATALOGUE
from search_spaces.constraints import global_batch
from search_spaces.knob import written
from storage import Purpose, StoredAttempt


@dataclass(frozen=True)
class Verdict:
    """The outcome of a study.

    Attributes:
        kind: better, nothing_better, undecided (the noise is larger than the difference), no_baseline
            (the baseline cannot run) or no_result.
        sentence: what the user reads.
        trial: of the recommended configuration; None for no_result.
        knobs: the recommended configuration.
        throughput: its rate with interval, per second.
        speedup: over the baseline, with interval; None where that did not run.
        finalists: each candidate with its ratio to the recommended one, and the round after which
            it was dropped, if it was.
        rounds: complete rounds measured.
        numerics: how closely the recommended configuration follows the fp32 reference; None where
            nothing in it can change numerics.
        refused: configurations that do not, with the reason.
    """

    kind: str
    sentence: str
    trial: int | None = None
    knobs: dict[str, Any] | None = None
    throughput: Ratio | None = None
    speedup: Ratio | None = None
    baseline: Ratio | None = None
    finalists: tuple[dict[str, Any], ...] = ()
    rounds: int = 0
    numerics: dict[str, Any] | None = None
    refused: tuple[dict[str, Any], ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready: a bound that is infinite, because one round tells no interval, is None."""
        found: dict[str, Any] = _finite(asdict(self))
        return found


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _finite(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def conclude(
    confirmation: Confirmation,
    unit: str,
    world_size: int,
    checks: GateRecord,
    baseline_end: str = "",
) -> Verdict:
    """The verdict of a confirmation; at least one candidate finished a round.

    Args:
        confirmation: decided.
        unit: of the objective.
        world_size: ranks.
        checks: what the numerics gate has found.
        baseline_end: how the baseline ended in the search, where it did not complete.
    """
    chosen = confirmation.choice()
    knobs = confirmation.candidates[chosen].knobs
    throughput = mean_rate(confirmation.rates(chosen))
    baseline = confirmation.baseline
    finalists = tuple(_finalist(confirmation, trial, chosen) for trial in confirmation.candidates)
    common: dict[str, Any] = {
        "trial": chosen,
        "knobs": knobs,
        "throughput": throughput,
        "finalists": finalists,
        "rounds": len(confirmation.rounds),
        "numerics": _numerics(chosen, checks),
        "refused": tuple(asdict(refusal) for refusal in checks.refused),
    }
    if baseline is None or not confirmation.rates(baseline):
        sentence = (
            f"Your configuration does not run here{baseline_end and f' ({baseline_end})'}; the best "
            f"that does reaches {rate_text(throughput, unit)} with {difference(knobs, {})}. If you "
            "have mended what stopped yours since, start a study of another name."
        )
        return Verdict("no_baseline", sentence, **common)
    before = mean_rate(confirmation.rates(baseline))
    if chosen == baseline:
        kind, sentence = _stay(confirmation, baseline, rate_text(throughput, unit))
        sentence += _refusals(checks, knobs)
        return Verdict(kind, sentence, baseline=before, speedup=Ratio(1, 1, 1), **common)
    speedup = confirmation.ratio(chosen, baseline)
    today = confirmation.candidates[baseline].knobs
    sentence = (
        f"{speedup.value:.2f}x your configuration (95 % interval {speedup.low:.2f} to "
        f"{speedup.high:.2f}): {difference(knobs, today)} reaches {rate_text(throughput, unit)}, "
        f"measured again {len(confirmation.rounds)} times in turn with yours."
        + _global_batch_changes(knobs, today, world_size)
        + _schedule_changes(knobs, today)
        + _numerics_sentence(chosen, touched(knobs, today), checks)
        + _refusals(checks, today)
    )
    return Verdict("better", sentence, baseline=before, speedup=speedup, **common)


def _stay(confirmation: Confirmation, baseline: int, rate: str) -> tuple[str, str]:
    """Why to keep the baseline: because it is as good as any, or because the noise hides it."""
    rounds = len(confirmation.rounds)
    leader = confirmation.leader()
    ratio = confirmation.ratio(leader, baseline)
    if leader == baseline or ratio.high <= 1 + ALIKE:
        others = len(confirmation.candidates) - 1
        how = f"times in turn with {_count(others, 'finalist')}" if others else "times more"
        return "nothing_better", (
            f"Nothing that was tried beats your configuration: it reaches {rate}, measured "
            f"{rounds} {how}."
        )
    knobs, today = (confirmation.candidates[trial].knobs for trial in (leader, baseline))
    return "undecided", (
        f"Cannot tell whether anything beats your configuration, so keep it: "
        f"{difference(knobs, today)} measured {ratio.value:.2f}x in {rounds} rounds, but the 95 % "
        f"interval is {ratio.low:.2f} to {ratio.high:.2f}. A quieter machine, longer trials or more "
        "rounds (`measurement`) would tell."
    )


def end_of_baseline(attempts: Sequence[StoredAttempt], baseline: Mapping[str, Any]) -> str:
    """How the baseline ended in the search, in words; empty if it completed or never ran."""
    ends = [a.result for a in attempts if a.purpose == Purpose.SEARCH and a.knobs == baseline]
    if not ends or ends[-1].state == "COMPLETE":
        return ""
    return f"{ends[-1].state}: {ends[-1].cause}" if ends[-1].cause else ends[-1].state


def no_result(attempts: Sequence[StoredAttempt]) -> Verdict:
    """The verdict when no trial completed, or none that did could be measured again."""
    searched = [a for a in attempts if a.purpose == Purpose.SEARCH and a.recorded]
    complete = any(a.result.state == "COMPLETE" for a in searched)
    judged = [a for a in attempts if a.purpose == Purpose.CONFIRM] if complete else searched
    counted = collections.Counter(str(a.result.state) for a in judged)
    text = ", ".join(f"{count} {state}" for state, count in sorted(counted.items())) or "none ran"
    sentence = f"No configuration could be measured{' again' if complete else ''} ({text})."
    failed = [a for a in judged if a.result.cause and a.result.state not in ("COMPLETE", "PRUNED")]
    if failed:
        sentence += f" The first cause: {failed[0].result.cause}."
    if set(counted) == {"OOM"}:
        sentence += " Every trial ran out of memory: try smaller micro_batch values."
    elif failed:
        sentence += f" `autotune logs STUDY --trial {failed[0].trial}` shows what it printed."
    return Verdict("no_result", sentence)


def mean_rate(rates: Sequence[float]) -> Ratio:
    """Geometric mean over rounds with its 95 % interval."""
    return paired_ratio(rates, [1.0] * len(rates))


def rate_text(rate: Ratio, unit: str) -> str:
    """'1,234 samples/s (95 % interval 1,200 to 1,268)'."""
    return (
        f"{quantity(rate.value)} {unit} (95 % interval {quantity(rate.low)} to "
        f"{quantity(rate.high)})"
    )


def quantity(value: float) -> str:
    """A rate with as many digits as mean something."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def difference(knobs: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """'micro_batch=32, precision=bf16': what is not the same as in the other configuration."""
    changed = {name: value for name, value in knobs.items() if other.get(name) != value}
    return ", ".join(f"{name}={written(value)}" for name, value in changed.items()) or "no change"


def _global_batch_changes(
    knobs: Mapping[str, Any], today: Mapping[str, Any], world_size: int
) -> str:
    before, after = global_batch(today, world_size), global_batch(knobs, world_size)
    if before == after:
        return ""
    return f" The global batch changes from {before} to {after}: adjust the learning rate."


def _schedule_changes(knobs: Mapping[str, Any], today: Mapping[str, Any]) -> str:
    size = ("micro_batch", "accumulation_steps")
    changed = {
        name: knobs[name]
        for name, knob in CATALOGUE.items()
        if knob.schedule and name not in size and knobs[name] != today[name]
    }
    if not changed:
        return ""
    return (
        f" {difference(changed, {})} changes what is trained: compare how far whole trainings come."
    )


def _numerics(trial: int, checks: GateRecord) -> dict[str, Any] | None:
    if trial in checks.passed:
        found = checks.passed[trial]
        return {"loss_distance": found.loss_distance, "norm_ratio": found.norm_ratio}
    if trial in checks.unchecked:
        return {"unchecked": checks.unchecked[trial]}
    return None


def _numerics_sentence(trial: int, names: Sequence[str], checks: GateRecord) -> str:
    if not names:
        return ""
    what = ", ".join(names)
    if trial not in checks.passed:
        return f" {what} can change the loss, which could not be checked: compare a longer run."
    distance = checks.passed[trial].loss_distance
    return f" With {what} the loss stays within {distance:.2%} of fp32 over {STEPS} steps."


def _refusals(checks: GateRecord, today: Mapping[str, Any]) -> str:
    if not checks.refused:
        return ""
    first = checks.refused[0]
    return (
        f" {_count(len(checks.refused), 'faster trial')} refused: {difference(first.knobs, today)}, as "
        f"{first.reason}."
    )


def _finalist(confirmation: Confirmation, trial: int, chosen: int) -> dict[str, Any]:
    rates = confirmation.rates(trial)
    return {
        "trial": trial,
        "knobs": confirmation.candidates[trial].knobs,
        "baseline": trial == confirmation.baseline,
        "rates": rates,
        "ratio_to_recommended": asdict(confirmation.ratio(trial, chosen)) if rates else None,
        "dropped_after_round": confirmation.dropped.get(trial),
    }


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
