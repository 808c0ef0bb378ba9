"""Runs of the script of a launch command for a few steps, as it is and with settings changed."""

import contextlib
import dataclasses
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from autotune.config import fields
from autotune.errors import BadInput
from autotune.runs.monitors import FitMonitor
from autotune.runs.one_off import OneOffRuns, Shape, why_not
from autotune.runs.request_shapes import surveyed
from autotune.standalone.launched import Launched
from autotune.standalone.named_options import OtherWord
from autotune.standalone.own_options import COMPILE, COMPILING
from autotune.worker.protocol import Timeouts, TrialRequest
from autotune.worker.survey_result import SurveyResult
from search_spaces.knob import KnobValue, written
from storage import AttemptResult, AttemptState

TAIL_BYTES = 4096
"""Bytes of the script's output in which its last line is looked for."""
_SLOWER = 4.0
"""Factor over the first run's time: a run with another setting may compile anew."""
_LEAST_STARTUP = 60.0
_EVERY = 10.0
"""Seconds between two lines."""
_MOST_SHOWN = 100
"""Largest number of characters shown of a line of output."""
_ENDS_OF_LINES = re.compile(r"[\r\n]+")
_WARNING_OF_TORCH = re.compile(
    r"(\[\w+\]:)*(\[W\d+ [^\]]*\.cpp:\d+\]|W\d{4} \S+ \d+ torch/\S+:\d+\])"
)
"""Beginning of a warning in a log of torch, which is not the script's, perhaps behind a rank."""
RunScript = Callable[[Mapping[str, KnobValue]], SurveyResult]
"""Returns what rank 0 sees of the script with these settings changed, or these knobs in force.

Raises:
    BadInput: the script fails with them.
"""


class ScriptRuns:
    """Runs of a script for a few steps, with some settings changed."""

    def __init__(
        self, one_off: OneOffRuns, launched: Launched, workdir: Path, say: Callable[[str], None]
    ) -> None:
        self.one_off = one_off
        self.workdir = workdir
        self.say = say
        self.launched = launched
        self._runs = 0
        self.startup = one_off.setup.spec.measurement.startup_timeout
        self.usual = 0.0
        self._last = ""

    def output(self) -> str:
        """Return the end of what rank 0 printed in the last run."""
        return self.one_off.files(self._last).tail(0, TAIL_BYTES)

    def given(self, others: Sequence[OtherWord]) -> SurveyResult:
        """Return what rank 0 has seen with other words for options; raises as `at`."""
        settings = {other.option.flag: other.word for other in others}
        compiles = any(other.knob == COMPILE for other in others)
        return self._look(settings, {}, compiles=compiles)

    def at(self, settings: Mapping[str, KnobValue]) -> SurveyResult:
        """Return what rank 0 has seen.

        Args:
            settings: flag -> its value; others are as the command has them.

        Raises:
            BadInput: the script fails, or with other settings takes no step.
        """
        return self._look(settings, {}, compiles=False)

    def under(self, knobs: Mapping[str, KnobValue]) -> SurveyResult:
        """Return what rank 0 has seen with these knobs acting from outside.

        Raises:
            BadInput: the script fails with them.
        """
        return self._look({}, knobs, compiles=COMPILE in knobs)

    def _look(
        self,
        settings: Mapping[str, KnobValue],
        knobs: Mapping[str, KnobValue],
        *,
        compiles: bool,
    ) -> SurveyResult:
        self._runs += 1
        name, target = f"survey-{self._runs}", self.launched.target
        own = {flag: flag for flag in settings}
        told = {**settings, **knobs}
        changed = ", ".join(f"{flag} {written(value)}" for flag, value in told.items())
        how = " from outside" if knobs else ""
        self.say(f"Looking at {target}{changed and f' with {changed}{how}'} ...")
        files = self.one_off.files(name)
        given = fields.given(
            self.launched.args,
            own,
            settings,
            variables=self.launched.env,
            workdir=self.workdir,
            folder=files.copies(),
        )
        limit = self._limit(COMPILING if compiles else 1.0)
        with reported(self.say, lambda: files.tail(0, TAIL_BYTES)):
            shape = _shape(given, limit)
            configuration = {**self.one_off.setup.baseline, **knobs}
            result = self.one_off.run(name, configuration, FitMonitor(), shape)
        if why := why_not(result):
            what = why if told else f"{target} does not run here: {why}"
            raise BadInput(f"{what}{self._advice(result, limit)}")
        self.usual = self.usual or result.wall_seconds
        self._last = name
        seen = SurveyResult.from_text(files.survey(0).read_text())
        if told and not seen.steps:
            raise BadInput(seen.ended or "no optimizer step was seen")
        return seen

    def _limit(self, slower: float) -> float:
        """Return the seconds for the start of the next run.

        A run with another setting, which may hang, has a multiple of the first run's time.

        Args:
            slower: factor of that time.
        """
        if not self.usual:
            return self.startup
        return min(self.startup, slower * max(_LEAST_STARTUP, _SLOWER * self.usual))

    def _advice(self, result: AttemptResult, limit: float) -> str:
        return slower_start(limit) if result.state == AttemptState.HANG else ""


def slower_start(limit: float) -> str:
    """Return how to allow a start more than so many seconds."""
    return (
        f"\nA start may take {limit:g} s. If it takes longer: autotune init --startup-timeout "
        f"{2 * limit:g}s -- with the command; the study then has the same limit, as "
        "measurement.startup_timeout"
    )


def _shape(given: fields.Given, startup: float) -> Shape:
    def shape(asked: TrialRequest) -> TrialRequest:
        assert asked.script is not None
        changed = dataclasses.replace(
            asked,
            script=dataclasses.replace(
                asked.script, args=given.arguments, constructed=given.constructed
            ),
            env={**asked.env, **given.variables},
            copies=given.copies,
            timeouts=Timeouts(startup, step=startup),  # nothing is timed
        )
        return surveyed(changed)

    return shape


@contextlib.contextmanager
def reported(
    say: Callable[[str], None], output: Callable[[], str], every: float = _EVERY
) -> Iterator[None]:
    """Report every few seconds, until the block is left, how long it has taken and the last output.

    Args:
        output: returns the end of the output.
        every: seconds between two lines.
    """
    done, began = threading.Event(), time.monotonic()

    def tell() -> None:
        while not done.wait(every):
            last = last_line(output())
            printed = f"; it has printed: {last}" if last else "; it has printed nothing yet"
            say(f"  {time.monotonic() - began:.0f} s{printed}")

    teller = threading.Thread(target=tell, daemon=True)
    teller.start()
    try:
        yield
    finally:
        done.set()
        teller.join()


def last_line(text: str) -> str:
    """Return the last line of a script's output, shortened; empty if there is none.

    Blank lines and warnings of torch's logs are left out. A progress bar has many lines.
    """
    lines = (line.strip() for line in reversed(_ENDS_OF_LINES.split(text)))
    last = next((line for line in lines if line and not _WARNING_OF_TORCH.match(line)), "")
    return last if len(last) <= _MOST_SHOWN else f"{last[: _MOST_SHOWN - 3]}..."
