"""Do many trials, and many studies, stay quick? Turns of a search and commands, at up to 10,000.

    python benchmarks/scale.py [--json] [--trials 100,10000] [--studies 100,10000] [--rounds N]

With `--studies`, a study of a hundred trials is one of so many in its database; a tenth of the others
wait. Ratios compare equal work: `list` and `queue` read as many rows in each database as the smallest
one has, at most a hundred. Commands as they are typed read and print what each database has.

The trials are written into the tables of Optuna and into ours at once, each with its attempt and its
blocks; then the real tuner goes on over a replaying launcher. A turn is everything from one launch to
the next: record, tell, look whether to go on, ask, begin.

The databases take turns, the smallest one twice in each round: the ratio of its two medians (`A/A`)
tells what the machine's unrest alone makes of a ratio.
"""

import argparse
import contextlib
import datetime
import functools
import itertools
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import distribution_to_json
from optuna.storages._rdb import models as optunas
from optuna.trial import TrialState
from optuna_dashboard._note import note_str_key_prefix, note_ver_key
from sqlalchemy import insert

from autotune.cli.shared_options import MOST_ROWS
from autotune.config import StudySpec, secrets_withheld
from autotune.runs.study_setup import StudySetup
from autotune.search.space import Space
from autotune.search.trial_attributes import attributes_of
from autotune.study.context import StudyContext
from autotune.study.tuner import Signals, Stopped, Tuner
from autotune.views import markdown_report
from autotune.views.figures import figures_of
from autotune.views.overview import list_of, status_of
from autotune.views.page import page
from autotune.views.queue_table import queue_of
from autotune.views.recompute import recomputed_verdict
from autotune.worker.protocol import Knobs
from launchers.replay import Answer, Launch, ReplayLauncher
from launchers.replay.behaviours import noisy, running_at
from storage import Database, LeaseHolder, Repository, StudyState, TrialLedger
from storage.lease_keys import key_of
from storage.models import (
    AttemptRow,
    BlockRow,
    EventRow,
    LeaseRow,
    MessageRow,
    RecommendationRow,
    StudyRow,
)

CLUSTER = "scale"
COMMANDS = ("status", "list", "queue", "report")
KIB = 1024
_AS_TYPED = "autotune "
_AGAIN = "again"
OF_ALL = ("list", "queue")
"""Commands that name no study."""
STUDIES_PER_DAY = 100
TRIALS_OF_OTHERS = 4
TRIALS_BESIDE = 100
"""Trials of the study that is timed among many others."""
BLOCKS = 6
NOTE = "1,000 samples/s per rank. " * 20
"""About as long as the dashboard's note of a trial."""
ROUNDS = 3
TURNS = 10
ROUNDS_OF_COMMANDS = 5
"""Each takes a second or two, and scatters less."""
SPEC = StudySpec.model_validate(
    {
        "name": "scale",
        "workload": {"name": "gpt"},
        "resources": {"workers": 2},
        "search_space": {
            "micro_batch": [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128],
            "accumulation_steps": [1, 2, 3, 4, 6, 8],
            "precision": ["fp32", "bf16"],
            "bucket_cap_mb": [1, 5, 10, 25, 50, 100],
            "gradient_as_bucket_view": [False, True],
            "optimizer_kernels": ["default", "foreach", "fused"],
            "log_interval": [1, 2, 5, 10, 20],
        },
        "objective": {"global_batch_size": "free"},
        "budget": {"trials": 10**6, "min_improvement": 0.0},
        "measurement": {"baseline_runs": 1, "warmup": 1.0, "max_measure_time": 5.0},
    }
)


def rate(knobs: Knobs) -> float:
    """Return samples per second."""
    samples = knobs["micro_batch"] * knobs["accumulation_steps"]
    half = 1.4 if knobs["precision"] == "bf16" else 1.0
    exchange = 20 + abs(knobs["bucket_cap_mb"] - 25) / 10
    return float(
        1000 * half * samples / (samples + 4 * knobs["accumulation_steps"] + exchange / half)
    )


class Recorded:
    """A study of so many recorded trials, with a verdict, among other studies."""

    def __init__(self, folder: Path, trials: int, others: int = 0) -> None:
        self.repository = Repository(Database(f"sqlite:///{folder}/autotune.db"))
        stored = secrets_withheld.kept(SPEC)
        self.repository.studies.submit(SPEC.name, CLUSTER, stored, str(folder))
        claim = self.repository.claims.take(CLUSTER, LeaseHolder(CLUSTER, 0, 1e6))
        assert claim is not None
        self.lease, self.study, self.folder = claim.lease, claim.study, folder
        self.launcher = ReplayLauncher(noisy(running_at(rate), run=0.02, block=0.01))
        self._fill(trials)
        self._job().record_standing()
        self.verdict = recomputed_verdict(self.repository, SPEC.name)
        self.repository.claims.conclude(self.lease, self.study, self.verdict.as_dict())
        self._fill_others(others)

    def _fill(self, trials: int) -> None:
        space = StudySetup(SPEC, self.launcher).space()
        baseline = SPEC.full_baseline()
        first = {name: baseline[name] for name in space.distributions()}
        others = (p for p in space.feasible(random.Random(0)) if p != first)
        chosen = [first, *itertools.islice(others, trials - 1)]
        TrialLedger(self.repository.database, SPEC.name)  # which makes Optuna's study
        storage = self.repository.database.optuna()
        own = storage.get_study_id_from_name(SPEC.name)
        attempts = list(self._attempts(space, chosen))
        with self.repository.database.writing() as connection:
            connection.execute(insert(AttemptRow), attempts)
            for table, rows in _in_optuna(own, space, chosen):
                connection.execute(insert(table), rows)
        ids = [attempt.id for attempt in self.repository.attempts.of(self.study.id)]
        with self.repository.database.writing() as connection:
            connection.execute(insert(BlockRow), [block for i in ids for block in _blocks(i)])

    def _fill_others(self, count: int) -> None:
        """Insert studies with their leases, attempts, messages, recommendations and events."""
        first = self.study.id + 1
        with self.repository.database.writing() as connection:
            for table, rows in _others(range(first, first + count), secrets_withheld.kept(SPEC)):
                if rows:
                    connection.execute(insert(table), rows)

    def _attempts(self, space: Space, chosen: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        environment = self.repository.environments.record(
            self.lease, self.launcher.slots[0].environment
        )
        noise = random.Random(1)
        rates = [rate(space.complete(params)) * noise.gauss(1, 0.02) for params in chosen]
        best = sorted(range(len(chosen)), key=lambda number: -rates[number])
        best = best[: SPEC.measurement.finalists]
        runs = [(number, "search", 0) for number in range(len(chosen))]
        runs += [(n, "confirm", r) for r in range(1, ROUNDS + 1) for n in (0, *best)]
        for at, (number, purpose, round_) in enumerate(runs):
            yield {
                "study_id": self.study.id,
                "environment_id": environment,
                "trial": number,
                "purpose": purpose,
                "round": round_,
                "attempt": 1,
                "epoch": self.lease.epoch,
                "knobs": space.complete(chosen[number]),
                "state": "COMPLETE",
                "throughput": rates[number],
                "half_width": 0.02,
                "block_half_width": 0.01,
                "sigma_run": 0.01,
                "steady": True,
                "contended": False,
                "wall_seconds": 10.0,
                "started": 1.7e9 + 10 * at,
                "ended": 1.7e9 + 10 * at + 10,
            }

    # What is timed

    def turn(self) -> float:
        """Return the median seconds of a turn over some turns of the search, without the first one."""
        launched: list[float] = []
        signals = Signals()
        behaviour = noisy(running_at(rate), run=0.02, block=0.01)

        def watched(launch: Launch) -> Answer:
            launched.append(time.perf_counter())
            if len(launched) > TURNS + 1:
                signals.stop.set()
            return behaviour(launch)

        try:
            Tuner(self._job(ReplayLauncher(watched)), signals).run()
        except Stopped:
            pass
        return statistics.median(b - a for a, b in itertools.pairwise(launched[1:]))

    def _job(self, launcher: ReplayLauncher | None = None) -> StudyContext:
        launcher = launcher or self.launcher
        environment = launcher.slots[0].environment
        recorded = self.repository.environments.record(self.lease, environment)
        return StudyContext(
            self.study, StudySetup(SPEC, launcher), self.lease, self.repository, recorded
        )

    def command(self, name: str) -> Callable[[], object]:
        """Return a function that runs a command as it is typed."""
        words = [sys.executable, "-P", "-m", "autotune", name]
        words += [] if name in OF_ALL else [SPEC.name]
        words += ["--storage", f"sqlite:///{self.folder}/autotune.db"]
        return functools.partial(subprocess.run, words, check=True, capture_output=True)

    def status(self) -> None:
        json.dumps(status_of(self.repository, SPEC.name))

    def list(self, rows: int) -> None:
        list_of(self.repository, rows)

    def queue(self, rows: int) -> None:
        queue_of(self.repository, self.repository.studies.order()[:rows])

    def claim(self) -> None:
        """Claim the next study as a daemon does, and put it back."""
        found = self.repository.claims.take(CLUSTER, LeaseHolder(CLUSTER, 0, 1e6))
        if found is not None:
            self.repository.claims.put_back(found.lease, found.study.id)
            self.repository.leases.release(found.lease)

    def report(self) -> None:
        markdown_report.report(self.repository, SPEC.name, self.verdict)

    def page(self) -> str:
        """Return the page of the study."""
        stored = self.repository.studies.named(SPEC.name)
        return page(figures_of(self.repository, stored, self.verdict))


def _in_optuna(
    study: int, space: Space, chosen: Sequence[dict[str, Any]]
) -> Iterator[tuple[Any, list[dict[str, Any]]]]:
    """Rows for the tables of Optuna 5, as `tell_result` leaves them."""
    began = datetime.datetime(2026, 1, 1)
    ids = range(1, len(chosen) + 1)
    yield (
        optunas.TrialModel.__table__,
        [
            {
                "trial_id": i,
                "number": i - 1,
                "study_id": study,
                "state": TrialState.COMPLETE,
                "datetime_start": began,
                "datetime_complete": began,
            }
            for i in ids
        ],
    )
    written = {name: distribution_to_json(d) for name, d in space.distributions().items()}
    internal = {n: d.to_internal_repr for n, d in space.distributions().items()}
    yield (
        optunas.TrialParamModel.__table__,
        [
            {
                "trial_id": i,
                "param_name": name,
                "param_value": internal[name](value),
                "distribution_json": written[name],
            }
            for i, params in zip(ids, chosen, strict=True)
            for name, value in params.items()
        ],
    )
    finite = optunas.TrialValueModel.TrialValueType.FINITE
    yield (
        optunas.TrialValueModel.__table__,
        [
            {
                "trial_id": i,
                "objective": 0,
                "value": rate(space.complete(params)),
                "value_type": finite,
            }
            for i, params in zip(ids, chosen, strict=True)
        ],
    )
    yield (
        optunas.StudySystemAttributeModel.__table__,
        [
            {"study_id": study, "key": key, "value_json": json.dumps(value)}
            for i in ids
            for key, value in ((note_ver_key(i), 1), (note_str_key_prefix(i) + "0", NOTE))
        ],
    )
    told = attributes_of("COMPLETE", half_width=0.02)
    yield (
        optunas.TrialUserAttributeModel.__table__,
        [
            {"trial_id": i, "key": key, "value_json": json.dumps(value)}
            for i in ids
            for key, value in told.items()
        ],
    )


def _others(ids: range, spec: dict[str, Any]) -> Iterator[tuple[Any, list[dict[str, Any]]]]:
    """Yield the rows of other studies by table: each has ended, but for a tenth that waits.

    A hundred have ended each day.
    """
    now = time.time()
    ago = {i: (ids.stop - i) / STUDIES_PER_DAY * 86400 for i in ids}
    yield (
        StudyRow,
        [
            {
                "id": i,
                "name": f"other-{i}",
                "queue": CLUSTER,
                "spec": {**spec, "name": f"other-{i}"},
                "workdir": "/w",
                "state": StudyState.QUEUED if i % 10 == 0 else StudyState.DONE,
                "created": now,
                "owner": f"owner-{i % 5}",
                "stop_requested": False,
                "resume_requested": False,
                "elapsed": 0.0,
                "retries": 0,
            }
            for i in ids
        ],
    )
    free = {"epoch": 1, "host": "", "pid": 0, "expires": 0.0}
    yield LeaseRow, [{"key": key_of(i), **free} for i in ids]
    attempt = {"environment_id": 1, "purpose": "search", "round": 0, "attempt": 1, "epoch": 1}
    attempt |= {"knobs": {}, "state": "COMPLETE", "throughput": 1.0, "wall_seconds": 10.0}
    attempt |= {"started": 0.0, "steady": True, "contended": False}
    finished = [i for i in ids if i % 10]
    yield (
        AttemptRow,
        [
            {"study_id": i, "trial": t, "ended": now - ago[i], **attempt}
            for i in finished
            for t in range(TRIALS_OF_OTHERS)
        ],
    )
    yield (
        MessageRow,
        [{"study_id": i, "at": now, "kind": "said", "text": "2 ranks."} for i in finished],
    )
    body = {"knobs": {}, "study": "other"}
    yield (
        RecommendationRow,
        [{"study_id": i, "trial": 0, "body": body, "created": now} for i in finished],
    )
    event = {"at": now, "account": "a", "host": "h", "version": "0", "command": "", "detail": ""}
    kinds = ("submitted", "begun", "done")
    yield (
        EventRow,
        [
            {"study_id": i, "study": f"other-{i}", "what": what, **event}
            for i in finished
            for what in kinds
        ],
    )


def _blocks(attempt: int) -> Iterator[dict[str, Any]]:
    for index in range(BLOCKS):
        yield {
            "attempt_id": attempt,
            "index": index,
            "steps": 10,
            "samples": 1000,
            "tokens": 0,
            "seconds": 1.0,
            "rank_seconds": [1.0, 1.0],
            "wait_seconds": 0.01,
            "loss": 1.0,
            "peak_bytes": 0,
            "kept": index > 0,
            "contended": False,
            "observed": {"step_p50": 0.1},
        }


def _seconds(ask: Callable[[], object]) -> float:
    started = time.perf_counter()
    ask()
    return time.perf_counter() - started


def asks_of(study: Recorded, listed: int, queued: int) -> dict[str, Callable[[], float]]:
    """Return what is timed of a study: each returns seconds.

    Args:
        study: to be asked about.
        listed: rows of `list`.
        queued: rows of `queue`.
    """
    asked: dict[str, Callable[[], object]] = {
        "claim": study.claim,
        "status": study.status,
        "list": functools.partial(study.list, listed),
        "queue": functools.partial(study.queue, queued),
        "report": study.report,
        "page": study.page,
        **{_AS_TYPED + name: study.command(name) for name in COMMANDS},
    }
    timed = {name: functools.partial(_seconds, ask) for name, ask in asked.items()}
    return {"turn": study.turn, **timed}


def compared(studies: Mapping[int, Recorded], rounds: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield for each question its median seconds in each database, and their ratios.

    `ratio` is that of the largest to the smallest; `again` that of the smallest to itself.
    """
    fewest, most = min(studies), max(studies)
    small = studies[fewest].repository.studies
    listed, queued = (min(len(ids), MOST_ROWS) for ids in (small.all(), small.order()))
    asks = {count: asks_of(study, listed, queued) for count, study in studies.items()}
    for name in asks[fewest]:
        slow = name.startswith(_AS_TYPED) or name == "turn"
        found: dict[str, list[float]] = {}
        for turn in range(min(rounds, ROUNDS_OF_COMMANDS) if slow else rounds):
            order = [*map(str, studies), _AGAIN]
            for which in order if turn % 2 else reversed(order):
                count = fewest if which == _AGAIN else int(which)
                found.setdefault(which, []).append(asks[count][name]())
        medians = {which: statistics.median(each) for which, each in found.items()}
        again = medians.pop(_AGAIN) / medians[str(fewest)]
        ratio = medians[str(most)] / medians[str(fewest)]
        yield name, {"seconds": medians, "ratio": ratio, "again": again}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--trials", default="100,10000")
    parser.add_argument("--studies", help="instead: numbers of studies in one database")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    with contextlib.ExitStack() as until_end:
        studies = {}
        for count in map(int, (arguments.studies or arguments.trials).split(",")):
            folder = Path(until_end.enter_context(tempfile.TemporaryDirectory()))
            of_studies = (TRIALS_BESIDE, count - 1) if arguments.studies else (count, 0)
            studies[count] = Recorded(folder, *of_studies)
        found = {}
        if not arguments.json:
            print(f"{'':17}{''.join(f'{count:11d}' for count in studies)}  ratio")
        for name, figures in compared(studies, arguments.rounds):
            found[name] = figures
            if not arguments.json:
                each = "".join(f"{seconds:11.4f}" for seconds in figures["seconds"].values())
                print(f"{name:17}{each}  {figures['ratio']:5.2f}  A/A {figures['again']:.2f}")
        sizes = {count: len(study.page().encode()) / KIB for count, study in studies.items()}
    if arguments.json:
        what = "studies" if arguments.studies else "trials"
        print(json.dumps({"of": what, **found, "page_kib": sizes}, indent=2))
    else:
        print("page, KiB: " + ", ".join(f"{size:.0f} of {count}" for count, size in sizes.items()))


if __name__ == "__main__":
    main()
