"""Check that a script trains for long enough to be measured, and find the settings of its length."""

import dataclasses
import math
from collections.abc import Sequence

from autotune.analysis.wording import counted, quantity
from autotune.config.arguments import ASSIGNMENT
from autotune.runs.monitors import FitMonitor
from autotune.standalone.flags import words_in
from autotune.worker.protocol import (
    COMPRESSION_WARM_UP,
    BlockPlan,
    BlockReport,
    TrialReport,
    TrialRequest,
)
from autotune.worker.survey_result import Option
from storage import AttemptResult

_FEWEST_STEPS = COMPRESSION_WARM_UP + 4
"""Steps of the baseline that show whether it compiles anew at every step, however long they take."""
_MOMENT = 0.1
"""Seconds of a block: reports cost nothing beside short steps, and a step that compiles is longer."""
_MOST_NAMED = 2
_EPOCHS = {"epoch", "epochs"}
_STEPS = {"step", "steps", "iter", "iters", "iterations", "timesteps", "updates"}
_ALL_OF_THEM = {"max", "num", "n", "total", "train", "training", "trainer"}
_ELSEWHERE = {"warmup", "log", "save", "eval", "val", "test", "interval", "freq", "every", "per"}
_ELSEWHERE |= {"decay", "start", "resume", "grad", "gradient", "accumulation", "min", "lr", "print"}


class LastingMonitor(FitMonitor):
    """Monitor of a run that ends once the script has trained for long enough to be measured."""

    def __init__(self, seconds: float) -> None:
        """Take in the seconds of training that the shortest measurement takes."""
        super().__init__()
        self._seconds = seconds
        self.ended_after: int | None = None
        """Steps of a script that ended too early, by itself; None: it did not end so."""

    def __call__(self, block: BlockReport) -> bool:
        super().__call__(block)
        return self.trained >= self._seconds and self.steps >= _FEWEST_STEPS

    def result(self, report: TrialReport) -> AttemptResult:
        """Return COMPLETE or the failure, and note the end of a script that ended too early."""
        if report.ended_after is not None:
            self.ended_after = report.ended_after + 1  # the first step belongs to the start
        return super().result(report)

    @property
    def steps(self) -> int:
        """Optimizer steps after the first one, which belongs to the start."""
        return sum(seen.block.steps for seen in self.seen)

    @property
    def trained(self) -> float:
        """Seconds that these steps took."""
        return sum(seen.block.seconds for seen in self.seen)

    def seconds_of_step(self, taken: int) -> float:
        """Return the seconds of a step; at most so many where all of them took less than a moment."""
        return self.trained / self.steps if self.steps else _MOMENT / taken


def in_moments(asked: TrialRequest) -> TrialRequest:
    """Return the trial with a report every moment, until its monitor ends it."""
    endless = BlockPlan(seconds=_MOMENT, min_steps=1, max_blocks=asked.blocks.max_blocks)
    return dataclasses.replace(asked, blocks=endless)


def too_short(
    target: str, steps: int, per_step: float | None, seconds: float, options: Sequence[Option]
) -> str:
    """Say that a script has ended before it could be measured, and what to do.

    Args:
        steps: optimizer steps that were seen.
        per_step: seconds of a step; None: not known.
        seconds: of training that the longest measurement takes.
    """
    needed = math.ceil(seconds / per_step) if per_step else None
    wanted = f", at its speed about {quantity(needed)} steps" if needed else ""
    named = [
        _longer(option, math.ceil(needed / steps) if needed else None)
        for option in settings(options, steps)
    ]
    by = f": {' or '.join(named)}" if named else ""
    return (
        f"{target} ended by itself after {counted(steps, 'optimizer step')}, before it could be "
        f"measured, so no study is written. One measurement takes up to {seconds:.0f} s of "
        f"training{wanted}. Have it train for longer than that in the command of init{by}. `autotune "
        "run` takes what is found to the job as it is today"
    )


def _longer(option: Option, times: int | None) -> str:
    if times is None:
        return f"{option.flag} (now {option.value})"
    sign = "" if option.flag.endswith(ASSIGNMENT) else " "
    return f"{option.flag}{sign}{int(option.value) * times} (now {option.value})"


def settings(options: Sequence[Option], steps: int) -> list[Option]:
    """Return the settings whose names suggest that they limit the training.

    Args:
        steps: that it took; a setting of that value is the only one returned.
    """
    named = [option for option in options if _says_how_long(option)]
    exact = [option for option in named if int(option.value) == steps and not _of_epochs(option)]
    ordered = sorted(named, key=lambda option: (not option.sure, not _of_epochs(option)))
    return exact[:1] or ordered[:_MOST_NAMED]


def _says_how_long(option: Option) -> bool:
    text, words = str(option.value), {*words_in(option.name)}
    if option.switch or not text.isdecimal() or not int(text) or words & _ELSEWHERE:
        return False
    in_steps = bool(words & _STEPS) and bool(words <= _STEPS or words & _ALL_OF_THEM)
    return _of_epochs(option) or in_steps


def _of_epochs(option: Option) -> bool:
    return bool({*words_in(option.name)} & _EPOCHS)
