"""A view of the machine in which everything can be written and nothing is changed, seen from within."""

import errno
import os
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from autotune.worker.node.sandbox import Sandbox, _around, _free
from autotune.worker.protocol import Script
from autotune.worker.sandbox import scratch
from autotune.worker.sandbox.mounts import AS_IT_IS, MEMORY, OVERLAY, Cover, Mount, covers, mounted
from tests.support import overlays
from tests.support.stranger import USER
from tests.support.trials import trial

ROOT = Path(__file__).parents[3]
DISK = Mount("/", "ext4", True)


def printed(begin: str, code: str, folder: Path) -> str:
    """Return what two parts of a program print that works in the folder."""
    found = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(begin) + textwrap.dedent(code)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert found.returncode == 0, found.stderr
    return found.stdout


@pytest.fixture
def within(tmp_path: Path):
    """Runs code in a process with a view, where `kept` is a folder that it really writes."""
    if why := overlays.refusal():
        pytest.skip(why)
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
        return printed(begin, code, tmp_path)

    yield run
    scratch.sweep()


def test_folder_that_is_kept_is_written(within, tmp_path: Path) -> None:
    within("Path('kept/a').write_text('kept'); Path('b').write_text('lost')")
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]
    assert (tmp_path / "kept" / "a").read_text() == "kept"


def test_nothing_is_made_in_the_root_folder(within) -> None:
    told = within(
        """
        try:
            os.makedirs("/autotune-outputs/run")
        except OSError as error:
            print(error.strerror)
        for folder in ("/dev/shm", "/run", "/tmp", "/var"):
            print(os.access(folder, os.W_OK))
        Path("/dev/null").write_text("a")
        """
    )
    assert not Path("/autotune-outputs").exists()
    assert told.splitlines() == ["Read-only file system", *4 * ["True"]]


@pytest.mark.parametrize(
    ("printed", "named"),
    [
        ("OSError: [Errno 30] Read-only file system: '/outputs'", "/outputs"),
        ("mkdir: cannot create directory '/outputs': Read-only file system", "/outputs"),
        ("OSError: [Errno 30] Read-only file system: '/data/fixed'", ""),
    ],
)
def test_folder_to_make_before_is_named(tmp_path: Path, printed: str, named: str) -> None:
    sandbox = Sandbox(trial(tmp_path))
    try:
        advice = sandbox.advice(printed)
        assert (f"if {named} is a folder of the job, make it before" in advice) == bool(named)
    finally:
        sandbox.close()


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


# Mounts that come later


@pytest.fixture
def beside(tmp_path: Path):
    """Runs code in a process that has the mounts of this machine for itself, as another machine has.

    It can fork a process that enters a view, and mount something itself, which does not come here.
    """
    if why := overlays.refusal_beside(USER):
        pytest.skip(why)

    def run(code: str) -> str:
        begin = f"""
            import os, subprocess, sys
            from pathlib import Path
            from autotune.worker.sandbox import kernel, overlay, scratch
            kernel.unshare(kernel.NEW_MOUNTS)
            for change in ("--make-rprivate", "--make-rshared"):
                subprocess.run(["mount", change, "/"], check=True)
            layers = scratch.Scratch(scratch.place([{str(tmp_path)!r}])[0])
            view = overlay.View(({str(tmp_path)!r},), (), str(layers.folder))
        """
        return printed(begin, code, tmp_path)

    yield run
    scratch.sweep()


def test_what_is_mounted_below_a_folder_that_is_as_it_is_is_not_written(beside) -> None:
    told = beside(
        """
        Path("fixed").mkdir()
        kernel.mount("t", "fixed", "tmpfs", {})
        Path("fixed/later").mkdir()
        subprocess.run(["mount", "-o", "remount,ro", "fixed"], check=True)
        (entered, enters), (mounted, mounts) = os.pipe(), os.pipe()
        if not os.fork():
            overlay.enter(view)
            os.write(enters, b"x")
            os.read(mounted, 1)
            try:
                Path("fixed/later/a").touch()
            except OSError as error:
                print(error.strerror, flush=True)
            os._exit(0)
        os.read(entered, 1)
        kernel.mount("t", "fixed/later", "tmpfs", {})
        os.write(mounts, b"x")
        os.wait()
        print(os.listdir("fixed/later"))
        """
    )
    assert told.splitlines() == ["Read-only file system", "[]"]


@pytest.mark.skipif(not overlays.has_automounter(), reason="the kernel has no automounter")
def test_what_an_automounter_mounts_at_its_first_use_is_not_written(beside) -> None:
    told = beside(
        """
        import dataclasses
        Path("auto").mkdir()
        command = [sys.executable, "-m", "tests.support.automounter", "auto"]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as automounter:
            assert automounter.stdout.readline()
            if not os.fork():
                overlay.enter(dataclasses.replace(view, named=("auto/named",)))
                for name in ("named", "other"):
                    try:
                        Path("auto", name, "a").touch()
                        print(sorted(os.listdir(f"auto/{name}")), flush=True)
                    except OSError as error:
                        print(error.strerror, flush=True)
                os._exit(0)
            os.wait()
            print([os.listdir(f"auto/{name}") for name in ("named", "other")])
            automounter.kill()
        """
    )
    within = ["['a', 'before']", "Too many levels of symbolic links"]
    assert told.splitlines() == [*within, "[['before'], ['before']]"]


def test_temporary_files_beside_a_mount_are_as_before(beside) -> None:
    """A user who is not root has no overlay over a folder with a mount in it."""
    told = beside(
        """
        import ctypes
        from tests.support.stranger import USER
        PR_SET_DUMPABLE = 4
        kernel.mount("t", "/tmp", "tmpfs", {"mode": "1777"})
        for folder in ("results", "mounted", "around/mounted", "project"):
            Path("/tmp", folder).mkdir(parents=True)
        for folder in ("mounted", "around/mounted"):
            kernel.mount("t", f"/tmp/{folder}", "tmpfs", {})
        files = [Path("/tmp", *to, "a") for to in ((), ("results",), ("mounted",), ("around",))]
        for file in files:
            file.write_text("mine")
        Path("/tmp/link").symlink_to("results")
        for path in (Path("/tmp"), *Path("/tmp").rglob("*")):
            os.chown(path, USER, USER, follow_symlinks=False)
        os.chdir("/tmp/project")
        os.setgroups([])
        os.setgid(USER)
        os.setuid(USER)
        ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 1)  # else /proc/self is root's until an exec
        layers = scratch.Scratch(scratch.place(["/tmp/project"])[0])
        if not os.fork():
            overlay.enter(overlay.View(("/tmp/project",), (), str(layers.folder)))
            for file in (*files, Path("/tmp/link/b"), Path("/tmp/new/c"), Path("/tmp/project/d")):
                try:
                    file.parent.mkdir(exist_ok=True)
                    file.write_text("of the trial")
                    print(file.read_text(), flush=True)
                except OSError as error:
                    print(error.strerror, flush=True)
            os._exit(0)
        os.wait()
        print({file.read_text() for file in files}, os.path.exists("/tmp/new"))
        print(os.listdir("/tmp/results"), os.listdir("/tmp/project"))
        """
    )
    closed, written = "Read-only file system", "of the trial"
    within = [closed, written, written, closed, written, written, written]
    assert told.splitlines() == [*within, "{'mine'} False", "['a'] []"]


def test_full_disk_of_what_trials_write_is_told_from_that_of_the_user(beside) -> None:
    told = beside(
        """
        from autotune.worker.node.sandbox import Sandbox
        from tests.support.trials import trial
        sandbox = Sandbox(trial(Path("."), log_dir="logs"))
        failure = "[Errno 28] No space left on device: '/data/checkpoint.pt'"
        kernel.mount("t", str(sandbox._layers), "tmpfs", {"size": "64m"})
        print(sandbox.advice(failure) == "")
        Path(sandbox._layers, "written").write_bytes(bytes(60 << 20))
        print(f"the disk of {sandbox._layers} is full," in sandbox.advice(failure))
        print(sandbox.advice("another failure") == "")
        kernel.unmount(str(sandbox._layers))
        sandbox.close()
        scratch.finish(60)
        """
    )
    assert told.split() == ["True"] * 3


def test_words_of_a_job_may_name_what_an_automounter_mounts(tmp_path: Path) -> None:
    script = Script("train.py", args=("--out=/a/run1", "data"))
    asked = trial(tmp_path, script=script, env={"LOGS": "/b/c"})
    sandbox = Sandbox(asked)
    try:
        assert sandbox.ticket.view is not None
        assert {"/a/run1", f"{tmp_path}/data", "/b/c"} <= {*sandbox.ticket.view.named}
        assert "use it (`ls`) before" in sandbox.advice(
            f"[Errno 40] {os.strerror(errno.ELOOP)}: '/a'"
        )
        assert sandbox.advice("[Errno 2] No such file or directory: '/a'") == ""
    finally:
        sandbox.close()


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


def test_disk_that_is_mounted_below_run_is_covered() -> None:
    mounts = [DISK, Mount("/run", "tmpfs", True), Mount("/run/media/a/SSD", "ext4", True)]
    mounts += [Mount("/run/user/1", "tmpfs", True), Mount("/run/netns/b", "nsfs", True)]
    found = covers(mounts, ["/home/a"], "/var/tmp/layers")
    assert [c for c in found if c.path.startswith("/run")] == [Cover("/run/media/a/SSD", OVERLAY)]


def test_system_folder_that_holds_the_project_is_not_written_past_copies() -> None:
    found = _free(("/dev/shm/project",), ())
    assert "/dev/null" in found
    assert "/proc" in found
    assert not {"/dev", "/dev/shm", "/dev/shm/project"} & {*found}
    assert "/dev" in _free(("/home/a",), ())


def test_what_lies_beside_a_closed_folder_is_free(tmp_path: Path) -> None:
    for name in ("media/a/SSD", "media/a/other", "lock", "user"):
        (tmp_path / name).mkdir(parents=True)
    found = _around(str(tmp_path), {str(tmp_path / "media/a/SSD"), str(tmp_path / "lock")})
    assert {*found} == {str(tmp_path / "media/a/other"), str(tmp_path / "user")}


def test_layers_lie_outside_of_the_project(tmp_path: Path) -> None:
    place, _ = scratch.place(["/var/tmp"])
    assert not place.is_relative_to("/var/tmp")


def test_layers_in_use_are_not_swept(tmp_path: Path) -> None:
    used = scratch.Scratch(tmp_path / "layers")
    assert used.folder not in scratch.sweep()
    assert used.folder.is_dir()
