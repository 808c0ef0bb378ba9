"""Which file system a path is on."""

from pathlib import Path

import pytest

from autotune.errors import BadInput
from storage import Database
from storage.urls import file_system, is_local, parse
from tests.unit.database.opening import in_private_mounts, needs_mounts


class TestFileSystem:
    def test_that_of_a_path_is_known(self, tmp_path: Path) -> None:
        assert file_system(Path("/proc/self")) == "proc"
        assert file_system(Path("/sys")) == "sysfs"
        assert file_system(tmp_path) not in ("", "proc", "sysfs")

    @needs_mounts
    @pytest.mark.parametrize("name", ["plain", "with space", "with\ttab", "back\\slash", "größe"])
    def test_that_of_a_mount_of_any_name_is_known(self, name: str, tmp_path: Path) -> None:
        (tmp_path / name).mkdir()
        script = """
import subprocess, sys
from pathlib import Path
from storage.urls import file_system
subprocess.run(["mount", "-t", "tmpfs", "tmpfs", sys.argv[1]], check=True)
Path(sys.argv[1], "inside").mkdir()
print(file_system(Path(sys.argv[1], "inside")), file_system(Path.cwd()))
"""
        found = in_private_mounts(script, name, cwd=tmp_path)
        inside, outside = found.stdout.split()
        assert inside == "tmpfs"
        assert outside == file_system(tmp_path)

    @needs_mounts
    def test_a_link_leads_to_the_file_system_it_points_to(self, tmp_path: Path) -> None:
        (tmp_path / "disk").mkdir()
        (tmp_path / "link").symlink_to("disk")
        script = """
import subprocess
from pathlib import Path
from storage.urls import file_system
subprocess.run(["mount", "-t", "tmpfs", "tmpfs", "disk"], check=True)
print(file_system(Path("link")))
"""
        assert in_private_mounts(script, cwd=tmp_path).stdout == "tmpfs\n"


class TestWhereSqliteMayLie:
    @pytest.mark.parametrize("kind", ["ext4", "xfs", "btrfs", "zfs", "tmpfs", "overlay", "fuseblk"])
    def test_what_is_known_to_be_local(self, kind: str) -> None:
        assert is_local(kind)

    @pytest.mark.parametrize(
        "kind",
        [
            "nfs4",
            "lustre",
            "wekafs",
            "virtiofs",
            "panfs",
            "afs",
            "gfs2",
            "fuse.sshfs",
            "9p",
            "new",
            "",
        ],
    )
    def test_all_else_may_be_shared(self, kind: str) -> None:
        assert not is_local(kind)

    def test_a_link_to_a_file_elsewhere_is_followed(self, tmp_path: Path) -> None:
        (tmp_path / "autotune.db").symlink_to("/proc/autotune.db")
        with pytest.raises(
            BadInput, match=r"/proc/autotune\.db is on proc, which is not known to be"
        ):
            parse(f"sqlite:///{tmp_path}/autotune.db")

    def test_refusal_names_the_variable_and_urls_that_work(self) -> None:
        with pytest.raises(BadInput) as refused:
            parse("sqlite:////proc/autotune.db")
        told = str(refused.value)
        assert "AUTOTUNE_STORAGE" in told
        assert "sqlite:////local/disk/autotune.db" in told
        assert "postgresql://user@host/database" in told

    def test_a_link_to_a_file_that_is_local_is_taken_for_it(self, tmp_path: Path) -> None:
        (tmp_path / "disk").mkdir()
        (tmp_path / "autotune.db").symlink_to("disk/real.db")
        found = Database(f"sqlite:///{tmp_path}/autotune.db")
        assert found.folder == tmp_path / "disk"
        assert (tmp_path / "autotune.db").is_symlink()
        assert (tmp_path / "disk" / "real.db").exists()

    def test_a_link_to_itself_is_bad_input(self, tmp_path: Path) -> None:
        (tmp_path / "autotune.db").symlink_to("autotune.db")
        with pytest.raises(BadInput, match="leads to itself"):
            parse(f"sqlite:///{tmp_path}/autotune.db")
