"""Study over a recorded table: number of trials, time and verdict, before a cluster is used.

The tuner is the real one, over a launcher that replays. Speeds, failures and the time of a trial
come from the table, the noise between runs from its recording. Blocks of a run are assumed to
scatter as much as runs do, and interleaved configurations little more: most differences between
successive runs come from the machine, and are common to all of them. Every loss is assumed to
follow its reference.
"""

import random
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from autotune.analysis.wording import difference
from autotune.config import StudySpec, secrets_withheld
from autotune.errors import BadInput
from autotune.measurement.policy import MEASUREMENT
from autotune.runs.study_setup import StudySetup
from autotune.search.space import Space
from autotune.standalone.recording import NO_ENERGY
from autotune.study.context import StudyContext
from autotune.study.tuner import Signals, Tuner
from autotune.views.verdict_text import text_of
from launchers.base import DEFAULT_CPU_WORKERS
from launchers.replay import ReplayLauncher
from launchers.replay.behaviours import noisy, recorded
from launchers.replay.tables import THROUGHPUT, Origin, Table, read_origin, read_table
from search_spaces.batch import MICRO_BATCH
from search_spaces.knob import written
from storage import Database, LeaseHolder, Repository

_CLUSTER = "simulation"
_LEASE_SECONDS = 1e6
"""Lease for ever: no other process knows of the database."""


@dataclass(frozen=True)
class Simulation:
    """Result of a simulated study.

    Attributes:
        trials: of the search.
        launches: with those of calibration, numerics gate, confirmation and profile.
        seconds: that all of it would have taken.
        missing: configurations of the study's space that the table does not hold; they are left
            out.
        verdict: its kind.
        recommended: changes of the recommended configuration, in words; None without a result.
        throughput: of that in the table; None without a result, or where it failed when recorded.
        best: throughput of the table's best row.
        unit: of both.
    """

    trials: int
    launches: int
    seconds: float
    missing: int
    verdict: str
    sentence: str
    recommended: str | None
    throughput: float | None
    best: float
    unit: str

    @property
    def shortfall(self) -> float | None:
        """Return how far the recommendation lies below the best row, relative to that."""
        return None if self.throughput is None else 1 - self.throughput / self.best


def simulate(table: Path, spec: StudySpec | None = None, seed: int | None = None) -> Simulation:
    """Run a study over a table, in virtual time.

    Args:
        table: a CSV file that `autotune record` has written; the .json beside it is needed, too.
        spec: of the study; None: the one that the table was recorded with.
        seed: of sampler and noise; None: the study's.

    Raises:
        BadInput: the file is no table, or does not hold what the study asks for.
    """
    found, origin = read_table(table), read_origin(table)
    own = _study(origin, table)
    wanted = spec or own
    wanted = wanted.model_copy(
        update={"export": "best.yaml", "seed": wanted.seed if seed is None else seed}
    )
    launcher = _launcher(wanted, own, found, origin)
    space = _space(wanted, own, found, launcher)
    missing = _missing(space, found)
    with tempfile.TemporaryDirectory() as folder:
        return _run(wanted, found, launcher, Path(folder), missing)


def described(found: Simulation) -> Iterator[str]:
    """Yield the result as lines for a terminal."""
    yield f"{found.trials} trials, {found.launches} launches with those that prove the result"
    yield f"{found.seconds:,.0f} s on the machine of the table"
    if found.missing:
        yield f"{found.missing} configurations were left out: the table does not hold them"
    yield found.sentence
    if found.throughput is not None and found.shortfall is not None:
        yield (
            f"recommended: {found.recommended}, {found.throughput:,.4g} {found.unit} in the table, "
            f"{found.shortfall:.1%} below its best row ({found.best:,.4g})"
        )


def _study(origin: Origin, table: Path) -> StudySpec:
    try:
        return StudySpec.model_validate(origin.study)
    except ValidationError as error:
        first = error.errors()[0]["msg"]
        raise BadInput(
            f"the study that {table} was recorded with cannot be read: {first}"
        ) from None


def _launcher(wanted: StudySpec, own: StudySpec, table: Table, origin: Origin) -> ReplayLauncher:
    nodes = [origin.environment, *origin.environment.get("others", ())]
    devices = sum(len(node["devices"]) for node in nodes)
    known = origin.workers or own.resources.known_workers
    timed = own.measurement.warmup + own.measurement.max_measure_time
    noise = origin.noise or 0.0
    return ReplayLauncher(
        noisy(
            recorded(table, timed=timed),
            run=noise,
            block=noise,
            interleaved=min(noise, MEASUREMENT.prior_sigma),
        ),
        workers=known or devices or DEFAULT_CPU_WORKERS,
        slots=wanted.resources.max_concurrent_trials or 1,
        environment=origin.environment,
        seed=wanted.seed,
        refusal=table.lacks,
    )


def _space(wanted: StudySpec, own: StudySpec, table: Table, launcher: ReplayLauncher) -> Space:
    """Return the space that the study asks for.

    Raises:
        BadInput: the table lacks a part of it; the message lists all.
    """
    problems = list(_other_measurements(wanted, own, launcher))
    if wanted.asks_for_largest:
        problems.append("search_space.micro_batch: max is found on real ranks only; give numbers")
    else:
        problems += _beyond(wanted, own, table, launcher)
    if problems:
        raise BadInput("the table does not hold what the study asks for:\n" + "\n".join(problems))
    return _everything(wanted, launcher)


def _other_measurements(
    wanted: StudySpec, own: StudySpec, launcher: ReplayLauncher
) -> Iterator[str]:
    if wanted.workload != own.workload:
        yield f"workload: it was recorded with {own.workload.label} {own.workload.given or ''}".rstrip()
    if wanted.objective.reads_energy:
        yield NO_ENERGY
    elif wanted.objective.metric != own.objective.metric:
        yield f"objective.metric: it was recorded in {own.objective.metric}"
    if (wanted.resources.known_workers or launcher.ranks) != launcher.ranks:
        yield f"resources.workers: it was recorded with {launcher.ranks}"


def _beyond(
    wanted: StudySpec, own: StudySpec, table: Table, launcher: ReplayLauncher
) -> Iterator[str]:
    """Yield values of the study's space, baseline included, that no row has."""
    space = _everything(wanted, launcher)
    recorded_space = _everything(own, launcher)
    constant = recorded_space.complete({})
    for name in constant.keys() - space.complete({}).keys():
        yield f"{name}: a knob of the recorded study's own; it belongs under knobs here, too"
    varying: dict[str, Any] = space.distributions()
    for name, value in space.complete({}).items():
        asked = varying[name].choices if name in varying else (value,)
        if name not in constant:
            yield f"{name}: it was recorded without that knob"
            continue
        held = table.values.get(name, [constant[name]])
        if name == MICRO_BATCH and space.splits:  # those that the study did not list are left out
            listed = [*wanted.values().get(name, []), wanted.full_baseline()[name]]
            asked = tuple(value for value in asked if value in listed)
        if lacking := [value for value in asked if value not in held]:
            yield (
                f"{name}: {', '.join(map(written, lacking))}; it has {', '.join(map(written, held))}"
            )


def _everything(spec: StudySpec, launcher: ReplayLauncher) -> Space:
    """Return the space that the study asks for, whether or not the table holds it."""
    return Space(spec.values(), spec.full_baseline(), StudySetup(spec, launcher).facts)


def _missing(space: Space, table: Table) -> int:
    """Return the number of feasible configurations that no row has, though each value is in some row."""
    if not space.enumerable:
        raise BadInput(
            f"the table holds {len(table.rows)} of {space.size:,} configurations, too few to search "
            "among; record a smaller space"
        )
    configurations = map(space.complete, space.feasible(random.Random(0)))
    return sum(table.row(knobs) is None for knobs in configurations)


def _run(
    spec: StudySpec, table: Table, launcher: ReplayLauncher, folder: Path, missing: int
) -> Simulation:
    repository = Repository(Database(f"sqlite:///{folder}/simulation.db"))
    stored = secrets_withheld.kept(spec)
    repository.studies.submit(spec.name, _CLUSTER, stored, str(folder))
    claim = repository.claims.take(_CLUSTER, LeaseHolder(_CLUSTER, 0, _LEASE_SECONDS))
    assert claim is not None
    study, lease = claim.study, claim.lease
    environment = repository.environments.record(lease, launcher.site.environment)
    context = StudyContext(study, StudySetup(spec, launcher), lease, repository, environment)
    verdict, attempts = Tuner(context, Signals()).run(), context.attempts()
    row = table.row(verdict.knobs) if verdict.knobs else None
    return Simulation(
        trials=len(attempts.searched()),
        launches=len(attempts),
        seconds=launcher.clock(),
        missing=missing,
        verdict=verdict.kind,
        sentence=text_of(verdict),
        recommended=difference(verdict.knobs, spec.full_baseline()) if verdict.knobs else None,
        throughput=row[THROUGHPUT] if row else None,
        best=table.best,
        unit=spec.unit,
    )
