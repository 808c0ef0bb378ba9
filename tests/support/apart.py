"""Bodies of tests that change classes of torch, each in a process of its own."""

import multiprocessing
from collections.abc import Callable

from tests.support.seeing import PRELOADED

_SECONDS = 120


def run_apart(body: Callable[[], None]) -> None:
    """Run a function in a process of its own, as it changes classes of torch."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    process = context.Process(target=body)
    process.start()
    process.join(_SECONDS)
    process.kill()
    assert process.exitcode == 0
