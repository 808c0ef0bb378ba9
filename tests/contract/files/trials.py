"""Trials of a script that writes, one after another: `python -m` with the folder of the project, that of
the logs, and arguments of the script. Prints what became of them as JSON."""

import json
import sys
from pathlib import Path

import launchers
from autotune.worker.files import TrialFiles
from autotune.worker.protocol import BlockPlan, Script
from launchers import Resources
from tests.support.trials import ENDLESS, trial

_TRIALS = 2


def main(project: Path, logs: Path, arguments: list[str]) -> None:
    """Run the trials, and print of each its outcome, cause and protection."""
    told = []
    endless = "--endless" in arguments
    with launchers.section_of("local").open(Resources(1, 0, 1, 1), str(logs)) as launcher:
        for number in range(_TRIALS):
            request = trial(
                project,
                "",
                world_size=1,
                import_paths=(),
                log_dir=str(logs / str(number)),
                script=Script("train.py", tuple(a for a in arguments if a != "--endless")),
                blocks=BlockPlan(0.02, 2, max_blocks=ENDLESS if endless else 3),
                may_write=False,
            )
            report = launcher.slots[0].run_solo(request, lambda _: False)
            record = TrialFiles(Path(request.log_dir)).protection()
            how = json.loads(record.read_text())["how"] if record.exists() else None
            told.append({"outcome": report.outcome, "cause": report.cause, "how": how})
    print(json.dumps(told))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
