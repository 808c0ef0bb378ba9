"""URLs of storages: which databases can be used, and where a SQLite file may lie."""

import os
from pathlib import Path

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from autotune.errors import BadInput
from autotune.worker.sandbox.mounts import holds, mounted

_DRIVERS = {
    "sqlite": "sqlite",
    "postgresql": "postgresql+psycopg",
    "postgres": "postgresql+psycopg",
}
_LOCAL_FILE_SYSTEMS = {
    *(
        "ext2",
        "ext3",
        "ext4",
        "xfs",
        "btrfs",
        "zfs",
        "bcachefs",
        "f2fs",
        "jfs",
        "nilfs2",
        "reiserfs",
    ),
    *("tmpfs", "ramfs", "rootfs", "devtmpfs", "overlay", "aufs", "ecryptfs"),
    *("fuseblk", "vfat", "exfat", "ntfs", "ntfs3", "hfsplus", "apfs", "ubifs"),
    *("squashfs", "erofs", "iso9660", "udf"),  # where SQLite itself says that it cannot write
}
"""Names as the kernel has them. Shared file systems have too many names to be listed."""


def parse(url: str) -> URL:
    """Return the URL, checked, with the driver that is used here.

    Raises:
        BadInput: the text is no URL, or names an unsupported database.
    """
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        raise BadInput(
            "the storage must be a URL such as sqlite:///autotune.db or "
            "postgresql://user@host/database"
        ) from None
    backend = parsed.drivername.partition("+")[0]
    if backend not in _DRIVERS:
        raise BadInput(
            f"storage of kind {backend!r} is not supported; use sqlite:///FILE or postgresql://..."
        )
    if parsed.drivername not in (backend, _DRIVERS[backend]):
        raise BadInput(
            f"the driver of {parsed.drivername!r} is not used here; use sqlite:///FILE or "
            "postgresql://..."
        )
    parsed = parsed.set(drivername=_DRIVERS[backend])
    if "@" in (parsed.host or ""):
        raise BadInput(
            "storage: write an @ in the password as %40, so that the host can be recognised"
        )
    if backend == "sqlite":
        return _checked_file(parsed)
    return parsed


def _checked_file(url: URL) -> URL:
    if url.host:
        raise BadInput(f"a SQLite file has no host; use sqlite:///{url.host}/... for a file")
    if not url.database or url.database == ":memory:":
        raise BadInput("a study outlives its process: use sqlite:///FILE, not a database in memory")
    path = _where(Path(url.database).expanduser().absolute())
    check_text("storage:", path)
    kind = file_system(path.parent)
    if not is_local(kind):
        raise BadInput(
            f"storage {path} is on {kind or 'an unknown file system'}, which is not known to be local, "
            "and SQLite loses data on file systems that machines share: name a file on a local disk "
            "(sqlite:////local/disk/autotune.db) or postgresql://user@host/database, by "
            "AUTOTUNE_STORAGE, --storage or `storage` in study.yaml"
        )
    return url.set(database=str(path))


def _where(path: Path) -> Path:
    """Return the real path of the file, which may not exist yet.

    SQLite follows links, too, and writes beside the real file.
    """
    real = Path(os.path.realpath(path))
    if real.is_symlink():  # realpath stops where a chain of links does not end
        raise BadInput(f"storage {path}: this link leads to itself; name another file")
    for folder in (path.parent, real.parent):
        if not folder.is_dir():
            raise BadInput(f"storage {path}: the folder {folder} does not exist; create it first")
    return real


def check_text(what: str, path: Path) -> None:
    """Check that a path is text, so that URLs and databases can hold it.

    Args:
        what: words before the path in the message.

    Raises:
        BadInput: it has bytes that are no UTF-8.
    """
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise BadInput(
            f"{what} {path}, whose name is not UTF-8, so that no database can hold it: rename it, or "
            "work in another folder"
        ) from None


def is_local(kind: str) -> bool:
    """Return whether a file system surely belongs to one machine alone.

    Names are those that `file_system` returns.
    """
    return kind in _LOCAL_FILE_SYSTEMS


def file_system(path: Path) -> str:
    """Return kind of the file system that holds the path, as the kernel calls it; '' if unknown."""
    resolved = str(path.resolve())
    around = [mount for mount in mounted() if holds(mount.path, resolved)]
    return max(around, key=lambda mount: len(mount.path)).kind if around else ""
