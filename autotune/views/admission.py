"""Admission to a page on loopback: a request needs this machine's name and a token.

Every local user reaches a port of loopback, and so does every web page in the user's browser, whose own
name may lead there (DNS rebinding). So a request must name this machine as its host, and carry what only
the printed address has: a token, and from then on a cookie.
"""

import hashlib
import hmac
import html
import secrets
from collections.abc import Callable, Iterable
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

Environ = dict[str, Any]
StartResponse = Callable[..., Any]
App = Callable[[Environ, StartResponse], Iterable[bytes]]

_HOSTS = ("127.0.0.1", "localhost", "::1")
_TOKEN = "token"
_LOOKING = ("GET", "HEAD", "OPTIONS")
_STRANGER = (
    "This dashboard is for whoever has started it. Open the whole link that `autotune dashboard` \
has printed there: it ends in ?token=..."
)
_ELSEWHERE = "This is not asked of this machine itself, or not by a page of its own. Ask for \
http://127.0.0.1 or http://localhost with the port that was printed; to reach it from elsewhere: \
ssh -L PORT:localhost:PORT"


class ThisMachine:
    """WSGI filter that admits requests to this machine under its own name.

    Requests by a page of another server are refused.
    """

    def __init__(self, app: App) -> None:
        self._app = app

    def __call__(self, environ: Environ, start: StartResponse) -> Iterable[bytes]:
        """Answer a request."""
        host = environ.get("HTTP_HOST", "")
        origin = environ.get("HTTP_ORIGIN", "")
        if _name(host) not in _HOSTS or (origin and urlsplit(origin).netloc != host):
            return _refused(start, _ELSEWHERE)
        return self._app(environ, start)


class Invited:
    """WSGI filter that admits browsers that were once at the address with the token.

    Attributes:
        token: token of this server, too long to be guessed.
    """

    def __init__(self, app: App) -> None:
        self._app = app
        self.token = secrets.token_urlsafe(32)
        # All ports of a host share cookies: each server has a name of its own for its cookie.
        self._cookie = f"autotune-{hashlib.sha256(self.token.encode()).hexdigest()[:12]}"

    def __call__(self, environ: Environ, start: StartResponse) -> Iterable[bytes]:
        """Answer a request."""
        query = parse_qsl(environ.get("QUERY_STRING", ""), keep_blank_values=True)
        given = dict(query).get(_TOKEN)
        if given is not None and environ["REQUEST_METHOD"] in _LOOKING and self._is_right(given):
            return self._welcome(environ, query, start)
        if self._is_right(_cookies(environ).get(self._cookie, "")):
            return self._app(environ, start)
        return _refused(start, _STRANGER)

    def _is_right(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(errors="replace"), self.token.encode())

    def _welcome(
        self, environ: Environ, query: list[tuple[str, str]], start: StartResponse
    ) -> Iterable[bytes]:
        """Answer with the cookie, and with a page that leads to the address without the token.

        The token would stay in the browser's history. A redirection would not do: behind a link on
        another site's page, a browser sends no strict cookie along with it.
        """
        rest = urlencode([(name, value) for name, value in query if name != _TOKEN])
        path = "/" + environ.get("PATH_INFO", "").encode("latin-1").decode(errors="replace").lstrip(
            "/"
        )
        target = html.escape(path + (f"?{rest}" if rest else ""))
        cookie = f"{self._cookie}={self.token}; Path=/; HttpOnly; SameSite=Strict"
        page = f'<!doctype html><meta http-equiv="refresh" content="0; url={target}">'
        return answer(start, "200 OK", page, ("Set-Cookie", cookie))


def _name(host: str) -> str:
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def _cookies(environ: Environ) -> dict[str, str]:
    try:
        return {name: it.value for name, it in SimpleCookie(environ.get("HTTP_COOKIE", "")).items()}
    except CookieError:
        return {}


def _refused(start: StartResponse, why: str) -> Iterable[bytes]:
    return answer(start, "403 Forbidden", f"<!doctype html><p>{html.escape(why)}</p>\n")


def answer(start: StartResponse, status: str, page: str, *more: tuple[str, str]) -> Iterable[bytes]:
    """Answer with a page, whose address no other page is told, and more headers."""
    body = page.encode()
    headers = [
        ("Content-Type", "text/html; charset=utf-8"),
        ("Content-Length", str(len(body))),
        ("Cache-Control", "no-store"),
        ("Referrer-Policy", "no-referrer"),
    ]
    start(status, [*headers, *more])
    return [body]
