"""Commented study.yaml for the user's own script, from the survey of it."""

import json
import os
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from autotune.analysis.wording import counted
from autotune.errors import BadInput
from autotune.standalone.launched import Launched
from autotune.standalone.own_options import RECOMPUTATION
from autotune.standalone.survey import Allowed, Findings
from autotune.standalone.written_alike import BUDGET, MAY_WRITE, study_name
from autotune.worker.protocol import DEEPSPEED, PYTHON, SPAWN, TORCH_LAUNCH, TORCHRUN
from autotune.worker.survey_result import SurveyResult
from launchers.sections import for_several_nodes
from search_spaces import CATALOGUE
from search_spaces.batch import granule
from search_spaces.constraints import unmet_needs
from search_spaces.knob import BLOCKS, KnobValue, written

_LAUNCHES = {
    PYTHON: "one process, no variables of ranks",
    SPAWN: "the script starts its ranks itself",
    TORCHRUN: "ranks with the variables of torchrun",
    TORCH_LAUNCH: "as torchrun, and --local-rank before the arguments",
    DEEPSPEED: "ranks with the variables of deepspeed, and --local_rank before the arguments",
}
_BATCHES = 5
"""Largest number of values of the micro-batch."""
_BUCKETS = (5, 25, 100)
_HALF = {"bf16", "fp16", "pure_bf16"}
"""Formats in which all attention kernels run."""
_FUSED = {"Adam", "AdamW", "SGD", "Adagrad"}
"""Optimizers of torch that have a fused update on every device."""


def study(
    command: Sequence[str],
    found: Findings,
    cpus: int,
    *,
    name: str,
    allowed: Allowed | None = None,
) -> str:
    """Return the text of study.yaml.

    Args:
        allowed: limits of the script's runs; None: the defaults.

    Raises:
        BadInput: nothing of the script can be tuned.
    """
    launched = found.launched
    space = offered(found, cpus * launched.nodes)
    taken = _set_by_command(space, launched)
    space = {knob: values for knob, values in space.items() if knob not in taken}
    if not space:
        raise BadInput(_nothing_to_tune(launched, found))
    may = allowed or Allowed()
    measurement = f"measurement:\n  startup_timeout: {may.startup:g}s\n" if may.startup else ""
    parts = [
        *_head(command, found),
        f"name: {_text(name)}\n",
        _workload(launched, found, may_write=may.may_write),
        _resources(launched, found),
        _env(launched),
        _search_space(space, found, taken),
        _baseline(space, found),
        _objective(found),
        measurement,
        BUDGET,
        "export: best.yaml\n",
    ]
    return "\n".join(part for part in parts if part)


def description(found: Findings) -> str:
    """Return what was seen, in a sentence."""
    seen = found.seen
    wrapped = "DistributedDataParallel" if seen.ddp else "no DistributedDataParallel"
    wrapped = "sharded parameters (FSDP2)" if seen.sharded else wrapped
    workers = counted(seen.own.get("num_workers", 0), "worker")
    loader = f"a DataLoader with {workers}" if seen.loader else "no DataLoader"
    number = str(seen.own.get("precision", "number format unknown"))
    samples = counted(seen.micro_batch, "sample")
    if seen.rows:
        samples = f"1 batch of {seen.rows} rows"
    if seen.varies:
        samples = "varying numbers of samples"
    if not seen.micro_batch:
        samples = "an unknown number of samples"
    told = seen.loader or not seen.micro_batch or _turns_batch(found)
    unsure = seen.guessed or not told
    return (
        f"{samples} a micro-batch{' (a guess by the rows of tensors)' if unsure else ''}, "
        f"{_step_of(seen)}, "
        f"{counted(found.workers, 'rank')} on {found.device}; {wrapped}, {loader}, {seen.optimizer}, "
        f"{number}"
    )


def _step_of(seen: SurveyResult) -> str:
    """Describe an optimizer step."""
    if seen.reuses:
        return "a batch trained on by several optimizer steps"
    if seen.accumulation_varies:
        return "a varying number of micro-batches an optimizer step"
    return f"{counted(seen.accumulation_steps, 'micro-batch')} an optimizer step"


def name_of(launched: Launched) -> str:
    """Return a name for the study of a script."""
    return study_name(launched.target if launched.is_module else Path(launched.target).stem)


def _head(command: Sequence[str], found: Findings) -> Iterator[str]:
    yield "# Written by `autotune init`, which ran this command for a few steps and looked at it:"
    yield from (f"#   {line}" for line in shlex.join(command).splitlines())
    yield f"# Seen: {description(found)}."
    yield "# Then: autotune start with this file, and autotune run best.yaml -- with the command."


def _workload(launched: Launched, found: Findings, *, may_write: bool) -> str:
    lines = [
        "workload:",
        f"  {'module' if launched.is_module else 'script'}: {_text(launched.target)}",
        f"  args: [{', '.join(map(_text, launched.args))}]",
    ]
    lines.append(f"  launch: {launched.launch}   # {_LAUNCHES[launched.launch]}")
    if launched.options:
        lines.append(f"  python_options: [{', '.join(map(_text, launched.options))}]")
    if may_write:
        lines.append(MAY_WRITE)
    lines += _turned_by(found)
    if found.seen.micro_batch and not found.seen.loader:
        rows = f"the rows that the model {'returns' if found.seen.returned else 'is given'}"
        how = "as set above" if _turns_batch(found) else f"a guess by {rows}"
        lines.append(
            f"  samples: {found.seen.samples}   # of a rank per step; no DataLoader shows them: {how}"
        )
    return "\n".join([*lines, ""])


def _turns_batch(found: Findings) -> bool:
    """Return whether a setting was seen to turn the micro-batch, which its value then tells."""
    return "micro_batch" in found.batch.settings_by_knob


def _turned_by(found: Findings) -> list[str]:
    """Return the lines that say which settings turn the knobs of the script."""
    lines: list[str] = []
    batch, own = found.batch, found.own.turned
    flags = {**batch.flags, **{knob: option.flag for knob, option in own.items()}}
    if flags:
        lines.append("  flags:   # each was seen to turn its knob")
        lines += [f"    {knob}: {_text(flag)}" for knob, flag in flags.items()]
    if any(option.words for option in own.values()):
        lines.append("  words:   # for values of knobs, as these options have them")
    for knob, option in own.items():
        shown = ", ".join(f"{_text(value)}: {_word(word)}" for value, word in option.words.items())
        lines += [f"    {knob}: {{{shown}}}"] if shown else []
    if batch.in_proportion:
        lines.append("  in_proportion:   # together they were seen to turn it")
        for knob, parts in batch.in_proportion.items():
            shown = ", ".join(
                f"{json.dumps(setting)}: {present}" for setting, present in parts.items()
            )
            lines.append(f"    {knob}: {{{shown}}}")
    if batch.global_flags:
        lines.append(f"  global_flags: [{', '.join(batch.global_flags)}]")
    if batch.keeps_global_batch:
        lines.append("  keeps_global_batch: true   # the script derives the other one by itself")
    return lines


def _objective(found: Findings) -> str:
    """Return the objective where it is not the usual one."""
    if not found.seen.counts_steps:
        return ""
    return (
        f"# {_why_uneven(found.seen).capitalize()}: optimizer steps compare.\n"
        "objective: {metric: steps_per_second}\n"
    )


def _why_uneven(seen: SurveyResult) -> str:
    """Return why steps have different numbers of samples; empty where they have not."""
    if seen.varies:
        return "batches have different numbers of samples"
    if seen.reuses:
        return "a batch is trained on by several optimizer steps"
    if not seen.micro_batch:
        return "nothing that a model was given tells how many samples a batch has"
    return "its accumulation varies" if seen.accumulation_varies else ""


def _resources(launched: Launched, found: Findings) -> str:
    lines = ["resources:", f"  workers: {found.workers}"]
    if launched.nodes > 1:
        lines += [
            f"  nodes: {launched.nodes}   # the ranks of one were looked at, on this machine",
            "",
            for_several_nodes(os.environ),
        ]
    return "\n".join([*lines, ""])


def _env(launched: Launched) -> str:
    if not launched.env:
        return ""
    lines = [f"  {name}: {_text(value)}" for name, value in launched.env.items()]
    return "\n".join(["env:", *lines, ""])


def offered(found: Findings, cpus: int) -> dict[str, list[Any]]:
    """Return the knobs that take effect in a script, each with values that include the present one."""
    offers = dict(_offers(found, cpus))
    offers |= {knob: found.own.values(knob, offers.get(knob, ())) for knob in found.own.turned}
    fitting = {
        name: [value for value in values if not any(unmet_needs({name: value}, found.facts))]
        for name, values in offers.items()
    }
    return {name: values for name, values in fitting.items() if len(values) > 1}


def _set_by_command(knobs: Iterable[str], launched: Launched) -> dict[str, str]:
    """Return the knobs that a variable of the command sets already, each with the variable."""
    return {
        knob: name for knob in knobs for name in CATALOGUE[knob].variables if name in launched.env
    }


_Offers = Iterator[tuple[str, list[Any]]]


def _offers(found: Findings, cpus: int) -> _Offers:
    for part in (
        _of_batch(found),
        _of_ddp(found),
        iter(found.outside.values.items()),
        _of_loader(found, cpus),
        _of_process(found, cpus),
    ):
        yield from part


def _of_batch(found: Findings) -> _Offers:
    seen = found.seen
    if seen.uneven or seen.batch_dependent or found.grows_with_accumulation:
        return
    parts = found.batch.in_proportion.get("micro_batch", {})
    step = granule(seen.micro_batch, parts.values())
    batches = _batches(seen.micro_batch, seen.samples, step)
    steps = sorted(seen.samples // batch for batch in batches)
    values = {"micro_batch": batches, "accumulation_steps": steps}
    if found.batch.keeps_global_batch or values.keys() <= found.flags.keys():
        yield from ((name, values[name]) for name in values if name in found.flags)


def _of_ddp(found: Findings) -> _Offers:
    own, seen = found.seen.own, found.seen
    if seen.ddp and found.workers > 1:
        yield "bucket_cap_mb", sorted({*_BUCKETS, own.get("bucket_cap_mb", 25)})
        yield "gradient_as_bucket_view", [False, True]


def _of_loader(found: Findings, cpus: int) -> _Offers:
    if not found.seen.loader:
        return
    most = max(1, cpus // max(1, found.workers))
    baseline = found.seen.own.get("num_workers", 0)
    yield "num_workers", sorted({0, 1, min(2, most), min(4, most), baseline})
    if found.device == "cuda":
        yield "pin_memory", [False, True]


def _of_process(found: Findings, cpus: int) -> _Offers:
    """Yield knobs of the optimizer and the process, except those that the script sets by itself."""
    seen, on_gpu = found.seen, found.device == "cuda"
    if seen.optimizer in _FUSED and _kernels(seen) == "default" and not seen.sparse:
        yield "optimizer_kernels", ["default", "fused"]
    if on_gpu and seen.convolutions and "cudnn_benchmark" not in seen.settled:
        yield "cudnn_benchmark", [False, True]
    half = seen.own.get("precision") in _HALF or "precision" in found.outside.values
    if on_gpu and seen.attends and half:
        yield "attention", ["auto", "flash", "cudnn", "efficient"]
    share = cpus // max(1, found.workers)
    if not on_gpu and 0 < seen.threads < share and "cpu_threads" not in seen.settled:
        yield "cpu_threads", [0, share]
    if "freeze_gc" not in seen.settled:
        yield "freeze_gc", [False, True]


def _kernels(seen: SurveyResult) -> str:
    return str(seen.own.get("optimizer_kernels", "default"))


def _batches(baseline: int, samples: int, step: int) -> list[int]:
    """Return micro-batches with the same samples per step, multiples of `step`, nearest first."""
    whole = [size for size in range(step, samples + 1, step) if samples % size == 0]
    near = sorted(whole, key=lambda size: max(size / baseline, baseline / size))
    return sorted(near[:_BATCHES])


def _search_space(space: dict[str, list[Any]], found: Findings, taken: Mapping[str, str]) -> str:
    lines = ["# Proposed for this script; others can be added: `autotune knobs` lists all."]
    lines.append("search_space:")
    for name, values in space.items():
        shown = f"  {name}: [{', '.join(map(written, values))}]"
        lines.append(f"{shown}   # {CATALOGUE[name].summary.partition(';')[0]}")
    lines += [f"# Not here: {knob}: the command sets {name}" for knob, name in taken.items()]
    lines += [f"# Not here: {reason}" for reason in _left_out(found)]
    return "\n".join([*lines, ""])


def _nothing_to_tune(launched: Launched, found: Findings) -> str:
    looked = "".join(f"\n  - {reason}" for reason in _left_out(found))
    return (
        f"{launched.target}: nothing of it can be tuned as it is, so no study is written. Seen: "
        f"{description(found)}. What was looked at:{looked}\nAn option for the batch size and one for "
        "the accumulation would help, as would torch's DataLoader, DistributedDataParallel or an "
        "optimizer of torch.optim"
    )


def _left_out(found: Findings) -> Iterator[str]:
    """Yield why knobs are not offered, a line each."""
    seen = found.seen
    yield from _batch_left_out(found)
    if seen.own.get("find_unused_parameters"):
        yield (
            "find_unused_parameters: the script says true, and false ends a job at the first step that "
            "leaves a parameter out; add it if every step trains the same parameters"
        )
    yield from (
        f"{knob}: {why}" for knob, why in _not_from_outside(seen) if knob not in found.own.turned
    )
    if found.device != "cuda":
        yield from (
            f"{knob}: {why}" for knob, why in _for_devices(seen) if knob not in found.own.turned
        )
    yield from _scope_left_out(found)
    if found.device == "cuda" and "precision" in found.outside.values:
        yield "precision=fp16: the script has no loss scaler, and takes its optimizer steps itself"
    yield from (f"{name}: the script sets it by itself" for name in seen.settled)
    yield from (*found.batch.doubts, *found.own.doubts, *found.outside.doubts)


def _not_from_outside(seen: SurveyResult) -> Iterator[tuple[str, str]]:
    """Yield knobs that do not act on a script from outside, each with the reason."""
    if seen.sharded:
        yield "bucket_cap_mb", "it acts through DistributedDataParallel"
        yield "channels_last", "weights that FSDP2 shards have no memory format"
    elif not seen.ddp:
        yield "bucket_cap_mb", "there is no DistributedDataParallel"
    if seen.ddp or seen.sharded:
        yield (
            "parallelism",
            "checkpoints of a sharded model hold the parts of the ranks, which the job has to gather by "
            "get_model_state_dict; then it can be added",
        )
    if seen.scaled or seen.own.get("precision") != "fp32":
        yield "precision", f"the script has {seen.own.get('precision', 'its own')} by itself"
    if seen.own.get("compile", "none") != "none":
        yield "compile", "the script compiles by itself"
    if not seen.loader:
        yield "num_workers", "there is no DataLoader"
    if _kernels(seen) != "default":
        yield "optimizer_kernels", f"the script has {_kernels(seen)} by itself"
    elif seen.optimizer not in _FUSED:
        yield "optimizer_kernels", f"{seen.optimizer} has no fused update"
    elif seen.sparse:
        yield "optimizer_kernels", "fused updates take no sparse gradients"


def _for_devices(seen: SurveyResult) -> Iterator[tuple[str, str]]:
    """Yield knobs that act on a CPU as well and are offered on CUDA devices, each with the reason."""
    if BLOCKS in seen.targets and RECOMPUTATION not in seen.own:
        yield RECOMPUTATION, "it saves memory of a device and costs time"
    if seen.attends:
        yield "attention", "on a CPU torch takes the only fused kernel by itself"


def _scope_left_out(found: Findings) -> Iterator[str]:
    """Yield why compile_scope is not offered where compile is."""
    scope = "compile_scope"
    if compiles := found.own.turned.get("compile"):
        yield f"{scope}: {compiles.flag} decides what is compiled"
    elif "compile" in found.outside.values and scope not in found.outside.values:
        blocks = "of a model that FSDP2 shards only its blocks are compiled"
        yield f"{scope}: {blocks if found.seen.sharded else 'the model has no repeated blocks'}"


def _batch_left_out(found: Findings) -> Iterator[str]:
    seen = found.seen
    if why := _why_uneven(seen):
        yield f"micro_batch, accumulation_steps: {why}"
    elif seen.batch_dependent:
        yield (
            f"micro_batch: the model has {seen.batch_dependent}, and micro_batch changes its "
            "statistics; with `objective: {batch_dependent: allow}` it can vary all the same"
        )
    elif found.grows_with_accumulation:
        yield (
            "micro_batch, accumulation_steps: the script does not divide its loss by the accumulation "
            f"steps, so another split is another step of {seen.optimizer}; divide it, and run init again"
        )
    elif found.batch.keeps_global_batch or len(found.flags) > 1:
        if found.seen.samples == 1:
            yield "micro_batch: one sample a step cannot be split"
    elif "micro_batch" in found.flags:
        yield (
            "micro_batch, as nothing was found that turns accumulation_steps; with `objective: "
            "{global_batch_size: free}` it can vary by itself"
        )
    else:
        yield (
            "micro_batch: no argument, variable or field of a file was seen to turn it. Map what does "
            "under workload.flags: --flag, key=, $VARIABLE or config.yaml::a.field"
        )


def _baseline(space: dict[str, list[Any]], found: Findings) -> str:
    """Return the section with the script's present settings, as far as they were seen."""
    seen = found.seen
    batch = {"micro_batch": seen.micro_batch, "accumulation_steps": seen.accumulation_steps}
    own = {**seen.own, **({} if seen.uneven else batch)}
    own |= {knob: option.baseline for knob, option in found.own.turned.items()}
    # The number format decides which kernels of attention can run.
    always_stated = {*batch, "precision"} if "attention" in space else {*batch}
    kept = {name: value for name, value in own.items() if name in space or name in always_stated}
    lines = ["# What the script does today."]
    if seen.guessed and not seen.uneven:
        lines.append(
            "# micro_batch is a guess by the shapes of tensors: the DataLoader does not say how many "
            "samples a batch has."
        )
    lines += ["baseline:"] if kept else ["baseline: {}"]
    lines += [f"  {name}: {written(value)}" for name, value in kept.items()]
    return "\n".join([*lines, ""])


def _word(word: KnobValue) -> str:
    """Return a word of an option as YAML."""
    return _text(word) if isinstance(word, str) else written(word)


def _text(text: str) -> str:
    """Return a text as YAML; quotes of JSON are valid there."""
    plain = re.fullmatch(r"([A-Za-z_/]|\.{1,2}/)[A-Za-z0-9_./]*", text)
    reserved = text.lower() in ("true", "false", "null", "yes", "no", "on", "off", "~")
    # As an escape, a character beyond 16 bits would be two invalid ones.
    return text if plain and not reserved else json.dumps(text, ensure_ascii=False)
