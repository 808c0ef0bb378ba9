"""Cost of a trial besides its training: autotune on both launchers, and torchrun per trial.

    python benchmarks/overhead.py [--json] [--rounds N] [--trials N]

Orchestration of a trial is the time from its start to the start of the next one, less the time inside
its training steps. The first trial of a study is left out: it also pays for opening the launcher. The
trials differ in DDP's buckets, so that each launches processes of its own; `local, taken over` is of
trials that differ in what acts on a step, which take over those that are there. The baseline runs
once in these studies, so that each trial runs by itself. Suggestions are random, but for `local, model`,
of the sampler that studies have by default; its suggestions take longer after many trials
(suggestion_cost.py).

A study with repeats of the baseline measures trials beside the baseline where the machine is restless.
`beside the baseline` holds what such a trial takes more than its own training: seconds in which the
baseline trains, and seconds in which neither does. On a quiet machine there is no such trial.

Each round runs, in turn, a study on each launcher and torchrun once per trial, all with the same
training (the quickstart's model, the same blocks); and once more, locally and with torchrun, with a
model of Hugging Face, which takes seconds to import. The local study runs twice per round: how far
those two differ is the noise of the comparison (A/A).
"""

import argparse
import collections
import itertools
import json
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import yaml

BLOCKS = 6
WORKERS = 2
ON_PROCESSORS = {"workers": WORKERS, "gpus_per_worker": 0}
GPT = {"name": "gpt", "args": {"layers": 2, "d_model": 128, "heads": 4, "length": 64}}
WRAPPER, STEP = "bucket_cap_mb", "log_interval"
"""A knob that takes new processes, and one that does not."""
HUGGING_FACE = {
    "name": "huggingface",
    "args": {
        "model_type": "llama",
        "config": {
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 2,
        },
        "length": 64,
    },
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--trials", type=int, default=6, help="per study; the first is left out")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    seconds = collections.defaultdict[str, list[float]](list)
    paired: list[Extra] = []
    for _ in range(arguments.rounds):
        seconds["local"] += study_overheads("local", GPT, arguments.trials)
        seconds["ray"] += study_overheads("ray", GPT, arguments.trials)
        seconds["torchrun"] += [torchrun_overhead(GPT) for _ in range(2)]
        seconds["local, taken over"] += study_overheads("local", GPT, arguments.trials, knob=STEP)
        seconds["local again"] += study_overheads("local", GPT, arguments.trials)
        seconds["local, model"] += study_overheads("local", GPT, arguments.trials, sampler="model")
        paired += paired_extras("local", GPT, arguments.trials)
        seconds["local, Hugging Face"] += study_overheads("local", HUGGING_FACE, arguments.trials)
        seconds["torchrun, Hugging Face"] += [torchrun_overhead(HUGGING_FACE) for _ in range(2)]
    report = summary(seconds) | {"beside_the_baseline": summary_of_extras(paired)}
    if arguments.json:
        print(json.dumps(report, indent=2))
        return
    for name, figures in report["seconds_per_trial"].items():
        print(f"{name:22} median {figures['median']:.3f} s   ({figures['trials']} trials)")
    print(f"torchrun / local {report['torchrun_over_local']:.1f}")
    print(f"torchrun / ray   {report['torchrun_over_ray']:.1f}")
    print(f"torchrun / local, Hugging Face {report['torchrun_over_local_hugging_face']:.1f}")
    print(f"A/A: local again / local {report['noise_local_again_over_local']:.2f}")
    print(f"beside the baseline: {json.dumps(report['beside_the_baseline'])}")


class Extra(NamedTuple):
    """Seconds that a trial beside the baseline takes besides its own training."""

    baseline: float
    """Seconds in which the baseline trains."""
    neither: float
    """Seconds in which neither trains: launch, changes between the two, records."""


def summary_of_extras(extras: list[Extra]) -> dict[str, Any]:
    """Return medians of both parts, in seconds; only the count where there is no such trial."""
    if not extras:
        return {"trials": 0}
    return {
        "trials": len(extras),
        "baseline_trains_median": round(statistics.median(e.baseline for e in extras), 4),
        "neither_trains_median": round(statistics.median(e.neither for e in extras), 4),
    }


def summary(seconds: dict[str, list[float]]) -> dict[str, Any]:
    """Return medians, ratios and the A/A noise."""
    median = {name: statistics.median(values) for name, values in seconds.items()}
    return {
        "seconds_per_trial": {
            name: {
                "median": round(median[name], 4),
                "mean": round(statistics.mean(values), 4),
                "max": round(max(values), 4),
                "trials": len(values),
            }
            for name, values in seconds.items()
        },
        "torchrun_over_local": round(median["torchrun"] / median["local"], 2),
        "torchrun_over_ray": round(median["torchrun"] / median["ray"], 2),
        "torchrun_over_local_hugging_face": round(
            median["torchrun, Hugging Face"] / median["local, Hugging Face"], 2
        ),
        "noise_local_again_over_local": round(median["local again"] / median["local"], 3),
    }


def study_overheads(
    launcher: str,
    workload: dict[str, Any],
    trials: int,
    resources: dict[str, Any] = ON_PROCESSORS,
    knob: str = WRAPPER,
    sampler: str = "random",
) -> list[float]:
    """Run a study over one knob; return seconds besides training of all trials but the first and last.

    Raises:
        SystemExit: trials were not launched as asked, or one ran beside the baseline.
    """
    study = _study(launcher, workload, trials, resources, knob)
    study["measurement"]["baseline_runs"] = 1
    study["sampler"] = sampler
    windows = _windows(study)
    if any(window.paired for window in windows):
        raise SystemExit("a trial ran beside the baseline, though the baseline runs once")
    own = [window for window in windows if window.launched == (knob == WRAPPER)]
    if len(own) < len(windows) - 1:
        raise SystemExit(
            f"{len(windows) - len(own)} of {len(windows)} trials were made the other way"
        )
    return [window.seconds - window.trained for window in own]


def paired_extras(launcher: str, workload: dict[str, Any], trials: int) -> list[Extra]:
    """Run a study; return the extra seconds of its trials that ran beside the baseline."""
    windows = _windows(_study(launcher, workload, trials, ON_PROCESSORS, STEP))
    return [
        Extra(window.others, window.seconds - window.trained - window.others)
        for window in windows
        if window.paired
    ]


def _study(
    launcher: str, workload: dict[str, Any], trials: int, resources: dict[str, Any], knob: str
) -> dict[str, Any]:
    return {
        "name": "overhead",
        "workload": workload,
        "launcher": launcher,
        "resources": resources,
        "search_space": {knob: list(range(1, trials + 2))},
        "baseline": {knob: 1},
        "sampler": "random",
        "budget": {"trials": trials + 1},
        # One warm-up block, then the fewest: BLOCKS blocks in all.
        "measurement": {
            "block_seconds": 0.1,
            "min_steps": 2,
            "warmup": 0.001,
            "max_measure_time": 0.3,
            "search_ci_half_width": 0.0001,
            "finalists": 1,
            "rounds": 2,
        },
    }


class Window(NamedTuple):
    """Time from the start of a trial to the start of the next one."""

    seconds: float
    trained: float
    """Seconds inside the steps of the trial."""
    others: float
    """Seconds inside the steps of other attempts, such as the baseline beside it."""
    launched: bool
    """It launched processes of its own."""
    paired: bool
    """The baseline ran beside it."""


def _windows(study: dict[str, Any]) -> list[Window]:
    """Run the study; return the windows of all trials but the first and the last."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "study.yaml").write_text(yaml.safe_dump(study))
        command = [sys.executable, "-m", "autotune", "start", "study.yaml", "--foreground"]
        subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
        with sqlite3.connect(Path(folder, "autotune.db")) as connection:
            rows = connection.execute(
                "select a.started, sum(b.seconds), a.resident_of is null, a.purpose, a.trial, a.round "
                "from autotune_attempt a join autotune_block b on b.attempt_id = a.id "
                "group by a.id order by a.started, a.id"
            ).fetchall()
    searched = [row for row in rows if row[3] == "search"]
    return [_window(this, following, rows) for this, following in itertools.pairwise(searched[1:])]


def _window(
    this: tuple[Any, ...], following: tuple[Any, ...], rows: list[tuple[Any, ...]]
) -> Window:
    """Return the window of a trial.

    Args:
        this, following, rows: start, seconds in steps, launched, purpose, trial and round of attempts.
    """
    start, trained, launched, _, trial, _ = this
    # The baseline beside the next trial may start before that trial does.
    alone = [row for row in rows if row[3] != "paired" and start < row[0] < following[0]]
    paired = [row for row in rows if row[3] == "paired" and row[5] == trial]
    others = sum(row[1] for row in (*alone, *paired))
    return Window(following[0] - start, trained, others, bool(launched), bool(paired))


def torchrun_overhead(
    workload: dict[str, Any], workers: int = WORKERS, device: str = "cpu"
) -> float:
    """Seconds besides training, of one start of torchrun with the same training."""
    script = Path(__file__).with_name("torchrun_trial.py")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", str(workers)]
    asked = {**workload, "factory": f"autotune.workloads.{workload['name']}:build"}
    command += [str(script), json.dumps(asked), str(BLOCKS), device]
    started = time.perf_counter()
    found = subprocess.run(command, check=True, capture_output=True, text=True)
    wall = time.perf_counter() - started
    blocks = json.loads(found.stdout.splitlines()[-1])
    return wall - sum(seconds for seconds, _ in blocks)


if __name__ == "__main__":
    main()
