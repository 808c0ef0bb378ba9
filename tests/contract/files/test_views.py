"""A view of the machine in which everything can be written and nothing is changed, seen from within."""

import os
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from autotune.worker.sandbox import scratch
from autotune.worker.sandbox.mounts import AS_IT_IS, MEMORY, OVERLAY, Cover, Mount, covers, mounted

ROOT = Path(__file__).parents[3]
DISK = Mount("/", "ext4", True)


@pytest.fixture
def within(tmp_path: Path):
    """Runs code in a process with a view, where `kept` is a folder that it really writes."""
    (tmp_path / "kept").mkdir()

    def run(code: str) -> str:
        begin = f"""
            import os, socket, sys
            from pathlib import Path
            from autotune.worker.sandbox import overlay, scratch
            layers = scratch.Scratch(scratch.place([{str(tmp_path)!r}])[0])
            kept = {str(tmp_path / "kept")!r}
            overlay.enter(overlay.View(({str(tmp_path)!r},), (kept,), str(layers.folder)))
        """
        program = textwrap.dedent(begin) + textwrap.dedent(code)
        found = subprocess.run(
            [sys.executable, "-c", program],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
        )
        if "Operation not permitted" in found.stderr:
            pytest.skip("no overlay can be mounted here")
        assert found.returncode == 0, found.stderr
        return found.stdout

    yield run
    scratch.sweep()


def test_folder_that_is_kept_is_written(within, tmp_path: Path) -> None:
    within("Path('kept/a').write_text('kept'); Path('b').write_text('lost')")
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]
    assert (tmp_path / "kept" / "a").read_text() == "kept"


def test_every_writable_folder_of_the_machine_is_covered(within) -> None:
    told = within(
        """
        from autotune.worker.sandbox.mounts import OF_SYSTEM, holds, mounted
        for mount in mounted():
            print(mount.path, mount.kind, mount.writable)
        """
    )
    found = {path: (kind, writable) for path, kind, writable in map(str.split, told.splitlines())}
    for cover in covers(mounted(), [], "/var/tmp"):
        if cover.how != AS_IT_IS:
            assert found[cover.path][0] == "overlay", cover


def test_socket_of_another_program_is_reached(within, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "socket"))
        listening.listen()
        within("socket.socket(socket.AF_UNIX).connect('socket')")


def test_folder_of_layers_is_covered_in_memory_and_what_is_wanted_below_on_disk() -> None:
    found = covers([DISK], ["/var/lib/project"], "/var/tmp/layers")
    assert Cover("/var", MEMORY) in found
    assert Cover("/var/lib/project", OVERLAY) in found


def test_mount_that_cannot_be_written_is_as_it_is() -> None:
    mounts = [DISK, Mount("/data", "nfs", True), Mount("/data/fixed", "nfs", False)]
    found = covers(mounts, [], "/var/tmp/layers")
    assert Cover("/data", OVERLAY) in found
    assert Cover("/data/fixed", AS_IT_IS) in found


def test_file_system_in_memory_is_covered_in_memory_and_the_project_in_it_on_disk() -> None:
    found = covers([DISK, Mount("/tmp", "tmpfs", True)], ["/tmp/project"], "/var/tmp/layers")
    assert Cover("/tmp", MEMORY) in found
    assert Cover("/tmp/project", OVERLAY) in found


def test_devices_and_the_like_are_not_covered() -> None:
    mounts = [DISK, Mount("/dev/shm", "tmpfs", True), Mount("/run/lock", "tmpfs", True)]
    assert not [
        cover for cover in covers(mounts, [], "") if cover.path.startswith(("/dev", "/run"))
    ]


def test_layers_lie_outside_of_the_project(tmp_path: Path) -> None:
    place, _ = scratch.place(["/var/tmp"])
    assert not place.is_relative_to("/var/tmp")


def test_layers_in_use_are_not_swept(tmp_path: Path) -> None:
    used = scratch.Scratch(tmp_path / "layers")
    assert used.folder not in scratch.sweep()
    assert used.folder.is_dir()
