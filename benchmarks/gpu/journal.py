"""Parts that were measured, in a file that survives whatever ends the session."""

import json
import os
import time
from pathlib import Path
from typing import Any

from gpu.bench import Figures


class Journal:
    """A line of JSON per part; of a part that is there twice, the later one counts."""

    def __init__(self, path: Path) -> None:
        """Open or begin it. Half a line at its end, of a session that died, is cut off."""
        self._path = path
        self._parts: dict[str, dict[str, Any]] = {}
        if not path.exists():
            return
        content = path.read_bytes()
        whole = content[: content.rfind(b"\n") + 1]
        if whole != content:
            path.write_bytes(whole)
        for line in whole.splitlines():
            part = json.loads(line)
            self._parts[part["part"]] = part

    def done(self, title: str) -> bool:
        """Return whether a part is there, whole and without an error, so that it needs no measuring."""
        part = self._parts.get(title)
        return bool(part and "error" not in part and not part["figures"].get("unfinished"))

    def add(self, title: str, seconds: float, figures: Figures, error: str = "") -> None:
        """Keep what became of a part; it is on disk when this returns."""
        part = {"part": title, "at": time.time(), "seconds": round(seconds, 2), "figures": figures}
        if error:
            part["error"] = error
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(part) + "\n")
            file.flush()
            os.fsync(file.fileno())
        self._parts[title] = part

    def parts(self) -> dict[str, dict[str, Any]]:
        """Return the recorded parts, by title."""
        return dict(self._parts)
