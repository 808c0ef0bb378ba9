"""The user's own job with the recommended configuration: their launch command, as it was tuned."""

import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from itertools import pairwise
from pathlib import Path
from typing import Any

from autotune.analysis.batches import counters_text
from autotune.analysis.wording import counted
from autotune.config import StudySpec, arguments, fields, scripts
from autotune.config.secrets_withheld import WITHHELD, looks_secret
from autotune.errors import BadInput
from autotune.export import config_copies, launch_settings
from autotune.export.best import BestConfig
from autotune.export.formats.command_line import recommended
from autotune.export.formats.telling import nccl
from autotune.worker.inject import job_order
from autotune.worker.protocol import DEEPSPEED, PYTHON, SPAWN, FileCopy, Script
from autotune.worker.python_command import Program, is_python, letters_of, parsed
from autotune.worker.starters import OWN_ENVIRONMENT, is_mpi_elsewhere
from launchers.node_compat import is_of
from search_spaces import defaults
from search_spaces.batch import BATCH_KNOBS
from search_spaces.knob import written
from search_spaces.needs import SHARDED

_DEAF = "EIS"
"""Options with which python does not load a sitecustomize from PYTHONPATH."""
_SHELLS = ("bash", "sh", "zsh", "dash", "fish")
_HANDED_ON = ("MLFLOW", "PYTHON", "MV2", "UCX", "NCCL")
"""Beginnings of the variables that deepspeed hands on to other hosts."""
_HANDING_ALL_ON = ("slurm",)
"""Launchers below deepspeed that hand on all variables."""
_OF_HYDRA = frozenset({"mpiexec.hydra", "-hosts", "-f", "-genv", "-genvall", "-envall"})
"""Words of MPICH's and Intel's mpirun alone, which hand on all variables."""
_KEEPING_BACK = frozenset({"-genvlist", "-genvnone", "-envlist", "-envnone"})
"""Options with which they do not."""
_NAMING = ("-x", "-genv", "-genvlist", "mca_base_env_list")
"""Words of mpirun before the names of variables that it hands on."""
_SITE = Path(job_order.__file__).parent / "site"


@dataclass(frozen=True)
class Started:
    """Start of a command's ranks, as far as it is known.

    Attributes:
        ranks: on all nodes; None: not known.
        launch: launcher whose rules they follow, as under workload.launch; None: not known.
        devices: number of CUDA devices that the command may use on this node.
        models: names of this node's CUDA devices, as its driver has them.
        unknown: why one of them is not known, in words.
    """

    ranks: int | None = None
    launch: str | None = None
    nodes: int = 1
    devices: int = 0
    models: tuple[str, ...] = ()
    unknown: str = ""


@dataclass(frozen=True)
class TunedJob:
    """Command that is ready to run.

    Attributes:
        command: with the arguments of the script changed.
        environment: variables that it needs besides those of this process.
        differences: between what was tuned and what is about to run, in words.
        changes: of the job as its command has it, a line each.
        refusals: reasons why this is another job than the tuned one, in words; empty if it is the
            same.
    """

    command: tuple[str, ...]
    environment: dict[str, str]
    differences: tuple[str, ...]
    changes: tuple[str, ...] = ()
    refusals: tuple[str, ...] = ()


def script_job(
    best: BestConfig,
    command: Sequence[str],
    environment: Mapping[str, str],
    started: Started = Started(),
    *,
    watched: bool = False,
) -> TunedJob:
    """Return the command as the trials of the recommended configuration ran it.

    Copies of the settings files that the script reads are written below .autotune.

    Args:
        command: the user's own: torchrun, python, or another launcher of the script.
        started: how the command starts its ranks.
        watched: whether its ranks are to report their speed.

    Raises:
        BadInput: the file is not of a script, the command does not run that script, an option of its
            python keeps the changes out, or a file that it reads has no such field.
    """
    script = _script_in(best)
    before, word, words = _parted(script, command)
    environment = {**environment, **launch_settings.assigned(before)}
    flags = {name: launch_settings.typed(flag, words) for name, flag in script["flags"].items()}
    now = launch_settings.present(flags, words, environment, Path.cwd())
    given = config_copies.write_and_give(words, flags, script["turned"], variables=environment)
    order = _order(best, script, given)
    from_outside = watched or _acts_from_outside(order)
    if from_outside:
        _check_options(command[: len(before) + 1])
    of_study, otherwise = _of_study(script, environment)
    of_process = _of_process(order.knobs, {**environment, **of_study}, nccl(best))
    found = of_study | _unset(script, environment) | given.variables | of_process
    ordered = _ordered(order, environment)
    needed = found | (ordered if from_outside else {})
    found |= ordered
    files = fields.files(flags, words, environment)
    options = launch_settings.untuned(script, words, best.knobs)
    others = launch_settings.other_arguments(script, options)
    batch = launch_settings.other_sizes(script, options, others)
    ours = (f"environment: {name}={text}" for name, text in (of_study | of_process).items())
    return TunedJob(
        command=(*launch_settings.with_variables(before, found), word, *given.arguments),
        environment=found,
        differences=(
            *_not_compared(best, script, started),
            *(_not_arriving(before) if from_outside or of_study or of_process else ()),
            *_differences(best, word, script, files),
            *_other_devices(best, started),
            *(text for name, text in others.items() if name not in batch),
            *otherwise,
        ),
        changes=(
            *launch_settings.changes(script, best.knobs, now, words),
            *ours,
            *_of_checkpoints(order),
            *_of_compression(order),
            *_of_counters(best.knobs, now),
        ),
        refusals=(
            *launch_settings.other_batch(script, now),
            *(text for name, text in others.items() if name in batch),
            *_other_ranks(best, script, started.ranks),
            *_other_launch(script, started.launch),
            *_not_handed_on(started, before, needed, environment),
            *_not_named(before, needed),
        ),
    )


def _script_in(best: BestConfig) -> dict[str, Any]:
    """Return the entry of the script in best.yaml."""
    if best.script is None:
        raise BadInput(
            "best.yaml is of a workload, not of a script: load it in your code with autotune.load()"
        )
    if best.is_of_command:
        raise BadInput(
            "best.yaml is of a command of its own, which `autotune run` takes from there: leave out "
            "`--` and what follows it"
        )
    return best.script


def _order(best: BestConfig, script: Mapping[str, Any], given: fields.Given) -> job_order.Order:
    """Return the order by which the job changes itself."""
    wanted = Script(
        script["target"],
        is_module=script["is_module"],
        changes=tuple(script["changes"]),
        baseline=_of_changes(script),
        constructed=given.constructed,
        samples=script.get("samples") or 0,
        fixed_samples=scripts.samples_are_fixed(script["flags"]),
    )
    return job_order.Order(wanted, {**defaults(), **best.knobs}, _named(given.copies))


def _acts_from_outside(order: job_order.Order) -> bool:
    """Return whether the processes of the job change themselves."""
    standing_in = any(copy.stands_in for copy in order.copies)
    return bool(order.script.changes or order.script.constructed or standing_in)


def _of_changes(script: Mapping[str, Any]) -> dict[str, Any]:
    """Return the baseline's values of what acts from outside; a file of an earlier version has none."""
    baseline = script.get("today", {})
    return {name: baseline[name] for name in script["changes"] if name in baseline}


def _ordered(order: job_order.Order, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables through which the job gets its order."""
    paths = [str(_SITE), environment.get("PYTHONPATH")]
    return {
        job_order.VARIABLE: order.to_text(),
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
    }


def _unset(script: Mapping[str, Any], environment: Mapping[str, str]) -> dict[str, str]:
    """Return variables that set knobs of the script, that the trials had and the job lacks."""
    flags: Mapping[str, str] = script["flags"]
    named = {flags[name]: text for name, text in script.get("today", {}).items() if name in flags}
    variables = {
        flag.removeprefix(arguments.ENVIRONMENT): text
        for flag, text in named.items()
        if flag.startswith(arguments.ENVIRONMENT) and not fields.parted(flag)
    }
    return {
        name: text
        for name, text in variables.items()
        if text is not None and name not in environment
    }


def _not_compared(best: BestConfig, script: Mapping[str, Any], started: Started) -> Iterator[str]:
    """Yield why the start of the job was not compared with that of the trials."""
    on_cpu = not (_devices_then(best) or started.devices)
    if script.get("launch") == SPAWN and started.devices != best.world_size and not on_cpu:
        yield (
            f"how many ranks {script['target']} starts was not compared: the study ran "
            f"{best.world_size}, and the command finds {counted(started.devices, 'CUDA device')}"
        )
    if started.unknown:
        what = "ranks" if started.launch else "ranks and launcher"
        yield f"{what} were not compared: {started.unknown}"


def _not_arriving(before: Sequence[str]) -> Iterator[str]:
    """Yield that variables of the job may not reach its ranks, if a program keeps them out."""
    # A scope of systemd is a child of this process, and its services are none.
    kept_out = "--scope" not in before and any(
        Path(word).name in OWN_ENVIRONMENT for word in before
    )
    exported = arguments.given(before, "--export") or "ALL"
    if kept_out or exported.upper().split(",")[0] != "ALL":
        yield "what acts from outside, or by variables, may not arrive in the ranks"


def _other_ranks(best: BestConfig, script: Mapping[str, Any], ranks: int | None) -> Iterator[str]:
    if script.get("launch") == SPAWN:
        return  # the script starts its ranks itself
    if ranks is not None and ranks != best.world_size:
        yield (
            f"the command starts {counted(ranks, 'rank')}, and the study ran {best.world_size}: a step "
            "would have other samples"
        )


def _other_launch(script: Mapping[str, Any], launch: str | None) -> Iterator[str]:
    then = script.get("launch", launch)  # a file of an earlier version does not say
    if launch is not None and launch != (PYTHON if then == SPAWN else then):
        yield (
            f"the command starts its script as {launch} does, and the study as {then} does: scripts "
            "take another path by the variables of ranks"
        )


def command_job(best: BestConfig, environment: Mapping[str, str]) -> TunedJob:
    """Return the job of a study over a command; raises as `recommended`."""
    command = recommended(best)
    assert best.script is not None  # it has the command
    of_study, otherwise = _of_study(best.script, environment)
    changes = (
        *(f"{name}: {written(value)}" for name, value in best.script["turned"].items()),
        *(f"environment: {name}={text}" for name, text in of_study.items()),
    )
    return TunedJob(command, of_study, otherwise, changes)


def _of_study(
    script: Mapping[str, Any], environment: Mapping[str, str]
) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return variables that the job lacks, and a description of those that differ from the trials'."""
    wanted: dict[str, str] = script.get("env", {})
    missing = {name: text for name, text in wanted.items() if name not in environment}
    otherwise = tuple(
        f"{name} is {environment[name]}, and was {text} in the trials"
        for name, text in wanted.items()
        if environment.get(name, text) != text
    )
    return missing, otherwise


def _named(copies: Iterable[FileCopy]) -> tuple[FileCopy, ...]:
    """Return copies without their texts, by absolute paths."""
    return tuple(replace(copy, file=str(Path.cwd() / copy.file), text="") for copy in copies)


def _check_options(command: Sequence[str]) -> None:
    """Check that python searches PYTHONPATH, through which a job is changed from outside and watched."""
    places = [place for place, word in enumerate(command) if is_python(word)]
    found = [parsed(command[place + 1 :]) for place in places]
    letters = {letter for python in found if python for letter in letters_of(python.options)}
    if deaf := letters & {*_DEAF}:
        raise BadInput(
            f"the command has python leave out PYTHONPATH (-{min(deaf)}), by which the job is changed "
            "from outside and watched: leave that option out"
        )


def _not_handed_on(
    started: Started,
    before: Sequence[str],
    variables: Mapping[str, str],
    environment: Mapping[str, str],
) -> Iterator[str]:
    """Yield which variables of a job do not reach the ranks that deepspeed starts on other hosts."""
    if started.launch != DEEPSPEED or started.nodes == 1 or "--no_ssh" in before:
        return
    if arguments.given(before, "--launcher") in _HANDING_ALL_ON:
        return
    in_files = _in_deepspeed_env(environment)
    if lost := [
        name
        for name, text in variables.items()
        if not name.startswith(_HANDED_ON) and in_files.get(name) != text
    ]:
        yield (
            f"deepspeed starts ranks on {started.nodes} hosts, and hands on to none of them what "
            f"changes the job ({', '.join(lost)}): start it on each node, with --no_ssh --node_rank N"
        )


def _not_named(before: Sequence[str], variables: Iterable[str]) -> Iterator[str]:
    """Yield which variables of a job mpirun hands on to no other host, as it is not told their names."""
    if not is_mpi_elsewhere(before) or _hands_all_on(before):
        return
    lists = [re.split("[,;]", text) for word, text in pairwise(before) if word in _NAMING]
    named = {text.partition("=")[0] for texts in lists for text in texts}
    if lost := " ".join(f"-x {name}" for name in variables if name not in named):
        yield (
            "mpirun starts ranks on other hosts, and hands on to them only the variables that it is "
            f"told: give it {lost}, or -genvall where it is MPICH's"
        )


def _hands_all_on(before: Sequence[str]) -> bool:
    """Return whether mpirun is one that hands on all variables unless it is told which."""
    words = {Path(word).name for word in before}
    return not words.isdisjoint(_OF_HYDRA) and words.isdisjoint(_KEEPING_BACK)


def _in_deepspeed_env(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables in the files from which deepspeed takes some for other hosts."""
    name = environment.get("DS_ENV_FILE", ".deepspeed_env")
    files = [folder / name for folder in (Path.home(), Path.cwd())]
    lines = [line for file in files if file.is_file() for line in file.read_text().splitlines()]
    parted = (line.partition("=") for line in lines)
    return {name.strip(): text.strip() for name, _, text in parted}


def _parted(
    script: Mapping[str, Any], command: Sequence[str]
) -> tuple[Sequence[str], str, Sequence[str]]:
    """Split the command into what stands before the script, the script, and its arguments."""
    # Its name, as it stands at the end of a path in a command.
    target = Program(script["target"], is_module=script["is_module"]).name
    for place, word in enumerate(command):
        is_module = word == target and command[place - 1] in ("-m", "--module")
        if is_module if script["is_module"] else Path(word).name == target:
            return command[:place], word, command[place + 1 :]
    if shell := [word for word in command if Path(word).name in _SHELLS or word.endswith(".sh")]:
        raise BadInput(
            f"{' '.join(shell)} starts {target} by itself, where its arguments cannot be changed: give "
            f"the launch command of {target} that stands in there, after `--`"
        )
    raise BadInput(
        f"the command does not run {target}, which the study has tuned; give the launch command of "
        f"that script after `--`"
    )


def _of_process(
    knobs: Mapping[str, Any], environment: Mapping[str, str], version: tuple[int, ...] | None
) -> dict[str, str]:
    """Return variables that must be in the environment before torch is loaded, as trials have them.

    Args:
        version: of NCCL in the ranks, where it is known: this machine may have none.
    """
    from autotune.worker.effects import process

    wanted = process.environment({**knobs}, version)
    if knobs["expandable_segments"]:
        wanted |= process.allocator_variables(environment)
    if knobs["cpu_threads"]:
        wanted["OMP_NUM_THREADS"] = str(knobs["cpu_threads"])
    return wanted


def _of_checkpoints(order: job_order.Order) -> Iterator[str]:
    """Yield how checkpoints of the job differ from those that it writes by itself."""
    if "parallelism" in order.script.changes and order.knobs["parallelism"] in SHARDED:
        yield (
            "checkpoints: the state_dict of a rank holds its part of the sharded model; gather it by "
            "get_model_state_dict where the job saves"
        )


def _of_compression(order: job_order.Order) -> Iterator[str]:
    """Yield how long gradients of the job travel whole, which those of a trial do for a few steps."""
    if (
        "gradient_compression" in order.script.changes
        and order.knobs["gradient_compression"] == "powersgd"
    ):
        yield "gradient_compression: the first 1,000 steps send whole gradients (PyTorch's own start)"


def _of_counters(knobs: Mapping[str, Any], now: Mapping[str, str | None]) -> Iterator[str]:
    """Yield what counts of micro-batches mean in the job, where the script is told its split."""
    split = {name: now.get(name) or "" for name in BATCH_KNOBS}
    if all(map(str.isdecimal, split.values())) and (
        text := counters_text(knobs, {name: int(value) for name, value in split.items()})
    ):
        yield text


def _differences(
    best: BestConfig, word: str, script: Mapping[str, Any], settings: Mapping[str, str]
) -> Iterator[str]:
    """Yield what is otherwise than when the study ran.

    Args:
        word: the script, as the command names it.
        settings: files that the script reads, by what names them.
    """
    yield from _otherwise_tuned(best, word, script)
    for holder, known in script.get("files", {}).items():
        path = Path(settings.get(holder, ""))
        if path.is_file() and _digest(path) != known:  # knobs apart, which are set in either case
            yield f"{path} is not as it was when it was tuned"


def _otherwise_tuned(best: BestConfig, word: str, script: Mapping[str, Any]) -> Iterator[str]:
    path, known = Path(word), script.get("digest")
    if known and path.is_file() and _digest(path) != known:
        yield f"{word} has changed since it was tuned"
    if shared := script.get("global_flags"):
        flags, ranks = ", ".join(shared["flags"]), shared["ranks"]
        yield f"{flags} counts what all ranks have together: here for the {ranks} that were tuned with"
    tuned_with = str(best.provenance.get("environment", {}).get("torch", ""))
    try:
        here = version("torch")
    except PackageNotFoundError:
        return
    if tuned_with and tuned_with.partition("+")[0] != here.partition("+")[0]:
        yield f"it was tuned with torch {tuned_with}, and {here} is here"


def _devices_then(best: BestConfig) -> list[str]:
    """Return the names of the devices of the study; none of a study on processors."""
    environment: Mapping[str, Any] = best.provenance.get("environment", {})
    nodes = [environment, *environment.get("others", ())]
    return sorted({device["name"] for node in nodes for device in node.get("devices", ())})


def _other_devices(best: BestConfig, started: Started) -> Iterator[str]:
    then = _devices_then(best)
    here = sorted({*started.models})
    if then and here and not any(is_of(model, name) for name in then for model in here):
        yield f"it was tuned on {' and '.join(then)}, and {' and '.join(here)} is here"


def script_of(
    spec: StudySpec, knobs: Mapping[str, Any] | None, folder: Path, workers: int
) -> dict[str, Any] | None:
    """Return the entry `script` of best.yaml; None for a study over a workload.

    Args:
        knobs: recommended values; None: nothing is recommended.
        workers: ranks that it was measured with.
    """
    entry = None if knobs is None else spec.workload.entry(knobs, spec.study_knobs, workers)
    if entry is None:
        return None
    turned = {flag.removeprefix("$") for flag in entry["flags"].values()}
    env = {
        name: text
        for name, text in spec.env.items()
        if name not in turned and text != WITHHELD and not looks_secret(name, text)
    }
    present = _present(entry, spec, folder) if "target" in entry else {}
    return entry | ({"env": env} if env else {}) | present


def _present(entry: Mapping[str, Any], spec: StudySpec, folder: Path) -> dict[str, Any]:
    """Return the settings and files of a script as they are now."""
    path = folder / entry["target"]
    words, flags = spec.workload.arguments, entry["flags"]
    present = launch_settings.present(flags, words, spec.env, folder)
    baseline = spec.full_baseline()
    found: dict[str, Any] = {
        "digest": _digest(path) if not entry["is_module"] and path.is_file() else None,
        "arguments": launch_settings.untuned(entry, words, baseline),
        "today": present | {name: baseline[name] for name in entry["changes"]},
    }
    if settings := fields.files(flags, words, spec.env):
        read = {holder: folder / file for holder, file in settings.items()}
        found["files"] = {holder: _digest(one) for holder, one in read.items() if one.is_file()}
    return found


def _digest(path: Path) -> str:
    """Return the digest of a file, which another version of it does not have."""
    return hashlib.sha256(path.read_bytes()).hexdigest()
