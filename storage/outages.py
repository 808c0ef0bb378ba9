"""Whether what a database refuses may go by itself."""

from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError

_READ_ONLY = "25006"
"""read_only_sql_transaction: a standby, or a former primary; see PostgreSQL's list of error codes."""


def may_pass(error: DBAPIError) -> bool:
    """Whether the database is away at the moment, or cannot be written, perhaps in a fail-over."""
    gone = isinstance(error, OperationalError | InterfaceError)
    read_only = getattr(error.orig, "sqlstate", None) == _READ_ONLY
    return gone or read_only or error.connection_invalidated
