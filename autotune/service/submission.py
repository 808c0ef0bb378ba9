"""Submission of studies: into the queue, with a daemon behind the queue."""

import contextlib
import functools
import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from autotune.analysis.wording import duration
from autotune.config import StudySpec, secrets_withheld
from autotune.errors import (
    AutotuneError,
    BadInput,
    GaveUp,
    Requeued,
    StorageError,
    StorageUnreachable,
    StudyNotFound,
)
from autotune.export import writing
from autotune.paths import daemon_log
from autotune.service.cleaning import signature
from autotune.service.daemon import Daemon
from autotune.service.pool import MOST_DEATHS, SIGNS
from autotune.service.queues import (
    VARIABLE,
    owned,
    owner_of,
    place_of,
    queue_for,
    this_machine,
    this_queue,
)
from autotune.views.queue_table import waiting_now
from autotune.worker.proc import state
from autotune.worker.processes import leave_with, without_storage
from storage import Repository, StoredStudy, StudyState
from storage.disk import is_full, make, written
from storage.host import this_host
from storage.lease_keys import key_of
from storage.owner import user_name
from storage.urls import check_text

_CHANGEABLE = (
    "budget",
    "export",
    "folder",
    "logs",
    "measurement.startup_timeout",
    "measurement.step_timeout",
    "workload.may_write",
)
"""Settings that may change when a study continues: they do not affect earlier figures."""
_UNSAID = ("folder", "logs", "export")
"""Changed settings that need no message: they concern the place of a study, and not its runs."""
GIVE_UP_AFTER = "AUTOTUNE_GIVE_UP_AFTER"
"""Variable with the longest wait, such as 10m, of a study in the foreground that cannot run."""
_IDLE_SECONDS = 3.0
_STEADY_SECONDS = 180.0
"""Time after which a study that had failed runs again: a try that fails at its start is over then."""
_MOST_LOG_BYTES = 8 * 2**20
"""Largest size of a daemon's log. Then the next daemon begins another log, and the previous one is
kept."""


def submit(
    repository: Repository,
    spec: StudySpec,
    workdir: Path,
    file: Path | None = None,
    *,
    resumes: bool = False,
) -> StoredStudy:
    """Queue a new study, or continue one of that name; return it.

    A study whose folder is gone continues in this folder: it has been moved. By a file in its folder,
    or by the file that it was started by, it continues there. One that has measured nothing begins
    anew, with any settings.

    Args:
        file: file with the settings; values that are not stored are read there again.
        resumes: whether the study of that name is meant, whosever it is.

    Raises:
        BadInput: the study was started with other settings or in another folder, nothing can be
            exported, or a path is no text.
    """
    where = str(file.resolve()) if file else None
    for path in filter(None, (str(workdir), spec.folder, where)):
        check_text("the study needs", Path(path))
    _check_export(workdir / spec.export)
    stored = secrets_withheld.kept(spec)
    try:
        known = repository.studies.named(spec.name)
    except StudyNotFound:
        return _new(repository, spec, workdir, where)
    before = secrets_withheld.kept(secrets_withheld.as_stored(known.spec))
    changed = sorted(_differences(before, stored))
    forbidden = [name for name in changed if not _may_change(name)]
    folders = [workdir, file.resolve().parent] if file else [workdir]
    elsewhere = where != (known.file or "") and all(_is_elsewhere(known, one) for one in folders)
    is_over = known.state == StudyState.DONE and not set(changed) - {"folder"}
    if not resumes and not is_over and _is_of_others(repository, known):
        raise BadInput(_started_by_others(known, file))
    if forbidden or elsewhere:
        own = known.owner in ("", user_name())
        if not own or not _is_blank(repository, known):
            different = _started_otherwise(spec.name, forbidden)
            raise BadInput(_started_elsewhere(known, workdir, file) if elsewhere else different)
        repository.studies.delete(spec.name)
        return _new(repository, spec, workdir, where)
    if is_over:
        return known
    moved = not _is_there(known.workdir)
    queue = _local_queue(known, spec, workdir if moved else Path(known.workdir))
    told = [name for name in changed if name.split(".")[0] not in _UNSAID]
    repository.studies.enqueue(
        spec.name,
        stored,
        str(workdir) if moved else None,
        file=where,
        queue=queue,
        said=f"Goes on with other settings: {_change(told, before, stored)}." if told else "",
    )
    return repository.studies.named(spec.name)


def _new(repository: Repository, spec: StudySpec, workdir: Path, file: str | None) -> StoredStudy:
    study = repository.studies.submit(
        spec.name,
        queue_for(spec),
        secrets_withheld.kept(spec),
        str(workdir),
        file,
        owner=user_name(),
    )
    # Without its folder another owner can only resume it.
    with contextlib.suppress(OSError, AutotuneError):
        make(study.paths.folder)
        study.paths.sign(signature(repository.database))
    return study


def _may_change(name: str) -> bool:
    """Return whether a setting may change when a study goes on."""
    return any(name == one or name.startswith(f"{one}.") for one in _CHANGEABLE)


def _is_blank(repository: Repository, study: StoredStudy) -> bool:
    """Return whether a study that does not run has no figure that could be continued."""
    if not study.state.ended:
        return False
    return all(run.result.throughput is None for run in repository.attempts.of(study.id))


def _is_there(folder: str | Path) -> bool:
    """Return whether the folder of a study is there, or may be: another user's cannot be looked at."""
    try:
        return Path(folder).is_dir()
    except PermissionError:
        return True


def _is_elsewhere(known: StoredStudy, folder: Path) -> bool:
    """Return whether a study has a folder, and it is another one."""
    if str(folder) == known.workdir or not _is_there(known.workdir):
        return False
    try:
        return not folder.samefile(known.workdir)
    except OSError:
        return True


def _is_of_others(repository: Repository, known: StoredStudy) -> bool:
    """Return whether a study is another owner's, and the folder at its path is not the one it is in.

    So it is in containers of two owners, each with a folder of its own at one path. A study that has
    ended without figures needs no folder. Where another folder is signed by this storage, the path is
    that of the study.
    """
    if known.owner in ("", user_name()) or not _is_there(known.workdir):
        return False
    if _is_there(known.paths.folder) or _is_blank(repository, known):
        return False
    with contextlib.suppress(StorageError):
        return not known.paths.signed(signature(repository.database))
    return True


def _started_by_others(known: StoredStudy, file: Path | None) -> str:
    return (
        f"the storage has a study {known.name!r} of {known.owner}, and its files are not in the "
        f"{known.workdir} that is here: give this one another name, or go on with that one: autotune "
        f"resume {file or known.name}"
    )


def _started_elsewhere(known: StoredStudy, workdir: Path, file: Path | None) -> str:
    return (
        f"the storage has a study {known.name!r} of {known.owner or 'an unknown owner'}, in the folder "
        f"{known.workdir}, and this is {workdir}: give this one another name, or go on with that one: "
        f"autotune resume {file or known.name}"
    )


def _started_otherwise(name: str, fields: Sequence[str]) -> str:
    return (
        f"the study {name!r} was started with other settings ({', '.join(fields)}), so its figures "
        "cannot be continued with these; give it another name, or go on with the stored ones: autotune "
        f"resume {name}. Budgets and timeouts may change"
    )


def _change(names: Sequence[str], before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    """Return 'budget.wall_time 100.0 -> 200.0, workload.may_write (not set) -> True'."""
    return ", ".join(f"{name} {_at(before, name)} -> {_at(after, name)}" for name in names)


def _at(settings: Mapping[str, Any], name: str) -> str:
    found: Any = settings
    section, _, field = name.partition(".")
    found = found.get(section)
    if field and isinstance(found, Mapping):
        found = found.get(field)
    return "(not set)" if found is None else str(found)


def resume_by_file(repository: Repository, spec: StudySpec, file: Path) -> None:
    """Queue a study again with the settings in a file; it stays in its folder, unless that is gone.

    Raises:
        StudyNotFound: there is no study of that name.
        BadInput: see `submit`.
    """
    study = repository.studies.named(spec.name)
    workdir = Path(study.workdir) if _is_there(study.workdir) else Path.cwd()
    submit(repository, spec, workdir, file, resumes=True)


def resume_study(repository: Repository, name: str) -> None:
    """Queue a study again with its stored settings, unless it is done."""
    study = repository.studies.named(name)
    if study.state != StudyState.DONE:
        spec = secrets_withheld.as_stored(study.spec)
        queue = _local_queue(study, spec, Path(study.workdir))
        repository.studies.enqueue(name, queue=queue)


def _local_queue(known: StoredStudy, spec: StudySpec, folder: Path) -> str | None:
    """Return the caller's queue on the study's host or cluster; None if the caller is elsewhere.

    Args:
        folder: folder in which the study goes on.

    Raises:
        BadInput: the study is in another queue, and in its folder no daemon of the caller could run.
    """
    here = queue_for(spec)
    if place_of(here) != place_of(known.queue):
        return None
    if here != known.queue:
        _check_writable(folder)
    return here


def _check_writable(folder: Path) -> None:
    """Refuse a folder in which this user cannot write what a daemon writes there.

    A folder that is gone is refused later, when a daemon is to be started there.
    """
    if not _is_there(folder):
        return
    log = daemon_log(folder)
    for path in [path for path in (log.parent, log) if os.access(path, os.F_OK)] or [folder]:
        if not os.access(path, os.W_OK):
            raise BadInput(
                f"{path} is not yours to write to, and a daemon of yours would have to; the study stays "
                "as it is"
            )


def _check_export(target: Path) -> None:
    if not os.access(target.parent, os.W_OK):
        raise BadInput(
            f"export: {target} cannot be written: there is no folder {target.parent}, or it is not "
            "yours to write to"
        )
    if refused := writing.not_ours(target):
        raise BadInput(f"export: {refused}")


def ensure_daemon(
    repository: Repository, queue: str, url: str, folder: Path
) -> subprocess.Popen[bytes] | None:
    """Start a daemon for a queue unless it has one; return None if none was started.

    While SQLite's disk is full no daemon could take the lease, so none is started.
    """
    disk = repository.database.folder
    if repository.leases.holder(queue) or (disk and is_full(disk)):
        return None
    _refuse_elsewhere(queue)
    place = place_of(queue)
    if queue != owned(place):
        raise BadInput(
            f"this study is in the queue of {owner_of(queue)}, and no daemon of that owner runs it; "
            "autotune resume takes it into yours"
        )
    if not folder.is_dir():
        raise BadInput(
            f"the folder of this study, {folder}, is gone; where it is now: autotune start, and its "
            "study.yaml"
        )
    return _spawn(queue, url, folder)


def refuse_elsewhere(repository: Repository, name: str) -> None:
    """Refuse a known study that only a daemon on another machine would run.

    This happens before anything of the study is changed.

    Raises:
        BadInput: the study belongs to another machine, and no daemon serves its queue there.
    """
    try:
        study = repository.studies.named(name)
    except StudyNotFound:
        return
    served = repository.leases.serving(study) or repository.leases.holder(study.queue)
    if not served:
        _refuse_elsewhere(study.queue)


def _refuse_elsewhere(queue: str) -> None:
    place = place_of(queue)
    if place.startswith("host:") and place != place_of(this_queue()):
        raise BadInput(
            f"this study runs on {place.removeprefix('host:')}, and this is {this_machine()}; start "
            "it there, or start a daemon there: autotune daemon. If it is to go on here, as in a "
            "container that was made anew: autotune resume STUDY --here. A machine keeps its name "
            f"where {VARIABLE} says it"
        )


def move_to_this_machine(repository: Repository, name: str) -> None:
    """Move a study into the queue of this machine; a study of a cluster keeps its queue.

    Raises:
        BadInput: a daemon elsewhere runs the study, or its folder is not the caller's to write to.
    """
    study, here = repository.studies.named(name), this_queue()
    if study.queue.startswith("host:") and study.queue != here:
        _check_writable(Path(study.workdir))
        repository.studies.move(name, here)


class InProcessRunner:
    """Runner of one study in a thread of this process, unless a daemon runs it."""

    def __init__(
        self,
        repository: Repository,
        study: StoredStudy,
        daemon: Daemon,
        longest_wait: float | None = None,
    ) -> None:
        """Prepare to run a study.

        Args:
            longest_wait: seconds without a run of the study here after which it is given up; None: it
                is waited for.
        """
        self._longest_wait = longest_wait
        self._waits_since: float | None = None
        self._runs_since: float | None = None
        self._figures = 0
        """Number of figures as the wait began."""
        self._gave_up = ""
        self._repository = repository
        self._study = study
        self._daemon = daemon
        self._thread: threading.Thread | None = None
        self._died_of = "it left before the study had ended"

    def __call__(self) -> None:
        """Start the thread if no daemon runs the study.

        Raises:
            Requeued: this process was told to leave, and the study is back in the queue.
            GaveUp: the study could not run here for too long; it is back in the queue.
            AutotuneError: the thread has died, or the study was moved to another queue.
        """
        lives = self._thread is not None and self._thread.is_alive()
        if lives and (self._longest_wait is None or self._daemon.leaves):
            return
        study = self._present_study()
        if study.state.ended:
            return
        self._give_up_if_idle(study)
        if self._gave_up and not lives:
            raise GaveUp(self._gave_up)
        if not lives:
            self._begin(study)

    def _present_study(self) -> StoredStudy:
        """Return the study as it is now.

        Raises:
            Requeued: this process was told to leave, and the storage is away.
            StorageUnreachable: it is away.
        """
        try:
            return self._repository.studies.named(self._study.name)
        except StorageUnreachable as error:
            if not self._daemon.leaves or self._daemon.stops:
                raise
            raise Requeued(f"This process was told to leave, and {error}.") from None

    def _begin(self, study: StoredStudy) -> None:
        """Start the thread unless it has ended already, or a daemon runs the study."""
        if self._daemon.stops:  # it has left between two tries
            self._repository.studies.request_stop(self._study.name)
            return
        if self._daemon.leaves:
            raise Requeued(f"This process was told to leave; {study.name} is {study.state}.")
        if study.queue != self._study.queue:
            raise AutotuneError(
                f"{study.name} was moved to another queue, and runs on {place_of(study.queue)}: "
                f"autotune watch {study.name}"
            )
        if study.state == StudyState.RUNNING and self._repository.leases.serving(study):
            return
        if self._thread:
            raise AutotuneError(f"the study's thread died: {self._died_of}")
        self._thread = threading.Thread(target=self._serve, name="daemon", daemon=True)
        self._thread.start()

    def _give_up_if_idle(self, study: StoredStudy) -> None:
        """Have the daemon leave once the study has not run here for too long."""
        if self._longest_wait is None:
            return
        why, now = self._why_idle(study), time.monotonic()
        if not why:
            self._runs_since = now if self._runs_since is None else self._runs_since
            if self._waits_since is not None and self._goes_on(study, now - self._runs_since):
                self._waits_since = None
            return
        self._runs_since = None
        if self._waits_since is None:
            # The read may fail: then nothing is taken note of, and it is made again.
            self._figures = self._repository.attempts.count_measured(self._study.id)
            self._waits_since = now
        waited = now - self._waits_since
        if waited > self._longest_wait:
            self._gave_up = f"{study.name} has not run here for {duration(waited)}: {why}"
            self._daemon.shut_down()

    def _goes_on(self, study: StoredStudy, ran: float) -> bool:
        """Return whether a study that runs again is more than a further try.

        Args:
            ran: seconds since it was seen to wait.
        """
        if study.retries == 0 or ran > _STEADY_SECONDS:
            return True
        return self._repository.attempts.count_measured(self._study.id) > self._figures

    def _why_idle(self, study: StoredStudy) -> str:
        """Return why the study does not run here at present; empty if it does."""
        holder = self._repository.leases.holder(key_of(study.id))
        if holder and (holder.host, holder.pid) != (this_host(), os.getpid()):
            return f"process {holder.pid} on {holder.machine} has it"
        waits = waiting_now(self._repository, study) or ""
        if study.state == StudyState.QUEUED:
            return waits or study.error or "it waits in the queue"  # with an error: it is due
        return waits

    def _serve(self) -> None:
        try:
            self._daemon.serve(idle_seconds=0.0)
        except Exception as error:
            self._died_of = repr(error)
            raise  # its traceback is printed


class DaemonSupervisor:
    """Supervisor of a study's daemon: starts one when there is none, a limited number of times."""

    def __init__(self, repository: Repository, study: StoredStudy, url: str) -> None:
        self._repository = repository
        self._study = study
        self._url = url
        self._died = 0
        self._newest: subprocess.Popen[bytes] | None = None

    def __call__(self) -> None:
        """Start a daemon if the study needs one."""
        if self._is_there():
            return
        study = self._repository.studies.named(self._study.name)
        if study.state.ended or self._repository.leases.serving(study):
            return
        folder, queue = Path(study.workdir), study.queue  # another user may have taken it over
        if self._newest:
            self._died += self._newest.returncode != 0
            self._newest = None
        if self._died >= MOST_DEATHS:
            raise AutotuneError(f"the study's daemon keeps dying; see {daemon_log(folder)}")
        self._newest = ensure_daemon(self._repository, queue, self._url, folder)

    def _is_there(self) -> bool:
        """Return whether the daemon that was started last lives, even without a lease.

        On a busy machine it takes its time before it takes one, and while a full disk keeps the
        storage from being written it waits. Another daemon would do the same.
        """
        newest = self._newest
        return newest is not None and newest.poll() is None and state(newest.pid) != "T"


def _spawn(queue: str, url: str, folder: Path) -> subprocess.Popen[bytes]:
    log = daemon_log(folder)
    with _appended(log) as output:
        return spawn_daemon(place_of(queue), url, folder, _IDLE_SECONDS, output)


def _appended(log: Path) -> BinaryIO:
    """Open a daemon's log, or another one if it is large."""
    make(log.parent)
    with written(log):
        if log.exists() and log.stat().st_size > _MOST_LOG_BYTES:
            log.replace(log.with_name(f"{log.name}.1"))
        return log.open("ab")


def spawn_daemon(
    place: str,
    url: str,
    folder: Path,
    idle_seconds: float | None,
    output: BinaryIO | None = None,
    options: Sequence[str] = (),
    signs: int | None = None,
) -> subprocess.Popen[bytes]:
    """Start a daemon apart from this terminal (setsid); return its process.

    Args:
        place: where its studies run: host:NAME or ray:ADDRESS.
        url: URL of the storage. It is passed over a pipe: a password in the arguments would show in
            the process list.
        folder: its working directory.
        idle_seconds: time without a study after which it leaves; None: it stays.
        output: file of its messages; None: that of this process, and it leaves when this one ends.
        options: further options of `autotune daemon`.
        signs: pipe into which it writes a byte at each sign of life; None: none.

    Raises:
        AutotuneError: it ended at once.
    """
    command = [sys.executable, "-P", "-m", "autotune", "daemon", "--cluster", place]
    command += [] if idle_seconds is None else ["--idle-exit", str(idle_seconds)]
    command += options
    process = subprocess.Popen(
        [*command, "--storage-on-stdin"],
        stdin=subprocess.PIPE,
        stdout=output,
        stderr=output,
        cwd=folder,
        env=without_storage(os.environ) | ({} if signs is None else {SIGNS: str(signs)}),
        start_new_session=True,
        pass_fds=() if signs is None else (signs,),
        preexec_fn=None if output else functools.partial(leave_with, os.getpid()),
    )
    assert process.stdin is not None
    try:
        process.stdin.write(url.encode() + b"\n")
        process.stdin.close()
    except BrokenPipeError:
        told = f"see {output.name}" if output else "its messages are above"
        raise AutotuneError(f"the daemon did not start; {told}") from None
    return process


def _differences(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> set[str]:
    changed: set[str] = set()
    for name in {*old, *new}:
        before, after = old.get(name), new.get(name)
        if isinstance(before, dict) and isinstance(after, dict):
            changed |= _differences(before, after, f"{prefix}{name}.")
        elif before != after:
            changed.add(f"{prefix}{name}")
    return changed
