"""The user's own job with the recommended configuration: their launch command, as it was tuned."""

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from autotune.analysis.wording import counted
from autotune.config import StudySpec, arguments, fields, scripts
from autotune.config.withheld import WITHHELD, looks_secret
from autotune.errors import BadInput
from autotune.export import held, own_words
from autotune.export.best import BestConfig
from autotune.export.command import command_of, is_of_command, recommended
from autotune.paths import tuned_files
from autotune.worker.inject import job
from autotune.worker.protocol import FileCopy
from autotune.worker.python_command import letters_of, parsed
from search_spaces.knob import written

_DEAF = "EIS"
"""Options of python with which it does not look for a sitecustomize on PYTHONPATH."""
_SHELLS = ("bash", "sh", "zsh", "dash", "fish")
_SITE = Path(job.__file__).parent / "site"


@dataclass(frozen=True)
class Job:
    """A command that is ready to run.

    Attributes:
        command: with the arguments of the script changed.
        environment: what it needs besides that of this process.
        differences: between what was tuned and what is about to run, in words.
        changes: of the job as its command has it, a line each.
        refusals: why this is another job than the one that was tuned, in words; empty if it is not.
    """

    command: tuple[str, ...]
    environment: dict[str, str]
    differences: tuple[str, ...]
    changes: tuple[str, ...] = ()
    refusals: tuple[str, ...] = ()


def tuned(
    best: BestConfig,
    command: Sequence[str],
    environment: Mapping[str, str],
    ranks: int | None = None,
    launch: str | None = None,
) -> Job:
    """The command as the trials of the recommended configuration ran it; of files of settings that the
    script reads, copies are written below .autotune.

    Args:
        best: of a study over a script.
        command: the user's own: torchrun, python, or whatever starts the script.
        environment: that the command would have.
        ranks: that the command starts; None: not known.
        launch: what starts them, as `workload.launch` has it; None: not known.

    Raises:
        BadInput: the file is not of a script, the command does not run that script, or a file that it
            reads has no such field.
    """
    script = best.script
    if script is None:
        raise BadInput(
            "best.yaml is of a workload, not of a script: load it in your code with autotune.load()"
        )
    if is_of_command(best):
        raise BadInput(
            "best.yaml is of a command of its own, which `autotune run` takes from there: leave out "
            "`--` and what follows it"
        )
    target = script["target"] if script["is_module"] else Path(script["target"]).name
    place = _place(target, script["is_module"], command)
    before, words = command[:place], command[place + 1 :]
    environment = {**environment, **own_words.assigned(before)}
    flags = {name: own_words.typed(flag, words) for name, flag in script["flags"].items()}
    now = own_words.today(flags, words, environment, Path.cwd())
    given = fields.given(
        words,
        flags,
        script["turned"],
        variables=environment,
        workdir=Path.cwd(),
        folder=tuned_files(Path.cwd()),
    )
    for copy in given.copies:
        held.write(copy)
    order = job.Order(
        target,
        script["is_module"],
        best.knobs,
        tuple(script["changes"]),
        _named(given.copies),
        samples=script.get("samples") or 0,
        told=scripts.told(script["flags"]),
    )
    if order.changes:
        _check_options(command)
    of_study, otherwise = _of_study(script, environment)
    of_process = _of_process(best.knobs, order.changes, environment)
    found = {
        **of_study,
        **_unset(script, environment),
        **given.variables,
        **of_process,
        job.VARIABLE: order.to_text(),
        "PYTHONPATH": os.pathsep.join(filter(None, [str(_SITE), environment.get("PYTHONPATH")])),
    }
    of_settings = _changed_settings(script, fields.files(flags, words, environment))
    return Job(
        (*own_words.with_variables(before, found), command[place], *given.arguments),
        found,
        (*_differences(best, command[place], script), *of_settings, *otherwise),
        (
            *own_words.changes(script, best.knobs, now),
            *(f"environment: {name}={text}" for name, text in (of_study | of_process).items()),
        ),
        (
            *own_words.other_batch(script, now),
            *_other_ranks(best, ranks),
            *_other_launch(script, launch),
        ),
    )


def _unset(script: Mapping[str, Any], environment: Mapping[str, str]) -> dict[str, str]:
    """Return variables through which the script takes knobs and that the job lacks, as the trials had
    them."""
    flags: Mapping[str, str] = script["flags"]
    named = {flags[name]: text for name, text in script.get("today", {}).items() if name in flags}
    told = {
        flag.removeprefix(arguments.ENVIRONMENT): text
        for flag, text in named.items()
        if flag.startswith(arguments.ENVIRONMENT) and not fields.parted(flag)
    }
    return {
        name: text for name, text in told.items() if text is not None and name not in environment
    }


def _other_ranks(best: BestConfig, ranks: int | None) -> Iterator[str]:
    if ranks is not None and ranks != best.world_size:
        yield (
            f"the command starts {counted(ranks, 'rank')}, and the study ran {best.world_size}: a step "
            "would have other samples"
        )


def _other_launch(script: Mapping[str, Any], launch: str | None) -> Iterator[str]:
    then = script.get("launch", launch)  # a file of an earlier version does not say
    if launch is not None and launch != then:
        yield (
            f"the command starts its script as {launch} does, and the study as {then} does: scripts "
            "take another path by the variables of ranks"
        )


def own(best: BestConfig, environment: Mapping[str, str]) -> Job:
    """The command of a study over one, with the recommended values; raises as `command.recommended`."""
    command = recommended(best)
    assert best.script is not None  # it has the command
    of_study, otherwise = _of_study(best.script, environment)
    changes = (
        *(f"{name}: {written(value)}" for name, value in best.script["turned"].items()),
        *(f"environment: {name}={text}" for name, text in of_study.items()),
    )
    return Job(command, of_study, otherwise, changes)


def _of_study(
    script: Mapping[str, Any], environment: Mapping[str, str]
) -> tuple[dict[str, str], tuple[str, ...]]:
    """Variables that the trials had and the job has not, and in words those that it has otherwise."""
    wanted: dict[str, str] = script.get("env", {})
    missing = {name: text for name, text in wanted.items() if name not in environment}
    otherwise = tuple(
        f"{name} is {environment[name]}, and was {text} in the trials"
        for name, text in wanted.items()
        if environment.get(name, text) != text
    )
    return missing, otherwise


def _named(copies: Iterable[FileCopy]) -> tuple[FileCopy, ...]:
    """Without their texts, by paths that mean the same wherever a process is."""
    return tuple(replace(copy, file=str(Path.cwd() / copy.file), text="") for copy in copies)


def _check_options(command: Sequence[str]) -> None:
    """See that python looks at PYTHONPATH, by which a job comes by what acts from outside.

    Raises:
        BadInput: it is told not to.
    """
    told = parsed(command[1:]) if Path(command[0]).name.startswith("python") else None
    if told and (deaf := {*letters_of(told.options)} & {*_DEAF}):
        raise BadInput(
            f"the command has python leave out PYTHONPATH (-{min(deaf)}), by which what is changed "
            "from outside reaches the job: leave that option out"
        )


def _place(target: str, is_module: bool, command: Sequence[str]) -> int:
    """Of the script among the words of the command."""
    for place, word in enumerate(command):
        if is_module and word == target and command[place - 1] in ("-m", "--module"):
            return place
        if not is_module and Path(word).name == target:
            return place
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
    knobs: Mapping[str, Any], changes: Sequence[str], environment: Mapping[str, str]
) -> dict[str, str]:
    """What has to be in the environment before torch is loaded."""
    from autotune.worker.effects import process

    wanted = process.environment({**knobs})
    if knobs["expandable_segments"]:
        wanted |= process.allocator_variables(environment)
    if "cpu_threads" in changes and knobs["cpu_threads"]:
        wanted["OMP_NUM_THREADS"] = str(knobs["cpu_threads"])
    return wanted


def _differences(best: BestConfig, word: str, script: Mapping[str, Any]) -> Iterator[str]:
    path, known = Path(word), script.get("digest")
    if known and path.is_file() and _digest(path) != known:
        yield f"{word} has changed since it was tuned"
    if shared := script.get("over_all_ranks"):
        flags, ranks = ", ".join(shared["flags"]), shared["ranks"]
        yield f"{flags} counts what all ranks have together: here for the {ranks} that were tuned with"
    tuned_with = str(best.provenance.get("environment", {}).get("torch", ""))
    try:
        here = version("torch")
    except PackageNotFoundError:
        return
    if tuned_with and tuned_with.partition("+")[0] != here.partition("+")[0]:
        yield f"it was tuned with torch {tuned_with}, and {here} is here"


def _changed_settings(script: Mapping[str, Any], settings: Mapping[str, str]) -> Iterator[str]:
    """Files that a job reads and that say something else than in the study, besides the knobs'
    fields: those are set in either case."""
    for holder, known in script.get("files", {}).items():
        path = Path(settings.get(holder, ""))
        if path.is_file() and _digest(path) != known:
            yield f"{path} is not as it was when it was tuned"


def script_of(
    spec: StudySpec, knobs: Mapping[str, Any] | None, folder: Path, workers: int
) -> dict[str, Any] | None:
    """What best.yaml says of the script or the command of a study; None of a workload.

    Args:
        knobs: that are recommended.
        folder: that the script is in.
        workers: ranks that it was measured with.
    """
    if not spec.workload.is_script or knobs is None:
        return None
    turned = {flag.removeprefix("$") for flag in spec.flags.values()}
    env = {
        name: text
        for name, text in spec.env.items()
        if name not in turned and text != WITHHELD and not looks_secret(name, text)
    }
    told_to_all = {"env": env} if env else {}
    if spec.workload.command:
        return {**command_of(spec, knobs), **told_to_all}
    told = scripts.recipe(spec.workload, spec.flags, spec.full_baseline(), knobs, workers)
    path = folder / told.target
    digest = _digest(path) if not told.is_module and path.is_file() else None
    found = {**asdict(told), "changes": list(told.changes), "digest": digest, **told_to_all}
    said = own_words.today(told.flags, spec.workload.arguments, spec.env, folder)
    found["launch"] = scripts.launch_of(spec.workload, workers)
    found["today"] = said | {name: spec.full_baseline()[name] for name in told.changes}
    of_all = {*spec.workload.over_all_ranks} & {*told.turned}
    if shared := [flag for name, flag in told.flags.items() if name in of_all]:
        found["over_all_ranks"] = {"flags": shared, "ranks": workers}
    if settings := fields.files(told.flags, spec.workload.arguments, spec.env):
        read = {holder: folder / file for holder, file in settings.items()}
        found["files"] = {holder: _digest(one) for holder, one in read.items() if one.is_file()}
    if samples := scripts.samples_of_step(spec.workload, spec.full_baseline(), knobs):
        found["samples"] = samples
    return found


def _digest(path: Path) -> str:
    """Of a file, by which another version of it is known."""
    return hashlib.sha256(path.read_bytes()).hexdigest()
