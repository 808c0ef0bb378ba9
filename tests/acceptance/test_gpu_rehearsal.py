"""The benchmark for a device, rehearsed without one."""

import json
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
PARTS = ("clock: events of the device", "knobs on gpt, precision=fp32")


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What benchmarks/gpu.py defines."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    return runpy.run_path(str(BENCHMARKS / "gpu.py"))


@pytest.fixture
def rehearse(script: dict[str, Any], tmp_path: Path) -> Callable[[str], dict[str, Any]]:
    """Measures a part, unless that was done, writes everything, and returns the journal's parts."""

    def run(only: str) -> dict[str, Any]:
        journal = script["Journal"](tmp_path / "gpu-it.jsonl")
        bench = script["Bench"](script["REHEARSAL"], tmp_path, tmp_path)
        script["run"](bench, journal, "it", minutes=10, only=only)
        return journal.parts()

    return run


@pytest.mark.errand
def test_parts_are_measured_once_and_written(
    rehearse: Callable[[str], dict[str, Any]], tmp_path: Path
) -> None:
    for part in PARTS:
        found = rehearse(part)
    assert not [part for part in found.values() if "error" in part]
    events = found[PARTS[0]]["figures"]
    # How many blocks there was time for depends on the machine.
    assert events["blocks"] >= 1 and 0 < events["ratio"]["median"] <= 1
    journal = (tmp_path / "gpu-it.jsonl").read_text()
    for part in PARTS:
        assert rehearse(part) == found
    assert (tmp_path / "gpu-it.jsonl").read_text() == journal
    assert "## Clock: events of the device" in (tmp_path / "gpu-it.md").read_text()
    effects = json.loads((tmp_path / "knobs-gpu.json").read_text())
    assert effects["precision"]["value"] == "bf16"
    assert "on gpt, micro_batch=2" in (tmp_path / "knobs.md").read_text()


def test_what_failed_or_was_cut_short_is_measured_again(
    script: dict[str, Any], tmp_path: Path
) -> None:
    path = tmp_path / "journal.jsonl"
    journal = script["Journal"](path)
    journal.add("whole", 1.0, {"figure": 1})
    journal.add("failed", 1.0, {}, "error")
    journal.add("short", 1.0, {"unfinished": True})
    path.write_text(path.read_text() + '{"part": "half a li')
    again = script["Journal"](path)
    assert [again.done(name) for name in ("whole", "failed", "short", "half")] == [True] + 3 * [
        False
    ]
    again.add("failed", 1.0, {"figure": 2})
    assert script["Journal"](path).done("failed")


def test_titles_are_unique_and_every_knob_has_a_part(script: dict[str, Any]) -> None:
    from gpu import matrix

    from search_spaces import CATALOGUE

    groups = matrix.groups()
    assert len({matrix.title(group) for group in groups}) == len(groups)
    assert {name for group in groups for name, _ in group.values} == set(CATALOGUE)


@pytest.mark.errand
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a device")
def test_without_a_device_it_says_so(script: dict[str, Any]) -> None:
    with pytest.raises(SystemExit, match="no CUDA device is seen; --rehearse"):
        script["device"]()
