"""What it costs a trial of a script to change no file: launch to report, protected and not, in turn.

python benchmarks/sandbox.py [PAIRS]
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

_PAIRS = 20
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
    pairs = int(sys.argv[1]) if len(sys.argv) > 1 else _PAIRS
    with (
        tempfile.TemporaryDirectory() as name,
        launchers.open_launcher("local", Resources(1, 0, 1, 1), name, None) as launcher,
    ):
        folder = Path(name)
        (folder / "train.py").write_text(_SCRIPT)
        slot = launcher.slots[0]
        _seconds(slot, folder, "first", may_write=False)
        extra = []
        for pair in range(pairs):
            order = (True, False) if pair % 2 else (False, True)
            taken = {may: _seconds(slot, folder, f"{pair}-{may}", may_write=may) for may in order}
            extra.append(taken[False] - taken[True])
    low, middle, high = statistics.quantiles(extra, n=4)
    print(f"{pairs} pairs of trials: {middle:.3f} s more (quartiles {low:.3f} to {high:.3f})")


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
    report = slot.run(request, lambda _: False)
    assert report.outcome is None, report.cause
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
