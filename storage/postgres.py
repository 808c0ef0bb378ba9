"""Options of PostgreSQL connections: dead peers are noticed, and locks do not outlive their holder."""

from typing import Any

from sqlalchemy import URL
from sqlalchemy.pool import ConnectionPoolEntry

_CONNECT = {
    "connect_timeout": 10,
    "keepalives": 1,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 4,
    "tcp_user_timeout": 30_000,  # ms; what was sent and is not acknowledged
}
"""Options of libpq, in seconds: a server that has silently gone is noticed within half a minute."""
_SESSION = {
    "idle_in_transaction_session_timeout": "20s",
    "lock_timeout": "30s",
}
"""Settings of the server.

Transactions here take milliseconds. An idle one belongs to a machine that was lost or stopped, and
a process that waits for its locks outlasts it."""
_SET = "select set_config(name, %s, false) from pg_settings where name = %s and setting = '0'"


def engine_arguments(url: URL) -> dict[str, Any]:
    """Return arguments for create_engine.

    Options in the URL take precedence, and so do settings that the server has for this user or
    database.
    """
    options = {name: value for name, value in _CONNECT.items() if name not in url.query}
    return {
        "connect_args": options,
        "pool_pre_ping": True,
        "pool_events": [(_on_connect, "connect")],
    }


def unlimited() -> list[str]:
    """Return SQL for a transaction without these limits.

    An example is one that others wait for by intention.
    """
    return [f"set local {name} = 0" for name in _SESSION]


def _on_connect(connection: Any, _: ConnectionPoolEntry) -> None:
    with connection.cursor() as cursor:
        for name, value in _SESSION.items():
            cursor.execute(_SET, (value, name))
    connection.commit()
