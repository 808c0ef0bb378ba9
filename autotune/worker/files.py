"""Every file that a trial leaves on a node, and the only place that knows their names."""

import contextlib
import os
import shutil
import tempfile
from pathlib import Path

MOST_LOG_BYTES = 64 * 2**20
"""Size above which a log is cut to its end."""
_KEPT_LOG_BYTES = 2**20
_TAKEN_LOG_BYTES = 2**20
_TAKEN_TRACE_BYTES = 32 * 2**20
_OF_USER = 0o700
_LONGEST_FOR_SOCKETS = 75
"""Bytes of a folder's path. That of a socket may have 107, of which multiprocessing takes 32."""
COMPILER_CACHES = {
    "TORCHINDUCTOR_CACHE_DIR": "",
    "TRITON_CACHE_DIR": "triton",
    "TORCH_EXTENSIONS_DIR": "extensions",
}
"""Variable that names a folder of compiled code -> its place in the study's folder of such code.

Compiling it again would cost each trial minutes.
"""


def folder_for_sockets() -> str:
    """Return the folder of temporary files, or a shorter one where sockets would have too long paths."""
    usual = tempfile.gettempdir()
    return usual if len(os.fsencode(usual)) <= _LONGEST_FOR_SOCKETS else "/tmp"


def make_private(folder: Path) -> None:
    """Make a folder and its missing parents, readable for this user alone.

    The output of trials may hold secrets.

    Raises:
        OSError: the folder cannot be made.
    """
    for missing in reversed([parent for parent in folder.parents if not parent.exists()]):
        missing.mkdir(mode=_OF_USER, exist_ok=True)
    folder.mkdir(mode=_OF_USER, exist_ok=True)


class TrialFiles:
    """Paths of the files in a trial's folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def progress(self, first_rank: int) -> Path:
        """Return the file with the counters of a node's ranks, named by the first of them."""
        return self.folder / f"progress-{first_rank}"

    def log(self, rank: int) -> Path:
        """Return the log of a rank."""
        return self.folder / f"rank-{rank}.log"

    def tail(self, rank: int, most: int) -> str:
        """Return the end of a rank's log, at most this number of bytes, as text."""
        try:
            with self.log(rank).open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - most))
                return file.read(most).decode(errors="replace")
        except OSError:
            return ""

    def cut(self, rank: int, most: int = MOST_LOG_BYTES) -> None:
        """Cut a rank's log to its end if it has grown too long.

        The rank goes on behind that end, as logs are opened for appending. Output of this very
        moment may be lost.
        """
        log = self.log(rank)
        try:
            size = log.stat().st_size
            if size <= most:
                return
            end = self.tail(rank, min(_KEPT_LOG_BYTES, most // 2))
            notice = f"[autotune: the log was longer than {most} bytes; here is its end]\n"
            with log.open("ab") as file:
                file.truncate(0)
                file.write((notice + end).encode(errors="replace"))
        except OSError:
            return  # it is gone, or the disk is full, which is reported elsewhere

    def logs(self) -> list[Path]:
        """Return the logs of all ranks that are on this machine."""
        return sorted(self.folder.glob("rank-*.log"))

    def taken(self, token: str) -> dict[str, bytes]:
        """Return logs, traces and surveys by name for another machine, and delete this folder.

        A long log is cut to its end; a trace that is too long is left out.

        Args:
            token: name of a file that the caller has made in the folder on its own machine. Where
                it is
            found here, both are the same folder: nothing is returned or deleted.
        """
        if (self.folder / token).exists():
            return {}
        found = {}
        other = self.folder.glob(self.protection().name)
        for file in [*self.logs(), *self.traces(), *self.surveys(), *other]:
            with contextlib.suppress(OSError), file.open("rb") as content:
                size = content.seek(0, os.SEEK_END)
                is_log = file.suffix == ".log"
                content.seek(max(0, size - _TAKEN_LOG_BYTES) if is_log else 0)
                if is_log or size <= _TAKEN_TRACE_BYTES:
                    found[file.name] = content.read()
        shutil.rmtree(self.folder, ignore_errors=True)
        return found

    def trace(self, rank: int) -> Path:
        """Return the profiler's trace of a rank, which Perfetto opens."""
        return self.folder / f"trace-{rank}.json.gz"

    def survey(self, rank: int) -> Path:
        """Return the file with the survey of a script by a rank."""
        return self.folder / f"survey-{rank}.json"

    def protection(self) -> Path:
        """Return the JSON file that says how the user's files were protected on this node."""
        return self.folder / "protection.json"

    def command(self) -> Path:
        """Return the folder that a command writes to."""
        return self.folder / "command"

    def copies(self) -> Path:
        """Return the folder for copies of the files that a script reads its settings from."""
        return self.folder / "copies"

    def traces(self) -> list[Path]:
        """Return the traces of all ranks that are on this machine."""
        return sorted(self.folder.glob("trace-*.json.gz"))

    def surveys(self) -> list[Path]:
        """Return the surveys by all ranks that are on this machine."""
        return sorted(self.folder.glob("survey-*.json"))
