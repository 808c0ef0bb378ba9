"""Studies over a command that is no script of torch, as a user would give them."""

import os
import signal
import sys
from pathlib import Path

import pytest
import yaml

from storage import Purpose
from tests.support.steering import StudyFolder, quick_measurement
from tests.unit.test_best_yaml import content

EXAMPLES = Path(__file__).parent.parent.parent / "examples" / "commands"
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
        "objective": {"global_batch_size": "free"},
    }
    tiny.write(**{**fields, **changes})


@pytest.mark.long
def test_doctor_runs_the_command_with_each_knob(tiny: StudyFolder) -> None:
    write(tiny, env={"OUT": "s3://bucket/run"})
    told = tiny.ask("doctor", "study.yaml", "--storage", tiny.url).stdout
    assert "warn  remote files: what trials write to s3://bucket stays there" in told
    assert "ok    baseline" in told
    assert "ok    knob micro_batch: 64 runs, by {micro_batch}; whether the command heeds it" in told
    assert "ok    knob pause: 0.01 runs, by {pause}" in told


@pytest.mark.errand
def test_a_command_is_tuned_and_run(tiny: StudyFolder) -> None:
    write(tiny, budget={"trials": 4, "min_improvement": 0}, measurement=quick_measurement(rounds=4))
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


def test_a_job_is_run_with_signals_as_a_shell_has_them(tiny: StudyFolder) -> None:
    script = {"command": ["grep", "SigIgn", "/proc/self/status"], "turned": {}, "flags": {}}
    best = {**content(), "script": {**script, "changes": []}}
    (tiny.folder / "best.yaml").write_text(yaml.safe_dump(best))
    ignored = int(tiny.run("run", "best.yaml").stdout.split()[-1], 16)
    assert not ignored & sum(1 << number - 1 for number in (signal.SIGPIPE, signal.SIGXFSZ))


@pytest.mark.errand
def test_what_may_change_the_loss_is_refused(tiny: StudyFolder) -> None:
    write(
        tiny,
        search_space={},
        baseline={"micro_batch": 4, "pause": 0.02},
        knobs={"pause": {"values": [0.01, 0.02]}},
        budget={"trials": 2, "min_improvement": 0},
        measurement=quick_measurement(rounds=2),
    )
    found = tiny.run("start", "study.yaml", "--foreground")
    assert found.returncode == 0, found.stdout + found.stderr
    told = tiny.ask("report", tiny.name, "--storage", tiny.url).stdout
    assert "the loss of a command is not seen" in told
    assert "unverified_numerics: allow would recommend it" in told
    assert yaml.safe_load((tiny.folder / "best.yaml").read_text())["knobs"]["pause"] == 0.02


def write_example(tiny: StudyFolder, **changes: object) -> dict[str, str]:
    """examples/commands/spawned.py and its study; the environment in which python3 is this one."""
    script = EXAMPLES / "spawned.py"
    (tiny.folder / script.name).write_bytes(script.read_bytes())
    study = yaml.safe_load((EXAMPLES / "spawned.yaml").read_text())
    sections = ("workload", "search_space", "baseline", "resources")
    kept: dict[str, object] = {name: study[name] for name in sections}
    tiny.write(**{**kept, "objective": {"global_batch_size": "fixed"}, **changes})
    return {"PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])}


@pytest.mark.errand
def test_the_example_runs(tiny: StudyFolder) -> None:
    """It starts two ranks by itself."""
    path = write_example(
        tiny, search_space={"micro_batch": [8, 32]}, objective={"global_batch_size": "free"}
    )
    told = tiny.run("doctor", "study.yaml", "--storage", tiny.url, env=path).stdout
    assert "ok    baseline" in told, told
    assert "ok    knob micro_batch: 32 runs, by {micro_batch}" in told, told


@pytest.mark.errand
def test_the_example_is_tuned(tiny: StudyFolder) -> None:
    path = write_example(tiny, budget={"trials": 3, "min_improvement": 0})
    found = tiny.run("start", "study.yaml", "--foreground", env=path)
    assert found.returncode == 0, found.stdout + found.stderr
    tiny.assert_complete(trials=3)
    attempts = tiny.attempts(Purpose.SEARCH)
    assert all(attempt.result.cause == "" for attempt in attempts), [a.result for a in attempts]
    assert {a.knobs["micro_batch"] * a.knobs["accumulation_steps"] for a in attempts} == {32}
    rates = {a.knobs["micro_batch"]: a.result.throughput for a in attempts}
    assert rates[32] > rates[8], "a fourth of the passes for the same samples"
    best = yaml.safe_load((tiny.folder / "best.yaml").read_text())
    argv = tiny.ask("export", "best.yaml", "--format", "argv").stdout
    assert f"--batch-size {best['knobs']['micro_batch']} --grad-accum" in argv


CONFIGURED = """
import json, sys, time
batch = json.load(open(sys.argv[2]))["train"]["batch"]
with open("told", "a") as told:
    print(batch, file=told)
while True:
    time.sleep(0.02)
    print(batch / 0.02, "samples/s", flush=True)
"""


@pytest.mark.errand
def test_a_field_of_a_file_that_a_command_is_given(tiny: StudyFolder) -> None:
    (tiny.folder / "bench.py").write_text(CONFIGURED)
    (tiny.folder / "config.json").write_text('{"train": {"batch": 4}}')
    tiny.write(
        workload={
            "command": [sys.executable, "bench.py", "--config", "config.json"],
            "throughput": {"pattern": "([0-9.]+) samples/s"},
            "flags": {"micro_batch": "--config::train.batch"},
            "may_write": True,
        },
        search_space={"micro_batch": [4, 64]},
        baseline={},
        objective={"global_batch_size": "free"},
    )
    told = tiny.ask("doctor", "study.yaml", "--storage", tiny.url).stdout
    assert "ok    knob micro_batch: 64 runs, by --config::train.batch" in told, told
    assert (tiny.folder / "told").read_text().split() == ["4", "64"]
