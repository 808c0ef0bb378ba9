"""`autotune simulate`: a study over a recorded table."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from autotune.config import StudySpec
from autotune.errors import BadInput
from autotune.standalone.simulation import described, simulate
from launchers.replay import ENVIRONMENT
from launchers.replay.tables import SECONDS, STATE, THROUGHPUT, write_table
from tests.control.replayed import MEASUREMENT, SPACE, rate
from tests.support.steering import ask, write_study

TABLES = Path(__file__).parents[2] / "benchmarks" / "tables"
STUDY: dict[str, Any] = {
    "name": "recorded",
    "workload": {"name": "mlp"},
    "resources": {"workers": 2},
    "search_space": SPACE,
    "baseline": {"micro_batch": 2},
    "objective": {"global_batch_size": "free"},
    "measurement": MEASUREMENT,
    "budget": {"trials": 8},
    "sampler": "random",
}


def recorded(folder: Path, *, noise: float | None = 0.02, without: int = 0) -> Path:
    """A table of SPACE in which the largest micro-batch does not fit; the last rows may be missing."""
    rows = []
    for micro_batch in SPACE["micro_batch"]:
        for accumulation in SPACE["accumulation_steps"]:
            knobs = {"micro_batch": micro_batch, "accumulation_steps": accumulation}
            fits = micro_batch < 16
            measured = {THROUGHPUT: rate(knobs) if fits else None, SECONDS: 10.0}
            rows.append({**knobs, **measured, STATE: "COMPLETE" if fits else "OOM"})
    write_table(folder / "t.csv", list(SPACE), rows[: len(rows) - without])
    origin = {"study": STUDY, "environment": dict(ENVIRONMENT), "noise": noise}
    (folder / "t.json").write_text(json.dumps(origin))
    return folder / "t.csv"


def study(**changes: Any) -> StudySpec:
    return StudySpec.model_validate({**STUDY, **changes})


@pytest.mark.slow
def test_the_tables_own_study_ends_in_its_verdict(tmp_path: Path) -> None:
    table = recorded(tmp_path)
    found = simulate(table, study(budget={"trials": 10}))
    assert (found.verdict, found.missing) == ("better", 0)
    assert (
        9 <= found.trials <= 10
    )  # one that takes more than what ran out of memory is not launched
    assert found.launches > found.trials
    assert found.recommended == "micro_batch=8, accumulation_steps=2"
    assert found.shortfall == 0.0
    assert math.isclose(found.best, rate({"micro_batch": 8, "accumulation_steps": 2}), rel_tol=1e-4)
    assert simulate(table).trials == 8


@pytest.mark.long
def test_what_a_trial_takes_is_what_it_took(tmp_path: Path) -> None:
    """Ten seconds were recorded, six of which are at most for warm-up and timing."""
    found = simulate(recorded(tmp_path, noise=None))
    assert 4.0 * found.launches < found.seconds < 12.0 * found.launches


@pytest.mark.slow
def test_the_seed_decides(tmp_path: Path) -> None:
    table = recorded(tmp_path, noise=0.1)
    once, again, other = (simulate(table, study(budget={"trials": 3}), n) for n in (1, 1, 2))
    assert once == again != other


@pytest.mark.long
def test_configurations_without_a_row_are_left_out(tmp_path: Path) -> None:
    found = simulate(recorded(tmp_path, without=1), study(budget={"trials": 20}))
    assert found.missing == 1
    assert found.trials == 9


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        (
            {"search_space": {"micro_batch": [2, 3, 64]}},
            "micro_batch: 3, 64; it has 1, 2, 4, 8, 16",
        ),
        ({"search_space": {"log_interval": [1, 10]}}, "log_interval: 1; it has 10"),
        ({"baseline": {"precision": "bf16"}}, "precision: bf16; it has fp32"),
        ({"workload": {"name": "gpt"}}, "workload: it was recorded with mlp"),
        ({"resources": {"workers": 4}}, "resources.workers: it was recorded with 2"),
        (
            {"objective": {"metric": "tokens_per_second", "global_batch_size": "free"}},
            "recorded in samples_per_second",
        ),
        ({"search_space": {"micro_batch": ["max"]}}, "max is found on real ranks only"),
    ],
)
def test_what_the_table_does_not_hold_is_said(
    tmp_path: Path, changes: dict[str, Any], problem: str
) -> None:
    with pytest.raises(BadInput) as refused:
        simulate(recorded(tmp_path), study(**changes))
    assert problem in str(refused.value)


def test_ranks_are_those_that_it_was_recorded_with(tmp_path: Path) -> None:
    """Not as many as the first of several nodes has devices."""
    table = recorded(tmp_path)
    origin = json.loads(table.with_suffix(".json").read_text())
    origin |= {"study": {**STUDY, "resources": {}}, "workers": 4}
    table.with_suffix(".json").write_text(json.dumps(origin))
    with pytest.raises(BadInput, match=r"resources\.workers: it was recorded with 4"):
        simulate(table, study(resources={"workers": 2}))


@pytest.mark.long
def test_people_and_scripts_read_it(tmp_path: Path) -> None:
    recorded(tmp_path)
    shown = ask("simulate", "--table", "t.csv", "--json", cwd=tmp_path, check=True)
    found = json.loads(shown.stdout)
    assert found["trials"] == 8
    assert found["seconds"] > 0
    assert found["sentence"] in "\n".join(described(simulate(tmp_path / "t.csv")))
    write_study(tmp_path, workload="mlp", search_space={"micro_batch": [2, 32]})
    refused = ask("simulate", "study.yaml", "--table", "t.csv", cwd=tmp_path)
    assert refused.returncode == 2
    assert "micro_batch: 32; it has 1, 2, 4, 8, 16" in refused.stderr


@pytest.mark.slow
def test_a_committed_table_is_simulated() -> None:
    found = simulate(TABLES / "translation.csv")
    assert found.verdict == "better"
    assert found.shortfall is not None
    assert found.shortfall < 0.15


def test_knobs_of_a_studys_own_are_in_tables(tmp_path: Path) -> None:
    """Texts that look like something else among them."""
    own = {
        "level": {"values": ["8", "true", "none, a"], "flag": "--level", "default": "8"},
        "share": {"values": [1e-05, 0.5], "flag": "--share", "default": 0.5},
    }
    rows: list[dict[str, Any]] = [
        {"level": level, "share": share, THROUGHPUT: speed, SECONDS: 10.0, STATE: "COMPLETE"}
        for level, share, speed in [
            *(("8", 0.5, 10.0), ("8", 1e-05, 12.0), ("true", 0.5, 11.0)),
            *(("true", 1e-05, 30.0), ("none, a", 0.5, 14.0)),
        ]
    ]
    changes = {
        "workload": {"script": "train.py"},
        "search_space": {},
        "baseline": {},
        "knobs": own,
        "constraints": ["level != 'none, a' or share > 0.1"],
    }
    write_table(tmp_path / "t.csv", list(own), rows)
    origin = {"study": {**STUDY, **changes}, "environment": dict(ENVIRONMENT), "noise": None}
    (tmp_path / "t.json").write_text(json.dumps(origin))
    found = simulate(tmp_path / "t.csv")
    assert (found.trials, found.missing) == (5, 0), "and not the one that breaks the constraint"
    assert found.recommended == "level=true, share=1e-05"
    assert found.throughput == 30.0
    with pytest.raises(BadInput, match="share: a knob of the recorded study's own"):
        fewer = {**changes, "knobs": {"level": own["level"]}, "constraints": []}
        simulate(tmp_path / "t.csv", study(**fewer))
    with pytest.raises(BadInput, match="size: it was recorded without that knob"):
        more = {**own, "size": {"values": [1, 2], "flag": "--size", "default": 1}}
        simulate(tmp_path / "t.csv", study(**{**changes, "knobs": more}))
