"""Does a plain training job reach what autotune recommends?

    python benchmarks/agreement.py [--json] [--config best.yaml] [--rounds N]

Runs `examples/train.py` under torchrun with the found configuration, and the same configuration as an
autotune trial before and after it. Prints the job's throughput over the figure in best.yaml, with the
intervals of both, over the two trials of the same round (their geometric mean), and how far these
differ (A/A).
"""

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import yaml

import autotune
from autotune.measurement.estimate import Ratio, paired_ratio
from autotune.measurement.stop_rule import Limits, StopRule
from autotune.worker.protocol import BlockPlan, TrialRequest
from launchers import Resources, Slot, section_of

EXAMPLES = Path(__file__).parent.parent / "examples"
QUICKSTART = yaml.safe_load((EXAMPLES / "quickstart.yaml").read_text())
SECONDS = 6.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--config", default="best.yaml")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    config = autotune.load(arguments.config)
    if config.provenance["study"] != QUICKSTART["name"]:
        parser.error(f"{arguments.config} is of another study than that of make quickstart")
    job, trial, again = [], [], []
    resources = Resources(config.world_size, None, 1, 1)
    with (
        tempfile.TemporaryDirectory() as folder,
        section_of("local").open(resources, folder) as launcher,
    ):
        for round_ in range(arguments.rounds):
            trial.append(measure(launcher.slots[0], config, f"{folder}/{round_}a"))
            job.append(run_job(arguments.config, config.world_size))
            again.append(measure(launcher.slots[0], config, f"{folder}/{round_}b"))
    beside = [math.sqrt(one * other) for one, other in zip(trial, again, strict=True)]
    report = {
        "job_over_recommended": asdict(over_recommended(job, config.throughput)),
        "job_over_trial": asdict(paired_ratio(job, beside)),
        "noise_trial_over_trial": asdict(paired_ratio(again, trial)),
        "samples_per_second": {
            "job": job,
            "trial": trial,
            "trial again": again,
            "recommended": config.throughput["value"],
        },
    }
    if arguments.json:
        print(json.dumps(report, indent=2))
        return
    for name in ("job_over_recommended", "job_over_trial", "noise_trial_over_trial"):
        figure = report[name]
        print(f"{name:24} {figure['value']:.3f} ({figure['low']:.3f} to {figure['high']:.3f})")


def over_recommended(job: list[float], promised: Mapping[str, float]) -> Ratio:
    """Return the ratio of the jobs to best.yaml's promise, whose own interval counts, too."""
    found = paired_ratio(job, [promised["value"]] * len(job))
    sides = []
    for bound, own in ((found.low, promised["high"]), (found.high, promised["low"])):
        apart = math.hypot(math.log(bound / found.value), math.log(own / promised["value"]))
        sides.append(math.copysign(apart, math.log(bound / found.value)))
    return Ratio(found.value, *(found.value * math.exp(side) for side in sides))


def measure(slot: Slot, config: autotune.BestConfig, log_dir: str) -> float:
    """Return samples per second of the configuration as a trial."""
    watch = StopRule(Limits(warmup=1.0, longest=SECONDS, precision=0.0001))
    request = TrialRequest(
        trial=log_dir,
        factory="autotune.workloads.gpt:build",
        args=QUICKSTART["workload"]["args"],
        knobs=config.knobs,
        world_size=config.world_size,
        seed=0,
        device=slot.device,
        devices_per_rank=slot.devices_per_rank,
        blocks=BlockPlan(seconds=0.5, min_steps=2),
        log_dir=log_dir,
    )
    return watched(slot, request, watch)


def watched(slot: Slot, request: TrialRequest, watch: StopRule) -> float:
    """Return samples per second of a trial, watched to its end."""
    report = slot.run_solo(request, watch)
    if report.outcome:
        raise SystemExit(f"the trial failed: {report.outcome} {report.cause}\n{report.log_tail}")
    return watch.estimate().rate


def run_job(config: str, world_size: int) -> float:
    """Return samples per second of the plain script."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", str(world_size), str(EXAMPLES / "train.py")]
    command += ["--config", config, "--seconds", str(SECONDS), "--json"]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    found = subprocess.run(command, check=True, capture_output=True, text=True, env=env)
    return float(json.loads(found.stdout.splitlines()[-1])["samples_per_second"])


if __name__ == "__main__":
    main()
