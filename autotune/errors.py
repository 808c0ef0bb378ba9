"""Every error that a user can meet. A message says what is wrong, where, and what to do."""


class AutotuneError(Exception):
    """Base of all errors that are shown without a traceback."""

    exit_code = 1


class BadInput(AutotuneError):
    """The user's input cannot be used; nothing was started and nothing was changed."""

    exit_code = 2


class SpecError(BadInput):
    """A study file is wrong. `problems` holds one line each: file:line: field: what is allowed."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class StudyNotFound(BadInput):
    """No study of that name in the storage."""


class StorageError(AutotuneError):
    """The storage cannot be reached or written."""


class StorageUnreachable(StorageError):
    """The storage does not answer at present; it may again."""


class DiskFull(StorageUnreachable):
    """No room is left on a disk that a study writes to; there may be again."""


class LeaseLost(AutotuneError):
    """Another daemon has taken over, or the lease was revoked; this one must not write any more."""


class TrialsGone(AutotuneError):
    """Optuna's study of that name is another one by now, or is no more."""

    def __init__(self, study: str) -> None:
        super().__init__(
            f"the trials of {study} are not there any more under its name: somebody has renamed or "
            "deleted it in the dashboard. Give it its name back there, then: autotune resume "
            f"{study}; or: autotune delete {study}, and start it anew"
        )


class BaselineFails(AutotuneError):
    """The user's configuration fails again and again, for a reason of its own."""


class LauncherError(AutotuneError):
    """Ranks cannot be started at present: no agent, no cluster, no room in it."""


class ClusterAway(LauncherError):
    """A cluster, or too much of it, does not answer at present: it comes back without notice."""


class NotHere(LauncherError):
    """What the study asks for is not on this machine, and does not come by itself."""


class DevicesTaken(LauncherError):
    """Another study measures on these devices."""
