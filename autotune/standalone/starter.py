"""Files that `autotune init` writes: a commented study, and a workload to start from.

A command that has no script of torch cannot be surveyed. Entries of its study that only the user
knows are marked TODO, which no field accepts: `doctor` and `start` name each that is left, with its
line.
"""

import itertools
import json
import re
import shlex
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from autotune.errors import BadInput
from autotune.standalone.flags import knob_named
from autotune.standalone.written_alike import BUDGET, MAY_WRITE, study_name
from autotune.views.catalogue import presets_listed
from autotune.worker import starters
from autotune.worker.cgroup import usable_cpus

if TYPE_CHECKING:  # imported where it is used: with it come Optuna and SQLAlchemy
    from autotune.standalone.launched import Launched
    from autotune.standalone.survey import Allowed

_WORKLOAD = "my_workload.py"
_SPACE = "search_space: quick\n"
_NAMED = "workload:\n"
TODO = "TODO"
_OPTION = re.compile(r"(-{1,2}[A-Za-z][^\s=]*)(?:=([0-9]+))?")
_GLOBAL_BATCH = re.compile(r"(global|total)[-_]?batch", re.IGNORECASE)
_SPREAD = 2
"""Factor between values to try and the present one."""
_END = (
    "",
    "# The loss of a command is not seen: what may change it is recommended only if you allow that.",
    "# measurement: {unverified_numerics: allow}",
    *BUDGET.splitlines(),
    "export: best.yaml",
    "",
)


def write_study(path: Path) -> None:
    """Write a commented study.

    Raises:
        BadInput: the file exists, or cannot be written.
    """
    if not _written(path, _study()):
        raise _exists(path)


@dataclass(frozen=True)
class Written:
    """Study that was written for a command.

    Attributes:
        seen: description of the command's training.
        is_complete: whether it can start; if not, entries marked TODO must be filled in first.
    """

    seen: str
    is_complete: bool


def write_of_command(
    path: Path,
    command: Sequence[str],
    say: Callable[[str], None] = lambda _: None,
    *,
    storage: str | None = None,
    allowed: "Allowed | None" = None,
) -> Written:
    """Survey a launch command, and write a study of it that can start.

    Where no script of torch is in it, nothing is run, and unknown entries are marked TODO.

    Args:
        storage: URL of the storage whose names are taken; None: no name is.
        allowed: limits of the script's runs; None: the defaults.

    Raises:
        BadInput: the file exists or cannot be written, or the command cannot be tuned; there is no
            study then.
        LauncherError: there is no place to run it.
    """
    from autotune.standalone.launch_command import check_devices, taken_apart
    from autotune.standalone.launched import NoScript

    if path.exists():
        raise _exists(path)
    if odd := next((word for word in command if not _is_text(word)), None):
        raise BadInput(
            f"the argument {odd!r} is not UTF-8, and study.yaml is: leave it out here, and give it to "
            "`autotune run` with the rest of the command"
        )
    try:
        launched = taken_apart(command)
    except NoScript as reason:
        if shutil.which(command[0]) is None:
            raise BadInput(f"{reason}; there is no program {command[0]} either") from None
        may_write = allowed is not None and allowed.may_write
        if not may_write and (program := starters.elsewhere(command)):
            raise BadInput(
                f"{starters.UNPROTECTED.format(program)}: if trials may do so, "
                "`autotune init --may-write -- COMMAND` writes the study"
            ) from None
        name = _free_name(study_name(Path(command[0]).name), storage, say)
        if not _written(path, study(command, name, may_write=may_write)):
            raise _exists(path) from None
        seen = f"a study over a command; fill in what is marked {TODO} there"
        return Written(seen, is_complete=False)
    check_devices(launched)
    seen, text = _of_script(path, command, launched, say, storage, allowed)
    if not _written(path, text):
        raise _exists(path)
    return Written(seen, is_complete=True)


def _of_script(
    path: Path,
    command: Sequence[str],
    launched: "Launched",
    say: Callable[[str], None],
    storage: str | None,
    allowed: "Allowed | None",
) -> tuple[str, str]:
    """Return a description of a script's training, and the text of a study that was run once."""
    from autotune.config import document, study
    from autotune.standalone import init_script
    from autotune.standalone.survey import Allowed, Findings, survey

    may = allowed or Allowed()
    name = _free_name(init_script.name_of(launched), storage, say)
    done: list[tuple[str, str]] = []

    def write(found: Findings) -> study.StudySpec:
        for doubt in (*found.batch.doubts, *found.own.doubts):
            say(f"Not mapped: {doubt}.")
        cpus = usable_cpus()
        text = init_script.study(command, found, cpus, name=name, allowed=may)
        done.append((init_script.description(found), text))
        folders = (Path.cwd(), path.parent.absolute())
        spec = study.check(document.parse(text, str(path)), folders)
        return spec.model_copy(update={"folder": str(path.parent.resolve())})

    survey(launched, Path.cwd(), say, write, may)
    return done[-1]


def _free_name(name: str, storage: str | None, say: Callable[[str], None]) -> str:
    """Return the name, with a number if the storage has a study of that name already."""
    from storage import study_names

    taken = study_names(storage) if storage else frozenset()
    numbered = (f"{name}-{number}" for number in itertools.count(2))
    free = next(found for found in itertools.chain([name], numbered) if found not in taken)
    if free != name:
        say(f"The storage has a study {name} already: this one is {free}.")
    return free


def _exists(path: Path) -> BadInput:
    return BadInput(f"{path} exists already; it is left as it was: autotune start {path}")


def write_workload(folder: Path) -> Path | None:
    """Write a workload to start from; return None if its file exists, which is not changed.

    Raises:
        BadInput: it cannot be written.
    """
    path = folder / _WORKLOAD
    return path if _written(path, _template("workload_template.txt")) else None


def _study() -> str:
    text = _template("study_template.yaml")
    own = f"# A function of your own, as {_WORKLOAD} has one: workload: {Path(_WORKLOAD).stem}:build\n"
    listed = "".join(f"#   {line}\n" for line in presets_listed())
    presets = f"# A preset, or your own values per knob (`autotune knobs` lists all):\n{listed}"
    return text.replace(_NAMED, own + _NAMED, 1).replace(_SPACE, presets + _SPACE, 1)


def _template(name: str) -> str:
    return (resources.files("autotune") / name).read_text("utf-8")


def _is_text(word: str) -> bool:
    """Return whether a word is UTF-8; Python represents other bytes as surrogates."""
    try:
        word.encode()
    except UnicodeEncodeError:
        return False
    return True


def _written(path: Path, text: str) -> bool:
    """Write a new file; return False if it exists."""
    content = text.encode()
    try:
        with path.open("xb") as file:
            file.write(content)
    except FileExistsError:
        return False
    except OSError as error:
        raise BadInput(f"{path} cannot be written: {error.strerror}") from None
    return True


def study(command: Sequence[str], name: str, *, may_write: bool = False) -> str:
    """Return the text of study.yaml.

    Args:
        may_write: whether trials may change files.
    """
    words = [word.replace("{", "{{").replace("}", "}}") for word in command]
    baseline: dict[str, int] = {}
    for knob, place, value in _guessed(command):
        if knob not in baseline:
            baseline[knob] = value
            words[place] = re.sub(r"[0-9]+$", f"{{{knob}}}", words[place])
    held = _global_batch(command) if baseline.keys() == {"micro_batch"} else None
    parts = (
        _head(command, name),
        _workload(words, held, may_write=may_write),
        _space(baseline, held),
        _END,
    )
    return "\n".join(line for part in parts for line in part)


def _global_batch(command: Sequence[str]) -> str | None:
    """Return the option that fixes the global batch, by its name; None where there is none."""
    named = (found[1] for word in command if (found := _OPTION.fullmatch(word)))
    return next((option for option in named if _GLOBAL_BATCH.search(option)), None)


def _guessed(command: Sequence[str]) -> Iterator[tuple[str, int, int]]:
    """Yield knobs that options are named for: the knob, the place of its value, the value."""
    for place, word in enumerate(command):
        option = _OPTION.fullmatch(word)
        knob = knob_named(option[1]) if option else None
        if option is None or knob is None:
            continue
        following = command[place + 1] if place + 1 < len(command) else ""
        if option[2]:
            yield knob, place, int(option[2])
        elif following.isdecimal():
            yield knob, place + 1, int(following)


def _head(command: Sequence[str], name: str) -> Iterator[str]:
    yield "# Written by `autotune init` for a command in which it knows no Python script of torch:"
    yield from (f"#   {line}" for line in shlex.join(command).splitlines())
    yield "# Nothing of it was run. Where it says TODO only you know what belongs there; then"
    yield "# autotune doctor runs it as it is today and with another value of each knob."
    yield f"name: {json.dumps(name)}"
    yield ""


def _workload(words: Sequence[str], held: str | None, *, may_write: bool) -> Iterator[str]:
    yield "workload:"
    yield "  # Word by word; no shell sees it. {knob} stands for a knob's value, {folder} for a folder"
    yield "  # that each trial has anew; braces themselves are doubled."
    yield "  command:"
    yield from (f"    - {json.dumps(word, ensure_ascii=False)}" for word in words)
    yield "  # Where its throughput is read, one of these; or take the field out, and have the program,"
    yield "  # if it is Python, call autotune.report(samples=64)."
    yield '  #   {pattern: "([0-9.]+) samples/s"}: over each line of its output, one group: the rate'
    yield '  #   {json_lines: "{folder}/metrics.jsonl"}: lines of {"samples": 64, "seconds": 0.8}'
    yield f"  throughput: {TODO}"
    if held:
        yield f"  keeps_global_batch: true   # it has {held}, and accumulates as often as that asks for"
    if may_write:
        yield MAY_WRITE
    yield ""
    yield "resources:"
    yield "  # Ranks that it starts, a whole number: a trial has the processors and devices of so many."
    yield f"  workers: {TODO}"
    yield ""


def _space(baseline: dict[str, int], held: str | None) -> Iterator[str]:
    if not baseline:
        yield "search_space: {}"
        yield "# Each knob with its values to try, and in workload.command {tp} where its value stands:"
        yield "#   tp: {values: [1, 2, 4]}, with the value of today under `baseline`"
        yield f"knobs: {TODO}"
        yield "baseline: {}"
        return
    yield "# By the names of its options alone: take out what they do not mean. Others are added here,"
    yield "# or under `knobs` (tp: {values: [1, 2]}), and in workload.command where their value stands."
    yield "search_space:"
    for knob, value in baseline.items():
        values = sorted({max(1, value // _SPREAD), value, value * _SPREAD})
        yield f"  {knob}: {values}"
    yield "baseline:"
    yield from (f"  {knob}: {value}" for knob, value in baseline.items())
    if held:
        yield f"  accumulation_steps: {TODO}   # {held} / (micro_batch x ranks)"
    elif baseline.keys() == {"micro_batch"}:
        yield ""
        yield "# Nothing accumulates, so that the global batch changes with the micro-batch."
        yield "objective: {global_batch_size: free}"
