"""The report of a study, in Markdown."""

import statistics
from collections.abc import Iterable, Iterator

from autotune.analysis.attribution import Contribution, contributions
from autotune.analysis.batches import BatchBest, best_per_batch
from autotune.analysis.levels import Levels
from autotune.analysis.memory import limit_of_rank
from autotune.analysis.provenance import measured_in
from autotune.analysis.verdict import Kind, Verdict
from autotune.analysis.wording import counted, difference, duration, quantity
from autotune.config import StudySpec
from autotune.measurement.noise import FEWEST_FOR_DRIFT, SHORTEST_FOR_DRIFT, total_half_width
from autotune.views.composition import composition_table, held_back, recorded_facts
from autotune.views.notes import study_note
from autotune.views.running import Racing, Running, racing, running
from autotune.views.verdict_text import memory_lines
from search_spaces import Facts
from search_spaces.constraints import global_batch
from search_spaces.knob import written
from storage import Attempts, Purpose, Repository, StoredNoise, StoredStudy, StudyState

_MIB = 2**20
_SHOWN = 10


def report(repository: Repository, name: str, verdict: Verdict) -> str:
    """The verdict or the provisional answer, how its configuration ran, the noise, the best trials."""
    study = repository.studies.named(name)
    spec = StudySpec.model_validate(study.spec)
    attempts = Attempts(repository.attempts.of(study.id), spec.full_baseline(), spec.harmless)
    parts = [[f"# {name}"], list(_standing(study, verdict)), [study_note(verdict)]]
    ran = how_it_ran(repository, attempts, verdict, spec)
    if ran:
        rows = memory_lines(verdict.memory) if verdict.memory else ()
        parts.append(["### How the recommended configuration ran", "", *_running(ran, rows)])
    unusable = spec.workload.beyond_reach(spec.values())
    parts.append(list(held_back(repository, study, attempts, spec.full_baseline(), unusable)))
    facts = recorded_facts(study.facts) if study.facts else None
    parts.append(list(_attribution(spec, attempts, verdict, facts)))
    if study.facts:
        parts.append(list(_per_batch(spec, attempts, study.facts["world_size"])))
    rates = _confirmed(verdict)
    parts.append(list(composition_table(repository, study, attempts, rates)))
    parts.append(list(_measurement(attempts, repository.noise.of(study.id), racing(attempts))))
    parts.append(list(_best_trials(spec, attempts)))
    return "\n\n".join("\n".join(lines) for lines in parts if lines)


def _standing(study: StoredStudy, verdict: Verdict) -> Iterator[str]:
    """Yield why a study has not ended, and how to resume it."""
    if study.state == StudyState.DONE:
        return
    yield f"The study is {study.state}" + (f": {study.error}" if study.error else ".")
    if study.state.ended:
        yield f"`autotune resume {study.name}` goes on."
    if not verdict.provisional:
        yield "The verdict is from before it went on."


def _attribution(
    spec: StudySpec, attempts: Attempts, verdict: Verdict, facts: Facts | None
) -> Iterator[str]:
    """Yield the gain of each knob of the winner."""
    today = spec.full_baseline()
    gains = contributions(attempts, verdict.knobs, today, facts) if verdict.knobs else []
    if not gains:
        yield from _why_no_attribution(spec, attempts, verdict)
        return
    yield "### What each knob brings"
    yield ""
    yield "| knob | baseline | winner | gain (95 % interval) |"
    yield "|---|---|---|---|"
    for one in gains:
        bounds = f"{one.gain.low:.2f} to {one.gain.high:.2f}" if one.rounds > 1 else "once"
        yield (
            f"| {_tied(one)} | {written(one.before)} | {written(one.after)} | "
            f"{one.gain.value:.2f}x ({bounds}) |"
        )
    yield ""
    yield (
        "The winner against itself with that one knob back at the baseline's value (with those that do "
        "not go with that), in turn. Knobs help and hinder each other, so that the gains need not "
        "multiply to the whole."
    )


def _per_batch(spec: StudySpec, attempts: Attempts, world_size: int) -> Iterator[str]:
    """The best of every global batch, where there are several."""
    found = best_per_batch(attempts, world_size)
    if len(found) < 2:
        return
    own = global_batch(spec.full_baseline(), world_size)
    yield "### Best per global batch"
    yield ""
    unit = spec.unit
    yield f"| global batch | trial | over the baseline | {unit} | difference to the baseline |"
    yield "|---|---|---|---|---|"
    for one in found:
        mark = " (yours)" if one.global_batch == own else ""
        changed = difference(one.knobs, spec.full_baseline())
        yield (
            f"| {one.global_batch:,}{mark} | {one.trial} | {_over_baseline(one)} | "
            f"{quantity(one.throughput)} | {changed} |"
        )
    yield ""
    yield "Another global batch than yours wants another learning rate."


def _over_baseline(one: BatchBest) -> str:
    if one.speedup is None:
        return "-"
    if one.rounds < 2:
        return f"{one.speedup.value:.2f}x, seen once"
    bounds = f"{one.speedup.low:.2f} to {one.speedup.high:.2f}"
    return f"{one.speedup.value:.2f}x ({bounds}, {one.rounds} rounds)"


def _why_no_attribution(spec: StudySpec, attempts: Attempts, verdict: Verdict) -> Iterator[str]:
    if verdict.kind != Kind.BETTER or verdict.knobs is None:
        return
    yield "### What each knob brings"
    yield ""
    if not spec.measurement.attribution:
        yield "Not measured: `measurement.attribution` is 0."
        return
    changed = sum(verdict.knobs[name] != value for name, value in spec.full_baseline().items())
    runs = 1 + changed
    confirmed = [a.result.wall_seconds for a in attempts.of(Purpose.CONFIRM).recorded()]
    seconds = runs * spec.measurement.attribution * statistics.mean(confirmed or [0.0])
    if attempts.of(Purpose.ATTRIBUTE).recorded():
        yield "Not known: no variant of the winner ran in the same round as the winner itself."
        return
    if verdict.provisional:
        yield "Not measured yet."
        return
    yield (
        f"Not measured: the time was over. {spec.measurement.attribution} rounds of "
        f"{counted(runs, 'run')} take about {duration(seconds)} more (`budget.wall_time`)."
    )


def _tied(one: Contribution) -> str:
    return f"{one.knob} (with {', '.join(one.tied)})" if one.tied else one.knob


def _confirmed(verdict: Verdict) -> dict[int, float]:
    """The recommended trial and the baseline, with their confirmed rates."""
    rates = {}
    if verdict.trial is not None and verdict.throughput:
        rates[verdict.trial] = verdict.throughput.value
    for finalist in verdict.finalists:
        if finalist.baseline and verdict.baseline:
            rates[finalist.trial] = verdict.baseline.value
    return rates


def how_it_ran(
    repository: Repository, attempts: Attempts, verdict: Verdict, spec: StudySpec
) -> Running | None:
    """Figures of what is recommended in the confirmation; None if it was not in it."""
    runs = attempts.of(Purpose.CONFIRM).of_trial(verdict.trial)
    confirmed = runs.with_knobs(verdict.knobs) if verdict.knobs else runs
    reference = attempts.of(Purpose.REFERENCE)
    blocks = {a.id: repository.attempts.blocks(a.id) for a in [*confirmed, *reference]}
    environment = repository.environments.of_attempt(confirmed.last.id) if confirmed.last else None
    machine = measured_in(attempts, repository.environments.of_attempt)
    limit = limit_of_rank(machine or {}, spec.resources)
    return running(confirmed, reference, blocks, (environment or {}).get("devices", []), limit)


def _running(ran: Running, more: Iterable[str]) -> Iterator[str]:
    yield f"| in {ran.runs} runs, {ran.blocks} blocks | |"
    yield "|---|---|"
    rows = [
        ("runs in turn with the others, block by block", ran.in_turn or None, "{:d}"),
        ("step time, median", ran.step_p50, "{:.4g} s"),
        ("step time, 95th percentile", ran.step_p95, "{:.4g} s"),
        ("step time, longest", ran.step_max, "{:.4g} s"),
        ("waiting for the loader", ran.wait_share, "{:.1%} of the time"),
        ("communication not hidden", ran.exposed_share, "{:.1%} of the time"),
        ("slowest rank over the median one", ran.straggler, "{:.3f}"),
        ("peak memory of a rank", ran.peak_bytes / _MIB, "{:,.0f} MiB"),
        ("memory left free", ran.headroom, "{:.1%}"),
        ("model FLOP/s of a rank", ran.flops, "{:.3g}"),
        ("of the device's peak", ran.utilisation, "{:.1%}"),
        ("clock of the slowest device", ran.clock_mhz, "{:,.0f} MHz"),
        ("energy of a sample", ran.energy_per_sample, "{:.4g} J"),
        ("compiling", ran.compile_seconds or None, "{:.1f} s"),
        ("blocks that others disturbed", ran.contended_blocks, "{:.0%}"),
    ]
    for label, value, form in rows:
        if value is not None:
            yield f"| {label} | {form.format(value)} |"
    yield from more
    if ran.utilisation and ran.utilisation > 1:
        yield ""
        yield "More than the device can do: the FLOP count or the device's peak is wrong."


def _measurement(attempts: Attempts, noise: StoredNoise | None, raced: Racing) -> Iterator[str]:
    timed = attempts.measured()
    if not timed:
        return
    yield "### How it was measured"
    yield ""
    if noise:
        yield (
            f"- equal runs in new processes are taken to differ by {noise.sigma_run:.1%} (standard "
            "deviation, beyond the scatter within each): what was known before, and "
            f"{noise.runs} runs of the baseline"
        )
        if noise.drift_per_hour:
            yield f"- drift: {noise.drift_per_hour:+.1%} per hour"
        elif noise.drift_per_hour is None:
            yield f"- drift: not known; {_lacks_for_drift(attempts)}"
    if raced.stopped:
        saved = f", which saved {duration(raced.seconds)}, {raced.share:.0%} of the search"
        yield f"- trials stopped early: {raced.stopped}{saved if raced.seconds >= 1 else ''}"
    disturbed = sum(a.result.contended for a in timed)
    if disturbed:
        yield f"- others disturbed {disturbed} of {len(timed)} runs"
    unsteady = sum(not a.result.steady for a in timed)
    if unsteady:
        yield f"- {unsteady} of {len(timed)} runs were still unsteady when their warm-up ran out"


def _lacks_for_drift(attempts: Attempts) -> str:
    """Return what would have to be measured for the drift."""
    own = attempts.baseline()
    runs = [a for a in [own, *attempts.of(Purpose.CALIBRATE).complete()] if a]
    span = max(a.started for a in runs) - min(a.started for a in runs) if runs else 0.0
    return (
        f"{counted(len(runs), 'run')} of the baseline within {duration(span)}; it takes "
        f"{FEWEST_FOR_DRIFT} over {duration(SHORTEST_FOR_DRIFT)}"
    )


def _best_trials(spec: StudySpec, attempts: Attempts) -> Iterator[str]:
    levels = Levels.of(attempts)
    complete = levels.applied(attempts).searched().complete()
    searched = sorted(complete, key=lambda a: -(a.result.throughput or 0.0))
    if not searched:
        return
    yield f"### Best trials of the search ({spec.unit}, seen once)"
    yield ""
    yield "| trial | throughput | ± | peak MiB | difference to the baseline |"
    yield "|---|---|---|---|---|"
    for attempt in searched[:_SHOWN]:
        result = attempt.result
        doubt = total_half_width(result.half_width or 0.0, levels.at(attempt.environment).error)
        changed = difference(attempt.knobs, spec.full_baseline())
        yield (
            f"| {attempt.trial} | {quantity(result.throughput or 0.0)} | "
            f"{100 * doubt:.1f} % | "
            f"{quantity(result.peak_bytes / _MIB)} | {changed} |"
        )
