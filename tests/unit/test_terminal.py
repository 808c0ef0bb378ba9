"""What trials print does not steer the terminal of whoever reads it."""

import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from autotune.views.terminal import JsonFormatter, PlainFormatter, plain

pytestmark = pytest.mark.fault(30)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("fine: 3 µs, 5 %\tand\na second line", "fine: 3 µs, 5 %\tand\na second line"),
        ("\x1b[2J\x1b]0;title\x07", r"\x1b[2J\x1b]0;title\x07"),
        ("\x1b]52;c;cm0gLXJm\x07", r"\x1b]52;c;cm0gLXJm\x07"),
        ("one byte: \x9b2J", r"one byte: \x9b2J"),
        ("back\b\b\b\bgone\x7f", r"back\x08\x08\x08\x08gone\x7f"),
        ("10 %\r20 %\r\ndone\r\r\n", "10 %\n20 %\ndone\n"),
        ("access \u202etxt.exe", r"access \u202etxt.exe"),
        ("half \udc80", r"half \udc80"),
        ("nul \0", r"nul \x00"),
    ],
)
def test_what_a_terminal_would_obey_is_written_out(text: str, shown: str) -> None:
    assert plain(text) == shown
    assert plain(shown) == shown


def test_the_log_of_a_daemon_is_plain() -> None:
    record = logging.LogRecord("a", logging.INFO, "", 1, "cause: %s", ("\x1b[2J",), None)
    assert PlainFormatter("%(message)s").format(record) == r"cause: \x1b[2J"


def test_a_log_in_json_has_an_object_a_line() -> None:
    try:
        raise ValueError("first\nsecond")
    except ValueError:
        told = sys.exc_info()
    record = logging.LogRecord("a", logging.ERROR, "", 1, "cause: %s", ("\x1b[2J\n\x9b",), told)
    line = JsonFormatter().format(record)
    assert line.isascii() and line.isprintable()
    found = json.loads(line)
    assert (found["level"], found["logger"], found["message"]) == (
        "ERROR",
        "a",
        "cause: \x1b[2J\n\x9b",
    )
    assert found["exception"].endswith("ValueError: first\nsecond")


@pytest.mark.parametrize("studies", ["1", "2"])
@pytest.mark.long
def test_a_daemon_logs_in_json(tmp_path: Path, studies: str) -> None:
    command = [sys.executable, "-P", "-m", "autotune", "daemon", "--idle-exit", "0"]
    done = subprocess.run(
        [*command, "--metrics-port", "0", "--studies", studies],
        cwd=tmp_path,
        env={**os.environ, "AUTOTUNE_LOGS": "json"},
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert any(line["message"].startswith("metrics: http://127.0.0.1:") for line in lines)
