"""Is the wall time of a study kept, and what is said at its end, where a step takes seconds?

    python benchmarks/budgets.py [--json] [--seconds 60 120 300] [--models nanogpt words]

nanoGPT's small model and the word-level Transformer of PyTorch's examples, on two ranks, with the
measurement that a study has by default.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml

from autotune.analysis.verdict import Verdict
from autotune.views.verdict_text import shown
from storage import Database, Purpose, Repository

ROOT = Path(__file__).parent.parent
BUDGETS = (60, 120, 300)
ALLOWED = 1.1

MODELS: dict[str, dict[str, Any]] = {
    "nanogpt": {
        "workload": {
            "name": "gpt",
            "args": {"layers": 6, "d_model": 384, "heads": 6, "length": 256},
        },
        "baseline": {"micro_batch": 2, "accumulation_steps": 1},
        "search_space": {
            "micro_batch": [1, 2, 4, 8],
            "precision": ["fp32", "bf16"],
            "gradient_as_bucket_view": [False, True],
        },
    },
    "words": {
        "workload": {"name": "benchmarks.word_model:build"},
        "baseline": {"micro_batch": 20, "accumulation_steps": 1},
        "search_space": {
            "micro_batch": [10, 20, 40],
            "bucket_cap_mb": [5, 25, 100],
            "gradient_as_bucket_view": [False, True],
        },
    },
}


@dataclass(frozen=True)
class Kept:
    """How a study ended.

    Attributes:
        elapsed: seconds that it ran, as it counts them itself.
        command: seconds of the whole command, imports included.
        step: seconds of the baseline's step; None if none was timed.
    """

    model: str
    budget: float
    elapsed: float
    command: float
    step: float | None
    trials: int
    rounds: int
    kind: str
    sentence: str

    @property
    def kept(self) -> bool:
        """Within a tenth, or a step."""
        return self.elapsed <= max(ALLOWED * self.budget, self.budget + (self.step or 0.0))


def run(model: str, seconds: float, folder: Path) -> Kept:
    """Run a whole study in a folder that is to be made."""
    folder.mkdir(parents=True)
    budget = {"trials": None, "wall_time": seconds}
    study = {"name": model, "resources": {"workers": 2}, "budget": budget, **MODELS[model]}
    (folder / "study.yaml").write_text(yaml.safe_dump(study))
    url = f"sqlite:///{folder / 'study.db'}"
    began = time.monotonic()
    subprocess.run(
        [sys.executable, "-m", "autotune", "start", "study.yaml", "--foreground", "--storage", url],
        cwd=folder,
        stdout=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,  # 1 where there is nothing to recommend
    )
    return _kept(model, seconds, Repository(Database(url)), time.monotonic() - began)


def _kept(model: str, seconds: float, repository: Repository, command: float) -> Kept:
    study = repository.studies.named(model)
    attempts = repository.attempts.of(study.id)
    own = [a.id for a in attempts if a.trial == 0 and a.result.throughput is not None]
    blocks = [b for number in own for b in repository.attempts.blocks(number) if b.kept]
    verdict: dict[str, Any] = {"kind": str(study.state), "sentence": study.error}
    if study.verdict:
        verdict = shown(Verdict.from_dict(study.verdict))
    return Kept(
        model=model,
        budget=seconds,
        elapsed=study.elapsed,
        command=command,
        step=statistics.median(b.seconds / b.steps for b in blocks) if blocks else None,
        trials=sum(a.purpose == Purpose.SEARCH and a.recorded for a in attempts),
        rounds=verdict.get("rounds", 0),
        kind=verdict["kind"],
        sentence=verdict["sentence"],
    )


def measured(models: Sequence[str], budgets: Sequence[float]) -> list[Kept]:
    """Every model under every budget."""
    with tempfile.TemporaryDirectory() as folder:
        return [
            run(model, seconds, Path(folder) / f"{model}-{seconds:g}")
            for model in models
            for seconds in budgets
        ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--seconds", nargs="+", type=float, default=BUDGETS)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    found = measured(arguments.models, arguments.seconds)
    if arguments.json:
        print(json.dumps([{**asdict(one), "kept": one.kept} for one in found], indent=2))
        return
    for one in found:
        step = f"steps of {one.step:.1f} s" if one.step else "no step"
        print(
            f"{one.model}, {one.budget:g} s: {one.elapsed:.0f} s, {step}, {one.trials} trials, "
            f"{one.rounds} rounds. {one.sentence}"
        )


if __name__ == "__main__":
    main()
