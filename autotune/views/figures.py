"""Collection of the figures of a study: one source of report, page, terminal, table and JSON.

Renderers choose and format. Whatever is computed, is computed here or in the analysis.
"""

import dataclasses
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any

from autotune.analysis.batches import BatchBest, ConfirmedGain, best_per_batch
from autotune.analysis.contributions import Contribution, contributions
from autotune.analysis.findings import Finding
from autotune.analysis.memory import limit_of_rank, outgrown
from autotune.analysis.provenance import attempts_of, measured_in, nodes_of
from autotune.analysis.rounds import Round, rounds_of
from autotune.analysis.saving import Cost, EnergySaving, Saving
from autotune.analysis.trial_ratios import rate_range
from autotune.analysis.verdict import Kind, Verdict
from autotune.config import StudySpec, secrets_withheld
from autotune.config.sections import ObjectiveSpec
from autotune.measurement.estimate import Ratio, drift_within
from autotune.measurement.measure import Measure
from autotune.views.composition import before_and_after, bottlenecks, recorded_facts, traces
from autotune.views.queue_table import waiting_now
from autotune.views.recompute import current_verdict
from autotune.views.running import Conditions, EnergyUse, Running, racing, running
from autotune.views.study_figures import (
    VERSION,
    Failed,
    Job,
    KnobChange,
    Losses,
    Runs,
    Search,
    StudyAnswer,
    StudyFigures,
)
from autotune.views.trial_figures import TrialFigures, trial_figures
from autotune.views.trust import Evidence, points
from autotune.views.verdict_text import text_of
from search_spaces.batch import global_batch_size
from search_spaces.knob import changed_knobs
from storage import (
    Attempts,
    AttemptState,
    ChoiceReason,
    MessageCode,
    Purpose,
    Repository,
    SearchEndCause,
    StoredAttempt,
    StoredStudy,
    StudyState,
)

_FEWEST_LOSSES = 3
_FIGURE = re.compile(r"\d[\d,.]*")
"""Figure in the cause of a failure, such as bytes or a process."""
_NO_TRIAL = -1


def figures_of(
    repository: Repository, study: StoredStudy, verdict: Verdict | None = None
) -> StudyFigures:
    """Return the figures of a study at this moment; `verdict`: to show instead of the present one."""
    return _Collector(repository, study, verdict or current_verdict(repository, study)).figures()


class _Collector:
    """Collector of the figures of one study, which reads each record once."""

    def __init__(self, repository: Repository, study: StoredStudy, verdict: Verdict) -> None:
        self._repository = repository
        self._study = study
        self._verdict = verdict
        self._spec = secrets_withheld.as_stored(study.spec)
        self._baseline = self._spec.full_baseline()
        self._attempts = attempts_of(repository.attempts.of(study.id), self._spec)
        self._noise = repository.noise.of(study.id)
        self._messages = tuple(repository.messages.of(study.id))
        self._blocks = repository.attempts.blocks

    def figures(self) -> StudyFigures:
        """Return all of them."""
        study, spec, verdict = self._study, self._spec, self._verdict
        return StudyFigures(
            version=VERSION,
            study=study.name,
            state=study.state.value,
            error=study.error if study.state.ended else None,
            served=self._repository.leases.serving(study) is not None,
            waiting=waiting_now(self._repository, study),
            created=study.created,
            elapsed=study.elapsed,
            measured=self._measured(),
            unit=spec.unit,
            job=self._job(),
            answer=self._answer,
            cost=self._cost,
            saving=self._saving(),
            energy=self._energy,
            trust=points(self._evidence()),
            rounds=self._rounds,
            step=before_and_after(self._repository, self._attempts, verdict, Measure.of(spec)),
            contributions=self._contributions,
            contribution_rounds=spec.measurement.ablation_rounds,
            search=self._search,
            trials=self._trials,
            losses=self._losses(),
            batches=self._batches(),
            own_knobs=tuple(self._own_knobs()),
            running=how_it_ran(self._repository, self._attempts, verdict, spec),
            noise=self._noise,
            conditions=Conditions.of([*self._attempts.measured()]),
            runs=tuple(self._runs()),
            environments=self._environments,
            bottlenecks=self._bottlenecks,
            traces=self._traces(),
            messages=self._messages,
            verdict=verdict,
        )

    @cached_property
    def _rounds(self) -> tuple[Round, ...]:
        ended = self._study.state == StudyState.DONE
        blocks = self._repository.attempts.blocks
        return tuple(rounds_of(self._attempts, self._spec, blocks, ended=ended))

    @cached_property
    def _trials(self) -> tuple[TrialFigures, ...]:
        reasons = self._repository.studies.reasons(self._study.name)
        return tuple(trial_figures(self._attempts, self._noise, self._verdict, reasons))

    @cached_property
    def _cost(self) -> Cost:
        spent = sum(a.result.wall_seconds for a in self._attempts)
        return Cost.of(spent, self._world_size, self._spec.objective.price_per_device_hour)

    @cached_property
    def _energy(self) -> EnergyUse | None:
        """Return energy and power of both configurations in the rounds that count."""
        answer, facts = self._answer, self._study.facts
        if answer.trial is None or answer.baseline is None or not facts:
            return None
        numbers = {one.number for one in self._rounds if one.counts}
        rounds = self._attempts.of(Purpose.CONFIRM).measured()
        baseline = rounds.of_trial(answer.baseline)
        chosen = rounds.of_trial(answer.trial)
        if knobs := self._verdict.knobs:
            chosen = chosen.with_knobs(knobs)
        before, after = (
            [b for one in runs if one.round in numbers for b in self._blocks(one.id) if b.kept]
            for runs in (baseline, chosen)
        )
        devices = self._world_size if facts["device"] == "cuda" else int(facts.get("nodes", 1))
        return EnergyUse.of(before, after, devices, self._spec.objective.power_limit)

    def _measured(self) -> tuple[float, float] | None:
        timed = [(one.started, one.ended) for one in self._attempts.measured()]
        ends = [ended for _, ended in timed if ended is not None]
        return (min(started for started, _ in timed), max(ends)) if ends else None

    def _saving(self) -> Saving | EnergySaving | None:
        """Return what the recommendation saves; None before rounds support one."""
        answer, objective = self._answer, self._spec.objective
        if not answer.better or answer.speedup is None or not answer.confirmed:
            return None
        if objective.of_energy:
            used = self._energy
            watts = used.watts[0] * used.devices if used else None
            return (
                EnergySaving.of(answer.speedup, watts, objective.expected_job_hours)
                if watts
                else None
            )
        price = objective.price_per_device_hour
        return Saving.of(
            answer.speedup, self._cost, objective.expected_job_hours, self._world_size, price
        )

    def _evidence(self) -> Evidence:
        workload = self._spec.workload
        return Evidence(
            verdict=self._verdict,
            rounds=self._rounds,
            trials=self._trials,
            contributions=self._contributions,
            search_end=self._search.end_cause,
            expected_gain=self._search.expected_gain,
            timed=tuple(self._attempts.measured()),
            environments=len(self._environments),
            elapsed=self._study.elapsed,
            unit=self._spec.unit,
            energy=self._energy,
            warmup=self._spec.measurement.warmup,
            bottlenecks=self._bottlenecks,
            drift=self._drift(),
            refused=self._refused(),
            nodes=nodes_of(self._environments[0]) if self._environments else 1,
            device=str((self._study.facts or {}).get("device", "")),
            watchable=workload.observable and workload.run_words is not None,
            state=self._study.state,
            processes_seen=self._processes_seen(),
        )

    def _processes_seen(self) -> bool:
        """Return whether the last run with a reading of GPUs saw other processes on them, or none."""
        read = [one for one in self._attempts.measured() if one.digest.clock_mhz is not None]
        return not read or any("foreign_processes" in b.observed for b in self._blocks(read[-1].id))

    def _refused(self) -> set[int]:
        """Return the trials that a check refuses: numerics, memory, or whatever had one left out."""
        left_out = [c for c in self._search.choices if c.reason is ChoiceReason.REFUSED]
        return {
            *(one.trial for one in self._verdict.refused),
            *(one.trial for one in left_out),
            *outgrown(self._attempts),
        }

    def _drift(self) -> Ratio | None:
        """Return the speed in the second half of a run of the rounds over that in the first."""
        rounds = self._attempts.of(Purpose.CONFIRM).measured()
        kept = [[b for b in self._blocks(one.id) if b.kept] for one in rounds]
        return drift_within([[b.steps / b.seconds for b in run] for run in kept])

    def _batches(self) -> tuple[BatchBest, ...]:
        """Return the best configuration of each global batch, where there are several."""
        sizes = {global_batch_size(a.knobs, self._world_size) for a in self._attempts.searched()}
        if len(sizes) < 2 or not self._spec.batch_known:
            return ()
        found = best_per_batch(self._attempts, self._world_size, self._confirmed_gains())
        return tuple(found) if len(found) > 1 else ()

    def _confirmed_gains(self) -> dict[int, ConfirmedGain]:
        """Return the gains that the verdict names, by trial: with the baseline's batch and without."""
        verdict, change = self._verdict, self._verdict.batch
        if not self._answer.better or not verdict.confirmed or verdict.trial is None:
            return {}
        assert verdict.knobs is not None and verdict.speedup is not None
        found = {verdict.trial: ConfirmedGain(verdict.knobs, verdict.speedup, verdict.rounds)}
        for one in verdict.finalists:
            if change and change.best_gain and one.knobs == change.best_knobs:
                found[one.trial] = ConfirmedGain(one.knobs, change.best_gain, len(one.rates))
        return found

    @cached_property
    def _known_world_size(self) -> int | None:
        """Return the ranks of a run: as seen, or as the study file has them; None if unknown."""
        if self._study.facts:
            return int(self._study.facts["world_size"])
        first = self._attempts.measured().first
        if first is None:
            return self._spec.resources.known_workers
        return self._repository.attempts.blocks(first.id)[0].world_size

    @property
    def _world_size(self) -> int:
        """The ranks of a run; 1 before anything of them is known, so that there is nothing to count."""
        return self._known_world_size or 1

    @cached_property
    def _answer(self) -> StudyAnswer:
        verdict, own = self._verdict, self._attempts.baseline()
        trial = verdict.trial if verdict.trial is not None else _NO_TRIAL
        ratios = [r.ratios[trial] for r in self._rounds if r.counts and trial in r.ratios]
        rates = {one.trial: verdict.telling(one) for one in verdict.finalists}
        if not verdict.confirmed:  # the figure rests on a trial, and on no round
            ratios, rates = [], {}
        baseline = next((one.trial for one in verdict.finalists if one.baseline), own and own.trial)
        changed = changed_knobs(verdict.knobs or {}, verdict.baseline_knobs or self._baseline)
        return StudyAnswer(
            kind=verdict.kind,
            text=text_of(verdict),
            provisional=verdict.provisional,
            speedup=verdict.speedup,
            trial=verdict.trial,
            baseline=baseline if isinstance(baseline, int) else None,
            rounds=verdict.rounds,
            chosen_in=verdict.chosen_in,
            won=sum(ratio > 1 for ratio in ratios),
            compared=len(ratios),
            rates=rate_range(rates.get(verdict.trial, ())) if verdict.trial is not None else None,
            baseline_rates=rate_range(rates.get(baseline, ()))
            if isinstance(baseline, int)
            else None,
            changes=tuple(KnobChange(k, self._baseline.get(k), v) for k, v in changed.items()),
            confirmed=verdict.confirmed,
        )

    def _own_knobs(self) -> Iterable[KnobChange]:
        knobs = self._verdict.knobs or self._baseline
        own = self._spec.job_knobs
        for name, value in knobs.items():
            if name in own or self._baseline.get(name) != value:
                yield KnobChange(name, self._baseline.get(name), value)

    def _job(self) -> Job:
        workload, facts = self._spec.workload, self._study.facts or {}
        given = workload.given
        told = [f"{k}={v}" for k, v in given.items()] if isinstance(given, dict) else given
        after = self._verdict.knobs or self._baseline
        default = ObjectiveSpec.model_fields["expected_job_hours"].default
        known, ranks = self._spec.batch_known, self._known_world_size
        return Job(
            workload=workload.label,
            arguments=" ".join(map(str, told)),
            world_size=ranks,
            device=str(facts.get("device", "")),
            backend=str(facts.get("backend", "")),
            batch_before=global_batch_size(self._baseline, ranks) if known and ranks else None,
            batch_after=global_batch_size(after, ranks) if known and ranks else None,
            hours_assumed=self._spec.objective.expected_job_hours == default,
            run_words=workload.run_words,
        )

    @cached_property
    def _contributions(self) -> tuple[Contribution, ...]:
        verdict, facts = self._verdict, self._study.facts
        if verdict.knobs is None or verdict.kind != Kind.BETTER:
            return ()
        known = recorded_facts(facts) if facts else None
        return tuple(contributions(self._attempts, verdict.knobs, self._baseline, known))

    def _traces(self) -> tuple[str, ...]:
        own = self._attempts.baseline()
        trials = [own and own.trial, self._verdict.trial]
        known = dict.fromkeys(trial for trial in trials if isinstance(trial, int))
        return tuple(map(str, traces(self._study, self._attempts, known)))

    @cached_property
    def _bottlenecks(self) -> tuple[Finding, ...]:
        unusable = self._spec.workload.beyond_reach(self._spec.values())
        found = bottlenecks(self._repository, self._study, self._attempts, self._baseline, unusable)
        own = self._spec.job_knobs
        return tuple(
            dataclasses.replace(f, knobs=tuple(k for k in f.knobs if k in own)) for f in found
        )

    @cached_property
    def _search(self) -> Search:
        searched = self._attempts.searched()
        told = {code: [m for m in self._messages if m.code == code] for code in MessageCode}
        ended = self._study.search_ended is not None
        gains = [m.data.get("gain") for m in told[MessageCode.EXPECTATION]]
        causes = [SearchEndCause(m.data["cause"]) for m in told[MessageCode.SEARCH_END]]
        return Search(
            space=next((m.text for m in told[MessageCode.SPACE]), ""),
            left_out=tuple(str(m.data.get("reason", "")) for m in told[MessageCode.LEFT_OUT]),
            trials=dict(Counter(a.result.state.value for a in searched)),
            failures=_failures(searched),
            ended=self._study.search_ended,
            end_cause=causes[-1] if causes and ended else None,
            expected_gain=gains[-1] if gains and ended else None,
            stopped_early=racing(self._attempts),
            choices=tuple(self._repository.choices.newest_of(self._study.id)),
        )

    def _losses(self) -> Losses | None:
        """Return the losses of the recommended configuration and of its reference."""
        reference = self._attempts.of(Purpose.REFERENCE).complete().last
        own = self._attempts.of(Purpose.NUMERICS).of_trial(self._verdict.trial).complete().last
        if reference is None or own is None:
            return None
        first, second = (
            tuple(block.loss for block in self._repository.attempts.blocks(one.id))
            for one in (reference, own)
        )
        steps = min(len(first), len(second))
        usable = steps >= _FEWEST_LOSSES and all(map(math.isfinite, (*first, *second)))
        return Losses(first[:steps], second[:steps]) if usable else None

    def _runs(self) -> Iterable[Runs]:
        by_purpose: dict[Purpose, list[StoredAttempt]] = {}
        for attempt in self._attempts:
            by_purpose.setdefault(attempt.purpose, []).append(attempt)
        for purpose, several in by_purpose.items():
            seconds = sum(a.result.wall_seconds for a in several)
            if count := sum(a.recorded for a in several):
                yield Runs(purpose, count, seconds)

    @cached_property
    def _environments(self) -> tuple[Mapping[str, Any], ...]:
        """Return the machines of the measurements, that of the answer first."""
        answer = measured_in(self._attempts, self._repository.environments.of_attempt)
        found = [answer] if answer else []
        seen: set[int] = set()
        for attempt in self._attempts.measured():
            if attempt.environment is None or attempt.environment in seen:
                continue
            seen.add(attempt.environment)
            other = self._repository.environments.of_attempt(attempt.id)
            if other and other not in found:
                found.append(other)
        return tuple(found)


def _failures(searched: Attempts) -> tuple[Failed, ...]:
    """Return the trials of a search that failed, grouped by state and cause, figures in it aside."""
    grouped: dict[tuple[str, str], list[StoredAttempt]] = {}
    for one in searched:
        if one.result.throughput is None and one.result.state != AttemptState.COMPLETE:
            alike = _FIGURE.sub("0", one.result.cause)
            grouped.setdefault((one.result.state.value, alike), []).append(one)
    several = [
        Failed(state, runs[0].result.cause, tuple(run.trial for run in runs))
        for (state, _), runs in grouped.items()
    ]
    return tuple(sorted(several, key=lambda one: -len(one.trials)))


def how_it_ran(
    repository: Repository, attempts: Attempts, verdict: Verdict, spec: StudySpec
) -> Running | None:
    """Return how the recommended configuration ran in the confirmation; None if it was not in it."""
    runs = attempts.of_trial(verdict.trial)
    own = runs.with_knobs(verdict.knobs) if verdict.knobs else runs
    confirmed = own.of(Purpose.CONFIRM)
    reference = attempts.of(Purpose.REFERENCE)
    blocks = {a.id: repository.attempts.blocks(a.id) for a in [*confirmed, *reference]}
    environment = repository.environments.of_attempt(confirmed.last.id) if confirmed.last else None
    machine = measured_in(attempts, repository.environments.of_attempt)
    limit = limit_of_rank(machine or {}, spec.resources)
    return running(own, reference, blocks, (environment or {}).get("devices", []), limit)
