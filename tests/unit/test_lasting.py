"""Which settings of a script say how long it trains, and what is said of one that ends too early."""

import pytest

from autotune.standalone.lasting import LastingMonitor, settings, too_short
from autotune.worker.protocol import Outcome, TrialReport
from autotune.worker.survey_result import Option
from storage import AttemptState


def option(flag: str, value: object, *, sure: bool = True) -> Option:
    return Option(flag, flag.strip("-="), value, sure=sure)


OTHERS = (
    option("--warmup-steps", 10),
    option("--log-every-n-steps", 10),
    option("--eval_steps", 10),
    option("--gradient_accumulation_steps", 10),
    option("--batch-size", 10),
    option("--max-steps", -1),
)


def test_setting_with_the_value_of_the_steps_taken_is_the_one_named() -> None:
    options = (*OTHERS, option("--epochs", 3), option("--max_iters=", 10, sure=False))
    assert [found.flag for found in settings(options, 10)] == ["--max_iters="]


def test_settings_of_epochs_come_before_those_of_steps() -> None:
    options = (*OTHERS, option("--total-timesteps", 500), option("--num_train_epochs", 1))
    named = [found.flag for found in settings(options, 10)]
    assert named == ["--num_train_epochs", "--total-timesteps"]


def test_message_has_steps_seen_steps_needed_and_a_value_that_is_enough() -> None:
    text = too_short("train.py", 10, 0.1, 50.0, (option("--epochs", 2),))
    assert "after 10 optimizer steps" in text
    assert "about 500 steps" in text
    assert "--epochs 100 (now 2)" in text


def test_message_without_a_known_setting_names_none() -> None:
    assert "(now" not in too_short("train.py", 3, None, 50.0, OTHERS)


@pytest.mark.parametrize(("ended_after", "steps"), [(9, 10), (0, 1), (None, None)])
def test_steps_are_counted_of_a_script_that_ended_without_an_error_alone(
    ended_after: int | None, steps: int | None
) -> None:
    judge = LastingMonitor(1.0)
    ended = TrialReport("t", Outcome.ERROR, "it ended", (), 1.0, ended_after=ended_after)
    assert judge.result(ended).state == AttemptState.ERROR
    assert judge.ended_after == steps
