"""A daemon of one queue: claims its studies and runs them one after another.

All state is in SQL, so the daemon may die at any moment: the next daemon that claims its study
continues. Any number of daemons may serve a queue.
"""

import contextlib
import logging
import math
import os
import threading
import time
from collections.abc import Callable, Iterator

from optuna.exceptions import StorageInternalError

from autotune.analysis.wording import duration
from autotune.errors import (
    AutotuneError,
    ClusterAway,
    LauncherError,
    NotHere,
    OtherVersion,
    StaleLease,
    StorageError,
    StorageUnreachable,
)
from autotune.runs.study_setup import OpenLauncher, launcher_of
from autotune.service.study_run import StudyRun
from autotune.study.tuner import Signals, Stopped
from storage import Lease, LeaseHolder, MessageKind, Repository, Retry, StoredStudy, StudyState
from storage.host import this_host
from storage.lease_keys import waiting_key

LEASE_SECONDS = 10.0
_RENEW_SECONDS = 2.0
_HEAR_SECONDS = 0.5
"""Time until a waiting study notices a request to stop."""
_IDLE_POLL_SECONDS = 0.5
_OUTAGE_POLL_SECONDS = 2.0
FIRST_SECONDS = 5.0
MOST_SECONDS = 300.0
"""Longest pause. A study that ran for longer before it failed begins anew with the shortest
pause."""
FIRST_AWAY_SECONDS, MOST_AWAY_SECONDS = 1.0, 20.0
"""Pauses for a cluster, which may be back at once: asking costs it nothing."""
_UNREACHABLE = (StorageUnreachable, StorageInternalError)

log = logging.getLogger(__name__)


class Daemon:
    """Runner of one queue's studies, each under a lease of its own."""

    def __init__(
        self,
        repository: Repository,
        queue: str,
        open_launcher: OpenLauncher = launcher_of,
        *,
        only: int | None = None,
        on_sign: Callable[[], object] = lambda: None,
    ) -> None:
        """Prepare to run studies.

        Args:
            only: id of the only study to run; None: all of the queue.
            on_sign: called at each sign of life.
        """
        self._repository = repository
        self._queue = queue
        self._holder = LeaseHolder(this_host(), os.getpid(), LEASE_SECONDS)
        self._only = only
        self._on_sign = on_sign
        self._open_launcher = open_launcher
        self._shutdown = threading.Event()
        self.stops = False
        """True if its study is to be stopped, and not left to the next daemon."""
        self._signals: Signals | None = None
        self._lease: Lease | None = None
        """Lease of the study that runs, or ran when the storage went away."""
        self._presence: Lease | None = None
        """Lease of the queue, by which it is known to have a daemon, or of waiting for its study."""
        self._asked = -math.inf
        """Monotonic time at which that lease was last taken, renewed or asked for."""
        self._sign = time.monotonic()
        self._outage = _Outage(repository)

    @property
    def silence(self) -> float:
        """Seconds since its last sign of life: it gives one every two seconds, if all is well."""
        return time.monotonic() - self._sign

    def _give_sign(self) -> float:
        """Give a sign of life; return the monotonic time."""
        self._sign = time.monotonic()
        self._on_sign()
        return self._sign

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
        self._give_sign()
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
        """Have the queue, or the only study, known to be served, unless another process does.

        A process that runs a single study goes on without: others are only told less.
        """
        now = self._give_sign()
        if now - self._asked < _RENEW_SECONDS:
            return
        try:
            self._renew_presence()
        except StorageUnreachable:
            raise
        except StorageError as error:
            if self._only is None:
                raise
            log.warning("that a process waits for its study cannot be recorded: %s", error)
            now = math.inf  # not again
        self._asked = now

    def _renew_presence(self) -> None:
        leases = self._repository.leases
        if self._presence is None:
            only = self._only
            key = self._queue if only is None else waiting_key(self._queue, only)
            self._presence = leases.acquire(key, self._holder)
        else:
            try:
                leases.renew(self._presence, LEASE_SECONDS)
            except StaleLease:
                self._presence = None

    def _let_go(self) -> None:
        """Give all leases back, as far as the storage can be reached."""
        with contextlib.suppress(*_UNREACHABLE):
            for lease in filter(None, (self._lease, self._presence)):
                self._repository.leases.release(lease)
            self._lease = self._presence = None
            self._asked = -math.inf

    def _run(self, study: StoredStudy, lease: Lease) -> None:
        signals = self._signals = Signals()
        signals.waiting.set()  # until the launcher is open
        if study.stop_requested or self._shutdown.is_set():
            signals.stop.set()
        log.info("study %s: running", study.name)
        began = time.monotonic()
        # The result is written before anything remote is closed, which may take long.
        with self._heartbeat(study, lease, signals), contextlib.ExitStack() as later:
            try:
                run = StudyRun(study, lease, self._repository, signals)
                verdict = run.run(self._open_launcher, self._outage.over, later)
            except Stopped:
                self._stop(lease, study)
            except StaleLease:
                raise
            except _UNREACHABLE:
                raise
            except NotHere as error:
                self._fail(lease, study, str(error))
            except (LauncherError, OtherVersion) as error:
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
        self, lease: Lease, study: StoredStudy, error: AutotuneError, ran: float
    ) -> None:
        """Put the study back into the queue for a later try.

        Machines recover by themselves, or are repaired; another version may have its daemon by then.
        """
        retry = retry_after(study.retries, error, ran)
        # The pauses differ, and `retry_at` has them.
        told = f"{retry.why}; tried again now and then."
        self._repository.messages.say(lease, study.id, told, kind=MessageKind.WAITING)
        state = self._repository.claims.put_back(lease, study.id, retry)
        again = duration(retry.seconds)
        log.warning("study %s: %s: %s; tried again in %s", study.name, state, retry.why, again)

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


def retry_after(before: int, error: AutotuneError, ran: float) -> Retry:
    """Return the next try.

    Args:
        before: number of tries in a row that have failed before this one.
        ran: seconds until this try failed.
    """
    count = 1 if ran >= MOST_SECONDS else before + 1
    first, most = FIRST_SECONDS, MOST_SECONDS
    if isinstance(error, ClusterAway):
        first, most = FIRST_AWAY_SECONDS, MOST_AWAY_SECONDS
    seconds = first * 2.0 ** min(count - 1, 32)
    return Retry(str(error), min(seconds, most), count)


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
            waits = self._signals.waiting.is_set()
            finished = done.wait(_HEAR_SECONDS if waits else _RENEW_SECONDS)
            try:
                self._beat()
                self._outage.over()
            except StaleLease:
                self._signals.lease_stale.set()
            except _UNREACHABLE as error:
                self._outage.tell(error)
            except AutotuneError as error:  # without a heartbeat the lease runs out
                log.error("study %s: its lease cannot be renewed: %s", self._study.name, error)
                self._signals.lease_stale.set()
            except Exception:
                log.exception("study %s: its lease cannot be renewed", self._study.name)
                self._signals.lease_stale.set()

    def _beat(self) -> None:
        self._attend()
        self._repository.leases.renew(self._lease, LEASE_SECONDS)
        now = time.monotonic()
        waits = self._signals.waiting.is_set()
        spent = 0.0 if waits else now - self._counted
        stop = self._repository.claims.add_elapsed(self._lease, self._study.id, spent)
        self._counted = now
        if stop:
            self._signals.stop.set()
