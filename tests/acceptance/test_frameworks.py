"""The example scripts of frameworks, each tuned as it is by a study that is shortened."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from storage import AttemptState, Purpose
from tests.support.steering import StudyFolder, quick_measurement

EXAMPLES = Path(__file__).parent.parent.parent / "examples" / "scripts"
TRIALS = 3


def write(tiny: StudyFolder, name: str, **changes: Any) -> dict[str, Any]:
    """The example's script and study in the folder, with these sections replaced; what it said."""
    script = EXAMPLES / f"{name}.py"
    (tiny.folder / script.name).write_bytes(script.read_bytes())
    study: dict[str, Any] = yaml.safe_load((EXAMPLES / f"{name}.yaml").read_text())
    sections = ("workload", "search_space", "baseline")
    told = {key: study.get(key, {}) for key in sections}
    tiny.write(**{**told, "objective": {"global_batch_size": "fixed"}, **changes})
    return study


@pytest.mark.errand
@pytest.mark.parametrize(
    "name", ["ddp", "hf_trainer", "accelerate_loop", "lightning_module", "fsdp2"]
)
def test_a_framework_is_tuned_and_left_as_it_is(tiny: StudyFolder, name: str) -> None:
    pytest.importorskip("lightning" if name == "lightning_module" else "accelerate")
    study = write(
        tiny,
        name,
        budget={"trials": TRIALS, "min_improvement": 0},
        measurement=quick_measurement(max_measure_time=0.5, startup_timeout=300, step_timeout=120),
    )
    found = tiny.run("start", "study.yaml", "--foreground", timeout=1200)
    assert found.returncode == 0, found.stdout + found.stderr
    tiny.assert_complete(trials=TRIALS)
    attempts = tiny.attempts(Purpose.SEARCH)
    measured = (AttemptState.COMPLETE, AttemptState.PRUNED)
    assert all(a.result.state in measured for a in attempts), [a.result for a in attempts]
    best = yaml.safe_load((tiny.folder / "best.yaml").read_text())
    assert best["script"]["target"] == f"{name}.py"
    script = EXAMPLES / f"{name}.py"
    assert (tiny.folder / script.name).read_bytes() == script.read_bytes()
    left = {path.name for path in tiny.folder.iterdir()}
    assert not left & {"checkpoints", "classifier", "fsdp2.pt"}, "ended before it would have saved"
    assert study["workload"]["flags"].keys() >= {"micro_batch", "accumulation_steps"}


@pytest.mark.errand
def test_doctor_is_right_about_a_trainer(tiny: StudyFolder) -> None:
    """Without --use_cpu the Trainer's ranks would not train together where there is no device."""
    pytest.importorskip("accelerate")
    space = {"accumulation_steps": [2, 4], "bucket_cap_mb": [5, 25]}
    study = write(tiny, "hf_trainer", search_space=space)
    told = tiny.ask("doctor", "study.yaml", "--storage", tiny.url).stdout
    assert "ok    knob accumulation_steps: 2 takes effect, by --gradient_accumulation_steps" in told
    assert "ok    knob bucket_cap_mb: 5 takes effect, from outside" in told
    args = [argument for argument in study["workload"]["args"] if argument != "--use_cpu"]
    write(tiny, "hf_trainer", search_space=space, workload={**study["workload"], "args": args})
    told = tiny.ask("doctor", "study.yaml", "--storage", tiny.url).stdout
    assert "the ranks of the script do not train together" in told
