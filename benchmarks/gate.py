"""Does the numerics gate refuse wrong training, and nothing else?

    python benchmarks/gate.py [--json] [--runs N] [--only MODEL] [--ranks N]

Four models. Every run has a seed of its own: a reference, then faults that are planted in the training,
and changes that do no harm. Each is judged as a finalist of a study is: its first steps, then the
course of its loss, with further seeds while the answer is open. Shown are shares that were refused,
with their 95 % interval (Clopper and Pearson 1934), by what, and the largest errors of gradients that
were seen where nothing is wrong: the nulls that the tolerances stand on. A single rank, which is faster
on a machine that others use, has no exchange that could be dropped.
"""

import argparse
import json
import os
import pickle
import random
import re
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gate_faults
import torch
import torch.distributed as dist
from scipy import stats
from torch import multiprocessing
from torch.nn import functional

from autotune.measurement import gradients
from autotune.measurement.numerics import (
    Agreement,
    Pair,
    Trajectory,
    agreement,
    trajectory,
)
from autotune.measurement.policy import GATE
from autotune.runs.monitors import FirstStepsMonitor, RunMonitor, TrajectoryMonitor
from autotune.worker.protocol import STEPS_WITHOUT_DROPOUT, BlockReport, TrialRequest
from autotune.worker.rank.context import RankContext
from autotune.worker.rank.loop import TrainingLoop
from autotune.worker.rank.norms import UpdateNorms
from autotune.worker.rank.quiet import plain_autocast
from autotune.worker.rank.trajectory import run_trajectory
from search_spaces import defaults

MODELS: dict[str, dict[str, Any]] = {
    "gpt": {
        "factory": "autotune.workloads.gpt:build",
        "args": {"layers": 2, "d_model": 64, "heads": 2, "length": 32},
    },
    "transformer": {
        "factory": "autotune.workloads.transformer:build",
        "args": {
            "layers": 1,
            "d_model": 64,
            "d_ff": 128,
            "heads": 2,
            "length": 16,
            "vocabulary": 2000,
            "dropout": 0.1,
        },
        "rate": 10.0,  # its own is for a long training: its loss would not fall
    },
    "convnet": {
        "factory": "autotune.workloads.convnet:build",
        "args": {"size": 16, "width": 8, "blocks": 2},
    },
    "deep_convnet": {
        "factory": "autotune.workloads.convnet:build",
        "args": {"size": 16, "width": 8, "blocks": 16},
        "rate": 0.2,  # at its own, equal trainings of so deep a network soon part
    },
}
TRAINED = {"micro_batch": 8, "accumulation_steps": 2}
_RUNS_OF_A_PROCESS = 5
"""Runs after which a process is replaced: DDP keeps a part of every model until its process ends."""
Case = tuple[str, Mapping[str, Any]]
FAULTS: dict[str, Case] = {
    "scale": ("scale", {}),
    "dropped sync": ("sync", {}),
    "frozen layer": ("frozen", {}),
    "half the learning rate": ("half_rate", {}),
    "wrong mask": ("mask", {}),
    "stale gradients": ("stale", {}),
    "dropped micro-batch": ("dropped", {}),
    "gradients of seven tenths": ("shrunk", {}),
    "gradients summed up": ("summed", {}),
    "silent layer": ("silent", {}),
    "flipped layer": ("flipped", {}),
}
HARMLESS: dict[str, Case] = {
    "kernels": (
        "",
        {"attention": "unfused", "optimizer_kernels": "foreach", "channels_last": True},
    ),
    "order of sums": ("", {"bucket_cap_mb": 0.02, "activation_checkpointing": 1}),
    "another dropout": ("other_dropout", {}),
    "fsdp": ("", {"parallelism": "fsdp"}),
    "bf16": ("", {"precision": "bf16"}),
}
NARROW: dict[str, Case] = {
    f"{name}, bf16": (fault, {"precision": "bf16"}) for name, (fault, _) in FAULTS.items()
}
"""The faults in a run whose gradients may deviate further."""
FAULTS |= NARROW
FORMATS: dict[str, Case] = {
    "fp16": ("", {"precision": "fp16"}),
    "pure_bf16": ("", {"precision": "pure_bf16"}),
    "bf16, channels_last": ("", {"precision": "bf16", "channels_last": True}),
}
"""Only where they are asked for."""
AMONG_RANKS = ("dropped sync", "dropped sync, bf16", "fsdp")
"""Cases that a single rank cannot have."""
ERRORS = ("first", "tensor", "second", "norm", "norm of tensor")


class Bench:
    """Judge of configurations as in a study, in two processes that train one after another.

    It has the code of ranks, of monitors and of the gate, without the launch of processes, which
    would take hours.
    """

    def __init__(self, rank: int, model: dict[str, Any]) -> None:
        self._context = RankContext(rank, rank, dist.get_world_size(), (torch.device("cpu"),))
        self._model = model
        self._references: dict[int, Trajectory] = {}
        self._rounding: dict[int, tuple[gradients.RoundingErrors, ...]] = {}
        self._kept: list[TrainingLoop] = []
        self.errors: dict[str, list[float]] = {name: [] for name in ERRORS}

    def judge(self, case: Case, run: int) -> Agreement:
        """Return the gate's answer on a configuration."""
        fault, changes = case
        knobs = {**defaults(), **TRAINED, **changes}
        formats = (knobs, {**defaults(), **TRAINED})
        earlier: list[Pair] = []
        while True:
            seed = run * GATE.most_seeds + len(earlier)
            reference, rounding = self._reference(seed), self._rounding_of(seed)
            monitor = TrajectoryMonitor(reference, formats=formats, rounding=rounding)
            found = self._train(seed, knobs, fault, monitor)
            answer = agreement(
                found, reference, formats=formats, earlier=earlier, rounding=rounding
            )
            if fault in ("", "other_dropout"):
                self._note(found, reference, formats)
            if answer.problem or not answer.open:
                return answer
            earlier.append((found, reference))

    def _note(self, run: Trajectory, reference: Trajectory, formats: Sequence[Any]) -> None:
        assert run.first is not None and reference.first is not None
        limits = gradients.limits(formats)
        found = gradients.deviations(run.first, reference.first, limits)
        sizes = [one.size for one in found]
        (first, tensor, norm, norm_of_tensor, *_), second = sizes, sizes[len(sizes) // 2]
        told = first, tensor, second, norm, norm_of_tensor
        for errors, size in zip(self.errors.values(), told, strict=True):
            errors.append(size)

    def _rounding_of(self, seed: int) -> tuple[gradients.RoundingErrors, ...]:
        """Return the errors under plain autocast, where a study would have run it."""
        if "convnet" not in self._model["factory"]:
            return ()
        if seed not in self._rounding:
            plain = {**defaults(), **TRAINED}
            with plain_autocast("cpu"):
                run = self._train(seed, plain, "", FirstStepsMonitor(), STEPS_WITHOUT_DROPOUT)
            self._rounding[seed] = gradients.rounding_of(run.first, self._reference(seed).first)
        return self._rounding[seed]

    def _reference(self, seed: int) -> Trajectory:
        if seed not in self._references:
            plain = {**defaults(), **TRAINED}
            self._references[seed] = self._train(seed, plain, "", TrajectoryMonitor())
        return self._references[seed]

    def _train(
        self,
        seed: int,
        knobs: dict[str, Any],
        fault: str,
        judge: RunMonitor,
        most: int = GATE.most_steps,
    ) -> Trajectory:
        """Both ranks have the same blocks, and so come to the same end."""
        ranks = self._context.world_size
        request = TrialRequest("t", "", {}, knobs, ranks, seed, "cpu", trajectory=most)
        random.seed(seed)
        torch.manual_seed(seed)
        attend = functional.scaled_dot_product_attention
        built = gate_faults.build(
            **self._model, fault=fault, accumulation=knobs["accumulation_steps"]
        )
        loop = TrainingLoop(built, request, self._context, lambda: None)
        loop.inspectable = False
        told: list[BlockReport] = []
        steps = run_trajectory(loop, UpdateNorms(loop), request, self._context, told.append)
        judged = 0
        for _ in steps:
            over: list[Any] = [sum(judge(block) for block in told[judged:])]
            judged = len(told)
            dist.broadcast_object_list(over, 0)
            if over[0]:
                break
            loop.step()
        functional.scaled_dot_product_attention = attend
        # What DDP has of it may deadlock when it is torn down.
        self._kept.append(loop)
        seen: list[Any] = [trajectory(told) if told else None]
        dist.broadcast_object_list(seen, 0)
        found: Trajectory = seen[0]
        return found


def main() -> None:
    """Print the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--only", choices=MODELS)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--report", help="file that is written after every run")
    parser.add_argument("--cases", help="names, separated by commas; all if not given")
    given = parser.parse_args()
    wanted = given.cases.split(",") if given.cases else [*FAULTS, *HARMLESS]
    if given.ranks == 1:
        wanted = [name for name in wanted if name not in AMONG_RANKS]
    models = [name for name in MODELS if given.only in (None, name)]
    with tempfile.TemporaryDirectory() as folder:
        report = Path(given.report or Path(folder, "report.json")).absolute()
        for begun in range(0, given.runs, _RUNS_OF_A_PROCESS):
            runs = range(begun, min(begun + _RUNS_OF_A_PROCESS, given.runs))
            multiprocessing.spawn(
                _ranks,
                (given.ranks, folder, models, wanted, runs, str(report)),
                nprocs=given.ranks,
            )
        found = json.loads(report.read_text())
    print(json.dumps(found, indent=2) if given.json else table(found))


def _ranks(
    rank: int,
    ranks: int,
    folder: str,
    models: Sequence[str],
    wanted: Sequence[str],
    runs: range,
    report: str,
) -> None:
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    store = dist.FileStore(f"{folder}/store-{runs.start}", ranks)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks)
    benches = {name: Bench(rank, MODELS[name]) for name in models}
    before = Path(folder, "found.pickle")
    found = {name: Findings(wanted) for name in models}
    if runs.start:
        found = pickle.loads(before.read_bytes())
    for run in runs:
        for name, bench in benches.items():
            found[name].add(bench, run)
        if rank == 0:  # an early end leaves what there is by then
            done = {name: one.as_dict() for name, one in found.items()}
            Path(report).write_text(json.dumps(done, indent=2))
    dist.barrier()
    if rank == 0:
        before.write_bytes(pickle.dumps(found))
    os._exit(0)


class Findings:
    """Findings for one model."""

    def __init__(self, wanted: Sequence[str]) -> None:
        self._cases = {
            n: case for n, case in {**FAULTS, **HARMLESS, **FORMATS}.items() if n in wanted
        }
        self._answers: dict[str, list[Agreement]] = {name: [] for name in self._cases}
        self._nulls: dict[str, dict[str, float]] = {}
        self._seconds = dict.fromkeys(self._cases, 0.0)

    def add(self, bench: Bench, run: int) -> None:
        """Every case once more."""
        for name, case in self._cases.items():
            bench.errors = {kind: [] for kind in bench.errors}
            began = time.monotonic()
            self._answers[name].append(bench.judge(case, run))
            self._seconds[name] += time.monotonic() - began
            if name not in FAULTS:
                known = self._nulls.setdefault(name, dict.fromkeys(bench.errors, 0.0))
                self._nulls[name] = {k: max([known[k], *bench.errors[k]]) for k in known}

    def as_dict(self) -> dict[str, Any]:
        """Shares that were refused, by case."""
        return {
            "refused": {name: shares(found) for name, found in self._answers.items()},
            "largest errors where nothing is wrong": self._nulls,
            "seconds per answer": {
                name: self._seconds[name] / len(found) for name, found in self._answers.items()
            },
        }


def shares(answers: Sequence[Agreement]) -> dict[str, Any]:
    """Return the share of refused runs with its interval and reasons, and runs that no gate can refuse.

    Those computed the very same numbers: sums of two ranks, for one, have but one order.
    """
    refused, count = sum(bool(one.problem) for one in answers), len(answers)
    low = stats.beta.ppf(0.025, refused, count - refused + 1) if refused else 0.0
    high = stats.beta.ppf(0.975, refused + 1, count - refused) if refused < count else 1.0
    reasons = Counter(re.sub(r"-?[0-9][0-9.e+-]*", "#", one.problem) for one in answers)
    errors = [one.gradient_error for one in answers if one.gradient_error is not None]
    shares = [abs(one.share_of_progress) for one in answers if one.share_of_progress is not None]
    same = sum(one.gradient_error == 0 and not one.share_of_progress for one in answers)
    return {
        "runs": count,
        "bit for bit as the reference": same,
        "share": refused / count,
        "interval": [float(low), float(high)],
        "steps": max(one.steps for one in answers),
        "gradient error": [min(errors), max(errors)] if errors else None,
        "largest distance in units of the progress": max(shares, default=None),
        "by": {why: number for why, number in reasons.items() if why},
    }


def table(report: dict[str, Any]) -> str:
    """Return the report as a table."""
    lines = [f"{'refused':>24}" + "".join(f"{name:>16}" for name in report)]
    for case in [*FAULTS, *HARMLESS, *FORMATS]:
        cells = [
            f"{found['refused'][case]['share']:>16.0%}"
            for found in report.values()
            if case in found["refused"]
        ]
        lines.append(f"{case:>24}" + "".join(cells))
    return "\n".join(lines)


if __name__ == "__main__":
    main()
