"""optuna-dashboard on a study's storage, on loopback."""

import socketserver
from collections.abc import Callable
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import optuna_dashboard

from autotune.errors import BadInput
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
        ready: called with the study's address once requests are answered.

    Raises:
        BadInput: the port is taken.
    """
    storage = database.optuna()
    try:
        page = f"studies/{storage.get_study_id_from_name(name)}"
    except KeyError:  # it has not run yet, or somebody has renamed it, and may want to undo that
        page = ""
    try:
        server = make_server(
            _LOOPBACK, port, optuna_dashboard.wsgi(storage), _Server, handler_class=_Quiet
        )
    except OSError as error:
        raise BadInput(f"port {port}: {error.strerror}; give another with --port") from None
    with server:
        try:
            ready(f"http://{_LOOPBACK}:{server.server_port}/dashboard/{page}")
            server.serve_forever()
        except KeyboardInterrupt:
            return
