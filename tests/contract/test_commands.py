"""Commands that are no scripts of torch: run, listened to, and cleared away with all that they start."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import launchers
from autotune.worker.protocol import (
    BlockPlan,
    Command,
    Outcome,
    Timeouts,
    TrialReport,
)
from launchers import Resources, Slot
from tests.support.stand_in_slurm import stand_in_slurm
from tests.support.trials import trial


@pytest.fixture(scope="module")
def slot(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slot]:
    logs = str(tmp_path_factory.mktemp("agents"))
    with launchers.section_of("local").open(Resources(1, 0, 1, 1), logs) as launcher:
        yield launcher.slots[0]


class Bench:
    """A folder, and a slot to run commands in it."""

    def __init__(self, slot: Slot, folder: Path) -> None:
        self._slot = slot
        self.folder = folder

    def run(
        self,
        *argv: str,
        json_lines: str = "",
        pattern: str = "",
        tokens: bool = False,
        **changes: Any,
    ) -> TrialReport:
        own = self.folder / "own"
        command = Command(
            tuple(word.replace("FOLDER", str(own)) for word in argv),
            str(own),
            json_lines=json_lines and str(own / json_lines),
            pattern=pattern,
            tokens=tokens,
        )
        fields: dict[str, Any] = {"blocks": BlockPlan(0.02, 1, max_blocks=4), **changes}
        request = trial(self.folder, "", world_size=1, import_paths=(), command=command, **fields)
        return self._slot.run_solo(request, lambda _: False)

    def python(self, text: str, **options: Any) -> TrialReport:
        (self.folder / "own.py").write_text(text)
        return self.run(sys.executable, "own.py", **options)

    def sh(self, text: str, **options: Any) -> TrialReport:
        return self.run("/bin/sh", "-c", text, "FOLDER", **options)


@pytest.fixture
def bench(slot: Slot, tmp_path: Path) -> Bench:
    return Bench(slot, tmp_path)


def rates(report: TrialReport) -> list[float]:
    assert report.outcome is None, f"{report.cause}\n{report.log_tail}"
    return [block.samples / block.seconds for block in report.blocks]


_REPORTING = """
import sys, time, autotune
assert "torch" not in sys.modules
while True:
    autotune.report(samples=8, seconds=0.04)
    autotune.report(tokens=100, samples=8)
    time.sleep(0.01)
"""


def test_a_program_reports(bench: Bench) -> None:
    report = bench.python(_REPORTING)
    assert rates(report)[0] == pytest.approx(200)
    assert [block.index for block in report.blocks] == [0, 1, 2, 3]
    assert report.blocks[0].steps == 1
    assert report.blocks[-1].peak_bytes > 1 << 20
    assert "foreign_cpu" in report.blocks[-1].observed


def test_lines_of_a_file_are_followed(bench: Bench) -> None:
    """It is begun anew in the middle; other lines than reports are left out."""
    text = """
    i=0; while true; do i=$((i+1))
    [ $i = 20 ] && : > "$0/m"
    echo '{"epoch": 1}' >> "$0/m"
    echo '{"tokens": 30, "samples": 3, "seconds": 0.1, "loss": 2.5}' >> "$0/m"; sleep 0.005; done"""
    report = bench.sh(text, json_lines="m", tokens=True)
    assert rates(report) == [pytest.approx(300)] * 4
    assert [block.tokens for block in report.blocks] == [30] * 4
    assert report.blocks[0].loss == 2.5


def test_rates_are_found_in_the_output(bench: Bench) -> None:
    text = r"""while true; do printf 'step 3: 12.5 samples/s\r'; sleep 0.01; done"""
    report = bench.sh(text, pattern=r"([0-9.]+) samples/s")
    assert rates(report) == [pytest.approx(12.5)] * 4
    logs = list(bench.folder.rglob("rank-0.log"))
    assert "12.5 samples/s" in logs[0].read_text()


_WITH_CHILDREN = """
sleep 98765 &
setsid /bin/sh -c 'sleep 98765; true' &
while true; do echo '{"throughput": 3}' >> "$0/m"; sleep 0.01; done"""


def _running(argument: str) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if argument.encode() in words:
            found.append(path.parent.name)
    return found


def test_nothing_that_it_has_started_is_left(bench: Bench) -> None:
    rates(bench.sh(_WITH_CHILDREN, json_lines="m"))
    assert not _running("98765")


def test_ranks_that_srun_has_started_elsewhere_end_with_the_trial(
    bench: Bench, tmp_path_factory: pytest.TempPathFactory
) -> None:
    text = """while true; do echo '{"throughput": 3}' >> "$0/m"; sleep 0.01; done"""
    with stand_in_slurm(tmp_path_factory.mktemp("slurm")) as slurm:
        own = slurm.environment()
        rates(bench.run("srun", "-n1", "/bin/sh", "-c", text, "FOLDER", json_lines="m", env=own))
        assert len(slurm.steps) == 1
        assert slurm.running() == []


def test_ranks_elsewhere_are_not_started_if_files_are_to_be_kept(bench: Bench) -> None:
    report = bench.run("srun", "true", pattern="(a)", may_write=False)
    assert report.outcome == Outcome.ERROR
    assert "`srun` starts processes outside of the trial" in report.cause


def test_a_command_that_says_nothing_hangs(bench: Bench) -> None:
    text = """echo '{"throughput": 3}' >> "$0/m"; sleep 87654"""
    report = bench.sh(text, json_lines="m", timeouts=Timeouts(startup=60, step=0.5))
    assert report.outcome == Outcome.HANG
    assert not _running("87654")


@pytest.mark.parametrize(
    ("text", "outcome", "cause"),
    [
        ("echo oh no; exit 3", Outcome.ERROR, "ended with exit status 3 after 0 reports"),
        ("echo CUDA out of memory; exit 1", Outcome.OOM, "ended with exit status 1"),
        ('echo \'{"throughput": 3}\' > "$0/m"', Outcome.ERROR, "exit status 0 after 1 reports"),
        ("kill -SEGV $$", Outcome.CRASH, "died by SIGSEGV"),
        ("echo hello > $0/m; sleep 60", Outcome.ERROR, "no JSON object: 'hello'"),
        ('echo \'{"throughput": "x"}\' > $0/m; sleep 60', Outcome.ERROR, "throughput is no number"),
        ('echo \'{"tokens": 3}\' > $0/m; sleep 60', Outcome.ERROR, "tokens and no samples, which the"),
    ],
)  # fmt: skip
def test_why_it_failed_is_told(bench: Bench, text: str, outcome: Outcome, cause: str) -> None:
    report = bench.sh(text, json_lines="m")
    assert report.outcome == outcome
    assert cause in report.cause


def test_the_last_lines_are_told(bench: Bench) -> None:
    assert "oh no" in bench.sh("echo oh no; exit 3").log_tail


def test_a_command_that_is_not_there(bench: Bench) -> None:
    report = bench.run("./nothing-here")
    assert report.outcome == Outcome.ERROR
    assert report.cause.endswith("./nothing-here cannot be run: No such file or directory")


@pytest.mark.parametrize("purpose", ["trajectory", "profile"])
def test_nobody_sees_its_loss(bench: Bench, purpose: str) -> None:
    report = bench.python(_REPORTING, **{purpose: 3})
    assert report.outcome == Outcome.ERROR
    assert "the loss of a command is not seen" in report.cause


def test_it_has_the_variables_of_the_user(bench: Bench) -> None:
    """And none that an agent has of its own."""
    text = """echo "${OMP_NUM_THREADS-none} $RANK $OURS $PWD"; exit 1"""
    told = bench.sh(text, env={"OURS": "it is"}).log_tail
    threads = os.environ.get("OMP_NUM_THREADS", "none")
    assert told.strip() == f"{threads}  it is {bench.folder}"


def test_arguments_reach_it_byte_for_byte(bench: Bench) -> None:
    odd = ["a\nb", "$(touch x)", "'\"", "--", "", "\udcff"]
    text = "import os, sys; print(sys.argv[1:]); sys.exit(1)"
    told = bench.run(sys.executable, "-c", text, *odd).log_tail
    assert told.strip() == str(odd)


def test_a_process_may_not_have_more_memory(bench: Bench) -> None:
    """The limit is that of each of its processes, wherever they come from."""
    text = "import subprocess, sys; sys.exit(subprocess.call([sys.executable, '-c', 'bytes(1 << 30)']))"
    report = bench.run(sys.executable, "-c", text, memory_per_rank=512 << 20)
    assert report.outcome == Outcome.OOM, report.log_tail
