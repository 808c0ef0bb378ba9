"""optuna-dashboard on a study's storage, on loopback, for whoever has the address that is printed."""

import contextlib
import html
import os
import socketserver
import webbrowser
from collections.abc import Callable, Iterator
from pathlib import Path
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import optuna_dashboard

from autotune.errors import BadInput
from autotune.views.admission import Invited, ThisMachine
from autotune.worker.files import make_private
from storage import Database

_LOOPBACK = "127.0.0.1"


class _Server(socketserver.ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _Quiet(WSGIRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Nothing: a page polls several times a second."""


def serve(database: Database, name: str, port: int, ready: Callable[[str], None]) -> None:
    """Serve until interrupted.

    Args:
        port: 0 takes a free one.
        ready: called with the study's address once requests are answered; it has the token without
            which none is.

    Raises:
        BadInput: the port is taken.
    """
    storage = database.optuna()
    try:
        page = f"studies/{storage.get_study_id_from_name(name)}"
    except KeyError:  # it has not run yet, or somebody has renamed it, and may want to undo that
        page = ""
    invited = Invited(optuna_dashboard.wsgi(storage))
    try:
        server = make_server(_LOOPBACK, port, ThisMachine(invited), _Server, handler_class=_Quiet)
    except OSError as error:
        raise BadInput(f"port {port}: {error.strerror}; give another with --port") from None
    with server:
        try:
            address = f"http://{_LOOPBACK}:{server.server_port}/dashboard/{page}"
            ready(f"{address}?token={invited.token}")
            server.serve_forever()
        except KeyboardInterrupt:
            return


@contextlib.contextmanager
def opened(address: str, link: Path) -> Iterator[None]:
    """Open an address in a browser, which is told by a file that leads there: every user may read the
    arguments of a process.

    Args:
        link: the file, for this user alone; it is there as long as the context lasts.
    """
    try:
        make_private(link.parent)
        link.unlink(missing_ok=True)
        descriptor = os.open(link, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError:  # whoever reads the printed address can open it, too
        yield
        return
    with os.fdopen(descriptor, "w") as file:
        file.write(
            f'<!doctype html><meta http-equiv="refresh" content="0; url={html.escape(address)}">'
        )
    try:
        webbrowser.open(link.as_uri())
        yield
    finally:
        link.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # other things are in it
            link.parent.rmdir()
