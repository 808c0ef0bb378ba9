"""The files that `autotune init` writes: a study with comments, and a workload of one's own."""

import os
import shutil
from collections.abc import Callable, Sequence
from importlib import resources
from pathlib import Path

from autotune.errors import BadInput
from autotune.views.presets import presets_listed

_WORKLOAD = "my_workload.py"
_SPACE = "search_space: quick\n"
_NAMED = "workload:\n"


def write_study(path: Path) -> None:
    """Write a study with comments.

    Raises:
        BadInput: the file exists, or cannot be written.
    """
    if not _written(path, _study()):
        raise BadInput(f"{path} exists already; it is left as it was")


def write_of_command(
    path: Path, command: Sequence[str], say: Callable[[str], None] = lambda _: None
) -> str:
    """Look at what a launch command trains, and write a study of it; returns what was seen. Where no
    script of torch is in it, nothing is run, and what is not known stands as TODO.

    Args:
        path: of the study.
        command: the user's own.
        say: told what is being done.

    Raises:
        BadInput: the file exists or cannot be written, or the command cannot be looked at.
        LauncherError: there is no place to run it.
    """
    from autotune.config import load
    from autotune.standalone import scripted, unseen
    from autotune.standalone.command import NoScript, taken_apart
    from autotune.standalone.survey import survey

    if path.exists():
        raise BadInput(f"{path} exists already; it is left as it was: autotune start {path}")
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
        if not _written(path, unseen.study(command)):
            raise BadInput(f"{path} exists already; it is left as it was") from None
        return f"a study over a command; fill in what is marked {unseen.TODO} there"
    found = survey(launched, Path.cwd(), say)
    for doubt in found.doubts:
        say(f"Not mapped: {doubt}.")
    text = scripted.study(command, launched, found, len(os.sched_getaffinity(0)))
    if not _written(path, text):
        raise BadInput(f"{path} exists already; it is left as it was")
    load(path)
    return scripted.told(found)


def write_workload(folder: Path) -> Path | None:
    """Write a workload to start from; None if there is a file of its name, which is left as it was.

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
    """Whether it is UTF-8: what is not, Python holds as surrogates."""
    try:
        word.encode()
    except UnicodeEncodeError:
        return False
    return True


def _written(path: Path, text: str) -> bool:
    """Write a file that is not there yet; whether it was not.

    Raises:
        BadInput: it cannot be written.
    """
    content = text.encode()
    try:
        with path.open("xb") as file:
            file.write(content)
    except FileExistsError:
        return False
    except OSError as error:
        raise BadInput(f"{path} cannot be written: {error.strerror}") from None
    return True
