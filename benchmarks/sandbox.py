"""Cost of the file protection of a script's trial: launch to report, protected and not, interleaved.

A round has two unprotected trials: the difference between them shows the noise (A/A).

python benchmarks/sandbox.py [ROUNDS]
"""

import statistics
import sys
import tempfile
import time
from pathlib import Path

import launchers
import search_spaces
from autotune.worker.protocol import BlockPlan, Script, TrialRequest
from launchers import Resources, Slot

_ROUNDS = 20
_FREE, _PROTECTED, _FREE_AGAIN = _ORDER = ("free", "protected", "free again")
_SCRIPT = """
import torch
from torch.utils.data import DataLoader, TensorDataset
model = torch.nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
while True:
    for (x,) in DataLoader(TensorDataset(torch.randn(64, 8)), batch_size=4):
        model(x).square().mean().backward()
        optimizer.step()
"""


def main() -> None:
    """Measure, and print a table."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else _ROUNDS
    with (
        tempfile.TemporaryDirectory() as name,
        launchers.section_of("local").open(Resources(1, 0, 1, 1), name) as launcher,
    ):
        folder = Path(name)
        (folder / "train.py").write_text(_SCRIPT)
        slot = launcher.slots[0]
        _seconds(slot, folder, "first", may_write=False)
        extra, noise = [], []
        for number in range(rounds):
            taken = {
                name: _seconds(slot, folder, f"{number}-{name}", may_write=name != _PROTECTED)
                for name in (_ORDER if number % 2 else reversed(_ORDER))
            }
            extra.append(taken[_PROTECTED] - (taken[_FREE] + taken[_FREE_AGAIN]) / 2)
            noise.append(taken[_FREE_AGAIN] - taken[_FREE])
    print(f"{rounds} rounds: {_described(extra)} more; A/A {_described(noise)}")


def _described(differences: list[float]) -> str:
    low, middle, high = statistics.quantiles(differences, n=4)
    return f"{middle:.3f} s (quartiles {low:.3f} to {high:.3f})"


def _seconds(slot: Slot, folder: Path, name: str, *, may_write: bool) -> float:
    request = TrialRequest(
        trial=name,
        factory="",
        args={},
        knobs=search_spaces.defaults(),
        world_size=1,
        seed=0,
        device="cpu",
        blocks=BlockPlan(0.0, 1, max_blocks=2),
        workdir=str(folder),
        log_dir=str(folder / "logs" / name),
        script=Script("train.py"),
        may_write=may_write,
    )
    began = time.perf_counter()
    report = slot.run_solo(request, lambda _: False)
    assert report.outcome is None, report.cause
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
