"""Parts of benchmarks/gpu.py besides the knobs: one function each, from a bench to figures."""

import dataclasses
import json
import math
import shutil
import statistics
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import overhead
import yaml
from optuna.distributions import CategoricalDistribution

from autotune.measurement.bottleneck import peak_flops
from autotune.measurement.noise import RepeatedRun as NoiseRun
from autotune.measurement.noise import run_noise
from autotune.runs.monitors import FitMonitor
from autotune.search.failure_models import MemoryModel
from autotune.search.grid import Grid
from autotune.study.largest_batch import Bracket
from gpu.bench import BENCHMARKS, Bench, Figures, Run, Trials, in_turn
from gpu.matrix import gain
from search_spaces import infeasible

EXAMPLES = BENCHMARKS.parent / "examples"
_SAME_RUNS = 8
_BARE_SECONDS = 3.0
_CLOCK = "clocks.sm,clocks.max.sm,clocks.mem,power.limit,temperature.gpu,driver_version,name"
TUNED = {
    "compile": "default",
    "optimizer_kernels": "fused",
    "stream_prefetch": True,
    "pin_memory": True,
}
"""Changes that usually pay, beside bf16."""


def machine(bench: Bench) -> Figures:
    """Return the machine of all other figures, and its clock under load."""
    with bench.trials() as trials:
        knobs = trials.knobs("gpt")
        run = trials.timed("gpt", knobs)
        return {"environment": trials.environment, "nvidia-smi": smi(), "under load": as_json(run)}


def smi() -> Figures:
    """Clocks, power and temperature as the driver tells them; empty without a driver."""
    if not shutil.which("nvidia-smi"):
        return {}
    asked = ["nvidia-smi", f"--query-gpu={_CLOCK}", "--format=csv,noheader"]
    told = subprocess.run(asked, capture_output=True, text=True, timeout=60, check=True).stdout
    return dict(zip(_CLOCK.split(","), told.splitlines()[0].split(", "), strict=False))


def events(bench: Bench) -> Figures:
    """Seconds by events of the device over seconds by autotune's clock, block by block."""
    out = bench.folder / "events.jsonl"
    work = bench.scale.works["gpt"]
    planted = {"factory": work.factory, "args": work.args, "out": str(out)}
    with bench.trials() as trials:
        run = trials.timed("gpt", trials.knobs("gpt"), factory="gpu.events:build", args=planted)
    pairs = [json.loads(line) for line in out.read_text().splitlines()]
    ratios = [by_events / by_clock for by_events, by_clock in pairs]
    return {
        "run": as_json(run),
        "blocks": len(ratios),
        "ratio": {"median": statistics.median(ratios), "low": min(ratios), "high": max(ratios)},
        "wanted": "1 within 0.005",
    }


def bare(bench: Bench) -> Figures:
    """Return the ratio of the rates of a loop without autotune and of trials, interleaved."""
    work = bench.scale.works["gpt"]

    def loop(knobs: Mapping[str, Any]) -> Run:
        wanted = {
            "factory": work.factory,
            "args": work.args,
            "device": bench.scale.device,
            "warmup": bench.scale.limits.warmup,
            "seconds": min(_BARE_SECONDS, bench.scale.limits.longest),
            **{n: knobs[n] for n in ("micro_batch", "precision", "log_interval")},
        }
        script = BENCHMARKS / "gpu" / "bare_loop.py"
        command = [sys.executable, str(script), json.dumps(wanted)]
        return measured(float(call(command, bench).split()[-1]))

    with bench.trials() as trials:
        knobs = trials.knobs("gpt", parallelism="none")
        found = in_turn(
            bench.scale.rounds + 2,
            bench.left,
            {
                "trial": lambda: trials.timed("gpt", knobs),
                "bare loop": lambda: loop(knobs),
                "trial again": lambda: trials.timed("gpt", knobs),
            },
        )
    runs = found["runs"]
    return {
        **found,
        "bare loop over trial": gain(runs["bare loop"], runs["trial"]),
        "A/A": gain(runs["trial again"], runs["trial"]),
    }


def noise(bench: Bench) -> Figures:
    """How far equal runs in new processes lie apart (A/A)."""
    count = _SAME_RUNS if bench.scale.values is None else bench.scale.rounds
    with bench.trials() as trials:
        found = in_turn(
            count, bench.left, {"equal": lambda: trials.timed("gpt", trials.knobs("gpt"))}
        )
    runs = [run for run in found["runs"]["equal"] if run["rate"]]
    logs = [math.log(run["rate"]) for run in runs]
    seen = [NoiseRun(run["rate"], run["half_width"], float(at)) for at, run in enumerate(runs)]
    return {
        **found,
        "standard deviation of runs": statistics.stdev(logs) if len(logs) > 1 else None,
        "sigma_run": run_noise(seen).sigma_run,
    }


def utilisation(bench: Bench) -> Figures:
    """FLOP/s of the default and of a tuned configuration, over the peak of the device."""
    found: Figures = {}
    with bench.trials() as trials:
        for name in ("gpt", "transformer"):
            plain = trials.knobs(name, precision="fp32")
            tuned = without_problems(trials, plain, {"precision": "bf16", **TUNED})
            flops = flops_per_sample(trials, name, plain)
            for title, knobs in (("default", plain), ("tuned", tuned)):
                run = trials.timed(name, knobs)
                found[f"{name}, {title}"] = {
                    **of_peak(trials, run, flops, str(knobs["precision"])),
                    "knobs": {k: v for k, v in knobs.items() if v != plain[k]},
                    "run": as_json(run),
                }
    return found


def without_problems(
    trials: Trials, base: dict[str, Any], wanted: dict[str, Any]
) -> dict[str, Any]:
    """Return the base with each change that can be made here."""
    for name, value in wanted.items():
        changed = {**base, name: value}
        base = base if infeasible(changed, trials.facts) else changed
    return base


def flops_per_sample(trials: Trials, name: str, knobs: dict[str, Any]) -> float | None:
    """Return the FLOPs of forward and backward pass as torch counts them; None if it cannot."""
    judge = FitMonitor()
    trials.run(name, knobs, judge, lambda asked: dataclasses.replace(asked, trajectory=1))
    return judge.seen[0].block.observed.get("flops_per_sample") if judge.seen else None


def of_peak(trials: Trials, run: Run, flops: float | None, precision: str) -> Figures:
    """FLOP/s reached, and their share of the device's peak at that precision."""
    devices = trials.environment["devices"]
    peak = peak_flops(devices[0]["name"], precision) if devices else None
    reached = run.rate * flops if run.rate and flops else None
    share = reached / peak if reached and peak else None
    return {"flops_per_second": reached, "peak": peak, "utilisation": share}


def memory(bench: Bench) -> Figures:
    """Return the largest micro-batch that fits, predicted from two runs and found by trying."""
    most = bench.scale.most_micro_batch
    sizes = sorted({round(2 ** (step / 8)) for step in range(8 * int(math.log2(most)) + 1)})
    tried: list[tuple[int, Run]] = []
    with bench.trials() as trials:
        base = trials.knobs("gpt")
        first = base["micro_batch"]
        for size in (first, 2 * first):
            tried.append((size, trials.fit("gpt", {**base, "micro_batch": size})))
        limit = memory_of_device(trials)
        predicted = edge(sizes, tried, limit)
        while (size := bracket(tried).next(first, most)) and bench.left() > 0:
            tried.append((size, trials.fit("gpt", {**base, "micro_batch": size})))
    found = bracket(tried)
    failed = [run for size, run in tried if size == found.fails]
    return {
        "memory_bytes": limit,
        "predicted from two runs": predicted,
        "fits": found.fits,
        "does not fit": found.fails,
        "how it ended": f"{failed[0].state}: {failed[0].cause}" if failed else "",
        "peaks": {str(size): run.peak_bytes for size, run in sorted(tried, key=lambda t: t[0])},
    }


def memory_of_device(trials: Trials) -> int:
    """Bytes; of the host where there is none."""
    devices = trials.environment["devices"]
    return int(devices[0]["memory_bytes"] if devices else trials.environment["memory_bytes"])


def bracket(tried: list[tuple[int, Run]]) -> Bracket:
    """Return what is known of the largest micro-batch."""
    return Bracket.of([(size, run.state == "COMPLETE") for size, run in tried])


def edge(sizes: list[int], tried: list[tuple[int, Run]], limit: int) -> int:
    """Return the largest size that the model of the search expects to fit."""
    known = sorted({*sizes, *(size for size, _ in tried)})
    grid = Grid({"micro_batch": CategoricalDistribution(known)})

    def rows(wanted: list[int]) -> Any:
        found = [grid.encode({"micro_batch": size}) for size in wanted]
        return np.array(found, dtype=np.int64).reshape(-1, 1)

    ran = [(size, run) for size, run in tried if run.state == "COMPLETE"]
    failed = [size for size, run in tried if run.state == "OOM"]
    shares = np.array([run.peak_bytes / limit for _, run in ran])
    model = MemoryModel(grid, rows([size for size, _ in ran]), rows(failed), shares)
    risks = model.risk(rows(known))
    return max((size for size, risk in zip(known, risks, strict=True) if risk < 0.5), default=0)


def cost_of_trials(bench: Bench) -> Figures:
    """Seconds of a trial besides its training, NCCL and CUDA started, and the same with torchrun."""
    small = overhead.GPT
    trials = 6 if bench.scale.values is None else 2
    resources = bench.scale.resources()
    wanted = {"workers": 1, "gpus_per_worker": resources.gpus_per_worker}
    seconds: dict[str, list[float]] = {"local": [], "torchrun": [], "local again": []}
    for number in range(bench.scale.rounds):
        if number and bench.left() < 0:
            break
        seconds["local"] += overhead.study_overheads("local", small, trials, wanted)
        seconds["torchrun"] += [overhead.torchrun_overhead(small, 1, bench.scale.device)]
        seconds["local again"] += overhead.study_overheads("local", small, trials, wanted)
    median = {name: statistics.median(values) for name, values in seconds.items()}
    return {
        "seconds per trial": median,
        "torchrun over local": median["torchrun"] / median["local"],
        "A/A": median["local again"] / median["local"],
        "all": seconds,
    }


def sharing(bench: Bench) -> Figures:
    """Two ranks on the one device over gloo, against one rank over NCCL with as many samples."""

    def rate(workers: int) -> Run:
        with bench.trials(workers) as trials:
            one = trials.knobs("gpt")
            return trials.timed(
                "gpt", {**one, "micro_batch": max(1, one["micro_batch"] // workers)}
            )

    found = in_turn(
        bench.scale.rounds,
        bench.left,
        {
            "one rank": lambda: rate(1),
            "two ranks": lambda: rate(2),
            "one rank again": lambda: rate(1),
        },
    )
    runs = found["runs"]
    return {
        **found,
        "two ranks over one": gain(runs["two ranks"], runs["one rank"]),
        "A/A": gain(runs["one rank again"], runs["one rank"]),
    }


def study_gpt(bench: Bench) -> Figures:
    """Run a whole study of the GPT; return its verdict."""
    return study(bench, "gpt", "gpt.yaml")


def study_transformer(bench: Bench) -> Figures:
    """Run a whole study of the published Transformer; return its verdict."""
    return study(bench, "transformer", "seed_transformer.yaml")


def study(bench: Bench, name: str, example: str) -> Figures:
    """Run an example of examples/ at the size of this bench, with compilation and the largest batch."""
    settings = settings_of(bench, name, example)
    folder = bench.folder / f"study-{name}"
    folder.mkdir(exist_ok=True)
    (folder / "study.yaml").write_text(yaml.safe_dump(settings))
    autotune = [sys.executable, "-m", "autotune"]
    call([*autotune, "start", "study.yaml", "--foreground"], bench, folder)
    report = json.loads(call([*autotune, "report", settings["name"], "--json"], bench, folder))
    status = json.loads(call([*autotune, "status", settings["name"], "--json"], bench, folder))
    return {"verdict": report["verdict"], "trials": status["trials_by_state"], "settings": settings}


def settings_of(bench: Bench, name: str, example: str) -> dict[str, Any]:
    """Return the settings of the study file."""
    settings: dict[str, Any] = yaml.safe_load((EXAMPLES / example).read_text())
    resources = bench.scale.resources()
    settings["workload"]["args"] = bench.scale.works[name].args
    settings["resources"] = {"workers": 1, "gpus_per_worker": resources.gpus_per_worker}
    settings["baseline"]["micro_batch"] = bench.scale.works[name].knobs["micro_batch"]
    settings["baseline"].pop("accumulation_steps", None)
    settings["objective"] = {**settings.get("objective", {}), "global_batch_size": "free"}
    settings["measurement"] = bench.scale.study["measurement"]
    # Finalists, the gate and what each knob brings come on top of the search.
    settings["budget"] = {**bench.scale.study["budget"], "wall_time": max(30.0, 0.5 * bench.left())}
    space = settings["search_space"]
    space.pop("parallelism", None)
    if bench.scale.device == "cuda":
        space["compile"] = ["none", "default", "max-autotune"]
        space["micro_batch"] = [*space["micro_batch"], "max"]
    settings.pop("export", None)
    return settings


def table(bench: Bench) -> Figures:
    """Record a replay table of the GPT; go on with what it has so far."""
    settings = settings_of(bench, "gpt", "gpt.yaml")
    settings["search_space"]["micro_batch"] = [4, 8, 16, 32, 64][
        : None if bench.scale.values is None else 2
    ]
    (bench.folder / "table.yaml").write_text(yaml.safe_dump(settings))
    target = bench.output / f"gpt-{bench.scale.device}.csv"
    command = [sys.executable, "-m", "autotune", "record", str(bench.folder / "table.yaml")]
    command += ["--output", str(target), "--most", str(bench.scale.table), "--refine", "0"]
    call(command, bench)
    return {"table": target.name, "rows": len(target.read_text().splitlines()) - 1}


def call(command: list[str], bench: Bench, folder: Path | None = None) -> str:
    """Return the output of a command.

    Raises:
        RuntimeError: it failed, with the end of what it said; or the part's time was over.
    """
    try:
        found = subprocess.run(
            command,
            cwd=folder or bench.folder,
            capture_output=True,
            text=True,
            timeout=max(60.0, bench.left()),
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"{command[-3:]}: not done within the time of its part") from None
    if found.returncode:
        raise RuntimeError(f"{command[-3:]}: {found.stdout[-500:]}{found.stderr[-1500:]}")
    return found.stdout


def measured(rate: float) -> Run:
    """Return a run with a rate that no trial gave."""
    return Run("COMPLETE", "", rate, None, None, None, 0.0, 0, None, None, 0.0)


def as_json(run: Run) -> Figures:
    """Return a run for JSON."""
    return dataclasses.asdict(run)
