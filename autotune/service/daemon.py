"""A daemon of one queue: claims its studies and runs them one after another.

All state is in SQL, so the daemon may die at any moment: the next daemon that claims its study
continues. Any number of daemons may serve a queue.
"""

import contextlib
import dataclasses
import logging
import math
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from optuna.exceptions import StorageInternalError

from autotune.analysis.provenance import measured_in
from autotune.analysis.verdict import Verdict
from autotune.analysis.wording import duration
from autotune.config import StudySpec, withheld
from autotune.errors import (
    AutotuneError,
    LauncherError,
    NotHere,
    StaleLease,
    StorageUnreachable,
)
from autotune.export import publish, writing
from autotune.paths import StudyPaths
from autotune.runs.plan import OpenLauncher, Plan, launcher_of
from autotune.service import retrying
from autotune.service.queues import owned, this_machine
from autotune.study.context import BASELINE, StudyContext
from autotune.study.executor import check_there
from autotune.study.largest_batch import LargestBatch
from autotune.study.tuner import Signals, Stopped, Tuner
from autotune.views import notes
from autotune.views.verdict_text import text_of
from launchers import NO_RIVAL, Launcher, Rival, Tenant
from launchers.node_compat import device_kind, from_agent
from storage import Lease, LeaseHolder, MessageKind, Repository, StoredStudy, StudyState
from storage.disk import full, is_full, make
from storage.holders import started, this_host

LEASE_SECONDS = 10.0
_RENEW_SECONDS = 2.0
_HEAR_SECONDS = 0.5
"""Time until a waiting study notices a request to stop."""
_IDLE_POLL_SECONDS = 0.5
_OUTAGE_POLL_SECONDS = 2.0
_ROOM_POLL_SECONDS = 0.5
_UNREACHABLE = (StorageUnreachable, StorageInternalError)
_MAY_WRITE = " Trials may change your files: `workload.may_write` is true."

log = logging.getLogger(__name__)


def queue_for(spec: StudySpec) -> str:
    """Return the queue that a study belongs to.

    There is one per cluster and one per machine, for each owner (see `owned`).
    """
    place = spec.launcher.place
    return owned(place) if place else this_queue()


def this_queue() -> str:
    """Return the queue of this machine."""
    return owned(f"host:{this_machine()}")


class Daemon:
    """Runner of one queue's studies, each under a lease of its own."""

    def __init__(
        self,
        repository: Repository,
        queue: str,
        open_launcher: OpenLauncher = launcher_of,
        *,
        only: int | None = None,
    ) -> None:
        """Prepare to run studies.

        Args:
            only: id of the only study to run; None: all of the queue.
        """
        self._repository = repository
        self._queue = queue
        self._holder = LeaseHolder(this_host(), os.getpid(), LEASE_SECONDS)
        self._only = only
        self._open_launcher = open_launcher
        self._shutdown = threading.Event()
        self.stops = False
        """True if its study is to be stopped, and not left to the next daemon."""
        self._signals: Signals | None = None
        self._lease: Lease | None = None
        """Lease of the study that runs, or ran when the storage went away."""
        self._presence: Lease | None = None
        """Lease of the queue, by which it is known to have a daemon."""
        self._asked = -math.inf
        """Monotonic time at which the queue's lease was last taken, renewed or asked for."""
        self._sign = time.monotonic()
        self._outage = _Outage(repository)

    @property
    def silence(self) -> float:
        """Seconds since its last sign of life: it gives one every two seconds, if all is well."""
        return time.monotonic() - self._sign

    def serve(self, *, idle_seconds: float | None = None) -> None:
        """Run studies until shut down, or until there were none to run for this long.

        A study that another daemon runs, or that is to be tried again later, keeps this daemon,
        too: the other daemon may die. A daemon that never leaves by itself is known to serve its
        queue even while idle, so that no other daemon is started for it.

        Args:
            idle_seconds: longest time without studies; None: for ever.
        """
        last_busy = time.monotonic()
        try:
            while not self._shutdown.is_set():
                served, left = self._serve_or_wait(stays=idle_seconds is None)
                now = time.monotonic()
                last_busy = now if served or left else last_busy
                if idle_seconds is not None and not left and now - last_busy >= idle_seconds:
                    return
                self._shutdown.wait(_IDLE_POLL_SECONDS)
        finally:
            self._let_go()

    def shut_down(self) -> None:
        """Leave after clearing away the running trial; its study stays in the queue.

        May be called from a signal handler.
        """
        self._shutdown.set()
        if self._signals:
            self._signals.stop.set()

    @property
    def leaves(self) -> bool:
        """True once it was told to leave."""
        return self._shutdown.is_set()

    def stop(self) -> None:
        """Leave and stop the study: no daemon continues it unless it is resumed."""
        self.stops = True
        self.shut_down()

    def _serve_or_wait(self, *, stays: bool) -> tuple[bool, bool]:
        """Run the queue; return whether anything ran, and whether studies are still open."""
        try:
            served = self._serve_once(stays=stays)
            left = self._any_open()
            if not left and not stays:
                self._let_go()
            self._outage.over()
            return served, left
        except StaleLease as stale:
            self._lease = None
            log.warning("%s", stale)
        except _UNREACHABLE as error:
            self._outage.tell(error)
            self._repository.database.forget_connections()  # those of Optuna as well
            self._shutdown.wait(_OUTAGE_POLL_SECONDS)
        return False, True

    def _any_open(self) -> bool:
        return self._repository.studies.any_open(self._queue, self._only)

    def _serve_once(self, *, stays: bool) -> bool:
        """Run all due studies of the queue that no other daemon has; return whether any ran.

        A study that this daemon ran when the storage went away goes on under its lease.
        """
        self._sign = time.monotonic()
        if stays or self._any_open():
            self._attend()
        busy = False
        while not self._shutdown.is_set() and self._any_open():
            claim = self._repository.claims.take(
                self._queue, self._holder, only=self._only, before=self._lease
            )
            if claim is None:
                return busy
            busy, self._lease = True, claim.lease
            self._run(claim.study, claim.lease)
            self._repository.leases.release(claim.lease)
            self._lease = None
        return busy

    def _attend(self) -> None:
        """Have the queue known to be served: by this daemon, unless another one is known for it."""
        now = self._sign = time.monotonic()
        if self._only is not None or now - self._asked < _RENEW_SECONDS:
            return
        leases = self._repository.leases
        if self._presence is None:
            self._presence = leases.acquire(self._queue, self._holder)
        else:
            try:
                leases.renew(self._presence, LEASE_SECONDS)
            except StaleLease:
                self._presence = None
        self._asked = now

    def _let_go(self) -> None:
        """Give all leases back, as far as the storage can be reached."""
        with contextlib.suppress(*_UNREACHABLE):
            for lease in filter(None, (self._lease, self._presence)):
                self._repository.leases.release(lease)
            self._lease = self._presence = None
            self._asked = -math.inf

    def _run(self, study: StoredStudy, lease: Lease) -> None:
        signals = self._signals = Signals()
        signals.opening.set()
        if study.stop_requested or self._shutdown.is_set():
            signals.stop.set()
        log.info("study %s: running", study.name)
        began = time.monotonic()
        # The result is written before anything remote is closed, which may take long.
        with self._heartbeat(study, lease, signals), contextlib.ExitStack() as later:
            try:
                run = _StudyRun(study, lease, self._repository, signals)
                verdict = run.run(self._open_launcher, self._outage.over, later)
            except Stopped:
                self._stop(lease, study)
            except StaleLease:
                raise
            except _UNREACHABLE:
                raise
            except NotHere as error:
                self._fail(lease, study, str(error))
            except LauncherError as error:
                self._try_later(lease, study, error, time.monotonic() - began)
            except AutotuneError as error:
                self._fail(lease, study, str(error))
            except Exception as error:
                log.exception("study %s: failed", study.name)
                self._fail(lease, study, f"internal error: {error!r}")
            else:
                state = self._repository.claims.conclude(lease, study, verdict.as_dict())
                log.info("study %s: %s", study.name, state)
        self._signals = None

    def _stop(self, lease: Lease, study: StoredStudy) -> None:
        if self._shutdown.is_set() and not self.stops:
            state = self._repository.claims.put_back(lease, study.id)
            log.info("study %s: this daemon leaves, it is %s", study.name, state)
            return
        state = self._repository.claims.stop(lease, study.id)
        log.info("study %s: stopped, now %s", study.name, state)

    def _try_later(
        self, lease: Lease, study: StoredStudy, error: LauncherError, ran: float
    ) -> None:
        """Put the study back into the queue for a later try.

        Machines recover by themselves, or are repaired.
        """
        retry = retrying.retry(study.retries, error, ran)
        told = retrying.describe(retry)
        waiting = MessageKind.WAITING
        self._repository.messages.say(lease, study.id, told, kind=waiting)
        state = self._repository.claims.put_back(lease, study.id, retry)
        log.warning("study %s: %s: %s", study.name, state, told)

    def _fail(self, lease: Lease, study: StoredStudy, error: str) -> None:
        log.info("study %s: %s: %s", study.name, StudyState.FAILED, error)
        self._repository.claims.fail(lease, study.id, error)

    @contextlib.contextmanager
    def _heartbeat(self, study: StoredStudy, lease: Lease, signals: Signals) -> Iterator[None]:
        done = threading.Event()
        beat = _Heartbeat(self._repository, study, lease, signals, self._attend)
        thread = threading.Thread(target=beat.run, args=(done,), name="heartbeat")
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()


class _Outage:
    """Log of an outage: one message when the daemon begins to wait, one when it continues."""

    def __init__(self, repository: Repository) -> None:
        self._database = repository.database
        self._told = ""

    def tell(self, error: Exception) -> None:
        """Log that the storage cannot be reached or written at present."""
        text = str(error)
        if not isinstance(error, StorageUnreachable):
            text = f"storage {self._database}: {self._database.reason(error)}"
        if text != self._told:
            log.warning("waiting: %s", text)
        self._told = text

    def over(self) -> None:
        """Log that the storage works again."""
        if self._told:
            log.warning("waiting no more: it works again")
        self._told = ""


class _Heartbeat:
    """Thread that renews the leases, counts running time and notices requests to stop."""

    def __init__(
        self,
        repository: Repository,
        study: StoredStudy,
        lease: Lease,
        signals: Signals,
        attend: Callable[[], None],
    ) -> None:
        """Prepare to beat.

        Args:
            attend: renews the lease of the queue.
        """
        self._repository = repository
        self._study = study
        self._lease = lease
        self._signals = signals
        self._attend = attend
        self._counted = time.monotonic()
        self._outage = _Outage(repository)

    def run(self, done: threading.Event) -> None:
        """Beat until done."""
        finished = False
        while not finished and not self._signals.lease_stale.is_set():
            waits = self._signals.waiting.is_set() or self._signals.opening.is_set()
            finished = done.wait(_HEAR_SECONDS if waits else _RENEW_SECONDS)
            try:
                self._beat()
                self._outage.over()
            except StaleLease:
                self._signals.lease_stale.set()
            except _UNREACHABLE as error:
                self._outage.tell(error)

    def _beat(self) -> None:
        self._attend()
        self._repository.leases.renew(self._lease, LEASE_SECONDS)
        now = time.monotonic()
        waits = self._signals.waiting.is_set() or self._signals.opening.is_set()
        spent = 0.0 if waits else now - self._counted
        stop = self._repository.claims.add_elapsed(self._lease, self._study.id, spent)
        self._counted = now
        if stop:
            self._signals.stop.set()


class _StudyRun:
    """A study from claim to verdict: launcher, environment, tuner, export."""

    def __init__(
        self, study: StoredStudy, lease: Lease, repository: Repository, signals: Signals
    ) -> None:
        self._study = study
        self._lease = lease
        self._repository = repository
        self._signals = signals
        self._waits_for: Rival | None = None
        file = Path(study.file) if study.file else None
        self._spec = withheld.restored(study.spec, file, os.environ)

    def run(
        self, open_launcher: OpenLauncher, begins: Callable[[], None], later: contextlib.ExitStack
    ) -> Verdict:
        """Run the study; return its verdict, exported and noted.

        Args:
            begins: called once neither room nor the storage is waited for any more.
            later: closes resources after the result has been written.
        """
        study = self._study
        paths = StudyPaths(Path(study.workdir), study.name, study.key)
        check_there(paths.workdir)
        self._wait_for_room()
        begins()
        make(paths.folder)
        with contextlib.suppress(OSError):  # without the mark `clean` only removes less
            paths.sign(str(self._repository.database))
        weight = self._repository.quotas.weight_of(study.owner)
        tenant = Tenant(study.owner, study.name, weight)
        launcher = open_launcher(self._pinned(), paths.folder, self._is_to_be_ignored, tenant)
        self._signals.opening.clear()
        with contextlib.ExitStack() as now:
            (later if launcher.is_remote else now).callback(launcher.close)
            later.callback(self._signals.waiting.set)  # closing time does not count
            self._signals.waiting.clear()
            return self._tune(Plan(self._spec, launcher))

    def _pinned(self) -> StudySpec:
        """Return the settings, pinned to the kind of device on which the study began.

        A cluster may have devices of several kinds.
        """
        spec, where = self._spec, self._measured_in()
        if not spec.launcher.is_shared or spec.resources.device or where is None:
            return spec
        on_gpu = (self._study.facts or {}).get("device") == "cuda"
        kind = device_kind(from_agent(where), on_gpu=on_gpu) or None
        resources = spec.resources.model_copy(update={"device": kind})
        return spec.model_copy(update={"resources": resources})

    def _wait_for_room(self) -> None:
        """Wait until the study's folder can be written. That time does not count."""
        workdir = Path(self._study.workdir)
        if is_full(workdir):
            self._signals.waiting.set()
            self._say_waiting(f"{full(workdir)}; the study goes on once there is some.")
        while is_full(workdir):
            self._signals.check()
            time.sleep(_ROOM_POLL_SECONDS)

    def _is_to_be_ignored(self, rival: Rival) -> bool:
        """Return True for the daemon that this one has replaced, which may be suspended there.

        Wait for every other process.
        """
        if rival.pid == self._lease.predecessor and self._is_predecessor(rival):
            return True
        self._signals.check()
        if rival == NO_RIVAL:
            return False
        if rival != self._waits_for:
            self._say_waiting(f"{rival.text}{self._whose(rival)}.")
        self._waits_for = rival
        self._signals.waiting.set()
        return False

    def _whose(self, rival: Rival) -> str:
        """Return the study and owner of another process, and how long it may take; empty if unknown."""
        other = self._repository.studies.run_by(this_host(), rival.pid) if rival.pid else None
        if other is None:
            return ""
        limit = other.spec.get("budget", {}).get("wall_time")
        left = "" if limit is None else f", at most {duration(limit - other.elapsed)} more"
        return f": study {other.name} of {other.owner or 'an unknown owner'}{left}"

    def _is_predecessor(self, rival: Rival) -> bool:
        """Return whether it is the same process, and not a later one of that number."""
        since = self._lease.predecessor_started
        return since is None or started(this_host(), rival.pid) == since

    def _say_waiting(self, text: str) -> None:
        kind = MessageKind.WAITING
        self._repository.messages.say(self._lease, self._study.id, text, kind=kind)

    def _tune(self, plan: Plan) -> Verdict:
        self._signals.check()
        self._say_where(plan.launcher)
        facts = dataclasses.asdict(plan.facts)
        self._repository.claims.record_facts(self._lease, self._study.id, facts)
        job = StudyContext(
            self._study,
            plan,
            self._lease,
            self._repository,
            self._repository.environments.record(self._lease, plan.launcher.site.environment),
        )
        resolved = LargestBatch(job, self._signals.check).resolved()
        # Its time has advanced; its settings stay those of the plan, and new ones apply later.
        elapsed = self._repository.studies.named(self._study.name).elapsed
        study = dataclasses.replace(self._study, elapsed=elapsed)
        context = dataclasses.replace(job, plan=plan.of(resolved), study=study)
        tuner = Tuner(context, self._signals, notes)
        verdict = tuner.run()
        tuner.dashboard.show(verdict)
        if verdict.trial is not None:
            self._export(verdict, plan.launcher)
        return verdict

    def _say_where(self, launcher: Launcher) -> None:
        site = launcher.site
        what = site.devices[0] if site.on_device else site.environment["cpu"]
        count = len(launcher.slots)
        self._repository.messages.say(
            self._lease,
            self._study.id,
            f"{launcher.ranks} rank{'s' if launcher.ranks > 1 else ''} on {what}, "
            f"{count} trial{'s' if count > 1 else ''} at a time ({self._spec.launcher.kind})."
            + (_MAY_WRITE if self._spec.workload.may_write else ""),
        )

    def _export(self, verdict: Verdict, launcher: Launcher) -> None:
        content = publish.content_of(
            verdict,
            self._study,
            self._spec,
            text=text_of(verdict),
            world_size=launcher.ranks,
            environment=self._measured_in() or launcher.site.environment,
        )
        assert verdict.trial is not None
        self._repository.recommendations.record(self._lease, self._study.id, verdict.trial, content)
        target = Path(self._study.workdir) / self._spec.export
        if verdict.trial == BASELINE and self._is_of_another_study(target):
            self._not_written(
                target, "it belongs to another study, and this one recommends no change"
            )
            return
        if writing.not_ours(target):
            self._not_written(target, "autotune has not written what is there now")
            return
        try:
            writing.write(target, content)
        except OSError as error:
            self._not_written(target, str(error.strerror))

    def _measured_in(self) -> dict[str, Any] | None:
        """Return the environment of the measurements.

        By now the launcher may have agents elsewhere.
        """
        attempts = self._repository.attempts.of(self._study.id)
        return measured_in(attempts, self._repository.environments.of_attempt)

    def _is_of_another_study(self, target: Path) -> bool:
        return target.exists() and not writing.is_of(target, self._study.name)

    def _not_written(self, target: Path, why: str) -> None:
        elsewhere = f"`autotune export {self._study.name} --output FILE` writes it elsewhere"
        self._repository.messages.say(
            self._lease, self._study.id, f"{target} is not written ({why}); {elsewhere}."
        )
