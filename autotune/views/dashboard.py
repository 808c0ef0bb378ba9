"""Page of a study and optuna-dashboard on its storage, on loopback, at an address with a token."""

import contextlib
import html
import os
import socketserver
import webbrowser
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple
from urllib.parse import parse_qs
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import optuna_dashboard

from autotune.errors import AutotuneError, BadInput, StorageUnreachable
from autotune.views.admission import App, Environ, Invited, StartResponse, ThisMachine, answer
from autotune.views.figures import figures_of
from autotune.views.page import REFRESH, STILL, page
from autotune.worker.files import make_private
from storage import Database, Repository, StoredStudy

_LOOPBACK = "127.0.0.1"
_PAGE = "/report"
"""Path of the page of the study."""

Exported = Callable[[StoredStudy], str]
"""Function from a study to the path of its best.yaml; empty where it is not written."""


class _Server(socketserver.ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _Quiet(WSGIRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: a page polls several times a second."""


class Addresses(NamedTuple):
    """Addresses of a study that is served; both have the token without which none is answered.

    Attributes:
        page: of its page.
        trials: of its trials in optuna-dashboard.
    """

    page: str
    trials: str


class _WithPage:
    """WSGI application that answers one path with the page of a study, and passes all others on."""

    def __init__(
        self, app: App, repository: Repository, name: str, trials: str, exported: Exported
    ) -> None:
        self._app = app
        self._exported = exported
        self._repository = repository
        self._name = name
        self._trials = trials

    def __call__(self, environ: Environ, start: StartResponse) -> Iterable[bytes]:
        """Answer a request."""
        if environ.get("PATH_INFO") != _PAGE:
            return self._app(environ, start)
        try:
            study = self._repository.studies.named(self._name)
            figures = figures_of(self._repository, study)
        except AutotuneError as error:
            return _failed(start, error)
        still = STILL in parse_qs(environ.get("QUERY_STRING", ""), keep_blank_values=True)
        text = page(figures, trials=self._trials, exported=self._exported(study), still=still)
        return answer(start, "200 OK", text)


def _failed(start: StartResponse, error: AutotuneError) -> Iterable[bytes]:
    """Answer why there is no page; one on a storage that does not answer is asked for again."""
    away = isinstance(error, StorageUnreachable)
    status = "503 Service Unavailable" if away else "404 Not Found"
    again = REFRESH if away else ""
    return answer(start, status, f"<!doctype html>{again}<p>{html.escape(str(error))}</p>\n")


def serve(
    database: Database,
    name: str,
    port: int,
    ready: Callable[[Addresses], None],
    exported: Exported,
) -> None:
    """Serve a study until interrupted.

    Args:
        exported: returns the path of the study's best.yaml; empty where it is not written.
        port: 0 takes a free one.
        ready: called with the study's addresses once requests are answered.

    Raises:
        BadInput: the port is taken.
    """
    storage = database.optuna()
    try:
        trials = f"/dashboard/studies/{storage.get_study_id_from_name(name)}"
    except KeyError:  # it has not run yet, or was renamed there, which may be undone there
        trials = "/dashboard/"
    optunas = optuna_dashboard.wsgi(storage)
    invited = Invited(_WithPage(optunas, Repository(database), name, trials, exported))
    try:
        server = make_server(_LOOPBACK, port, ThisMachine(invited), _Server, handler_class=_Quiet)
    except OSError as error:
        raise BadInput(f"port {port}: {error.strerror}; give another with --port") from None
    with server:
        try:
            host, token = f"http://{_LOOPBACK}:{server.server_port}", f"?token={invited.token}"
            ready(Addresses(f"{host}{_PAGE}{token}", f"{host}{trials}{token}"))
            server.serve_forever()
        except KeyboardInterrupt:
            return


@contextlib.contextmanager
def opened(address: str, link: Path) -> Iterator[None]:
    """Open an address in a browser by a file that leads there, as arguments can be read by every user.

    Args:
        link: the file, for this user alone; it is there as long as the context lasts.
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
