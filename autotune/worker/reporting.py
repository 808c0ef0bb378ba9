"""`autotune.report`, by which a program that a study runs as its command reports its progress."""

import json
import os
import time
from pathlib import Path
from typing import Any

VARIABLE = "AUTOTUNE_REPORT"
"""Environment variable that names the file of the reports."""

_last: float | None = None


def report(
    samples: float | None = None, *, tokens: float | None = None, seconds: float | None = None
) -> None:
    """Report how much has been trained since the last report. Does nothing outside a study.

    Of several ranks only the first one reports, by `RANK` in the environment; the others may call
    this, too. The device's work must be done: read the loss before, or synchronise.

    Args:
        samples: number over all ranks.
        tokens: number over all ranks, for a study that counts tokens.
        seconds: time that they have taken; None: since the last report. The first report then only
            starts the clock.
    """
    global _last
    path = os.environ.get(VARIABLE)
    if not path or os.environ.get("RANK", "0") != "0":
        return
    now = time.perf_counter()
    if seconds is None and _last is not None:
        seconds = now - _last
    _last = now
    given: dict[str, Any] = {"samples": samples, "tokens": tokens, "seconds": seconds}
    line = json.dumps({name: value for name, value in given.items() if value is not None})
    with Path(path).open("a", encoding="utf-8") as file:
        file.write(line + "\n")
