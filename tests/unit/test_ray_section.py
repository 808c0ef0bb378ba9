"""What `doctor` says of who could run code on a Ray cluster, and the token of our own."""

import os

import pytest

from launchers.ray_token import own_token
from launchers.sections import protection

pytestmark = pytest.mark.fault(30)


@pytest.mark.parametrize(
    ("address", "environment", "version", "safe", "told"),
    [
        (None, {}, "2.60.0", True, "a Ray of its own: runs code only for holders of its token"),
        (None, {"RAY_AUTH_MODE": "disabled"}, "2.60.0", False, "unset RAY_AUTH_MODE"),
        (None, {}, "2.49.2", False, "Ray 2.49.2 knows no tokens"),
        ("10.0.0.1:6379", {"RAY_AUTH_MODE": "token"}, "2.52.0", True, "RAY_AUTH_MODE=token"),
        ("10.0.0.1:6379", {}, "2.60.0", False, "ray get-auth-token --generate"),
        ("127.0.0.1:6379", {}, "3.0.0.dev0", False, "every user of its machines"),
    ],
)
def test_what_doctor_says(
    address: str | None, environment: dict[str, str], version: str, safe: bool, told: str
) -> None:
    found, text = protection(address, environment, version)
    assert found is safe
    assert told in text


def test_the_token_is_there_while_ray_starts_and_not_for_what_comes_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    monkeypatch.setenv("RAY_AUTH_TOKEN", "of the user")
    with own_token():
        assert os.environ["RAY_AUTH_MODE"] == "token"
        assert len(os.environ["RAY_AUTH_TOKEN"]) == 64
    assert "RAY_AUTH_MODE" not in os.environ
    assert os.environ["RAY_AUTH_TOKEN"] == "of the user"


def test_what_the_user_has_said_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    with own_token():
        assert os.environ["RAY_AUTH_MODE"] == "disabled"
