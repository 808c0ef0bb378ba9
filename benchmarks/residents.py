"""Cost of a search whose trials take over warm workers, against one that launches each trial.

    python benchmarks/residents.py [--json] [--trials N] [--build SECONDS]

The same study twice on this machine, in databases of their own: over slots as they are, and over slots
whose processes never stay. Its workload takes so many seconds to build.
"""

import argparse
import dataclasses
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from autotune.analysis.verdict import Verdict
from autotune.config import load
from autotune.runs.study_setup import launcher_of
from autotune.service.daemon import Daemon
from autotune.service.queues import this_queue
from autotune.service.submission import submit
from autotune.views.verdict_text import text_of
from autotune.worker.protocol import TrialReport, TrialRequest
from launchers import Launcher, Slot, TurnSchedule
from storage import AttemptState, Database, Purpose, Repository

HERE = Path(__file__).parent
SPACE = {
    "micro_batch": [2, 4, 8, 16],
    "accumulation_steps": [1, 2],
    "precision": ["fp32", "bf16"],
    "log_interval": [1, 10],
}
MEASUREMENT = {
    "block_seconds": "0.1s",
    "min_steps": 2,
    "warmup": "0.5s",
    "max_measure_time": "1s",
    "baseline_runs": 1,
    "finalists": 1,
    "rounds": 3,
    "ablation_rounds": 0,
}
SMALL = {"layers": 2, "d_model": 64, "heads": 2, "length": 32}


def leaving(*args: Any) -> Launcher:
    """Open a launcher on whose slots no process stays."""
    launcher = launcher_of(*args)
    for slot in launcher.slots:
        slot.run = _never_stays(slot)  # type: ignore[method-assign]
    return launcher


def _never_stays(slot: Slot) -> Any:
    plain = slot.run

    def run(requests: Sequence[TrialRequest], schedule: TurnSchedule) -> list[TrialReport]:
        return plain([dataclasses.replace(one, stays=False) for one in requests], schedule)

    return run


def searched(folder: Path, opened: Any, trials: int, build: float) -> dict[str, Any]:
    """Return the seconds of the search of one study."""
    folder.mkdir()
    study = {
        "name": "built",
        "workload": {"name": "slow_build:build", "args": {"seconds": build, **SMALL}},
        "resources": {"workers": 2, "max_concurrent_trials": 1},
        "search_space": SPACE,
        "objective": {"global_batch_size": "free"},
        "sampler": "random",
        "budget": {"trials": trials, "min_improvement": 0},
        "measurement": MEASUREMENT,
    }
    (folder / "study.yaml").write_text(yaml.safe_dump(study))
    (folder / "slow_build.py").write_text((HERE / "slow_build.py").read_text())
    repository = Repository(Database(f"sqlite:///{folder / 'study.db'}"))
    submit(repository, load(folder / "study.yaml"), folder)
    Daemon(repository, this_queue(), open_launcher=opened).serve(idle_seconds=0.0)
    found = repository.studies.named("built")
    assert found.verdict is not None, found.error
    attempts = [a for a in repository.attempts.of(found.id) if a.purpose == Purpose.SEARCH]
    return {
        "verdict": text_of(Verdict.from_dict(found.verdict)),
        "trials": sum(a.recorded for a in attempts),
        "launches": sum(a.result.resident_of is None for a in attempts),
        "launched_again": sum(a.result.state == AttemptState.LOST for a in attempts),
        "seconds": sum(a.result.wall_seconds for a in attempts),
        "each": [round(a.result.wall_seconds, 2) for a in attempts],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--trials", type=int, default=12)
    parser.add_argument("--build", type=float, default=10.0, metavar="SECONDS")
    given = parser.parse_args()
    report = {}
    for name, opened in (("residents", launcher_of), ("launches", leaving)):
        with tempfile.TemporaryDirectory() as folder:
            report[name] = searched(Path(folder) / name, opened, given.trials, given.build)
    if given.json:
        print(json.dumps(report, indent=2))
        return
    for name, found in report.items():
        print(
            f"{name}: {found['trials']} trials in {found['seconds']:.0f} s, "
            f"{found['launches']} launches"
        )


if __name__ == "__main__":
    main()
