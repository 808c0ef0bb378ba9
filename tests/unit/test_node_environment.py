"""The fingerprint of a node."""

import os
import socket
from typing import Any

import pytest

from autotune.worker.node import environment

GIB, PAGE = 1 << 30, 4096


@pytest.mark.parametrize("pages_less", [0, 1, 1000])
def test_a_page_of_memory_more_or_less_is_the_same_machine(
    monkeypatch: pytest.MonkeyPatch, pages_less: int
) -> None:
    sizes = {"SC_PAGE_SIZE": PAGE, "SC_PHYS_PAGES": (64 * GIB - 300 * 2**20) // PAGE - pages_less}
    usual = os.sysconf

    def sysconf(name: Any) -> int:
        return sizes[name] if name in sizes else usual(name)

    monkeypatch.setattr(os, "sysconf", sysconf)
    assert environment.describe()["memory_bytes"] == 64 * GIB


def test_node_has_the_name_that_its_variable_gives_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pod that is made anew on a node has another host name."""
    monkeypatch.delenv(environment.NODE, raising=False)
    assert environment.describe()["host"] == socket.gethostname()
    monkeypatch.setenv(environment.NODE, "node-7")
    assert environment.describe()["host"] == "node-7"
