"""A study in every state that a screen can show, each replayed in virtual time."""

import json
import random
import sqlite3
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from autotune.service.follow import conclusion
from autotune.views.answer import final_block
from autotune.views.figures import figures_of
from autotune.views.live import LiveView, lines
from autotune.views.study_figures import StudyFigures
from autotune.worker.protocol import Knobs, Outcome
from benchmarks import gpu_policy
from benchmarks.recorded_device import read_device
from launchers.replay import Answer, Behaviour, Launch
from launchers.replay.answers import SpeedVariation
from launchers.replay.behaviours import noisy, running_at
from tests.control.replayed import PLAIN, Replayed, rate
from tests.support.behaviours import by_utilisation, drawing, where, within_memory

WIDTHS = (80, 120)
"""Columns of the terminals."""
MANY = 5_000
WHOLE: dict[str, Any] = {
    "budget": {"trials": 12},
    "search_space": {"micro_batch": [1, 2, 4, 8, 16, 32], "log_interval": [1, 10]},
    "objective": {"global_batch_size": "free", "price_per_device_hour": 2.5},
    "measurement": {"baseline_runs": 3, "search_ci_half_width": 0.05, "ablation_rounds": 2},
}
"""Sections of a study that has everything: choice, proof, contributions, money."""
SAME_BATCH: dict[str, Any] = {
    "budget": {"trials": 20},
    "search_space": {
        "micro_batch": [2, 4, 8, 16],
        "accumulation_steps": [1, 2, 4, 8],
        "precision": ["fp32", "bf16"],
        "bucket_cap_mb": [5, 25, 100],
    },
    "baseline": {"micro_batch": 2, "accumulation_steps": 8},
    "measurement": {
        "baseline_runs": 3,
        "search_ci_half_width": 0.05,
        "ablation_rounds": 2,
        "rounds": 5,
    },
}
_UNSTEADY: dict[str, Any] = {"seed": 2, "variation": SpeedVariation(0.15, 10.0)}
_UNSTABLE: dict[str, Any] = {"seed": 4, "variation": SpeedVariation(0.35, 25.0)}


@dataclass(frozen=True)
class Shown:
    """A study as it is shown.

    Attributes:
        figures: of its page.
        screens: of its terminal, by the number of columns.
    """

    figures: StudyFigures
    screens: Mapping[int, str]


def tuned(played: Replayed) -> StudyFigures:
    """Run a whole study on a machine whose speed wanders; its trials take turns with the baseline.

    It is run once in a process: later calls copy its records.
    """
    played.on(noisy(PLAIN, run=0.005, block=0.01), **_UNSTEADY).run_once("tuned", **WHOLE)
    return figures_of(played.repository, played.study())


def many(played: Replayed) -> None:
    """Insert so many more trials between the search and the rounds, as if the search had made them."""
    draw = random.Random(1)
    connection = sqlite3.connect(str(played.repository.database.url.database))
    with connection:
        last = "(select max(id) from autotune_attempt where purpose = 'search')"
        [[start]] = connection.execute(f"select {last}").fetchall()
        for table, column in (("autotune_block", "attempt_id"), ("autotune_attempt", "id")):
            connection.execute(
                f"update {table} set {column} = -({column} + {MANY}) where {column} > {start}"
            )
            connection.execute(f"update {table} set {column} = -{column} where {column} < 0")
        columns = [row[1] for row in connection.execute("pragma table_info(autotune_attempt)")]
        [model] = connection.execute(
            f"select * from autotune_attempt where id = {start}"
        ).fetchall()
        for number in range(1, MANY + 1):
            row = dict(zip(columns, model, strict=True))
            knobs = json.loads(row["knobs"])
            knobs |= {"bucket_cap_mb": draw.choice([1, 5, 25, 100]), "log_interval": number}
            failed = not number % 50
            row |= {
                "id": start + number,
                "trial": 100 + number,
                "knobs": json.dumps(knobs),
                "state": "OOM" if failed else "PRUNED" if number % 3 else "COMPLETE",
                "cause": "out of memory" if failed else "",
                "throughput": None if failed else 60.0 * draw.lognormvariate(0.0, 0.1),
                "raw_throughput": None,
                "ratio": None,
                "peak_bytes": draw.randint(10**8, 10**9),
            }
            marks = ", ".join("?" * len(columns))
            connection.execute(f"insert into autotune_attempt values ({marks})", list(row.values()))
    connection.close()


def _ended(played: Replayed) -> Shown:
    study = played.study()
    figures = figures_of(played.repository, study)
    screens = {width: final_block(figures, width=width, exported="best.yaml") for width in WIDTHS}
    if figures.state != "DONE":
        text = conclusion(played.repository, study, played.folder / "best.yaml")
        screens = dict.fromkeys(WIDTHS, text)
    return Shown(figures, screens)


def _at_attempt(number: int) -> Callable[[Replayed], Shown]:
    """Return a maker of the state of a study during its attempt of this number."""

    def shown(played: Replayed) -> Shown:
        found: list[Shown] = []

        def look(behaviour: Behaviour) -> Behaviour:
            def answer(launch: Launch) -> Answer:
                if not found and len(played.attempts()) >= number:
                    found.append(_running(played))
                    played.repository.studies.request_stop(played.name)
                return behaviour(launch)

            return answer

        played.on(look(_remembering(noisy(_SCALING, run=0.02, block=0.02))), **_UNSTEADY)
        played.submit(**SAME_BATCH)
        played.serve()
        return found[0]

    return shown


def _running(played: Replayed) -> Shown:
    study = played.study()
    moment = LiveView(played.repository, study).moment()
    screens = {width: "\n".join(line.plain for line in lines(moment, width)) for width in WIDTHS}
    return Shown(figures_of(played.repository, study), screens)


def _scaling(knobs: Knobs) -> float:
    """Return the rate of a configuration; a rank gains by its micro-batch, and a third by bf16."""
    samples = knobs["micro_batch"]
    return 100.0 * samples / (samples + 2.0) * (1.3 if knobs["precision"] == "bf16" else 1.0)


_SCALING = running_at(_scaling)


def _bytes(knobs: Knobs) -> float:
    each = 8e6 if knobs["precision"] == "bf16" else 12e6
    return 2e8 + each * float(knobs["micro_batch"]) + 4e5 * float(knobs["bucket_cap_mb"])


def _remembering(behaviour: Behaviour, limit: float = 4e9) -> Behaviour:
    return within_memory(behaviour, _bytes, limit)


def _watts(knobs: Knobs) -> float:
    """Return the power of all devices: it rises with the rate, less so in bf16."""
    power = by_utilisation(_scaling, fastest=130.0, idle=90.0, full=420.0)(knobs)
    return power * (0.85 if knobs["precision"] == "bf16" else 1.0)


def _energy(played: Replayed) -> Shown:
    """Return a study whose objective is the energy of a sample."""
    behaviour = drawing(_remembering(noisy(_SCALING, run=0.01, block=0.02)), _watts)
    objective = {"metric": "samples_per_joule"}
    played.on(behaviour, seed=3).run(**SAME_BATCH, objective=objective)
    return _ended(played)


def _power(played: Replayed) -> Shown:
    """Return a study under a power limit, which some trials exceed."""
    behaviour = drawing(_remembering(noisy(_SCALING, run=0.01, block=0.02)), _watts)
    played.on(behaviour, seed=3).run(**SAME_BATCH, objective={"power_limit": 300.0})
    return _ended(played)


def _done(played: Replayed) -> Shown:
    """Return a study that found a gain."""
    behaviour = _remembering(noisy(_SCALING, run=0.01, block=0.02))
    played.on(behaviour, seed=3).run(**SAME_BATCH)
    return _ended(played)


def _unstable(played: Replayed) -> Shown:
    """Return a study on a machine whose speed changes by a multiple."""
    behaviour = _remembering(noisy(_SCALING, run=0.03, block=0.05))
    played.on(behaviour, **_UNSTABLE).run(**SAME_BATCH)
    return _ended(played)


def _failures(played: Replayed) -> Shown:
    """Return a study of which many trials fail, each kind for a reason of its own."""
    behaviour = _remembering(noisy(_SCALING, run=0.01, block=0.02), 3.2e8)
    crash = "rank 1: killed by SIGSEGV in libtorch_cpu.so, after 3 steps of the second block"
    behaviour = where(
        behaviour,
        lambda launch: launch.knobs["bucket_cap_mb"] == 5 and launch.knobs["micro_batch"] > 4,
        outcome=Outcome.CRASH,
        cause=crash,
    )
    played.on(behaviour, seed=3).run(**SAME_BATCH)
    return _ended(played)


def _keep(played: Replayed) -> Shown:
    """Return a study in which nothing is faster."""
    flat = where(PLAIN, lambda _: True, rate=50.0)
    played.on(noisy(flat, run=0.002, block=0.01)).run(budget={"trials": 6})
    return _ended(played)


def _undecided(played: Replayed) -> Shown:
    """Return a study whose noise hides what there may be."""
    flat = running_at(lambda knobs: 50.0 + 0.02 * rate(knobs))
    played.on(noisy(flat, run=0.08, block=0.05), seed=5).run(budget={"trials": 6})
    return _ended(played)


def _no_result(played: Replayed) -> Shown:
    """Return a study whose trials all fail."""
    cause = "rank 0: RuntimeError: shape '[64, 128]' is invalid for input of size 4096"
    broken = where(PLAIN, lambda _: True, outcome=Outcome.CRASH, cause=cause)
    played.on(broken).run_until_it_fails(budget={"trials": 3})
    return _ended(played)


def _script(played: Replayed) -> Shown:
    """Return a study of an unmodified script, with a price, which compiles on a recorded H200."""
    (played.folder / "train.py").write_text("")
    device = read_device(gpu_policy.TABLE)
    played.on(device.behaviour(script=True), workers=1, environment=device.environment)
    played.run(
        workload={
            "script": "train.py",
            "args": ["--batch-size=4", "--accumulate=8", "--log-every=10"],
            "flags": {
                "micro_batch": "--batch-size",
                "accumulation_steps": "--accumulate",
                "log_interval": "--log-every",
            },
        },
        measurement={
            "warmup": 2.0,
            "max_measure_time": 5.0,
            "block_seconds": 0.25,
            "ablation_rounds": 1,
        },
        baseline=gpu_policy.BASELINES["mb4"],
        search_space=gpu_policy.SPACE,
        budget={"trials": None, "wall_time": 300},
        objective={"price_per_device_hour": 3.2, "expected_job_hours": 72},
        sampler="model",
        resources={"workers": 1},
    )
    return _ended(played)


def _one_trial(played: Replayed) -> Shown:
    """Return a study of one trial: the baseline."""
    played.on(noisy(PLAIN, run=0.005, block=0.01)).run(budget={"trials": 1})
    return _ended(played)


def _many_trials(played: Replayed) -> Shown:
    """Return a study of thousands of trials."""
    tuned(played)
    many(played)
    return _ended(played)


STATES: dict[str, Callable[[Replayed], Shown]] = {
    "beginning": _at_attempt(1),
    "search": _at_attempt(16),
    "proof": _at_attempt(50),
    "done": _done,
    "unstable": _unstable,
    "failures": _failures,
    "keep": _keep,
    "undecided": _undecided,
    "no-result": _no_result,
    "script": _script,
    "energy": _energy,
    "power": _power,
    "one-trial": _one_trial,
    "many-trials": _many_trials,
}
"""Maker of each state by its name."""
