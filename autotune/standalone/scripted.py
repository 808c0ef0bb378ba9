"""A commented study.yaml for the user's own script, by what was seen of it. Pure."""

import json
import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from autotune.analysis.wording import counted
from autotune.standalone.command import Launched
from autotune.standalone.survey import Findings
from autotune.worker.protocol import DEEPSPEED, PYTHON, TORCH_LAUNCH, TORCHRUN
from search_spaces import CATALOGUE
from search_spaces.knob import written

_LAUNCHES = {
    PYTHON: "one process, no variables of ranks",
    TORCHRUN: "ranks with the variables of torchrun",
    TORCH_LAUNCH: "as torchrun, and --local-rank before the arguments",
    DEEPSPEED: "ranks with the variables of deepspeed, and --local_rank before the arguments",
}
_TRIALS = 20
_BATCHES = 5
"""Values of the micro-batch, at most."""
_BUCKETS = (5, 25, 100)
_FUSED = {"Adam", "AdamW", "SGD", "Adagrad"}
"""Optimizers of torch that have a fused update on every device."""


def study(command: Sequence[str], launched: Launched, found: Findings, cpus: int) -> str:
    """The text of study.yaml.

    Args:
        command: the user's own.
        launched: the same, taken apart.
        found: by looking at it.
        cpus: of this machine.
    """
    space = dict(_space(launched, found, cpus))
    parts = [
        _head(command, launched, found),
        _workload(launched, found),
        _resources(launched, found),
        _env(launched),
        _search_space(space, found),
        _baseline(space, found),
        _objective(found),
        f"budget:\n  trials: {_TRIALS}            # wall_time: 30m is a limit as well\n",
        "export: best.yaml\n",
    ]
    return "\n".join(part for part in parts if part)


def told(found: Findings) -> str:
    """What was seen, in a sentence."""
    seen = found.seen
    wrapped = "DistributedDataParallel" if seen.ddp else "no DistributedDataParallel"
    wrapped = "sharded parameters (FSDP2)" if seen.sharded else wrapped
    workers = counted(seen.own.get("loader_workers", 0), "worker")
    loader = f"a DataLoader with {workers}" if seen.loader else "no DataLoader"
    number = str(seen.own.get("precision", "number format unknown"))
    samples = counted(seen.micro_batch, "sample")
    if seen.varies:
        samples = "varying numbers of samples"
    return (
        f"{samples} a micro-batch{', by its tensors' if seen.guessed else ''}, "
        f"{counted(seen.accumulation_steps, 'micro-batch')} an optimizer step, "
        f"{counted(found.workers, 'rank')} on {found.device}; {wrapped}, {loader}, {seen.optimizer}, "
        f"{number}"
    )


def _head(command: Sequence[str], launched: Launched, found: Findings) -> str:
    lines = [
        "# Written by `autotune init`, which ran this command for a few steps and looked at it:",
        *(f"#   {line}" for line in shlex.join(command).splitlines()),
        f"# Seen: {told(found)}.",
        "# Then: autotune start with this file, and autotune run best.yaml -- with the command.",
    ]
    name = Path(launched.target).stem if not launched.is_module else launched.target
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-._") or "study"
    return "\n".join([*lines, f"name: {_text(name)}", ""])


def _workload(launched: Launched, found: Findings) -> str:
    lines = [
        "workload:",
        f"  {'module' if launched.is_module else 'script'}: {_text(launched.target)}",
        f"  args: [{', '.join(map(_text, launched.args))}]",
    ]
    lines.append(f"  launch: {launched.launch}   # {_LAUNCHES[launched.launch]}")
    if launched.options:
        lines.append(f"  python_options: [{', '.join(map(_text, launched.options))}]")
    if found.flags:
        lines.append("  flags:   # another value of each was tried, and did what the knob says")
        lines += [f"    {knob}: {_text(flag)}" for knob, flag in found.flags.items()]
    if found.over_all_ranks:
        lines.append(f"  over_all_ranks: [{', '.join(found.over_all_ranks)}]")
    if not found.seen.loader:
        lines.append(
            f"  samples: {found.seen.samples}   # of a rank per step; no DataLoader shows them: a guess "
            "by the rows that the model is given"
        )
    return "\n".join([*lines, ""])


def _objective(found: Findings) -> str:
    """Return the objective where it is not the usual one."""
    if not found.seen.varies:
        return ""
    return (
        "# Its batches have different numbers of samples: optimizer steps compare.\n"
        "objective: {metric: steps_per_second}\n"
    )


def _resources(launched: Launched, found: Findings) -> str:
    lines = ["resources:", f"  workers: {found.workers}"]
    if launched.nodes > 1:
        lines += [
            f"  nodes: {launched.nodes}   # the ranks of one were looked at, on this machine",
            "",
            "launcher: ray   # of several nodes; say ray_address: HOST:PORT of a running cluster",
        ]
    return "\n".join([*lines, ""])


def _env(launched: Launched) -> str:
    if not launched.env:
        return ""
    lines = [f"  {name}: {_text(value)}" for name, value in launched.env.items()]
    return "\n".join(["env:", *lines, ""])


def _space(launched: Launched, found: Findings, cpus: int) -> Iterator[tuple[str, list[Any]]]:
    """Knobs that take effect in this script, each with values; today's is among them."""
    seen, own = found.seen, found.seen.own
    if {"micro_batch", "accumulation_steps"} <= found.flags.keys() and not seen.batch_dependent:
        batches = _batches(seen.micro_batch, seen.samples)
        yield "micro_batch", batches
        yield "accumulation_steps", sorted(seen.samples // batch for batch in batches)
    if seen.ddp and found.workers > 1:
        yield "bucket_cap_mb", sorted({*_BUCKETS, own.get("bucket_cap_mb", 25)})
        yield "gradient_as_bucket_view", [False, True]
    if seen.ddp and own.get("precision") == "fp32" and not seen.scaled:
        yield "precision", ["fp32", "bf16"]
    if seen.loader:
        most = max(1, cpus * launched.nodes // max(1, found.workers))
        today = own.get("loader_workers", 0)
        yield "loader_workers", sorted({0, 1, min(2, most), min(4, most), today})
        if found.device == "cuda":
            yield "pin_memory", [False, True]
    if seen.optimizer in _FUSED:
        yield "optimizer_kernels", ["default", "fused"]
    if found.device == "cuda" and seen.convolutions:
        yield "cudnn_benchmark", [False, True]


def _batches(today: int, samples: int) -> list[int]:
    """Micro-batches that give the same samples per step, the nearest to today's."""
    whole = [size for size in range(1, samples + 1) if samples % size == 0]
    near = sorted(whole, key=lambda size: max(size / today, today / size))
    return sorted(near[:_BATCHES])


def _search_space(space: dict[str, list[Any]], found: Findings) -> str:
    lines = ["# What takes effect in this script. `autotune knobs` lists all that there are."]
    lines += ["search_space:"] if space else ["search_space: {}"]
    for name, values in space.items():
        shown = f"  {name}: [{', '.join(map(written, values))}]"
        lines.append(f"{shown}   # {CATALOGUE[name].summary.partition(';')[0]}")
    lines += [f"# Not here: {reason}" for reason in _left_out(space, found)]
    return "\n".join([*lines, ""])


def _left_out(space: dict[str, list[Any]], found: Findings) -> Iterator[str]:
    seen = found.seen
    if "micro_batch" not in space:
        if seen.varies:
            yield "micro_batch: batches have different numbers of samples"
        elif seen.batch_dependent:
            yield (
                f"micro_batch: the model has {seen.batch_dependent}, and micro_batch changes its "
                "statistics; with `objective: {batch_dependent: allow}` it can vary all the same"
            )
        elif "micro_batch" in found.flags:
            yield (
                "micro_batch, as nothing was found that turns accumulation_steps; with `objective: "
                "{global_batch: free}` it can vary by itself"
            )
        else:
            yield (
                "micro_batch: no option, and no field of a file, was seen to turn it. Map what does "
                "under workload.flags: --flag, key=, $VARIABLE or config.yaml::a.field"
            )
    if seen.own.get("find_unused_parameters"):
        yield (
            "find_unused_parameters: the script says true, and false ends a job at the first step that "
            "leaves a parameter out; add it if every step trains the same parameters"
        )
    if seen.sharded:
        yield "bucket_cap_mb, precision: they act through DistributedDataParallel"
    elif not seen.ddp:
        yield "bucket_cap_mb, precision: there is no DistributedDataParallel"
    elif seen.scaled or seen.own.get("precision") != "fp32":
        yield f"precision: the script has {seen.own.get('precision', 'its own')} by itself"
    if not seen.loader:
        yield "loader_workers: there is no DataLoader"
    yield from found.doubts


def _baseline(space: dict[str, list[Any]], found: Findings) -> str:
    """What the script does today, where it has been seen."""
    seen = found.seen
    kept = {name: value for name, value in seen.own.items() if name in space}
    if not seen.varies:
        kept |= {"micro_batch": seen.micro_batch, "accumulation_steps": seen.accumulation_steps}
    lines = ["# What the script does today."]
    if seen.guessed and not seen.varies:
        lines.append(
            "# micro_batch is a guess by the shapes of tensors: the DataLoader does not say how many "
            "samples a batch has."
        )
    lines += ["baseline:"] if kept else ["baseline: {}"]
    lines += [f"  {name}: {written(value)}" for name, value in kept.items()]
    return "\n".join([*lines, ""])


def _text(text: str) -> str:
    """As YAML; JSON's quotes are YAML's where a text needs any."""
    plain = re.fullmatch(r"([A-Za-z_/]|\.{1,2}/)[A-Za-z0-9_./]*", text)
    reserved = text.lower() in ("true", "false", "null", "yes", "no", "on", "off", "~")
    # Escaped, what is beyond 16 bits would be two characters that are none.
    return text if plain and not reserved else json.dumps(text, ensure_ascii=False)
