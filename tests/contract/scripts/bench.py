"""A folder with training scripts that nobody has changed, and a slot to run them on."""

import json
from pathlib import Path
from typing import Any

from autotune.worker.files import TrialFiles
from autotune.worker.protocol import PYTHON, BlockPlan, Script, TrialReport
from autotune.worker.survey_result import SurveyResult
from launchers import Slot
from tests.support.trials import PATIENT, knobs, trial

SCRIPTS = Path(__file__).parents[2] / "scripts"
RANKS = 2
TRAINS = """
import torch, torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
training = DataLoader(TensorDataset(torch.randn(64, 8)), 4)
evaluation = DataLoader(TensorDataset(torch.randn(64, 8)), 4, num_workers=1, persistent_workers=True)
while True:
    for number, (x,) in enumerate(training):
        model(x).square().mean().backward()
        optimizer.step()
"""
IN_A_THREAD = """
import queue, threading
class Background:
    def __init__(self, loader, size):
        self.queue = queue.Queue(size)
        self.thread = threading.Thread(target=self.fill, args=(loader,), daemon=True)
        self.thread.start()
    def fill(self, loader):
        for batch in loader:
            self.queue.put(batch)
        self.queue.put(None)
    def __iter__(self):
        while (batch := self.queue.get()) is not None:
            while self.thread.is_alive() and not self.queue.full():
                self.thread.join(0.001)
            yield batch
"""
"""Loader wrapper that has drawn as many batches ahead as its queue holds, or one more."""
OWN_BATCHES = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
while True:
    model(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()
"""
EVALUATES = f"""{TRAINS}\
        if number % 8 == 7:
            for (y,) in evaluation:
                with torch.no_grad():
                    model.module(y)
"""
REDIRECTED = """
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
dist.init_process_group("gloo")
model = torch.nn.Linear(8, 2)
wrapper = DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, FUSED)
forward = model.forward
def training_step(x):
    model.forward = forward
    return model(x).square().mean()
def closure():
    optimizer.zero_grad()
    model.forward = training_step
    loss = wrapper(next(batches))
    loss.backward()
    return loss
def without_end():
    while True:
        yield from DataLoader(torch.ones(64, 8), batch_size=4)
batches = without_end()
while True:
    optimizer.step(closure)
"""


class Bench:
    """A folder with scripts, and a slot to run them on."""

    def __init__(self, slot: Slot, folder: Path) -> None:
        self._slot = slot
        self._folder = folder
        self._told = folder / "told"
        self.import_paths: tuple[str, ...] = ()
        for script in SCRIPTS.glob("*.py"):
            (folder / script.name).write_text(script.read_text())

    @property
    def record(self) -> Path:
        """File that $TOLD names."""
        return self._told

    def write(self, text: str) -> str:
        (self._folder / "own.py").write_text(text)
        return "own.py"

    def run(
        self,
        path: str,
        *args: str,
        blocks: int = 4,
        env: dict[str, str] | None = None,
        samples: int = 0,
        told: dict[str, Any] | None = None,
        asked: dict[str, Any] | None = None,
        **changes: Any,
    ) -> TrialReport:
        """A trial of the script; keyword arguments are knobs that act from outside.

        Args:
            told: fields of the script.
            asked: further fields of the request.
        """
        request = trial(
            self._folder,
            "",
            world_size=1 if (told or {}).get("launch") == PYTHON else RANKS,
            import_paths=self.import_paths,
            script=Script(path, args, changes=tuple(changes), samples=samples, **(told or {})),
            blocks=BlockPlan(0.05, 2, max_blocks=blocks),
            env={"TOLD": str(self._told), **(env or {})},
            **{"timeouts": PATIENT, "knobs": knobs(**changes), **(asked or {})},
        )
        return self._slot.run_solo(request, lambda _: False)

    def look(self, path: str) -> SurveyResult:
        """Observations that a survey of the script has made on rank 0."""
        logs = self._folder / "survey"
        report = self.run(path, told={"survey": 6}, asked={"log_dir": str(logs)})
        assert report.outcome is None, f"{report.cause}\n{report.log_tail}"
        return SurveyResult.from_text(TrialFiles(logs).survey(0).read_text())

    def told(self) -> list[dict[str, Any]]:
        """By the ranks of telling.py."""
        paths = [Path(f"{self._told}-{rank}") for rank in range(RANKS)]
        return [json.loads(path.read_text()) for path in paths]


def assert_well(report: TrialReport, blocks: int = 4) -> None:
    assert report.outcome is None, f"{report.cause}\n{report.log_tail}"
    assert len(report.blocks) == blocks
