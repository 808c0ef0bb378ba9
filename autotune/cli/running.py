"""Commands that start studies, follow them, and run them."""

import contextlib
import json
import logging
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from subprocess import Popen
from typing import TYPE_CHECKING, Annotated, NoReturn, TextIO

import typer

from autotune.cli.shared_options import (
    JsonOption,
    PriorityOption,
    StorageOption,
    StudyArgument,
    export_path,
    finite,
    located,
    missing_file,
    open_storage,
    open_study,
    seconds,
    url_of,
)
from autotune.errors import BadInput, Requeued
from autotune.views.terminal import JsonFormatter, PlainFormatter
from autotune.views.terminal import show as print  # output may hold control characters of trials

if TYPE_CHECKING:  # imported where they are used: SQLAlchemy and Optuna take a second
    from autotune.config import StudySpec
    from autotune.service.daemon import Daemon
    from autotune.service.pool import DaemonPool
    from storage import Repository, StoredStudy


def init(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[STUDY.yaml] [-- COMMAND]",
            help="File to write (study.yaml), and your own launch command.",
        ),
    ] = None,
    startup_timeout: Annotated[
        str | None,
        typer.Option(
            help="What a start of the command may take, e.g. 20m, where it compiles or loads much; "
            "written into the study. Default: 5m."
        ),
    ] = None,
    may_write: Annotated[
        bool,
        typer.Option(
            "--may-write",
            help="Let runs of the command, here and in the study, change files: nothing protects them.",
        ),
    ] = False,
) -> None:
    """Write a commented study.yaml to start from.

    With your launch command after `--`, which is run for a few steps and observed, it is a study of
    that command; else an example, with one of a workload of your own. How long the study may take
    stands there under `budget: wall_time`. Of a command this line is commented out, so that there
    is no limit of time until you remove its `#`.
    """
    from autotune.standalone.starter import write_study, write_workload

    path, command = _path_and_command(words or [])
    startup = seconds("--startup-timeout", startup_timeout)
    if command:
        _init_of_command(path, command, startup, may_write=may_write)
        return
    write_study(path)
    print(f"{path} written; edit it, then: autotune start {path}")
    if workload := write_workload(path.parent):
        print(f"{workload} written: put your own model there; `workload: {workload.stem}:build`")


def _init_of_command(
    path: Path, command: list[str], startup: float | None, *, may_write: bool
) -> None:
    """Write the study of a launch command; say what was seen, and what comes next."""
    from autotune.standalone.starter import write_of_command
    from autotune.standalone.survey import Allowed

    allowed = Allowed(startup, may_write=may_write)
    found = write_of_command(path, command, _tell, storage=url_of(None), allowed=allowed)
    print(f"{path} written: {found.seen}")
    at_once = f", or at once: autotune start {path}" if found.is_complete else ""
    print(f"next: autotune doctor {path}{at_once}")


_Detach = Annotated[bool, typer.Option("--detach", help="Do not follow.")]
_Foreground = Annotated[
    bool, typer.Option("--foreground", help="Run it alone, in this process, without a daemon.")
]
_DryRun = Annotated[
    bool,
    typer.Option("--dry-run", help="Say what it may take and what is before it; start nothing."),
]


def start(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="[STUDY.yaml] [-- COMMAND]",
            help="The study.yaml; with your own launch command it is written first.",
        ),
    ],
    storage: StorageOption = None,
    detach: _Detach = False,
    foreground: _Foreground = False,
    priority: PriorityOption = None,
    dry_run: _DryRun = False,
    as_json: JsonOption = False,
) -> None:
    """Run a study, or continue it. Ctrl-C only stops following; the study runs on.

    It ends after `budget: wall_time` of its file, for example 30m, if that is given.
    """
    from autotune.config import load

    _refuse_both(foreground, detach)
    study, command = _path_and_command(words)
    if command and dry_run:
        raise BadInput(
            "--dry-run runs nothing, and a command must run to be seen: autotune init -- COMMAND "
            "writes its study, then: autotune start study.yaml --dry-run"
        )
    if command:
        _write_first(study, command, storage, sys.stderr if as_json else sys.stdout)
    spec = load(study)
    if dry_run:
        _predict(study, spec, storage, priority, as_json=as_json)
        return
    # Imported after the file was checked: it brings Optuna and SQLAlchemy.
    from autotune.service.submission import refuse_elsewhere, submit

    def submitted() -> "tuple[Repository, StoredStudy]":
        repository = _storage_of(study, spec, storage)
        if not foreground:
            refuse_elsewhere(repository, spec.name)
        queued = submit(repository, spec, Path.cwd(), study)
        if priority is not None and not queued.state.ended:
            repository.studies.arrange(spec.name, priority=priority)
        return repository, repository.studies.named(spec.name)

    repository, queued = _patiently(submitted) if foreground else submitted()
    _follow_until_done(repository, queued, detach, foreground, as_json)


def _write_first(study: Path, command: list[str], storage: str | None, output: TextIO) -> None:
    """Write the study of a launch command that is to be started at once."""
    from autotune.standalone.starter import write_of_command

    found = write_of_command(study, command, _tell, storage=url_of(storage))
    print(f"{study} written: {found.seen}", flush=True, file=output)


def _predict(
    study: Path, spec: "StudySpec", storage: str | None, priority: int | None, *, as_json: bool
) -> None:
    """Print what a study may take and what is before it; create no storage where there is none."""
    from autotune.service.prediction import predicted, prediction_text

    missing = missing_file(url_of(storage, spec.storage))
    repository = None if missing else _storage_of(study, spec, storage, reading=True)
    found = predicted(spec, repository, priority)
    print(json.dumps(found, indent=2) if as_json else prediction_text(found))


def _storage_of(
    study: Path, spec: "StudySpec", given: str | None, *, reading: bool = False
) -> "Repository":
    """Open the storage of a study file.

    Raises:
        BadInput: it cannot be opened; with the place in the file where the file names it.
    """
    from autotune.config.document import read

    try:
        return open_storage(url_of(given, spec.storage), reading=reading)
    except BadInput as error:
        if given is not None or spec.storage is None:
            raise
        raise BadInput(f"{read(study).where(('storage',))}: storage: {error}") from None


def _patiently(
    queue: "Callable[[], tuple[Repository, StoredStudy]]",
) -> "tuple[Repository, StoredStudy]":
    """Queue a study that this process is to run; wait for a storage that is away.

    A process that is told to leave meanwhile ends like one whose study has begun.
    """
    from autotune.service.follow import through_outages

    signal.signal(signal.SIGTERM, _leave_at_once)
    return through_outages(queue)


def _leave_at_once(*_: object) -> NoReturn:
    # Not by print, which the signal may have interrupted.
    os.write(2, b"This process was told to leave before its study has begun.\n")
    raise SystemExit(Requeued.exit_code)


def _path_and_command(words: list[str]) -> tuple[Path, list[str]]:
    """Return the study file, which comes first if it is given, and the command that follows.

    A single word is a file, whatever its name, unless it is a script or a program.
    """
    is_file = len(words) == 1 and not (words[0].endswith(".py") or shutil.which(words[0]))
    has_file = bool(words) and (is_file or Path(words[0]).suffix in (".yaml", ".yml"))
    for word in words[: 1 + has_file]:
        if word.startswith("-") and not Path(word).exists():  # a file may have any name
            raise BadInput(f"there is no option {word}; --help lists those that there are")
    return (Path(words[0]), words[1:]) if has_file else (Path("study.yaml"), words)


def _refuse_both(foreground: bool, detach: bool) -> None:
    """Refuse to leave a study that runs in this process: it would end with the process."""
    if foreground and detach:
        raise BadInput(
            "--foreground runs the study in this process, and --detach would end the process at "
            "once; leave one of the two out: with --detach alone a daemon runs the study"
        )


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def resume(
    study: StudyArgument,
    storage: StorageOption = None,
    detach: _Detach = False,
    foreground: _Foreground = False,
    here: Annotated[
        bool, typer.Option("--here", help="Move it to this machine from the one it was on.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Continue a study that was stopped or has failed.

    By its name it has its stored settings, by its study.yaml the present budgets, timeouts and
    variables.
    """
    from autotune.config import load
    from autotune.service.submission import (
        move_to_this_machine,
        refuse_elsewhere,
        resume_by_file,
        resume_study,
    )

    _refuse_both(foreground, detach)
    url, name = located(study, storage)

    def resumed() -> "tuple[Repository, StoredStudy]":
        repository = open_storage(url, existing=True)
        if here:
            move_to_this_machine(repository, name)
        if not foreground:
            refuse_elsewhere(repository, name)
        if study == name:
            resume_study(repository, name)
        else:
            resume_by_file(repository, load(Path(study)), Path(study))
        return repository, repository.studies.named(name)

    repository, queued = _patiently(resumed) if foreground else resumed()
    _follow_until_done(repository, queued, detach, foreground, as_json)


def watch(study: StudyArgument, storage: StorageOption = None) -> None:
    """Follow a study that a daemon runs; of one that has ended, print the answer."""
    from autotune.service.follow import conclusion, exit_code, follow

    repository, name = open_study(study, storage)
    study_now = repository.studies.named(name)
    ended = (
        study_now
        if study_now.state.ended
        else _interruptible(repository, name, lambda: follow(repository, study_now))
    )
    print(conclusion(repository, ended, export_path(ended)))
    raise typer.Exit(exit_code(ended))


_MOST_AT_A_TIME = 1000
"""Most studies at a time of one daemon: each takes a process of more than 100 MiB."""
_MetricsPort = Annotated[
    int | None,
    typer.Option(
        min=0,
        max=65535,
        help="Serve /metrics and /healthz there, on loopback only; 0: a free port.",
    ),
]


def daemon(
    cluster: Annotated[
        str | None, typer.Option(help="Where: host:NAME or LAUNCHER:ADDRESS; this machine.")
    ] = None,
    idle_exit: Annotated[
        float | None,
        typer.Option(min=0.0, callback=finite, help="Leave after so many seconds without a study."),
    ] = None,
    storage: StorageOption = None,
    storage_on_stdin: Annotated[
        bool, typer.Option("--storage-on-stdin", help="Read the storage URL as a line of input.")
    ] = False,
    studies: Annotated[
        int,
        typer.Option(
            min=1, max=_MOST_AT_A_TIME, help="Studies at a time, each in a process of its own."
        ),
    ] = 1,
    idle_only: Annotated[
        bool,
        typer.Option(
            "--idle-only", help="Begin a study only once other programs leave the devices idle."
        ),
    ] = False,
    metrics_port: _MetricsPort = None,
) -> None:
    """Run what you queue with this Python and these devices. `start` starts one by itself."""
    from autotune.service.queues import checked, owned, place_of, this_queue

    _log_on_standard_error()
    url = sys.stdin.readline().strip() if storage_on_stdin else url_of(storage)
    repository = open_storage(url)
    known = {place_of(queue) for queue in repository.studies.queues()} if cluster else set()
    queue = owned(checked(cluster, known)) if cluster is not None else this_queue()
    _serve(studies, repository, queue, idle_exit, metrics_port, idle_only=idle_only)


def _log_on_standard_error() -> None:
    handler = logging.StreamHandler()
    as_json = os.environ.get("AUTOTUNE_LOGS") == "json"
    handler.setFormatter(JsonFormatter() if as_json else PlainFormatter("%(asctime)s %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    logging.getLogger("alembic").setLevel(logging.WARNING)  # it tells of each look at a schema


def _serve(
    studies: int,
    repository: "Repository",
    queue: str,
    idle_exit: float | None,
    metrics_port: int | None,
    *,
    idle_only: bool,
) -> None:
    """Run so many studies of a queue at a time: one here, several in a process of its own each."""
    from autotune.runs.study_setup import launcher_of
    from autotune.service.daemon import Daemon
    from autotune.service.idleness import when_idle
    from autotune.service.pool import SIGNS, DaemonPool
    from autotune.service.queues import place_of
    from autotune.service.submission import spawn_daemon

    if studies == 1:
        opened = when_idle(launcher_of) if idle_only else launcher_of
        signs = os.environ.pop(SIGNS, None)  # it is no pipe of what this process starts
        alone = Daemon(repository, queue, opened, on_sign=lambda: _give_sign(signs))
        _prepare(alone, repository, metrics_port)
        alone.serve(idle_seconds=idle_exit)
        return
    absolute = _absolute_url(repository)
    options = ["--idle-only"] if idle_only else []

    def another(own: int) -> Popen[bytes]:
        place, folder = place_of(queue), Path.cwd()
        return spawn_daemon(place, absolute, folder, idle_exit, options=options, signs=own)

    pool = DaemonPool(another, studies)
    _prepare(pool, repository, metrics_port)
    pool.serve()


def _give_sign(pipe: str | None) -> None:
    """Write a sign of life into a pipe, if there is one; one that is full tells enough."""
    if pipe is not None:
        with contextlib.suppress(BlockingIOError, BrokenPipeError):
            os.write(int(pipe), b".")


def _prepare(
    running: "Daemon | DaemonPool", repository: "Repository", metrics_port: int | None
) -> None:
    """Have signals shut a daemon down, and serve its metrics if a port for them is given."""
    signal.signal(signal.SIGINT, lambda *_: running.shut_down())
    _leave_when_told(running)
    if metrics_port is None:
        return
    from autotune.service.queue_metrics import QueueMetrics

    try:
        found = QueueMetrics(repository, lambda: running.silence).serve(metrics_port)
    except OSError as error:
        raise BadInput(f"--metrics-port {metrics_port}: {error.strerror}") from None
    logging.getLogger(__name__).info("metrics: http://127.0.0.1:%d/metrics and /healthz", found)


def _leave_when_told(running: "Daemon | DaemonPool") -> None:
    """Shut down on SIGTERM, and when the terminal is closed, unless nohup has that ignored."""
    terminals = [output for output in (1, 2) if os.isatty(output)]

    def leave_terminal(*_: object) -> None:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for output in terminals:
            if not os.isatty(output):  # it is closed: a write to it is an error
                os.dup2(nowhere, output)
        running.shut_down()

    signal.signal(signal.SIGTERM, lambda *_: running.shut_down())
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        signal.signal(signal.SIGHUP, leave_terminal)


def _follow_until_done(
    repository: "Repository", study: "StoredStudy", detach: bool, foreground: bool, as_json: bool
) -> None:
    """Make sure that a submitted study runs, and follow it."""
    from autotune.service.follow import (
        conclusion,
        exit_code,
        follow,
        held_back_by,
        through_outages,
    )
    from autotune.service.shell_variables import difference
    from autotune.service.submission import DaemonSupervisor
    from autotune.views.overview import status_of
    from storage import StudyState

    name = study.name
    keep_alive = (
        _run_here(repository, study)
        if foreground
        else DaemonSupervisor(repository, study, _absolute_url(repository))
    )
    if study.state == StudyState.DONE:
        _tell(
            f"{name} is done, so it is not run again. To measure anew, give study.yaml another name."
        )
    if not (study.state.ended or foreground) and (differs := difference(repository, study)):
        _tell(differs)
    if not study.state.ended and foreground:
        through_outages(keep_alive)
    elif not study.state.ended:
        keep_alive()
    if detach and as_json:
        print(json.dumps(status_of(repository, name), indent=2))
        return
    if detach:
        study = repository.studies.named(name)
        reason = held_back_by(repository, study)
        waits = f" and waits: {reason}" if reason else ""
        print(f"{name} is {study.state}{waits}; autotune watch {name} follows it.")
        return
    # Standard output has the JSON alone, for a program; the rest is still shown.
    with contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext():
        ended = _interruptible(repository, name, lambda: follow(repository, study, keep_alive))
        print(conclusion(repository, ended, export_path(ended)))
    if as_json:
        print(json.dumps(status_of(repository, name), indent=2))
    raise typer.Exit(exit_code(ended))


def _absolute_url(repository: "Repository") -> str:
    """Return the URL of the storage for a daemon, which works in the folder of a study."""
    return repository.database.url.render_as_string(hide_password=False)


def _run_here(repository: "Repository", study: "StoredStudy") -> Callable[[], None]:
    """Run the study in a thread of this process; return a check that it is running."""
    from autotune.service.daemon import Daemon
    from autotune.service.submission import GIVE_UP_AFTER, InProcessRunner

    longest_wait = seconds(GIVE_UP_AFTER, os.environ.get(GIVE_UP_AFTER) or _wait_of_job())
    running = Daemon(repository, study.queue, only=study.id)
    signal.signal(signal.SIGINT, lambda *_: running.stop())
    _leave_when_told(running)
    return InProcessRunner(repository, study, running, longest_wait)


def _wait_of_job() -> str | None:
    """Return the longest wait in a job of Slurm, whose nodes idle; None at a terminal, or in no job."""
    from autotune.service.batch import LONGEST_WAIT

    return LONGEST_WAIT if "SLURM_JOB_ID" in os.environ and not os.isatty(0) else None


def _interruptible(
    repository: "Repository", name: str, action: Callable[[], "StoredStudy"]
) -> "StoredStudy":
    from autotune.service.follow import detached

    try:
        return action()
    except KeyboardInterrupt:
        print(detached(repository, name))
        raise typer.Exit(0) from None
    except Requeued as left:
        print(left)
        raise typer.Exit(left.exit_code) from None
