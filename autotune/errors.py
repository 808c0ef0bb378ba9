"""Errors that a user can meet. A message says what is wrong, where, and what to do."""

import textwrap

_MOST_OF_LINE = 300


class AutotuneError(Exception):
    """Base of all errors that are shown without a traceback."""

    exit_code = 1


class BadInput(AutotuneError):
    """Error in the user's input; nothing was started and nothing was changed."""

    exit_code = 2


class SpecError(BadInput):
    """Error in a study file. `problems` holds one line each: file:line: field: what is allowed."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class OtherVersion(BadInput):
    """Error for a study whose settings another version of autotune has stored."""


class StudyNotFound(BadInput):
    """Error for a study that the storage does not have."""


class StorageError(AutotuneError):
    """Error of a storage that cannot be reached or written."""


class StorageUnreachable(StorageError):
    """Error of a storage that does not answer at present; it may again."""


class DiskFull(StorageUnreachable):
    """Error for a full disk that a study writes to; there may be room again."""


class StaleLease(AutotuneError):
    """Error of a daemon whose lease another one has taken, or that was revoked: it may not write."""


class Requeued(AutotuneError):
    """End of a process that was told to leave, and whose study another one is to go on with.

    The exit code is EX_TEMPFAIL of sysexits.h: a batch system may start the command again.
    """

    exit_code = 75


class GaveUp(AutotuneError):
    """End of a process that has waited for long for what its study needs, and in vain.

    The exit code is EX_UNAVAILABLE of sysexits.h: begun again at once, it would only wait again.
    """

    exit_code = 69


class TrialsGone(AutotuneError):
    """Error for trials of Optuna that were renamed, replaced or deleted."""

    def __init__(self, study: str) -> None:
        super().__init__(
            f"the trials of {study} are not there any more under its name: it was renamed or "
            "deleted in the dashboard. Give it its name back there, then: autotune resume "
            f"{study}; or: autotune delete {study}, and start it anew"
        )


class BaselineFails(AutotuneError):
    """Error for a baseline that fails repeatedly, for a reason of its own."""


class LauncherError(AutotuneError):
    """Error for ranks that cannot be started at present: no agent, no cluster, no room in it."""


class ClusterAway(LauncherError):
    """Error for a cluster of which too much does not answer at present; it returns without notice."""


class NotHere(LauncherError):
    """Error for a resource that this machine lacks for good."""


class UnfitNodes(NotHere):
    """Error for nodes that are too few or too small for a study, or have other devices than it needs.

    Other nodes may fit: another job of a batch system may have them.
    """


class DevicesTaken(LauncherError):
    """Error for devices on which another study measures."""


def first_line(error: Exception) -> str:
    """Return the first line of an error's message, shortened to a few lines of a terminal.

    Where the message is empty, it is the name of the error's type.
    """
    line = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return textwrap.shorten(line, _MOST_OF_LINE, placeholder=" ...")
