"""What trials print does not steer the terminal of whoever reads it."""

import logging

import pytest

from autotune.views.terminal import PlainFormatter, plain

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
