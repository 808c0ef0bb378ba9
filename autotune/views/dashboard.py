"""optuna-dashboard on a study's storage, on loopback, behind the printed address."""

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
    """Server with a thread per request."""

    daemon_threads = True


class _Quiet(WSGIRequestHandler):
    """Handler that logs no request."""

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: a page polls several times a second."""


def serve(database: Database, name: str, port: int, ready: Callable[[str], None]) -> None:
    """Serve until interrupted.

    Args:
        port: port to listen on; 0: a free one.
        ready: called with the study's address once requests are answered; the address has the token
            without which none is.

    Raises:
        BadInput: the port is taken.
    """
    storage = database.optuna()
    try:
        page = f"studies/{storage.get_study_id_from_name(name)}"
    except KeyError:  # the study has not run yet, or has been renamed, which can be undone
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
    """Open an address in a browser, by a file that leads there.

    Every user may read the arguments of a process, and so an address among them.

    Args:
        link: path of the file, which this user alone may read; it exists as long as the context lasts.
    """
    try:
        make_private(link.parent)
        link.unlink(missing_ok=True)
        descriptor = os.open(link, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError:  # the printed address can be opened, too
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
