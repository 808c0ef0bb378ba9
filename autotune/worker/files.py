"""Every file that a trial leaves on a node. The one owner of their names."""

import contextlib
import os
import shutil
from pathlib import Path

MOST_LOG_BYTES = 64 * 2**20
"""A log that has grown beyond this is cut to its end."""
_KEPT_LOG_BYTES = 2**20
_TAKEN_LOG_BYTES = 2**20
_TAKEN_TRACE_BYTES = 32 * 2**20
_OF_USER = 0o700
COMPILER_CACHES = {
    "TORCHINDUCTOR_CACHE_DIR": "",
    "TRITON_CACHE_DIR": "triton",
    "TORCH_EXTENSIONS_DIR": "extensions",
}
"""Variable that names a folder of compiled code -> its place in the study's folder of such code.

To compile it again would cost each trial minutes."""


def make_private(folder: Path) -> None:
    """Make a folder unless it is there, and those above it that are missing.

    For this user alone: what trials print may hold secrets.

    Raises:
        OSError: it may not be made.
    """
    for missing in reversed([parent for parent in folder.parents if not parent.exists()]):
        missing.mkdir(mode=_OF_USER, exist_ok=True)
    folder.mkdir(mode=_OF_USER, exist_ok=True)


class TrialFiles:
    """What is in the folder of a trial."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def progress(self, first_rank: int) -> Path:
        """Counters of the ranks of a node, known by its first."""
        return self.folder / f"progress-{first_rank}"

    def log(self, rank: int) -> Path:
        """What a rank prints."""
        return self.folder / f"rank-{rank}.log"

    def tail(self, rank: int, most: int) -> str:
        """The end of what a rank has printed, however much that is: so many bytes, as text."""
        try:
            with self.log(rank).open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - most))
                return file.read(most).decode(errors="replace")
        except OSError:
            return ""

    def cut(self, rank: int, most: int = MOST_LOG_BYTES) -> None:
        """Leave the end of a rank's log if it has become too long. Who prints goes on behind that, as
        logs are only ever added to; what is printed at this very moment may be lost."""
        log = self.log(rank)
        try:
            size = log.stat().st_size
            if size <= most:
                return
            end = self.tail(rank, min(_KEPT_LOG_BYTES, most // 2))
            said = f"[autotune: the log was longer than {most} bytes; here is its end]\n"
            with log.open("ab") as file:
                file.truncate(0)
                file.write((said + end).encode(errors="replace"))
        except OSError:
            return  # it is gone, or the disk is full: which is for others to say

    def logs(self) -> list[Path]:
        """Of all ranks, as far as this machine has them."""
        return sorted(self.folder.glob("rank-*.log"))

    def taken(self, token: str) -> dict[str, bytes]:
        """Logs and traces by name, for a machine that does not see this folder, which is gone then. Of a
        long log it is the end; a trace that is too long is left out.

        Args:
            token: name of a file that whoever asks has made in the folder on its machine: where that is
                here, it is the same folder, and stays.
        """
        if (self.folder / token).exists():
            return {}
        found = {}
        for file in [*self.logs(), *self.traces(), *self.folder.glob(self.protection().name)]:
            with contextlib.suppress(OSError), file.open("rb") as content:
                size = content.seek(0, os.SEEK_END)
                is_log = file.suffix == ".log"
                content.seek(max(0, size - _TAKEN_LOG_BYTES) if is_log else 0)
                if is_log or size <= _TAKEN_TRACE_BYTES:
                    found[file.name] = content.read()
        shutil.rmtree(self.folder, ignore_errors=True)
        return found

    def trace(self, rank: int) -> Path:
        """The profiler's trace of a rank, which Perfetto opens."""
        return self.folder / f"trace-{rank}.json.gz"

    def survey(self, rank: int) -> Path:
        """What a rank has seen of a script, for whoever writes a study of it."""
        return self.folder / f"survey-{rank}.json"

    def protection(self) -> Path:
        """How the user's files were protected on this node, as JSON."""
        return self.folder / "protection.json"

    def command(self) -> Path:
        """The folder of a command for what it writes."""
        return self.folder / "command"

    def copies(self) -> Path:
        """The folder of copies of the files that a script reads its settings from."""
        return self.folder / "copies"

    def traces(self) -> list[Path]:
        """Of all ranks, as far as this machine has them."""
        return sorted(self.folder.glob("trace-*.json.gz"))
