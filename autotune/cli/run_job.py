"""Command that runs the user's own job with the recommended configuration."""

import contextlib
import os
import shutil
import signal
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from autotune.cli.results import best_in
from autotune.errors import BadInput
from autotune.views.terminal import show as print  # output may hold control characters of trials

if TYPE_CHECKING:  # imported where they are used: SQLAlchemy and Optuna take a second
    from autotune.export.best import BestConfig
    from autotune.export.tuned_job import Started


def run_job(
    best: Annotated[
        Path, typer.Argument(help="The best.yaml of a study over a script or command.")
    ],
    command: Annotated[
        list[str] | None,
        typer.Argument(
            help="Your launch command, after `--`; a study over a command has it already."
        ),
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="Say when the job is slower than was measured.")
    ] = False,
    metrics_port: Annotated[
        int, typer.Option(help="For --watch, on loopback; 0 takes a free one.", min=0, max=65535)
    ] = 0,
    force: Annotated[
        bool, typer.Option("--force", help="Run it though it is another job than the tuned one.")
    ] = False,
) -> None:
    """Run your own job with the recommended configuration."""
    from autotune.export.best import load

    config = best_in(best, load)
    if not watch and metrics_port:
        raise BadInput("--metrics-port goes with --watch")
    watcher: contextlib.AbstractContextManager[dict[str, str]] = contextlib.nullcontext({})
    if watch:
        watcher = _watched(config, metrics_port)
    with watcher as variables:
        _become(config, command, variables, force=force)


def _become(
    best: "BestConfig", command: list[str] | None, variables: dict[str, str], *, force: bool
) -> NoReturn:
    """Replace this program by the job, with additional variables: those of its watcher."""
    # Imported after a watcher was forked: these modules bring libraries that start threads.
    from autotune.export.tuned_job import command_job, script_job

    job = (
        script_job(best, command, os.environ, _started(command), watched=bool(variables))
        if command
        else command_job(best, os.environ)
    )
    if job.refusals and not force:
        raise BadInput(
            f"this is not the job that was tuned: {'; '.join(job.refusals)}. Give the command of the "
            "study, or tune this one; --force runs it all the same"
        )
    for difference in (*job.refusals, *job.differences):
        print(f"autotune: {difference}; what was measured may not hold", file=sys.stderr)
    for change in job.changes or (_unchanged(best),):
        print(f"autotune: {change}", file=sys.stderr)
    environment = {**os.environ, **job.environment, **variables}
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)  # this python ignores them, and its successor would
    try:
        os.execvpe(_found(job.command[0]), list(job.command), environment)
    except OSError as error:
        raise BadInput(f"{job.command[0]} cannot be run: {error.strerror}") from None


def _unchanged(best: "BestConfig") -> str:
    """Return why nothing is changed in a job."""
    is_kept = best.script is None or not best.script["turned"]
    why = (
        "the study keeps your configuration"
        if is_kept
        else "the command has what the study recommends"
    )
    return f"nothing is changed: {why}"


def _started(command: list[str], folder: Path = Path("/dev")) -> "Started":
    """Return how a command starts its ranks, as far as its programs are known."""
    from autotune.export.launch_settings import assigned
    from autotune.export.tuned_job import Started
    from autotune.standalone.launch_command import taken_apart
    from autotune.worker.node.environment import driver_devices

    models = tuple(driver_devices())
    try:
        launched = taken_apart(command, for_trials=False)
    except BadInput as error:
        why = f"`autotune init` would refuse this command ({error})"
        devices = _devices(assigned(command), folder)
        return Started(devices=devices, models=models, unknown=why)
    devices = _devices(launched.env, folder)
    ranks = launched.workers or devices * launched.nodes or None
    why = "" if ranks else "the command starts a rank on each device, and none is seen here"
    return Started(ranks, launched.launch, launched.nodes, devices, models, why)


def _devices(variables: Mapping[str, str], folder: Path) -> int:
    """Return how many devices a job with these variables finds here."""
    from autotune.errors import LauncherError
    from launchers.layout import visible_devices

    with contextlib.suppress(LauncherError):
        return len(visible_devices({**os.environ, **variables}, folder))
    return 0


@contextlib.contextmanager
def _watched(best: "BestConfig", port: int) -> Iterator[dict[str, str]]:
    """Watch this process; yield the variable by which its ranks find the watcher."""
    from autotune.service.sidecar import watched
    from autotune.worker.inject.speed_report import ADDRESS

    if best.script is None or "command" in best.script:
        raise BadInput("--watch sees the optimizer steps of a script, and best.yaml is of none")
    with watched(best, port) as address:
        yield {ADDRESS: address}


def _found(program: str) -> str:
    """Return a program of the user's: on the path, else beside this interpreter, as torchrun is."""
    beside = Path(sys.executable).parent / program  # an absolute path is unchanged
    return str(beside) if shutil.which(program) is None and beside.is_file() else program
