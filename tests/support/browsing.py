"""A real browser for tests of pages; they are skipped where there is none."""

import contextlib
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

_CHROMIUM = shutil.which("chromium")
_ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@contextlib.contextmanager
def open_browser() -> Iterator[Any]:
    """Open Chromium without a window."""
    if _CHROMIUM is None:
        pytest.skip("no chromium: apt-get install chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=_CHROMIUM, args=[*_ARGUMENTS])
        yield opened
        opened.close()
