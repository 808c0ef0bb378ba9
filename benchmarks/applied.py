"""Speed-up that a study of an unchanged script promises, and that of the same job when it is applied.

For each example of examples/scripts: a study, its winner, and then in turn the user's own torchrun
command and the same under `autotune run best.yaml --`. Optimizer steps of both are counted in the same
way, by a hook that python loads as it starts. Each round has a trial of both configurations as well: a
shared machine changes from minute to minute, and with it what a configuration is worth. Run by
scripts.py.
"""

import dataclasses
import hashlib
import os
import random
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml
from agreement import watched

from autotune.config import load
from autotune.measurement.estimate import paired_ratio
from autotune.measurement.stop_rule import Limits, StopRule
from autotune.runs.study_setup import StudySetup, launcher_of
from autotune.worker.protocol import BlockPlan

EXAMPLES = Path(__file__).parent.parent / "examples" / "scripts"
NAMES = ("ddp", "hf_trainer", "accelerate_loop", "lightning_module", "fsdp2")
OURS = (sys.executable, "-P", "-m", "autotune")
WARM_UP = 2.0
"""Seconds of a job's steps that do not count."""
BLOCK_SECONDS = 0.25
PATIENCE = 600.0
"""Seconds that a job may take to get there."""

_PROBE = """
import os, sys
from autotune.worker.inject.job_order import runs
if (runs(sys.orig_argv) or [None])[0] == os.environ["PROBED"] and os.environ.get("RANK") == "0":
    import struct, time
    from torch.optim.optimizer import register_optimizer_step_post_hook
    file = os.open(os.environ["PROBE"], os.O_WRONLY | os.O_CREAT)
    first = []
    def told(optimizer, *_):
        first.append(optimizer) if not first else None
        if optimizer is first[0]:
            os.write(file, struct.pack("d", time.monotonic()))
    register_optimizer_step_post_hook(told)
"""


def applied(name: str, *, trials: int, rounds: int, seconds: float) -> dict[str, Any]:
    """Return the speed-up that a study has promised, and that of the job.

    Args:
        name: of the example.
        trials: of the study.
        rounds: of both jobs in turn.
        seconds: that steps are counted for, in each.
    """
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        script = folder / f"{name}.py"
        script.write_bytes((EXAMPLES / script.name).read_bytes())
        before = _digest(script)
        study = yaml.safe_load((EXAMPLES / f"{name}.yaml").read_text())
        study["budget"] = {"trials": trials}
        study["export"] = "best.yaml"
        (folder / "study.yaml").write_text(yaml.safe_dump(study))
        started = time.monotonic()
        done = subprocess.run(
            [*OURS, "start", "study.yaml", "--foreground"],
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            return {"failed": done.stdout[-1000:] + done.stderr[-2000:]}
        study_seconds = time.monotonic() - started
        best = yaml.safe_load((folder / "best.yaml").read_text())
        found = {
            "study_seconds": study_seconds,
            "promised": best.get("speedup"),
            "turned": best["script"]["turned"],
            "changes": {knob: best["knobs"][knob] for knob in best["script"]["changes"]},
        }
        if found["turned"] or found["changes"]:
            found |= _in_turn(folder, study["workload"], rounds, seconds)
        return {**found, "unchanged": before == _digest(script) == _digest(EXAMPLES / script.name)}


def _in_turn(
    folder: Path, workload: dict[str, Any], rounds: int, seconds: float
) -> dict[str, dict[str, float]]:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    baseline = [*torchrun, "--nproc-per-node", "2", workload["script"], *workload["args"]]
    tuned = [*OURS, "run", "best.yaml", "--", *baseline]
    spec = load(folder / "study.yaml")
    best = yaml.safe_load((folder / "best.yaml").read_text())["knobs"]
    (folder / "agents").mkdir(exist_ok=True)
    with launcher_of(spec, folder / "agents") as launcher:
        setup = StudySetup(spec, launcher)

        def trial(knobs: dict[str, Any], name: str) -> float:
            return _of_trial(setup, {**setup.baseline, **knobs}, folder, name, seconds)

        runs: dict[str, Callable[[int], Any]] = {
            "job today": lambda _: _rate(baseline, folder, workload["script"], seconds),
            "job tuned": lambda _: _rate(tuned, folder, workload["script"], seconds),
            "trial today": lambda at: trial({}, f"today-{at}"),
            "trial tuned": lambda at: trial(best, f"tuned-{at}"),
        }
        rounds_run = list(_rounds(runs, rounds))
    return dict(_compared(rounds_run))


def _rounds(runs: dict[str, Callable[[int], Any]], count: int) -> Iterator[dict[str, Any]]:
    draw = random.Random(0)
    for number in range(count):
        yield {name: runs[name](number) for name in draw.sample(list(runs), len(runs))}


def _compared(rounds: list[dict[str, Any]]) -> Iterator[tuple[str, dict[str, float]]]:
    """Tuned over the baseline: of trials, of jobs, and how much more the jobs gain."""
    even = [1.0] * len(rounds)
    trials = [found["trial tuned"] / found["trial today"] for found in rounds]
    yield "trials", vars(paired_ratio(trials, even))
    for place, name in enumerate(("applied", "applied_between_pauses")):
        jobs = [found["job tuned"][place] / found["job today"][place] for found in rounds]
        yield name, vars(paired_ratio(jobs, even))
        yield f"{name}_over_trials", vars(paired_ratio(jobs, trials))


def _of_trial(
    setup: StudySetup, knobs: dict[str, Any], folder: Path, name: str, seconds: float
) -> float:
    """Return samples per second of a configuration as a trial of its study."""
    slot = setup.launcher.slots[0]
    asked = setup.request(slot, knobs, name=name, workdir=folder, log_dir=folder / "logs" / name)
    watch = StopRule(Limits(warmup=WARM_UP, longest=seconds, precision=1e-9))
    blocks = BlockPlan(BLOCK_SECONDS, asked.blocks.min_steps)
    return watched(slot, dataclasses.replace(asked, blocks=blocks), watch)


def _rate(command: list[str], folder: Path, script: str, seconds: float) -> tuple[float, float]:
    """Return optimizer steps per second of a job, which is ended then.

    Its global batch is the study's. The first rate is by the wall clock, the second the median over
    blocks, which pauses do not show in.
    """
    site, probe = folder / "site", folder / "probe"
    site.mkdir(exist_ok=True)
    (site / "sitecustomize.py").write_text(_PROBE)
    probe.unlink(missing_ok=True)
    environment = {
        **os.environ,
        "PYTHONPATH": str(site),
        "OMP_NUM_THREADS": "1",  # as in the trials
        "PROBE": str(probe),
        "PROBED": script,
    }
    with (folder / "log").open("w") as log:
        job = subprocess.Popen(
            command, cwd=folder, env=environment, stdout=log, stderr=log, start_new_session=True
        )
        try:
            return _counted(job, probe, seconds)
        except RuntimeError as error:
            raise RuntimeError(f"{error}\n{(folder / 'log').read_text()[-3000:]}") from None
        finally:
            # torchrun ends its workers, which are in sessions of their own.
            os.killpg(job.pid, signal.SIGTERM)
            job.wait(60)


def _counted(job: subprocess.Popen[bytes], probe: Path, seconds: float) -> tuple[float, float]:
    give_up = time.monotonic() + PATIENCE
    while time.monotonic() < give_up:
        time.sleep(0.2)
        if job.poll() is not None:
            raise RuntimeError(f"the job has ended with {job.returncode}")
        if not probe.exists():
            continue
        told = probe.read_bytes()
        times = [at for (at,) in struct.iter_unpack("d", told[: len(told) // 8 * 8])]
        late = [at for at in times if at >= times[0] + WARM_UP]
        if len(late) > 1 and late[-1] - late[0] >= seconds:
            return (len(late) - 1) / (late[-1] - late[0]), statistics.median(_of_blocks(late))
    raise RuntimeError("the job has taken no steps")


def _of_blocks(ends: list[float]) -> Iterator[float]:
    """Return steps per second in blocks of whole steps, by the ends of all steps."""
    began = 0
    for number, at in enumerate(ends):
        if at - ends[began] >= BLOCK_SECONDS:
            yield (number - began) / (at - ends[began])
            began = number


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
