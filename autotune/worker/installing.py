"""Command that installs autotune, with what an extra of it brings."""

import importlib.metadata
import json
import shlex
from pathlib import Path
from urllib.parse import unquote, urlsplit

_DISTRIBUTION = "torch-autotune"
_ORIGIN = "direct_url.json"
"""File in which pip records the folder or the wheel that it was given (PEP 610)."""
_UNKNOWN = "WHEEL"


def pip_install(extra: str = "", pip: str = "pip") -> str:
    """Return the command that installs this autotune, which is on no package index.

    Args:
        extra: of pyproject.toml; empty: none.
    """
    origin = _origin()
    wanted = shlex.quote(f"{origin or _UNKNOWN}{f'[{extra}]' if extra else ''}")
    known = "" if origin else f" ({_UNKNOWN}: the one that you installed autotune from)"
    return f"{pip} install {wanted}{known}"


def _origin() -> Path | None:
    """Return the folder or the wheel that autotune was installed from; None if it is not there."""
    try:
        recorded = importlib.metadata.distribution(_DISTRIBUTION).read_text(_ORIGIN)
    except importlib.metadata.PackageNotFoundError:
        return None
    parts = urlsplit(str(json.loads(recorded or "{}").get("url", "")))
    origin = Path(unquote(parts.path))
    return origin if parts.scheme == "file" and origin.exists() else None
