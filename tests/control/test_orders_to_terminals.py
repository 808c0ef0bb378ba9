"""A trial fails with words that a terminal would obey: no command prints them as they are."""

import pytest

from autotune.worker.protocol import Outcome
from launchers.replay import Answer, Launch
from tests.control.replayed import PLAIN, Replayed
from tests.support.steering import ask

ORDERS = "\x1b[2J\x1b]0;yours\x07 \x9b31m \u202e \r"


def failing(launch: Launch) -> Answer:
    if launch.knobs["micro_batch"] == 4:
        return Answer(outcome=Outcome.ERROR, cause=f"ValueError: {ORDERS}")
    return PLAIN(launch)


@pytest.mark.fault(30)
def test_no_command_passes_orders_on_to_the_terminal(played: Replayed) -> None:
    played.on(failing).run(search_space={"micro_batch": [2, 4]})
    [failed] = [a for a in played.attempts("search") if a.result.state == "ERROR"]
    assert ORDERS.strip() in failed.result.cause
    for command in (
        *(["logs", played.name], ["logs", played.name, "--trial", str(failed.trial)]),
        *(["status", played.name], ["status", played.name, "--json"], ["list"]),
        *(["report", played.name], ["watch", played.name]),
    ):
        shown = ask(*command, "--storage", played.url, cwd=played.folder)
        said = shown.stdout + shown.stderr
        assert shown.returncode == 0, said
        assert not set(said) & set(ORDERS) - {" ", *"[2J]0;yours31m"}, command
        if "logs" in command:
            assert r"ValueError: \x1b[2J\x1b]0;yours\x07 \x9b31m \u202e" in said
    csv = ask("export", played.name, "--trials", "-", "--storage", played.url, cwd=played.folder)
    assert "\x1b[2J" in csv.stdout, "a program gets it as it is"
