"""Findings of studies of minutes on processors, where equal runs lie apart and the speed wanders.

    python benchmarks/cpu_policy.py [--json] [--seeds N] [--only large small none] [--budgets 120 240]

Whole studies in virtual time over a made-up machine, with figures of scripts on shared processors: a
launch of 2 s, steps of 0.32 s, runs that lie 3 % apart, blocks that scatter by 3 %, and a speed of the
machine that wanders by 5 % within ten seconds. One space holds a large gain, one a small one, one none.
Truth, budgets and seeds are the same for every version of autotune: run it in two checkouts to compare
policies, with --policy naming each.
"""

import json
import logging
import math
import multiprocessing
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from autotune.config import StudySpec
from benchmarks.gpu_policy import Studied, line, parsed, replayed, storage_of, summary
from launchers.replay import ReplayLauncher
from launchers.replay.answers import Answer, Launch, SpeedVariation

BUDGETS = (120.0, 240.0, 600.0)
GAINS: dict[str, dict[tuple[str, Any], float]] = {
    "large": {
        ("precision", "bf16"): 1.7,
        ("optimizer_kernels", "fused"): 1.03,
        ("log_interval", 10): 1.02,
        ("num_workers", 0): 0.95,
        ("num_workers", 2): 1.02,
        ("channels_last", True): 1.05,
    },
    "small": {
        ("precision", "bf16"): 0.9,
        ("optimizer_kernels", "fused"): 1.06,
        ("log_interval", 10): 1.03,
        ("num_workers", 0): 0.97,
        ("num_workers", 2): 1.05,
        ("channels_last", True): 0.97,
    },
    "none": {
        ("precision", "bf16"): 0.8,
        ("optimizer_kernels", "fused"): 0.99,
        ("num_workers", 0): 0.97,
        ("num_workers", 2): 0.98,
        ("channels_last", True): 0.95,
    },
}
"""Factors of the rate by a value that differs from the baseline's: 1.91, 1.15 and 1 at best."""
BASELINE = {
    "micro_batch": 4,
    "accumulation_steps": 1,
    "precision": "fp32",
    "optimizer_kernels": "default",
    "log_interval": 1,
    "num_workers": 1,
    "channels_last": False,
}
SPACE = {
    "precision": ["fp32", "bf16"],
    "optimizer_kernels": ["default", "fused"],
    "log_interval": [1, 10],
    "num_workers": [0, 1, 2],
    "channels_last": [False, True],
}
_STEP = 0.32
"""Seconds of a step of the baseline (measured: ResNet-18 with batches of 4, two cores)."""
_FIRST_STEP = 3.0
"""Steady steps that a first step takes."""
_LAUNCH = 2.0
_RUN_SIGMA = _BLOCK_SIGMA = 0.03
_WANDERING = SpeedVariation(sigma=0.05, seconds=10.0)


def rate(gain: str, knobs: Mapping[str, Any]) -> float:
    """Return the samples per second of a typical process of a configuration."""
    factors = (f for (name, value), f in GAINS[gain].items() if knobs[name] == value)
    return BASELINE["micro_batch"] / _STEP * math.prod(factors)


def study(folder: str, gain: str, budget: float, seed: int) -> Studied:
    """Run one study in virtual time."""
    spec = StudySpec.model_validate(
        {
            "name": "policy",
            "workload": {"name": "convnet"},
            "resources": {"workers": 1},
            "baseline": BASELINE,
            "search_space": SPACE,
            "budget": {"trials": None, "wall_time": budget},
            "seed": seed,
            "export": "best.yaml",
        }
    )

    def answer(launch: Launch) -> Answer:
        apart = math.exp(launch.draw.gauss(0.0, _RUN_SIGMA))
        return Answer(
            rate=apart * rate(gain, launch.knobs),
            block_sigma=_BLOCK_SIGMA,
            first_step=_FIRST_STEP * _STEP,
            startup=_LAUNCH,
            stays=False,
        )

    launcher = ReplayLauncher(answer, workers=1, seed=seed, variation=_WANDERING)
    return replayed(storage_of(folder), spec, launcher, lambda knobs: rate(gain, knobs))


def _one(task: tuple[str, str, float, int]) -> Studied:
    return study(*task)


def main() -> None:
    arguments = parsed(str(__doc__), GAINS, BUDGETS)
    logging.disable()
    cells = []
    with tempfile.TemporaryDirectory() as folder, multiprocessing.Pool() as pool:
        for budget in arguments.budgets:
            for gain in arguments.only:
                tasks = [(folder, gain, budget, seed) for seed in range(arguments.seeds)]
                found = pool.map(_one, tasks, chunksize=1)
                names = {"device": "cpu", "baseline": gain, "kind": "script", "budget": budget}
                cells.append(summary(found, policy=arguments.policy, **names))
                if not arguments.json:
                    print(line(cells[-1]), flush=True)
    if arguments.json:
        print(json.dumps({"cells": [asdict(cell) for cell in cells]}, indent=2))


if __name__ == "__main__":
    main()
