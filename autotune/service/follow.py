"""Following a study on the terminal until it ends."""

import contextlib
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Self, TypeVar

from rich.console import Console
from rich.live import Live

from autotune.analysis.verdict import Verdict
from autotune.analysis.wording import duration
from autotune.errors import GaveUp, StorageUnreachable
from autotune.export import writing
from autotune.views.answer import final_block, wrapped
from autotune.views.figures import figures_of
from autotune.views.live import LiveView
from autotune.views.progress import ProgressLines
from autotune.views.recompute import current_verdict
from autotune.views.terminal import plain
from autotune.views.verdict_text import text_of
from storage import Repository, StoredStudy, StudyState
from storage.disk import full, is_full

_Result = TypeVar("_Result")

_POLL_SECONDS = 0.3
_CHECK_SECONDS = 3.0
_HEARTBEAT_SECONDS = 60.0
"""Time without a line after which one says where the study stands, where no terminal shows it."""
_LONGEST_ABSENCE_SECONDS = 600.0
"""Longest wait for a storage: a server that is restarted, or moved to another host, takes minutes."""
_WIDTH, _WIDEST = 80, 120
"""Columns of the final block where no terminal has a width, and at most."""


def follow(
    repository: Repository, study: StoredStudy, keep_alive: Callable[[], None] | None = None
) -> StoredStudy:
    """Show what happens in the study until it ends; return the ended study.

    On a terminal it is a screen that is redrawn; elsewhere a line per event, and one a minute.

    Args:
        keep_alive: called now and then; makes sure that a daemon runs the study. None: only watch.
    """
    console = Console(highlight=False, soft_wrap=True)
    last_check = time.monotonic()
    outage = _StorageOutage(console)
    daemon, waits = _Condition(console), _Condition(console)
    disk = _Condition(console, over="There is room again.")
    kind = _LiveScreen if console.is_terminal else _EventLines
    with kind(console, repository, study) as shown:
        while True:
            with outage.waiting():
                if keep_alive and time.monotonic() - last_check > _CHECK_SECONDS:
                    last_check = time.monotonic()
                    keep_alive()
                    reason = held_back_by(repository, repository.studies.named(study.name))
                    waits.is_now(f"Waiting: {reason}." if reason else "")
                study = repository.studies.named(study.name)
                shown.update()
                if study.state.ended:
                    return study
                disk.is_now(_disk_full(repository.database.folder))
                if keep_alive is None:
                    daemon.is_now(_no_daemon(repository, study))
            time.sleep(_POLL_SECONDS)


class _LiveScreen:
    """Screen of a study on a terminal, redrawn in place; its last state stays."""

    def __init__(self, console: Console, repository: Repository, study: StoredStudy) -> None:
        self._console = console
        self._view = LiveView(repository, study)
        self._live = Live(console=console, auto_refresh=False)

    def __enter__(self) -> Self:
        self._live.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._live.__exit__(None, None, None)

    def update(self) -> None:
        """Draw the study as it is now."""
        width, height = self._console.size
        self._live.update(self._view.screen(width, height), refresh=True)


class _EventLines:
    """Lines of a study where no terminal shows it all the time."""

    def __init__(self, console: Console, repository: Repository, study: StoredStudy) -> None:
        self._console = console
        self._lines = ProgressLines(repository, study)
        self._last = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """Leave nothing behind."""

    def update(self) -> None:
        """Print what is new; after a minute without a line, where the study stands."""
        new = list(self._lines.new())
        if not new and time.monotonic() - self._last > _HEARTBEAT_SECONDS:
            new = [self._lines.headline()]
        for line in new:
            self._console.print(plain(line), markup=False)
            self._last = time.monotonic()


class _Condition:
    """Condition that is printed when it begins, and perhaps when it has ended."""

    def __init__(self, console: Console, over: str = "") -> None:
        self._console = console
        self._over = over
        self._holds = False

    def is_now(self, text: str) -> None:
        """Take in the condition in words; empty: it does not hold."""
        changed = bool(text) != self._holds
        self._holds = bool(text)
        if changed and (said := text or self._over):
            self._console.print(plain(said), markup=False)


def _no_daemon(repository: Repository, study: StoredStudy) -> str:
    """Return that no daemon runs a study, in words; empty if one does."""
    if repository.leases.serving(study) is not None:
        return ""
    return f"No daemon runs it; autotune resume {study.name} starts one."


def _disk_full(folder: Path | None) -> str:
    """Return that the disk of SQLite's folder is full, in words; empty if it is not."""
    if folder is None or not is_full(folder):
        return ""
    return f"Waiting: {full(folder)}; the study goes on once there is some."


def held_back_by(repository: Repository, study: StoredStudy) -> str:
    """Return why a queued study may not begin: it is held, or a quota is exhausted; else empty."""
    if study.state != StudyState.QUEUED:
        return ""
    if study.held:
        return f"held; autotune release {study.name}"
    return repository.quotas.reasons()(study.owner)


def through_outages(action: Callable[[], _Result]) -> _Result:
    """Return the result of an action on a storage; wait for one that does not answer at present.

    The action begins anew after each outage.

    Raises:
        GaveUp: the storage stays away.
    """
    outage = _StorageOutage(Console(highlight=False, soft_wrap=True, stderr=True))
    while True:
        with outage.waiting():
            return action()
        time.sleep(_CHECK_SECONDS)


class _StorageOutage:
    """Outage of the storage, for which the daemon and the follower wait."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._since: float | None = None

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Print when the storage goes and when it is back.

        Raises:
            GaveUp: it stays away.
        """
        try:
            yield
        except StorageUnreachable as error:
            now = time.monotonic()
            if self._since is None:
                self._console.print(plain(f"{error}; waiting for it."), markup=False)
            self._since = self._since or now
            if now - self._since > _LONGEST_ABSENCE_SECONDS:
                away = duration(now - self._since)
                raise GaveUp(f"{error}; it has been away for {away}") from None
        else:
            if self._since is not None:
                self._console.print("The storage is back.")
            self._since = None


def detached(repository: Repository, name: str) -> str:
    """Return the message when following stops: whether the study runs on."""
    try:
        study = repository.studies.named(name)
        holder = repository.leases.serving(study)
    except StorageUnreachable as error:
        return f"\nDetached; whether {name} runs on is unknown: {error}"
    if study.state.ended:
        return f"\nDetached; {name} is {study.state}. autotune status {name}"
    if holder is None:
        return (
            f"\nDetached; {name} is {study.state}, but no daemon runs it. autotune resume {name} "
            "starts one."
        )
    waits = study.state == StudyState.QUEUED
    how = "waits in the queue" if waits else "runs on"
    return f"\nDetached; {name} {how}. autotune watch {name}, autotune stop {name}"


def conclusion(repository: Repository, study: StoredStudy, exported: Path) -> str:
    """Return the message when a study has ended or is stopped, with its current answer."""
    if study.state == StudyState.DONE and study.verdict:
        return f"\n{block_of(repository, study, exported)}"
    text = f"Failed: {study.error}"
    if study.state == StudyState.STOPPED:
        text = f"Stopped. `autotune resume {study.name}` goes on where it stood."
    answer = current_verdict(repository, study)
    if answer.trial is not None:
        text += f"\n{text_of(answer)}\n`autotune export {study.name}` writes that."
    return "\n".join(["", *wrapped(text, _columns())])


def _columns() -> int:
    """Return the columns of the terminal that are used; those of a file where there is none."""
    columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else _WIDTH
    return min(columns, _WIDEST)


def block_of(repository: Repository, study: StoredStudy, exported: Path) -> str:
    """Return the final block of a study that is done.

    Args:
        exported: path of its best.yaml.
    """
    figures = figures_of(repository, study)
    written = figures.answer.trial is not None and writing.is_of(exported, study.name)
    return final_block(figures, width=_columns(), exported=_shown(exported, written))


def _shown(path: Path, written: bool) -> str:
    """Return a path as it is typed here; empty if it is not written."""
    if not written:
        return ""
    with contextlib.suppress(ValueError):
        return str(path.relative_to(Path.cwd()))
    return str(path)


def exit_code(study: StoredStudy) -> int:
    """Return 0 when the study ended with a recommendation, else 1."""
    if study.state != StudyState.DONE or study.verdict is None:
        return 1
    return 1 if Verdict.from_dict(study.verdict).trial is None else 0
