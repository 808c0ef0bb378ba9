"""A study that goes on with another version of torch: what the checks of the old one are worth."""

from typing import Any

from launchers.replay import ENVIRONMENT, Answer, Launch
from launchers.replay.behaviours import noisy
from tests.control.replayed import Replayed


def study(wall_time: str) -> dict[str, Any]:
    return {
        "search_space": {"precision": ["fp32", "bf16"]},
        "baseline": {"micro_batch": 2},
        "sampler": "grid",
        "budget": {"trials": 2, "wall_time": wall_time},
        "measurement": {"finalists": 1, "rounds": 10},
    }


def on(played: Replayed, torch: str, loss: float = 1.0, **more: str) -> Replayed:
    """Runs have this version, in which bf16 comes to this loss; that of fp32 is 1."""

    def behave(launch: Launch) -> Answer:
        fast = launch.knobs["precision"] == "bf16"
        return Answer(
            rate=170.0 if fast else 100.0, startup=5.0, loss=loss if fast else 1.0, stays=False
        )

    environment = {**ENVIRONMENT, "torch": torch, **more}
    return played.on(noisy(behave, run=0.12, block=0.02), seed=3, environment=environment)


def test_what_passed_under_another_version_is_checked_anew(played: Replayed) -> None:
    on(played, "2.8").run(**study("90s"))
    assert played.states("numerics") == ["COMPLETE"]
    assert played.recorded("confirm")
    on(played, "2.9", loss=1.5).run(**study("1h"))
    assert played.states("numerics") == ["COMPLETE", "REFUSED"]
    assert len(played.states("reference")) == 2
    assert played.verdict["knobs"]["precision"] == "fp32"


def test_check_on_an_equal_machine_of_another_name_counts(played: Replayed) -> None:
    on(played, "2.8").run(**study("90s"))
    on(played, "2.8", host="other").run(**study("1h"))
    assert played.states("numerics") == ["COMPLETE"]
    assert played.verdict["knobs"]["precision"] == "bf16"
