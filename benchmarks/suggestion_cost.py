"""Cost of a suggestion after 100 and after 5,000 trials: our sampler, and TPE interleaved with it.

    python benchmarks/suggestion_cost.py [--json] [--repeats N]

Studies in memory over nine knobs, told a made-up rate with noise; timed is `ask`, and for ours also what
is asked between trials: whether another one is worth its time. `equals` is TPE against itself (A/A): the
ratio of medians of odd and even calls.
"""

import argparse
import json
import math
import random
import statistics
import time
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.samplers import BaseSampler, TPESampler

from autotune.search.performance_model import PerformanceModelSampler
from autotune.search.trial_attributes import attributes_of, constraints_of, state_of

CHOICES: dict[str, list[Any]] = {
    "micro_batch": [1, 2, 4, 8, 16, 32, 64, 128],
    "accumulation_steps": [1, 2, 4, 8],
    "precision": ["fp32", "tf32", "bf16"],
    "bucket_cap_mb": [1, 5, 25, 100],
    "gradient_as_bucket_view": [False, True],
    "log_interval": [1, 10, 100],
    "optimizer_kernels": ["default", "foreach", "fused"],
    "activation_checkpointing": [0, 1, 2],
    "num_workers": [0, 2, 4],
}
SPACE: dict[str, BaseDistribution] = {n: CategoricalDistribution(c) for n, c in CHOICES.items()}
OURS = PerformanceModelSampler(0, SPACE, memory_bytes=80e9)
SAMPLERS: dict[str, BaseSampler] = {
    "model": OURS,
    "tpe": TPESampler(seed=0, multivariate=True),
}
GOING_ON = "model, whether to go on"
"""Asked once after every trial, and once more before a search ends."""


def told(trials: int) -> optuna.Study:
    """Return a study with so many trials: one in ten ran out of memory, one in twenty failed."""
    draw = random.Random(0)
    study = optuna.create_study(direction="maximize")
    for _ in range(trials):
        params = {name: draw.choice(values) for name, values in CHOICES.items()}
        size = params["micro_batch"] * params["accumulation_steps"]
        rate = 100 * size / (1 + size) * draw.gauss(1, 0.03)
        luck = draw.random()
        too_large, failed = luck < 0.1, luck > 0.95
        ended = "OOM" if too_large else "ERROR" if failed else "COMPLETE"
        study.add_trial(
            optuna.trial.create_trial(
                params=params,
                distributions=SPACE,
                value=None if too_large or failed else rate,
                state=state_of(ended),
                constraints=constraints_of(ended),
                user_attrs=attributes_of(
                    ended,
                    peak_bytes=1e9 + 3e8 * params["micro_batch"],
                    half_width=0.06,
                    standard_error=0.03,
                ),
            )
        )
    return study


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--json", action="store_true")
    repeats = parser.parse_args().repeats
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    report: dict[str, Any] = {
        "configurations": math.prod(map(len, CHOICES.values())),
        "repeats": repeats,
    }
    for trials in (100, 5000):
        study = told(trials)
        seconds: dict[str, list[float]] = {name: [] for name in (*SAMPLERS, GOING_ON)}
        for _ in range(repeats):
            began = time.perf_counter()
            OURS.predict(study.get_trials(deepcopy=False), SPACE)
            seconds[GOING_ON].append(time.perf_counter() - began)
            for name, sampler in SAMPLERS.items():
                study.sampler = sampler
                began = time.perf_counter()
                trial = study.ask(SPACE)
                seconds[name].append(time.perf_counter() - began)
                study.tell(trial, 100.0)
        report[f"after_{trials}"] = {
            name: {
                "median_ms": round(1000 * statistics.median(own), 1),
                "largest_ms": round(1000 * max(own), 1),
            }
            for name, own in seconds.items()
        }
        odd, even = seconds["tpe"][::2], seconds["tpe"][1::2]
        report[f"after_{trials}"]["equals"] = round(
            statistics.median(odd) / statistics.median(even), 2
        )
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
