"""Studies over a command that is no script of torch, as a user would give them."""

import sys

import pytest
import yaml

from storage import Purpose
from tests.steering import StudyFolder, quick_measurement

BENCH = """
import json, sys, time
batch, pause, path = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3]
while path:
    time.sleep(pause)
    with open(path, "a") as file:
        file.write(json.dumps({"samples": batch, "seconds": 5 * pause + batch / 1000}) + "\\n")
    if "/command/" not in path:
        break
"""


def write(tiny: StudyFolder, **changes: object) -> None:
    (tiny.folder / "bench.py").write_text(BENCH)
    command = [sys.executable, "bench.py", "{micro_batch}", "{pause}", "{folder}/metrics.jsonl"]
    fields: dict[str, object] = {
        "workload": {
            "command": command,
            "throughput": {"json_lines": "{folder}/metrics.jsonl"},
        },
        "search_space": {"micro_batch": [4, 64]},
        "knobs": {"pause": {"values": [0.01, 0.02], "numerics": False}},
        "baseline": {"micro_batch": 4, "pause": 0.02},
        "objective": {"global_batch": "free"},
    }
    tiny.write(**{**fields, **changes})


def test_doctor_runs_the_command_with_each_knob(tiny: StudyFolder) -> None:
    write(tiny)
    told = tiny.ask("doctor", "study.yaml", "--storage", tiny.url).stdout
    assert "ok    baseline" in told
    assert "ok    knob micro_batch: 64 runs, by {micro_batch}; whether the command heeds it" in told
    assert "ok    knob pause: 0.01 runs, by {pause}" in told


@pytest.mark.slow
def test_a_command_is_tuned_and_run(tiny: StudyFolder) -> None:
    write(tiny, budget={"trials": 4, "least_gain": 0}, measurement=quick_measurement(rounds=4))
    found = tiny.run("start", "study.yaml", "--foreground")
    assert found.returncode == 0, found.stdout + found.stderr
    for attempt in tiny.attempts(Purpose.SEARCH):
        seconds = 5 * attempt.knobs["pause"] + attempt.knobs["micro_batch"] / 1000
        expected = pytest.approx(attempt.knobs["micro_batch"] / seconds, rel=0.01)
        assert attempt.result.throughput == expected
    best = yaml.safe_load((tiny.folder / "best.yaml").read_text())
    assert best["knobs"]["micro_batch"] == 64
    assert best["script"]["turned"]["micro_batch"] == 64
    argv = tiny.ask("export", "best.yaml", "--format", "argv").stdout
    assert argv.startswith(f"{sys.executable} bench.py 64 0.01 ")
    assert tiny.run("run", "best.yaml").returncode == 0
    assert '"samples": 64' in (tiny.folder / "metrics.jsonl").read_text()


@pytest.mark.slow
def test_what_may_change_the_loss_is_refused(tiny: StudyFolder) -> None:
    write(
        tiny,
        search_space={},
        baseline={"micro_batch": 4, "pause": 0.02},
        knobs={"pause": {"values": [0.01, 0.02]}},
        budget={"trials": 2, "least_gain": 0},
        measurement=quick_measurement(rounds=2),
    )
    found = tiny.run("start", "study.yaml", "--foreground")
    assert found.returncode == 0, found.stdout + found.stderr
    told = tiny.ask("report", tiny.name, "--storage", tiny.url).stdout
    assert "nobody sees the loss of a command" in told
    assert "unchecked_numerics: allow would recommend it" in told
    assert yaml.safe_load((tiny.folder / "best.yaml").read_text())["knobs"]["pause"] == 0.02
