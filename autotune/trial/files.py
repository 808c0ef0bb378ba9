"""Every file that a trial leaves on a node. The one owner of their names."""

from pathlib import Path


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

    def logs(self) -> list[Path]:
        """Of all ranks, as far as this machine has them."""
        return sorted(self.folder.glob("rank-*.log"))

    def trace(self, rank: int) -> Path:
        """The profiler's trace of a rank, which Perfetto opens."""
        return self.folder / f"trace-{rank}.json.gz"

    def survey(self, rank: int) -> Path:
        """What a rank has seen of a script, for whoever writes a study of it."""
        return self.folder / f"survey-{rank}.json"

    def command(self) -> Path:
        """The folder of a command for what it writes."""
        return self.folder / "command"

    def copies(self) -> Path:
        """The folder of copies of the files that a script reads its settings from."""
        return self.folder / "copies"

    def traces(self) -> list[Path]:
        """Of all ranks, as far as this machine has them."""
        return sorted(self.folder.glob("trace-*.json.gz"))
